"""Approximate and compressed indexes: recall, ties, what they refuse, and the command line."""

import json
import logging
import shutil
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import faiss
import numpy as np
import pytest
import torch

import hardneg as hn
from calls import uncalled
from hardneg.api.inputs import collection_of
from hardneg.api.reopen import experiment_data
from hardneg.data.training_data import named_split
from hardneg.errors import ArtifactError, NumericError, ResourceError, SettingsError, TrustError
from hardneg.models.loading import load_encoder
from hardneg.process.memory import limit_memory
from hardneg.process.threads import threads_of_faiss
from hardneg.records import offsets_of
from hardneg.search import ann_building
from hardneg.search.ann import FILE, KIND, FaissIndex, check_index, traits
from hardneg.search.ann_building import build_index, choose, drawn, fill, memory_of, recall
from hardneg.search.embedding_store import Embeddings
from hardneg.search.encoding import Encoding
from hardneg.search.retrieve import StoredIndex, dot_products, index_run
from hardneg.search.retriever import Retriever
from hardneg.storage.artifacts import Manifest, open_artifact, publish, read_manifest
from worlds.tiny_records import vectors_of
from worlds.tiny_world import one_thread, tiny_collection, tiny_model  # noqa: F401

OPTIONS = {
    "flat": {},
    "ivf": {"lists": 4, "probes": 2},
    "hnsw": {"links": 8, "ef": 64},
    "pq": {"subvectors": 16, "bits": 4},
    "ivfpq": {"lists": 2, "probes": 2, "subvectors": 16, "bits": 4},
}


@pytest.fixture(scope="module")
def world(world):
    root, (collection, model) = world.root, world
    hn.encode(collection, model, root / "embeddings", cache=root / "cache", device="cpu", token_budget=512)
    return root, collection, model, Embeddings.open(root / "embeddings")


@pytest.fixture(scope="module")
def indexes(world):
    return {kind: build_index(world[3], world[0] / f"index-{kind}", kind, OPTIONS[kind]) for kind in OPTIONS}


def share_found(found, best, queries, embeddings):
    """The share of the first hits whose exact score reaches that of exact search's last hit; pair by pair."""
    exact = [dot_products(queries[i : i + 1].numpy(), embeddings.rows(rows)) for i, rows in enumerate(found)]
    return np.mean([np.mean(ours >= last) for ours, last in zip(exact, best[:, -1].numpy(), strict=True)])


def test_recall_is_measured_against_exact_search(world, indexes):
    embeddings = world[3]
    assert min(indexes["flat"].facts["recall"].values()) == 1.0  # also where equal texts change places at the cut
    assert indexes["hnsw"].facts["recall"]["R@10"] > 0.9
    queries = torch.from_numpy(vectors_of(embeddings).copy())
    for kind in OPTIONS:
        index = FaissIndex(world[0] / f"index-{kind}")
        found = index.search(queries, 10)[1].numpy()
        slow = share_found(found, StoredIndex(embeddings).search(queries, 10)[0], queries, embeddings)
        assert indexes[kind].facts["recall"]["R@10"] == pytest.approx(slow, abs=0.02)


