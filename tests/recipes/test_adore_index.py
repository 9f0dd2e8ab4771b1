"""ADORE over an index that was built before: its retrieved negatives, and the indexes and options that it refuses.

Training refuses an index with the same error codes as search does.
"""

import json
import shutil
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import hardneg as hn
from calls import uncalled
from hardneg.api.recipes import settings_of
from hardneg.data.training_data import choose_splits
from hardneg.errors import ArtifactError, Faults, HardnegError, SettingsError
from hardneg.models.loading import load_encoder
from hardneg.recipes.adore.query_batches import given_lists, retrieved_lists
from hardneg.recipes.adore.recipe import RECIPE
from hardneg.records import Positives, offsets_of
from hardneg.search import encoding
from hardneg.search.ann import FILE, KIND
from hardneg.storage.artifacts import publish, read_manifest
from worlds.tiny_world import one_thread, tiny_model  # noqa: F401

OPTIONS = {
    "flat": {},
    "ivf": {"lists": 8, "probes": 1},
    "hnsw": {"links": 8, "ef": 32},
    "pq": {"subvectors": 4, "bits": 4},
    "ivfpq": {"lists": 4, "probes": 2, "subvectors": 4, "bits": 4},
}
SMALL = {"cut": 10, "steps": 3, "warmup": 1, "depth": 20, "learning_rate": 1e-2, "queries_per_step": 8, "seed": 7}
COMMON = {"device": "cpu", "measures": "RR@10", "token_budget": 512}


@pytest.fixture(scope="module")
def built(world, tmp_path_factory):
    """An index of every kind over the passages of the calm model, and where they lie."""
    root = tmp_path_factory.mktemp("built")
    hn.encode(
        world.collection, world.calm, root / "embeddings", cache=root / "cache", device="cpu", token_budget=512
    )
    for kind, options in OPTIONS.items():
        hn.index(root / "embeddings", root / kind, kind=kind, **options)
    return root


@pytest.fixture(scope="module")
def train(world, built):
    """A function that trains, with a cache of its own and what the test changes."""

    def run(out, place, /, **changes):
        options = SMALL | COMMON | {"cache": built / "cache"} | changes
        data, model = options.pop("data", world.collection), options.pop("model", world.calm)
        return hn.train_adore(data, model, out, index_folder=place, **options)

    return run


@pytest.fixture(scope="module")
def over_ivf(train, built, tmp_path_factory):
    """An experiment over an index that finds fewer passages than it is asked for."""
    out = tmp_path_factory.mktemp("over") / "exp"
    return SimpleNamespace(results=train(out, built / "ivf"), path=out, index=built / "ivf")


def lines_of(path):
    return [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]


# ---------------------------------------------------------------- from start to results


def test_the_experiment_names_the_index_for_inference(world, over_ivf, tmp_path):
    results, path, digest = over_ivf.results, over_ivf.path, read_manifest(over_ivf.index).digest
    assert list(results["test"]) == ["bm25", "untrained", "untrained/ivf", "final/ivf", "final"]
    assert results["index"] == {"kind": "ivf", "options": OPTIONS["ivf"], "digest": digest}
    begun = json.loads((path / "settings.json").read_text())
    assert (begun["inputs"]["index"], begun["result_settings"]["index"]) == (digest, "given")
    assert str(over_ivf.index) not in (path / "settings.json").read_text() + (path / "results.json").read_text()
    assert read_manifest(path / "model").inputs["index"] == digest
    assert f"the `ivf` index `{digest[:12]}`" in (path / "model/README.md").read_text()
    assert not (path / "index").exists()
    # end to end: what it retrieved in the end is what the command finds with that index
    run, options = tmp_path / "run.trec", {"cache": tmp_path / "cache", "device": "cpu"}
    hn.search_split(
        world.collection, run, model=str(path / "model"), index=over_ivf.index, split="test", k=100, **options
    )
    measured = hn.evaluate(run, data=world.collection, split="test", measures="RR@10")["measures"]["RR@10"]
    assert measured == pytest.approx(results["test"]["final/ivf"]["RR@10"], abs=1e-12)


