"""Approximate and compressed indexes: recall, ties, what they refuse, and the command line."""

import json

import numpy as np
import pytest
import torch

import hardneg as hn
from hardneg.artifacts import read_manifest
from hardneg.errors import ArtifactError, SettingsError
from hardneg.search.ann import FaissIndex, StoredIndex, build_index, index_run
from hardneg.search.embedding_store import Embeddings
from tiny_world import one_thread, tiny_collection, tiny_model  # noqa: F401

OPTIONS = {
    "flat": {},
    "ivf": {"lists": 4, "probes": 2},
    "hnsw": {"links": 8, "ef": 64},
    "pq": {"subvectors": 16, "bits": 4},
    "ivfpq": {"lists": 2, "probes": 2, "subvectors": 16, "bits": 4},
}


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    root = tmp_path_factory.mktemp("ann")
    collection = tiny_collection(root / "collection")
    model = tiny_model(root / "model", collection)
    hn.encode(collection, model, root / "embeddings", cache=root / "cache", device="cpu", token_budget=512)
    return root, collection, model, Embeddings.open(root / "embeddings")


@pytest.fixture(scope="module")
def indexes(world):
    return {kind: build_index(world[3], world[0] / f"index-{kind}", kind, **OPTIONS[kind]) for kind in OPTIONS}


def test_recall_is_measured_against_exact_search(world, indexes):
    embeddings = world[3]
    assert min(indexes["flat"].facts["recall"].values()) > 0.99  # equal texts may change places at the cut
    assert indexes["hnsw"].facts["recall"]["R@10"] > 0.9
    queries = torch.from_numpy(embeddings.as_matrix().copy())
    for kind in OPTIONS:
        index = FaissIndex(world[0] / f"index-{kind}")
        found = index.search(queries, 10)[1].numpy()
        exact = StoredIndex(embeddings).search(queries, 10)[1].numpy()
        slow = np.mean([len(set(a.tolist()) & set(b.tolist())) / 10 for a, b in zip(found, exact, strict=True)])
        assert indexes[kind].facts["recall"]["R@10"] == pytest.approx(slow, abs=0.02)


def test_compressed_vectors_are_what_is_scored(world, indexes):
    embeddings = world[3]
    queries = torch.from_numpy(embeddings.rows(np.arange(6))).float()
    for kind in ("pq", "flat", "ivfpq"):
        index = FaissIndex(world[0] / f"index-{kind}")
        scores, rows = index.search(queries, 12)
        for i in range(6):
            vectors = index.vectors(rows[i].numpy())
            assert torch.allclose(vectors @ queries[i], scores[i], atol=1e-3), kind
    sizes = {kind: indexes[kind].facts["bytes"] for kind in OPTIONS}
    assert sizes["pq"] < sizes["flat"]


def test_ties_rank_by_row_and_short_lists_stay_short(world, indexes):
    index = FaissIndex(world[0] / "index-flat")
    scores, rows = index.search(torch.from_numpy(world[3].rows(np.arange(20))), 100)
    assert ((scores[:, 1:] < scores[:, :-1]) | (rows[:, 1:] > rows[:, :-1])).all()
    short = FaissIndex(world[0] / "index-ivf")
    short.index.nprobe = 1
    run = index_run(short, torch.from_numpy(world[3].rows(np.arange(20))), np.arange(20, dtype=np.int32), 120, "c")
    lengths = np.diff(run.offsets)
    assert (lengths < 120).all()
    assert (run.passage_rows >= 0).all()


def test_the_same_index_twice(world, indexes, tmp_path):
    for kind in OPTIONS:
        again = build_index(world[3], tmp_path / kind, kind, **OPTIONS[kind])
        assert again.digest == indexes[kind].digest, kind


def test_search_through_an_index_equals_its_own_lists(world, indexes, tmp_path):
    root, collection, model, _ = world
    runs = {}
    for kind in ("flat", "pq"):
        out = tmp_path / f"{kind}.trec"
        facts = hn.search_split(
            collection, out, model=model, index=root / f"index-{kind}", k=30, cache=root / "cache", device="cpu"
        )
        assert facts["queries"] == 16
        runs[kind] = out.read_text()
    hn.search_split(collection, tmp_path / "exact.trec", model=model, k=30, cache=root / "cache", device="cpu")
    order = [
        [line.split()[2] for line in text.splitlines()]
        for text in (runs["flat"], (tmp_path / "exact.trec").read_text())
    ]
    assert np.mean([a == b for a, b in zip(*order, strict=True)]) > 0.99
    assert runs["pq"] != runs["flat"]
    hits = hn.search_text(
        collection, "ba be", model=model, index=root / "index-flat", cache=root / "cache", device="cpu"
    )
    assert len(hits) == 5


def test_an_index_of_another_model_or_collection_is_refused(world, tmp_path):
    root, collection, _, _ = world
    other = tiny_model(tmp_path / "other", collection, seed=3)
    with pytest.raises(ArtifactError, match="OTHER_INDEX: an index of model") as caught:
        hn.search_split(
            collection, tmp_path / "r", model=other, index=root / "index-flat", cache=tmp_path, device="cpu"
        )
    assert caught.value.status == 4


@pytest.mark.parametrize("damage", ["flip", "cut", "gone"])
def test_a_damaged_index_never_reaches_faiss(world, indexes, tmp_path, monkeypatch, damage):
    import shutil

    import faiss

    place = tmp_path / "index"
    shutil.copytree(world[0] / "index-pq", place)
    data = bytearray((place / "index.faiss").read_bytes())
    data[len(data) // 2] ^= 1
    if damage == "gone":
        (place / "index.faiss").unlink()
    else:
        (place / "index.faiss").write_bytes(data if damage == "flip" else data[:-9])
    monkeypatch.setattr(faiss, "read_index", lambda *_: pytest.fail("faiss read a damaged file"))
    with pytest.raises(ArtifactError) as caught:
        FaissIndex(place)
    assert caught.value.status == 4


@pytest.mark.parametrize(
    ("kind", "options", "code"),
    [
        ("lsh", {}, "BAD_SETTING"),
        ("flat", {"lists": 3}, "UNKNOWN_SETTING"),
        ("pq", {"subvectors": 7}, "BAD_SETTING"),
        ("pq", {"bits": 12}, "TOO_FEW"),
        ("hnsw", {"links": -1}, "BAD_SETTING"),
    ],
)
def test_wrong_options_are_refused(world, tmp_path, kind, options, code):
    with pytest.raises(hn.HardnegError) as caught:
        hn.index(world[0] / "embeddings", tmp_path / "i", kind=kind, **options)
    assert caught.value.code == code
    assert not (tmp_path / "i").exists()


def test_the_command(world, tmp_path, hardneg):
    out, arguments = tmp_path / "index", ["index", world[0] / "embeddings", "--kind", "flat", "--out"]
    status, shown, _ = hardneg(*arguments, out, "--json")
    assert status == 0
    assert json.loads(shown)["recall"]["R@10"] > 0.99
    assert read_manifest(out).kind == "index"
    assert hardneg(*arguments, out)[0] == 2


def test_a_missing_package_is_named(monkeypatch, world):
    import sys

    monkeypatch.setitem(sys.modules, "faiss", None)
    with pytest.raises(SettingsError, match="PACKAGE_MISSING: this needs the package faiss-cpu; pip install"):
        FaissIndex(world[0] / "index-flat")
