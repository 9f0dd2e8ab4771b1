"""A command's output never replaces its input; numbers and texts that no file can hold are refused."""

import json
import os
import shutil
from dataclasses import replace

import numpy as np
import pytest

import hardneg as hn
from hardneg.api.clean import clean_cache
from hardneg.api.convert import convert
from hardneg.api.export import export_pool
from hardneg.data.formats.trec import read_runs, write_run
from hardneg.errors import ArtifactError, BusyError, HardnegError, SettingsError
from hardneg.negatives.candidates import Filters
from hardneg.search.encoding import encode_side
from hardneg.storage.lease import LEASES, lease, sharing
from worlds.tiny_world import one_thread, tiny_collection  # noqa: F401

HUGE = 99_999_999_999_999_999_999_999


@pytest.fixture(scope="module")
def made(world, tmp_path_factory):
    """A folder with two runs of the test queries, a pool, and the judgements of test."""
    root = tmp_path_factory.mktemp("made")
    for name, who in (("a", {"bm25": True}), ("b", {"model": world.model, "device": "cpu"})):
        hn.search_split(world.collection, root / f"{name}.trec", k=20, cache=root / "cache", **who)
    options = {"sources": ["query", "bm25"], "depth": 20, "count": 5, "device": "cpu", "cache": root / "cache"}
    hn.mine(world.collection, world.model, root / "pool", **options)
    qrels, data = world.collection.qrels("test"), world.collection
    rows = zip(np.repeat(qrels.query_rows, np.diff(qrels.offsets)), qrels.passage_rows, strict=True)
    lines = (f"{data.query_ids[int(q)]} 0 {data.passage_ids[int(p)]} 1\n" for q, p in rows)
    (root / "test.qrels").write_text("".join(lines))
    (root / "labels.tsv").write_text("query-id\tpassage-id\tlabel\n")
    return root


def unchanged(files, call, match, kind=SettingsError):
    before = [file.read_bytes() for file in files]
    with pytest.raises(kind, match=match):
        call()
    assert [file.read_bytes() for file in files] == before


def test_no_output_replaces_an_input(world, made):
    data, a, b, pool = world.collection, made / "a.trec", made / "b.trec", made / "pool"
    lost = "EXISTS: this file is an input of the command, and would be overwritten"
    unchanged([a], lambda: hn.evaluate(a, data=data, per_query=a), lost)
    unchanged([a, b], lambda: hn.compare([a, b], data=data, per_query=made / "../" / made.name / "b.trec"), lost)
    qrels, labels = made / "test.qrels", made / "labels.tsv"
    unchanged([qrels], lambda: hn.compare([a, b], qrels=qrels, per_query=qrels), lost)
    asked = {"judgements": labels, "bm25": False}
    unchanged([labels], lambda: hn.audit(pool, data, out=labels, **asked), lost)
    unchanged([labels], lambda: hn.audit(pool, data, page=labels, **asked), lost)
    manifest, part = pool / "manifest.json", "EXISTS: this file is a part of"
    unchanged([manifest], lambda: export_pool(pool, data, manifest, format="dpr"), part)
    unchanged([], lambda: hn.audit(pool, data, out=made / "x", page=made / "x"), "EXISTS: the table and the page")
    assert not (made / "x").exists()


def test_runs_of_two_collections_are_not_compared(made, world, tmp_path):
    ids = world.collection.query_ids, world.collection.passage_ids
    runs, _, _ = read_runs([made / "b.trec"], *ids)
    write_run(tmp_path / "b.trec", replace(runs[0], collection="0" * 64), *ids)
    with pytest.raises(ArtifactError, match="OTHER_COLLECTION"):
        hn.compare([made / "a.trec", tmp_path / "b.trec"], qrels=made / "test.qrels")
    assert hn.compare([made / "a.trec", made / "b.trec"], qrels=made / "test.qrels")


@pytest.mark.parametrize("weights", [(1e300, 1e300), (1e39, 1e39), (1e-300, 1e-300), (1.0, 1e-9)])
@pytest.mark.parametrize("method", ["rrf", "linear"])
def test_weights_beyond_what_scores_hold_are_refused(made, tmp_path, weights, method):
    with pytest.raises(SettingsError, match=r"BAD_WEIGHTS: the weights are .*, too large or too small"):
        hn.fuse([made / "a.trec", made / "b.trec"], tmp_path / "f.trec", weights=weights, method=method)
    assert not (tmp_path / "f.trec").exists()