def vectors_in_memory(matrix):
    """Embeddings of a matrix [n, dim], in two shards, as no store on the disk holds them."""
    half = -(-len(matrix) // 2)
    norm = float(np.linalg.norm(matrix.astype(np.float64), axis=1).max())
    shards = (matrix[:half], matrix[half:])
    return Embeddings(
        Path(), len(matrix), matrix.shape[1], shards, matrix.mean(0), 0.0, norm, Manifest("embeddings")
    )


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_recall_takes_one_of_equal_passages_for_another(dtype):
    """Whether copies that exact search ranks lower are found, faiss decides: flat's R@10 was 0 here."""
    distinct = np.random.default_rng(0).normal(size=(60, 16)).astype(dtype)
    copies = vectors_in_memory(np.tile(distinct, (20, 1)))
    flat = ann_building.make("flat", 16, {})
    fill(flat, copies, 0)
    assert recall(flat, copies)["recall"] == {"R@10": 1.0, "R@100": 1.0}


def test_passages_are_added_block_by_block_of_each_shard(monkeypatch):
    monkeypatch.setattr(ann_building, "BLOCK", 7)
    vectors = np.random.default_rng(0).normal(size=(30, 16)).astype(np.float32)
    flat = ann_building.make("flat", 16, {})
    fill(flat, vectors_in_memory(vectors), 0)
    assert np.array_equal(flat.reconstruct_n(0, 30), vectors)


@pytest.mark.parametrize("n", [700, 50])
def test_recall_without_equal_passages_counts_the_rows_of_exact_search(n):
    different = vectors_in_memory(np.random.default_rng(0).normal(size=(n, 16)).astype(np.float32))
    few = ann_building.make("ivf", 16, {"lists": 12, "probes": 1})  # finds fewer than 100, so that rows are -1
    fill(few, different, n)
    few.nprobe = 1
    sample = torch.from_numpy(different.rows(drawn(n, 200, "index/recall")))
    exact, found = (
        StoredIndex(different).search(sample, min(n, 100))[1].numpy(),
        few.search(sample.numpy(), min(n, 100))[1],
    )
    assert (found < 0).any()
    shares = {
        f"R@{k}": round(
            np.mean([len(set(a[:k]) & set(b[:k])) for a, b in zip(exact, found, strict=True)]) / min(k, n), 4
        )
        for k in (10, 100)
    }
    assert recall(few, different)["recall"] == shares
    assert 0.1 < shares["R@10"] < 0.95


@pytest.mark.usefixtures("in_float32")
def test_queries_are_rounded_as_the_passages_that_are_searched(world, tmp_path):
    """Those of a split were rounded to float16 over float32 passages, too, and texts were not."""
    root, collection, model, _ = world
    how = {"cache": root / "cache", "device": "cpu"}
    hn.encode(collection, model, tmp_path / "e", dtype="float32", **how)
    build_index(Embeddings.open(tmp_path / "e"), tmp_path / "i", "flat", {})
    rows = np.arange(3, dtype=np.int32)
    for place in ({"embeddings": tmp_path / "e"}, {"index": tmp_path / "i"}):
        with hn.open_retriever(collection, model, **place, **how) as opened:
            split, texts = (
                opened.search_queries(rows, 5),
                opened.search_texts(collection.query_texts.take(rows), 5),
            )
            assert opened.queries.rows(rows).dtype == np.float32
        np.testing.assert_allclose(split.scores, texts.scores, rtol=1e-6)
    for place in ({"embeddings": root / "embeddings"}, {}):
        with hn.open_retriever(collection, model, **place, **how) as opened:
            assert opened.queries.rows(rows).dtype == np.float16


def test_an_index_is_checked_by_the_tokens_of_the_experiment(world, tmp_path):
    root, collection, model, _ = world
    ours = Retriever(
        load_encoder(model), collection, tmp_path / "new", encoding=Encoding(512), beside=root / "cache"
    )
    assert ours.texts_digest == Embeddings.open(root / "embeddings").manifest.inputs["tokens"]
    assert not (tmp_path / "new").exists()


def test_recall_of_given_queries(world, tmp_path):
    root, collection, model, _ = world
    common = {"kind": "pq", "subvectors": 4, "bits": 4, "cache": root / "cache", "device": "cpu"}
    facts = hn.index(root / "embeddings", tmp_path / "i", data=collection, model=model, split="train", **common)
    assert facts["recall_of"] == "60 queries"
    state = hn.encode(collection, model, tmp_path / "q", side="query", cache=root / "cache", device="cpu")
    assert state["vectors"] == 92
    queries = torch.from_numpy(
        Embeddings.open(tmp_path / "q").rows(named_split(collection, "train", "--split").query_rows)
    )
    found = FaissIndex(tmp_path / "i").index.search(queries.float().numpy(), 100)[1][:, :10]  # ties by depth
    slow = share_found(found, StoredIndex(world[3]).search(queries, 10)[0], queries, world[3])
    assert facts["recall"]["R@10"] == round(float(slow), 4)
    with pytest.raises(ArtifactError, match="OTHER_TEXTS: these are embeddings of the query side"):
        hn.index(tmp_path / "q", tmp_path / "j")
    for lacking, code in (({"data": collection}, "NO_MODEL"), ({"model": model}, "NO_DATA")):
        with pytest.raises(SettingsError, match=code):
            hn.index(root / "embeddings", tmp_path / "j", **lacking)
    with pytest.raises(
        SettingsError, match=r"split = nosuch has no effect without .*; leave split out, or give data="
    ):
        hn.index(root / "embeddings", tmp_path / "j", split="nosuch")
    assert not (tmp_path / "j").exists()


def test_recall_of_the_dev_that_training_held_out(tmp_path):
    data, first = tmp_path / "data.csv", tmp_path / "first"
    rows = [f"how is part {i} of machine {i % 7} made,part {i} is cast in form {i * 3}" for i in range(40)]
    data.write_text("\n".join(["query,passage", *rows]))
    collection = collection_of(data, None)
    how = {"queries_per_step": 4, "measures": "RR@10", "precision": "float32", "device": "cpu"}
    model = tiny_model(tmp_path / "model", collection)
    hn.train("warmup", data, model, first, mixtures="in_batch", steps=2, **how)
    dev = experiment_data(first).dev
    hn.encode(data, first, tmp_path / "embeddings", device="cpu")
    asked = {"data": data, "device": "cpu"}
    for place, name in ((first, "of-experiment"), (first / "model", "of-model")):
        facts = hn.index(tmp_path / "embeddings", tmp_path / name, model=place, **asked)
        assert facts["recall_of"] == f"{len(dev)} queries"
    hn.encode(data, model, tmp_path / "others", device="cpu")
    with pytest.raises(SettingsError, match=r"UNKNOWN_SPLIT: split = 'dev'"):
        hn.index(tmp_path / "others", tmp_path / "of-another", model=model, **asked)


def test_what_is_kept_whole_is_scored_as_exact_search_scores_it(world, indexes):
    queries = torch.from_numpy(world[3].rows(np.arange(0, 120, 9)))
    exact_scores, exact_rows = StoredIndex(world[3]).search(queries, 120)
    known = [dict(zip(r.tolist(), s.tolist(), strict=True)) for r, s in zip(exact_rows, exact_scores, strict=True)]
    for kind in OPTIONS:
        index = FaissIndex(world[0] / f"index-{kind}")
        scores, rows = index.search(queries, 30)
        for i in range(len(queries)):
            alone = index.search(queries[i : i + 1], 30)
            hits = rows[i] >= 0
            if kind in ("flat", "ivf", "hnsw"):  # bit for bit
                assert scores[i][hits].tolist() == [known[i][row] for row in rows[i][hits].tolist()], kind
            shared = np.isin(rows[i].numpy(), alone[1][0].numpy()) & hits.numpy()
            mine = dict(zip(alone[1][0].tolist(), alone[0][0].tolist(), strict=True))
            assert shared.sum() > 25 or kind in ("ivf", "ivfpq")
            assert [mine[row] for row in rows[i][shared].tolist()] == scores[i][shared].tolist(), kind


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


def test_ties_rank_by_row_and_short_lists_stay_short(world, indexes, caplog):
    index = FaissIndex(world[0] / "index-flat")
    scores, rows = index.search(torch.from_numpy(world[3].rows(np.arange(20))), 100)
    assert ((scores[:, 1:] < scores[:, :-1]) | (rows[:, 1:] > rows[:, :-1])).all()
    short = FaissIndex(world[0] / "index-ivf")
    short.index.nprobe = 1
    asked = torch.from_numpy(world[3].rows(np.arange(20))), np.arange(20, dtype=np.int32)
    with caplog.at_level(logging.WARNING):
        run = index_run(short, *asked, 120, "c")
    lengths = np.diff(run.offsets)
    assert (lengths < 120).all()
    assert (run.passage_rows >= 0).all()
    assert f"20 of 20 queries found fewer than 120 passages (at least {lengths.min()})" in caplog.text
    caplog.clear()
    assert np.diff(index_run(index, *asked, 500, "c").offsets).tolist() == [120] * 20  # all there are
    assert not caplog.text


def test_documents_have_the_score_of_their_best_chunk(world, indexes):
    documents = offsets_of(np.array([1, 3, 2] * 20))  # the 120 passages as chunks of 60 documents
    queries, rows = world[3].rows(np.arange(0, 60, 4)), np.arange(15, dtype=np.int32)
    exact = index_run(StoredIndex(world[3]), torch.from_numpy(queries), rows, 9, "c", documents=documents)
    found = index_run(
        FaissIndex(world[0] / "index-flat"), torch.from_numpy(queries), rows, 9, "c", documents=documents
    )
    assert found.unit == "document"
    assert found.offsets.tolist() == exact.offsets.tolist()
    assert found.scores.tolist() == exact.scores.tolist()
    assert np.mean(found.passage_rows == exact.passage_rows) > 0.95  # chunks of equal text may change places
    short = FaissIndex(world[0] / "index-ivf")
    short.index.nprobe = 1
    few = index_run(short, torch.from_numpy(queries), rows, 60, "c", documents=documents)
    for i in range(15):
        hits, scores = few.hits(i)
        assert len(set(hits.tolist())) == len(hits) < 60
        assert (np.diff(scores) <= 0).all()
        assert hits.min() >= 0


def test_the_same_index_twice_whatever_the_threads(world, indexes, tmp_path):
    for threads in (1, 3):
        torch.set_num_threads(threads)
        for kind in OPTIONS:
            again = build_index(world[3], tmp_path / f"{kind}{threads}", kind, OPTIONS[kind])
            assert again.digest == indexes[kind].digest, kind
    torch.set_num_threads(1)


def test_faiss_works_on_torch_s_threads_and_keeps_those_of_the_caller(world, indexes, monkeypatch, tmp_path):
    """Loaded before torch, it has a number of its own, which stands for that here."""
    told, seen = [2], []
    monkeypatch.setattr(faiss, "omp_get_max_threads", lambda: told[-1])
    monkeypatch.setattr(faiss, "omp_set_num_threads", told.append)
    monkeypatch.setattr(ann_building, "fill", lambda *given: seen.append(told[-1]) or fill(*given))
    torch.set_num_threads(3)
    try:
        build_index(world[3], tmp_path / "index", "flat")
        index = FaissIndex(tmp_path / "index")
        vectors = index.vectors(np.arange(4))
        index.search(vectors, 2, progress=lambda done, of: seen.append(told[-1]))
    finally:
        torch.set_num_threads(1)
    assert seen == [3, 3]
    assert told[-1] == 2


def test_torch_keeps_its_threads_in_a_new_thread_that_uses_faiss():
    """They share one OpenMP, if torch was loaded first, and it has a number for each thread."""

    def work():
        with threads_of_faiss():
            pass
        return torch.get_num_threads()

    torch.set_num_threads(3)
    try:
        with ThreadPoolExecutor(1) as pool:
            assert pool.submit(work).result() == 3
    finally:
        torch.set_num_threads(1)


def test_options_by_the_size_of_the_corpus():
    assert choose("ivf", 10_000, 64, {}) == {"lists": 256, "probes": 64}  # 39 passages a list
    assert choose("ivf", 4_000_000, 64, {}) == {"lists": 8000, "probes": 357}
    assert choose("ivf", 50, 64, {}) == {"lists": 1, "probes": 1}
    assert choose("pq", 1000, 384, {}) == {"subvectors": 96, "bits": 8}
    assert choose("pq", 1000, 7, {}) == {"subvectors": 1, "bits": 8}
    assert choose("hnsw", 10, 8, {"ef": 5}) == {"links": 32, "ef_build": 200, "ef": 5}
    assert memory_of("flat", 1_000_000, 100, {}) == 400_000_000 + 6 * 100 * 65536
    assert memory_of("pq", 1_000_000, 100, {"subvectors": 50, "bits": 4}) == 25_000_000 + 600 * (4096 + 65536)


def test_draws_are_without_replacement():
    rows = drawn(1000, 50, "a")
    assert len(set(rows.tolist())) == 50
    assert rows.tolist() == drawn(1000, 50, "a").tolist() == sorted(rows)
    assert rows.tolist() != drawn(1000, 50, "b").tolist()
    assert drawn(3, 50, "a").tolist() == [0, 1, 2]


def test_memory_is_asked_for_first(world, tmp_path):
    limit_memory("1M")
    try:
        with pytest.raises(ResourceError, match="MEMORY_TOO_SMALL: the index needs"):
            build_index(world[3], tmp_path / "i", "flat")
    finally:
        limit_memory()
    assert not (tmp_path / "i").exists()


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


@pytest.mark.usefixtures("indexes")
def test_an_index_of_another_model_or_collection_is_refused(world, tmp_path):
    root, collection, _, _ = world
    other = tiny_model(tmp_path / "other", collection, seed=3)
    with pytest.raises(ArtifactError, match="OTHER_INDEX: the index is of model") as caught:
        hn.search_split(
            collection, tmp_path / "r", model=other, index=root / "index-flat", cache=tmp_path, device="cpu"
        )
    assert caught.value.status == 4


@pytest.mark.parametrize("name", ["dim", "similarity", "tokenizer", "encoder", "tokens"])
def test_what_disagrees_is_named_with_both_values(world, indexes, tmp_path, name):
    index, encoder = FaissIndex(world[0] / "index-flat"), load_encoder(world[2], device="cpu")
    inputs = index.manifest.inputs
    identity = {"digest": inputs["encoder"], "tokens": inputs["tokens"]}
    check_index(index, encoder, **identity)
    ours = {"dim": 64, **traits(encoder, "passage"), "encoder": identity["digest"], "tokens": identity["tokens"]}
    theirs = index.manifest.inputs if name in inputs else index.manifest.facts
    assert theirs[name] == ours[name]
    theirs[name] = "other"  # of this copy in memory
    with pytest.raises(ArtifactError) as caught:
        check_index(index, encoder, **identity)
    assert (caught.value.code, caught.value.status) == ("OTHER_INDEX", 4)
    assert "other, the search of" in caught.value.what
    assert str(ours[name])[:12] in caught.value.what


def test_queries_that_cannot_be_searched(world, indexes):
    index = FaissIndex(world[0] / "index-pq")
    with pytest.raises(ArtifactError, match="OTHER_DIMENSION: queries have dimension 3, the index 64"):
        index.search(torch.ones(1, 3), 5)
    with pytest.raises(NumericError, match="BAD_VECTOR: the vector of query 1 holds NaN"):
        index.search(torch.tensor([[1.0] * 64, [float("nan")] * 64]), 5)
    with pytest.raises(SettingsError, match="BAD_K"):
        index.search(torch.ones(1, 64), 0)


@pytest.mark.parametrize("fault", ["kind", "noise", "size"])
def test_a_file_that_is_not_what_its_manifest_says(world, indexes, tmp_path, fault):
    """Its digests are right: it was published so."""
    manifest, facts = open_artifact(world[0] / "index-pq", KIND), dict(indexes["pq"].facts)
    data = (world[0] / f"index-{'ivf' if fault == 'kind' else 'pq'}" / FILE).read_bytes()
    if fault == "noise":
        data = data[:40] + b"\xff" * 400
    facts["rows"] += fault == "size"
    with publish(tmp_path / "i", KIND, settings=manifest.settings, inputs=manifest.inputs) as draft:
        (draft / FILE).write_bytes(data)
        draft.facts.update(facts)
    with pytest.raises(ArtifactError, match="CORRUPT") as caught:
        FaissIndex(tmp_path / "i")
    assert caught.value.status == 4


def test_a_pickle_in_place_of_an_index_is_not_trusted(world, indexes, tmp_path):
    manifest = open_artifact(world[0] / "index-pq", KIND)
    with publish(tmp_path / "i", KIND, settings=manifest.settings, inputs=manifest.inputs) as draft:
        (draft / FILE).write_bytes(b"\x80\x04\x95")
        draft.facts.update(indexes["pq"].facts)
    with pytest.raises(TrustError, match="UNSAFE_PICKLE"):
        FaissIndex(tmp_path / "i")


@pytest.mark.parametrize("damage", ["flip", "cut", "gone"])
def test_a_damaged_index_never_reaches_faiss(world, indexes, tmp_path, damage):
    place = tmp_path / "index"
    shutil.copytree(world[0] / "index-pq", place)
    data = bytearray((place / "index.faiss").read_bytes())
    data[len(data) // 2] ^= 1
    if damage == "gone":
        (place / "index.faiss").unlink()
    else:
        (place / "index.faiss").write_bytes(data if damage == "flip" else data[:-9])
    sound = partial(FaissIndex, world[0] / "index-pq")
    with uncalled(faiss, "read_index", control=sound), pytest.raises(ArtifactError) as caught:
        FaissIndex(place)
    assert caught.value.status == 4


@pytest.mark.parametrize(
    ("kind", "options", "code"),
    [
        ("lsh", {}, "BAD_SETTING"),
        ("flat", {"lists": 3}, "UNKNOWN_SETTING"),
        ("pq", {"subvectors": 7}, "BAD_SETTING"),
        ("pq", {"bits": 12}, "TOO_FEW"),
        ("pq", {"bits": 13}, "BAD_SETTING"),
        ("pq", {"subvectors": 128}, "BAD_SETTING"),
        ("hnsw", {"links": 0}, "BAD_SETTING"),
        ("hnsw", {"links": 1}, "BAD_SETTING"),  # faiss would end the process
        ("hnsw", {"ef": 1 << 40}, "BAD_SETTING"),
        ("hnsw", {"ef_build": 65_537}, "BAD_SETTING"),
        ("hnsw", {"links": -1}, "BAD_SETTING"),
        ("ivf", {"lists": 121}, "TOO_FEW"),
        ("ivf", {"lists": 3, "probes": 4}, "BAD_SETTING"),
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


def test_a_missing_package_is_named(monkeypatch, world, indexes):
    import sys

    monkeypatch.setitem(sys.modules, "faiss", None)
    with pytest.raises(SettingsError, match="PACKAGE_MISSING: this needs the package faiss-cpu; pip install"):
        FaissIndex(world[0] / "index-flat")