def test_lists_that_stay_short_are_trained_on(over_ivf):
    rows = lines_of(over_ivf.path)
    assert len({row["retrieved"] for row in rows}) == SMALL["steps"]
    assert all(row["loss"] > 0 and np.isfinite(row["grad_norm"]) for row in rows)


@pytest.mark.parametrize("kind", ["flat", "hnsw", "ivfpq"])
def test_every_kind_is_trained_over(world, built, run_states, kind):
    done = run_states(RECIPE, index_folder=built / kind, **SMALL | {"index": "given"})
    assert done.results["states"] == ["untrained", f"untrained/{kind}", f"final/{kind}", "final"]
    assert load_encoder(str(done.path / "model")).digest("passage") == load_encoder(world.calm).digest("passage")


def test_a_given_index_is_trained_over_as_one_that_is_built(train, tmp_path):
    own = train(tmp_path / "own", None, index="pq", **OPTIONS["pq"])
    given = train(tmp_path / "given", tmp_path / "own/index")
    assert own["index"] == given["index"]
    assert own["test"] == given["test"]
    for name in ("metrics.jsonl", "model/query/model.safetensors"):
        assert (tmp_path / "own" / name).read_bytes() == (tmp_path / "given" / name).read_bytes()


# ---------------------------------------------------------------- resuming


def test_a_finished_experiment_knows_its_index_wherever_it_lies(train, over_ivf, tmp_path):
    shutil.copytree(over_ivf.index, tmp_path / "moved")
    before = (over_ivf.path / "results.json").read_bytes()
    assert train(over_ivf.path, tmp_path / "moved") == over_ivf.results
    assert (over_ivf.path / "results.json").read_bytes() == before


def test_it_does_not_go_on_with_another_index(train, over_ivf, built, tmp_path):
    place, out = tmp_path / "index", tmp_path / "exp"
    shutil.copytree(over_ivf.path, out)
    for name in ("results.json", "seal.json"):
        (out / name).unlink()  # it was stopped before
    hn.index(built / "embeddings", place, kind="ivf", lists=8, probes=2)
    old, new = read_manifest(over_ivf.index).digest, read_manifest(place).digest
    with pytest.raises(ArtifactError, match=f"INPUT_CHANGED: .* index: '{old[:12]}…' -> '{new[:12]}…'") as caught:
        train(out, place)
    assert caught.value.status == 4
    for changes in ({"index": "exact"}, {"index": "pq", **OPTIONS["pq"]}):
        with pytest.raises(ArtifactError, match=f"SETTINGS_CHANGED: .*index: 'given' -> '{changes['index']}'"):
            train(out, None, **changes)
    shutil.rmtree(place)
    shutil.copytree(over_ivf.index, place)
    assert train(out, place) == over_ivf.results


# ---------------------------------------------------------------- refused as for search


def other_model(world, built, place):
    return {"model": tiny_model(place / "other", world.collection, dropout=0.0, seed=3)}, built / "flat"


def other_texts(world, built, place):
    return {"passage_length": 9}, built / "flat"


def other_similarity(world, built, place):
    return {"normalize": True}, built / "flat"