def test_scores_that_were_kept_in_one_precision_are_not_used_in_another(made, world, tmp_path, monkeypatch):
    class Stop(Exception):
        pass

    def stop(*_given, **_named):
        raise Stop

    def score(out, precision, **named):
        monkeypatch.setenv("HARDNEG_PRECISION", precision)
        options = {"data": world.collection, "ranker": world.model, "device": "cpu", "cache": tmp_path / "cache"}
        return hn.score(made / "pool", tmp_path / out, **options, **named).ranker_scores

    with monkeypatch.context() as patched:
        patched.setattr("hardneg.api.score.save_pool", stop)  # all blocks are kept, and no pool is made
        with pytest.raises(Stop):
            score("late", "float32")
    assert list((tmp_path / "cache/pair-scores").iterdir())
    listed = {one["kind"] for one in clean_cache(cache=tmp_path / "cache")["items"]}
    assert "pair-scores" in listed
    late, whole = score("late", "bfloat16"), score("whole", "bfloat16")
    assert np.array_equal(late, whole)
    assert not np.array_equal(late, score("full", "float32"))


@pytest.mark.parametrize("bound", ["max_score", "absolute_margin", "relative_margin"])
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_bounds_on_scores_are_finite(world, made, tmp_path, bound, value):
    options = {"data": world.collection, "ranker": world.model, "device": "cpu"}
    with pytest.raises(SettingsError, match=f"BAD_SETTING: {bound} = (nan|inf); give a finite number"):
        hn.score(made / "pool", tmp_path / "out", **options, filters=Filters(**{bound: value}))
    with pytest.raises(SettingsError, match=f"BAD_SETTING: {bound} = (nan|inf); give a finite number"):
        hn.mine(world.collection, world.model, tmp_path / "out", filters=Filters(**{bound: value}))


@pytest.mark.parametrize("who", ["bm25", "model"])
def test_a_query_that_is_not_utf8_is_refused(world, made, who):
    chosen = {"bm25": True} if who == "bm25" else {"model": world.model, "device": "cpu"}
    with pytest.raises(HardnegError, match=r"BAD_UNICODE: the text 'ba.udcff' is not UTF-8"):
        hn.search_text(world.collection, "ba\udcff", cache=made / "cache", **chosen)


def test_a_run_has_a_name_that_its_manifest_can_hold(made, tmp_path):
    name = os.fsdecode(b"f\xff.trec")
    with pytest.raises(SettingsError, match=r"BAD_SETTING: the path .* is not UTF-8"):
        hn.fuse([made / "a.trec", made / "b.trec"], tmp_path / name)
    assert not list(tmp_path.iterdir())


def test_integers_that_nothing_holds_are_refused(world, made, tmp_path):
    runs = [made / "a.trec", made / "b.trec"]
    calls = (
        lambda: hn.fuse(runs, tmp_path / "f", k=HUGE),
        lambda: hn.fuse(runs, tmp_path / "f", rank_constant=HUGE),
        lambda: hn.fuse(runs, tmp_path / "f", rank_constant=1_000_001),
        lambda: hn.search_text(world.collection, "a", model=world.model, k=HUGE),
        lambda: hn.mine(world.collection, world.model, tmp_path / "p", sources=["query"], count=HUGE),
        lambda: hn.settings_of("ranker", rerank=HUGE),
        lambda: hn.settings_of("star", negatives_per_query=HUGE),
        lambda: hn.settings_of("star", seed=1 << 63),
    )
    for call in calls:
        with pytest.raises(HardnegError, match="BAD_SETTING"):
            call()
    assert hn.settings_of("star", seed=(1 << 63) - 1).seed == (1 << 63) - 1