def flipped(world, built, place):
    shutil.copytree(built / "pq", place / "pq")
    data = bytearray((place / "pq" / FILE).read_bytes())
    data[len(data) // 2] ^= 1
    (place / "pq" / FILE).write_bytes(data)
    return {}, place / "pq"


def pickled(world, built, place):
    manifest = read_manifest(built / "pq")
    with publish(place / "pq", KIND, settings=manifest.settings, inputs=manifest.inputs) as draft:
        (draft / FILE).write_bytes(b"\x80\x04\x95")
        draft.facts.update(manifest.facts)
    return {}, place / "pq"


def none_at_all(world, built, place):
    return {}, built / "embeddings"


REFUSED = [
    (other_model, "OTHER_INDEX", 4),
    (other_texts, "OTHER_INDEX", 4),
    (other_similarity, "OTHER_INDEX", 4),
    (flipped, "CORRUPT", 4),
    (pickled, "UNSAFE_PICKLE", 9),
    (none_at_all, "WRONG_KIND", 4),
]


@pytest.mark.parametrize(("fault", "code", "status"), REFUSED, ids=[row[0].__name__ for row in REFUSED])
def test_an_index_is_refused_as_search_refuses_it(world, train, built, tmp_path, fault, code, status):
    changes, index = fault(world, built, tmp_path)
    said = []
    with pytest.raises(HardnegError) as caught:
        train(tmp_path / "exp", index, **changes)
    said.append(caught.value)
    if not changes or "model" in changes:  # what a setting changes, search reads from the model
        with pytest.raises(HardnegError) as caught:
            hn.search_split(
                world.collection,
                tmp_path / "run",
                model=changes.get("model", world.calm),
                index=index,
                cache=built / "cache",
                device="cpu",
            )
        said.append(caught.value)
    assert {(one.code, one.status) for one in said} == {(code, status)}
    assert len({str(one) for one in said}) == 1
    assert not (tmp_path / "exp").exists()


def test_an_index_of_another_collection_is_refused_and_the_corrected_command_begins(world, train, built, tmp_path):
    rows = np.arange(world.collection.n_passages - 1)
    passages = zip(
        *(column.take(rows) for column in (world.collection.titles, world.collection.texts)), strict=True
    )
    named = [(world.collection.passage_ids[row], *both) for row, both in zip(rows, passages, strict=True)]
    data = choose_splits(world.collection, dev="none")
    queries = [int(row) for row in data.train.query_rows[:9]]
    texts = {world.collection.query_ids[q]: world.collection.query_texts.take([q])[0] for q in queries}
    judged = {query: ["p000"] for query in texts}
    other = hn.Collection.from_lists(named, texts, {"train": judged, "test": judged}, to=tmp_path / "other")
    out, options = tmp_path / "exp", {"data": other, "cache": None, "splits": hn.Splits(dev="none")}
    with pytest.raises(ArtifactError, match="OTHER_INDEX: the index is of texts ") as no:
        train(out, built / "flat", **options)
    assert no.value.status == 4
    assert not (out / "settings.json").exists()
    hn.encode(other, world.calm, tmp_path / "embeddings", device="cpu", cache=tmp_path / "cache")
    hn.index(tmp_path / "embeddings", tmp_path / "right", kind="flat")
    assert "final/flat" in train(out, tmp_path / "right", **options)["test"]


# ---------------------------------------------------------------- options, before anything is done


@pytest.fixture
def idle(world, tmp_path):
    """Nothing is encoded; a search does, in the same way."""

    def search():
        out, options = tmp_path / "run.trec", {"cache": tmp_path / "own", "device": "cpu"}
        hn.search_split(world.collection, out, model=world.calm, k=5, **options)

    with uncalled(encoding, "encode_store", control=search):
        yield


@pytest.mark.parametrize(
    ("options", "codes"),
    [
        (
            {"subvectors": 7, "bits": 4},
            ["BAD_SETTING: subvectors = 7 does not divide 64 dimensions; give a divisor of the dimension"],
        ),
        (
            {"subvectors": 128, "bits": 4},
            ["BAD_SETTING: subvectors = 128 does not divide 64 dimensions; give a divisor of the dimension"],
        ),
        ({}, ["TOO_FEW: 120 passages are too few for codes of 8 bits; give at least 256, or fewer bits"]),
        ({"subvectors": 7, "bits": 12}, ["BAD_SETTING: subvectors = 7 does", "TOO_FEW: 120 passages are too few"]),
        ({"subvectors": 7, "bits": 4, "chunks": 2}, ["BAD_SETTING: adore ranks", "BAD_SETTING: subvectors = 7"]),
    ],
)
def test_options_that_do_not_fit_are_told_at_once(world, idle, tmp_path, options, codes):
    settings = settings_of("adore", index="pq", cut=10, **options)
    for run in (hn.train_adore, lambda *given, **named: hn.plan("adore", *given, **named)):
        with pytest.raises(HardnegError) as caught:
            run(world.collection, world.calm, tmp_path / "exp", settings=settings, device="cpu")
        assert len(caught.value.lines) == len(codes)
        assert all(line.startswith(code) for line, code in zip(caught.value.lines, codes, strict=True))
        assert caught.value.status == (3 if codes[0].startswith("TOO_FEW") else 2)
        assert not (tmp_path / "exp").exists()


@pytest.mark.parametrize("index", ["exact", "given"])
def test_options_of_what_is_not_built_are_refused(index):
    with pytest.raises(
        Faults, match=f"subvectors = 8, bits = 4 with index = {index}, where nothing is compressed"
    ):
        settings_of("adore", index=index, cut=10, subvectors=8, bits=4)


def test_one_index_is_trained_over(world, built, tmp_path):
    train = [world.collection, world.calm, tmp_path / "exp"]
    with pytest.raises(SettingsError, match="BAD_SETTING: an index is given, but index = pq builds another"):
        hn.train_adore(*train, index_folder=built / "pq", index="pq", subvectors=4, bits=4, cut=10)
    with pytest.raises(SettingsError, match="BAD_SETTING: index = given needs an index; give index_folder="):
        hn.train_adore(*train, index="given", cut=10)
    with pytest.raises(SettingsError, match="BAD_SETTING: an index is given, but this recipe searches with none"):
        hn.train_star(*train, index_folder=built / "pq")
    assert not (tmp_path / "exp").exists()


def test_the_command_checks_an_index_before_it_trains(world, built, tmp_path, hardneg, idle):
    words = ["train", "adore", "--data", world.collection.path, "--out", tmp_path / "exp", "--set", "cut=10"]
    words += ["--device", "cpu", "--index", built / "hnsw", "--json", "--dry-run"]
    status, out, err = hardneg(*words, "--model", world.calm)
    assert status == 0, err
    assert json.loads(out)["settings"]["index"] == "given"
    status, out, err = hardneg(*words, "--model", world.model)  # of the same weights, with dropout
    assert (status, out) == (4, "")
    assert err.splitlines()[-1].startswith(f"{built / 'hnsw'}: OTHER_INDEX: the index is of model ")


# ---------------------------------------------------------------- short lists


@pytest.mark.parametrize("given", [True, False])
def test_what_goes_to_the_device_owns_its_memory(given):
    """Pinned memory is laid out as the array is, and nothing can be written where entries share a place."""
    positives = Positives(np.arange(2, dtype=np.int32), offsets_of(np.array([1, 1])), np.array([4, 5], np.int32))
    rows = np.array([[1, 2, 3], [1, 2, 5]], np.int32)
    lists = given_lists(list(rows), positives) if given else retrieved_lists(rows, positives)
    for one in (lists.rows, lists.ranks, lists.positive, lists.valid):
        assert one.flags.writeable
        assert one.flags.c_contiguous
        tensor = torch.from_numpy(one)
        like = torch.empty(0, dtype=tensor.dtype).set_(
            torch.empty(one.size, dtype=tensor.dtype).untyped_storage(), 0, tensor.shape, tensor.stride()
        )
        assert like.copy_(tensor).equal(tensor)


def test_what_was_not_found_is_no_entry():
    found = np.array([[4, 2, -1], [-1, -1, -1], [7, -1, -1]], np.int32)
    known = np.array([2, 5, 6, 8], np.int32)
    lists = retrieved_lists(found, Positives(np.arange(3, dtype=np.int32), offsets_of(np.array([1, 2, 1])), known))
    assert lists.valid.tolist() == [
        [True, True, False, False, False],
        [False, False, False, True, True],
        [True, False, False, True, False],
    ]
    assert lists.positive.tolist() == [
        [False, True, False, False, False],
        [False, False, False, True, True],
        [False, False, False, True, False],
    ]
    assert lists.rows.min() == 0
    assert lists.rows[1, 3:].tolist() == [5, 6]
    assert lists.ranks[0].tolist() == [1, 2, 3, 4, 5]