@pytest.mark.parametrize("name", ["content/passages.texts.utf8", "content/new.trec", "new.trec", "manifest.json"])
def test_no_file_is_written_into_an_artefact(world, made, tmp_path, name):
    inside = shutil.copytree(world.collection.path, tmp_path / "collection")
    before = {path: path.read_bytes() for path in inside.rglob("*") if path.is_file()}
    (tmp_path / "link").symlink_to(inside / "content")
    places = [inside / name, *([tmp_path / "link" / name[8:]] if name.startswith("content/") else [])]
    for place in places:
        with pytest.raises(SettingsError, match=r"EXISTS: this (file is a part of|place lies in a collection)"):
            hn.fuse([made / "a.trec", made / "b.trec"], place)
    assert {path: path.read_bytes() for path in inside.rglob("*") if path.is_file()} == before
    hn.verify(inside)


def test_the_description_of_a_run_is_not_overwritten(world, made):
    for run in ("a.trec", "new.trec"):
        with pytest.raises(
            SettingsError, match=r"EXISTS: names that end in \.manifest\.json are those of the files"
        ):
            hn.evaluate(made / "a.trec", data=world.collection, per_query=made / f"{run}.manifest.json")
    hn.evaluate(made / "a.trec", data=world.collection)


def test_the_list_of_the_cache_has_the_runs_of_mining(world, tmp_path):
    hn.mine(world.collection, world.model, tmp_path / "pool", cache=tmp_path / "cache", device="cpu", count=2)
    listed = {one["kind"] for one in clean_cache(cache=tmp_path / "cache")["items"]}
    there = {place.name for place in (tmp_path / "cache").iterdir()} - {"leases"}
    assert "runs" in listed
    assert there == listed
    assert clean_cache(cache=tmp_path / "cache", delete=True)["deleted"]
    assert clean_cache(cache=tmp_path / "cache")["items"] == []


def test_an_import_that_is_stopped_leaves_no_collection(tmp_path, monkeypatch):
    source = tmp_path / "rows.jsonl"
    source.write_text(json.dumps({"query": "q one", "positive": "p one", "negative": "n one"}) + "\n")

    def stop(*_given, **_named):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr("hardneg.api.convert.keep_given", stop)
        with pytest.raises(KeyboardInterrupt):
            convert(str(source), tmp_path / "data", negatives=tmp_path / "pool")
    convert(str(source), tmp_path / "data", negatives=tmp_path / "pool")


def test_the_cache_keeps_what_another_process_is_making(world, tmp_path, monkeypatch):
    cache = tmp_path / "cache"
    hn.mine(world.collection, world.model, tmp_path / "pool", cache=cache, device="cpu", count=2)
    places = {
        place.parent.name: place for place in cache.glob("*/*") if place.parent.name in ("tokens", "embeddings")
    }
    imported = cache / "collections" / ("ab" * 16)
    imported.mkdir(parents=True)
    told: list[str] = []
    monkeypatch.setattr("hardneg.api.clean.note", told.append)
    makers = [lease(cache / LEASES / places["tokens"].name), sharing(cache / LEASES / places["embeddings"].name)]
    with makers[0], makers[1], lease(imported.with_suffix(".lock")):
        deleted = {one["path"] for one in clean_cache(cache=cache, delete=True)["items"]}
        left = {*places.values(), imported}
        assert all(place.is_dir() for place in left)
        assert deleted
        assert not deleted & set(map(str, left))
        assert {line.partition(" stays: it is in use by ")[0] for line in told} == set(map(str, left))
        with pytest.raises(BusyError), lease(imported.with_suffix(".lock")):
            pass
    assert {one["path"] for one in clean_cache(cache=cache, delete=True)["items"]} >= set(map(str, left))
    assert not any(place.exists() for place in left)
    assert len(told) == 3


def test_embeddings_are_held_while_they_are_made(world, tmp_path, monkeypatch):
    held = []

    def watched(*args, **named):
        (name,) = (place.name for place in (tmp_path / "cache" / LEASES).iterdir() if place.name == args[3].name)
        with pytest.raises(BusyError), lease(tmp_path / "cache" / LEASES / name):
            pass
        held.append(name)
        return encode_side(*args, **named)

    monkeypatch.setattr("hardneg.search.retriever.encode_side", watched)
    hn.mine(world.collection, world.model, tmp_path / "pool", cache=tmp_path / "cache", device="cpu", count=2)
    assert len(held) >= 2
