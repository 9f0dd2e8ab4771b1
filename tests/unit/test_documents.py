"""Documents of several chunks: cut, searched and trained on, each against a slow loop."""

from functools import partial
from itertools import pairwise

import numpy as np
import pytest
import torch

import hardneg as hn
from hardneg.data.tokens import token_batch, tokenize
from hardneg.data.training_data import choose_splits
from hardneg.experiment.snapshot import Snapshot
from hardneg.models.encoder_settings import EncoderSettings
from hardneg.models.loading import load_encoder
from hardneg.models.saving import save_encoder
from hardneg.models.tokenizing import token_store
from hardneg.negatives.mining import QueryScores, mine_candidates
from hardneg.records import TextTemplate, offsets_of
from hardneg.search import encoding, retrieve
from hardneg.search.ann import FaissIndex
from hardneg.search.ann_building import build_index
from hardneg.search.encoding import Encoding
from hardneg.search.exact import ExactIndex
from hardneg.search.retrieve import first_documents, search_documents
from hardneg.training.batches import GroupBatch, best_chunks, group_scores
from worlds.tiny_records import vectors_of
from worlds.tiny_world import one_thread, tiny_collection, tiny_model  # noqa: F401


@pytest.fixture(scope="module")
def world(calm):
    return calm.root, *calm


# ---------------------------------------------------------------- cutting


@pytest.mark.parametrize(("length", "chunks"), [(5, 2), (5, 4), (4, 64), (64, 4)])
def test_chunks_equal_a_loop(world, length, chunks):
    root, collection, model = world
    encoder = load_encoder(model)
    tokenizer = encoder.tokenizer("passage")
    template = TextTemplate("passage", length, chunks=chunks)
    store = tokenize(collection, template, tokenizer, root / "cache")
    cls, sep = (tokenizer.token_to_id(token) for token in ("[CLS]", "[SEP]"))
    everything = np.arange(collection.n_passages)
    for row, (title, text) in enumerate(
        zip(collection.titles.take(everything), collection.texts.take(everything), strict=True)
    ):
        words = [tokenizer.token_to_id(word) for word in text.split()]
        if title:
            words = [*(tokenizer.token_to_id(word) for word in title.split()), sep, *words]
        pieces = [words[i : i + length - 2] for i in range(0, len(words), length - 2)][:chunks]
        batch, dealt = store.read_documents(np.array([row]))
        assert dealt.tolist() == [0, len(pieces)]
        found = [batch.ids[a:b].tolist() for a, b in pairwise(batch.offsets.tolist())]
        assert found == [[cls, *piece, sep] for piece in pieces]
        assert all(store.document(i) == row for i in range(store.first[row], store.first[row + 1]))
        alone = token_batch([text], [title], template, tokenizer)
        assert (alone.ids.tolist(), alone.offsets.tolist()) == (batch.ids.tolist(), batch.offsets.tolist())


def test_one_chunk_is_the_plain_store(world):
    root, collection, model = world
    tokenizer = load_encoder(model).tokenizer("passage")
    plain = tokenize(collection, TextTemplate("passage", 6), tokenizer, root / "cache")
    assert plain.first is None
    batch, dealt = plain.read_documents(np.array([3, 1]))
    assert dealt is None
    assert batch.ids.tolist() == plain.read(np.array([3, 1])).ids.tolist()


def test_characters_are_cut_and_line_breaks_of_titles_separate(tmp_path, world):
    model = world[2]
    words = world[1].texts.take([0])[0].split()[:4]
    collection = hn.Collection.from_lists(
        [("d", f"{words[0]}\n{words[1]}", f"{words[2]} {words[3]}")],
        {"q": words[0]},
        {"test": {"q": ["d"]}},
        to=tmp_path / "c",
    )
    tokenizer = load_encoder(model).tokenizer("passage")
    ids = {token: tokenizer.token_to_id(token) for token in ("[CLS]", "[SEP]", *words)}
    store = tokenize(collection, TextTemplate("passage", 20), tokenizer, tmp_path)
    whole = ["[CLS]", words[0], "[SEP]", words[1], "[SEP]", *words[2:], "[SEP]"]
    assert store.read(np.array([0])).ids.tolist() == [ids[token] for token in whole]
    characters = len(f"{words[0]}[SEP]{words[1]}[SEP]{words[2]}")
    cut = tokenize(collection, TextTemplate("passage", 20, max_characters=characters), tokenizer, tmp_path)
    assert cut.read(np.array([0])).ids.tolist() == [ids[token] for token in [*whole[:6], "[SEP]"]]


# ---------------------------------------------------------------- searching


def slow_documents(queries, chunks, documents, k):
    """The best documents of each query, one at a time: [(score, row), ...]."""
    found = []
    for query in queries.double():
        scores = (chunks.double() @ query).float()
        best = [(-float(scores[a:b].max()), d) for d, (a, b) in enumerate(pairwise(documents.tolist()))]
        found.append([(-score, d) for score, d in sorted(best)[:k]])
    return found


@pytest.mark.parametrize("k", [1, 7, 20, 60, 500])
@pytest.mark.parametrize("kind", ["random", "ties", "one rules"])
def test_search_equals_a_loop_over_documents(k, kind):
    draw = np.random.default_rng(3)
    documents = offsets_of(draw.integers(1, 9, 60))
    chunks = torch.tensor(draw.standard_normal((documents[-1], 8)), dtype=torch.float32)
    queries = torch.rand(12, 8, generator=torch.Generator().manual_seed(1)) + 0.1
    if kind == "ties":
        chunks = torch.tensor(draw.integers(-1, 2, chunks.shape), dtype=torch.float32)
        chunks[(chunks == 0).all(dim=1)] = 1.0
        queries = torch.tensor(draw.integers(1, 3, queries.shape), dtype=torch.float32)
    if kind == "one rules":  # a document whose chunks fill the head of every list
        chunks[documents[7] : documents[8]] = 10 * torch.ones(8)
    search = ExactIndex([chunks[:100], chunks[100:]]).search
    scores, rows, found = search_documents(search, queries, k, documents, whole=True)
    assert found.all()
    for i, expected in enumerate(slow_documents(queries, chunks, documents, k)):
        assert rows[i].tolist() == [row for _, row in expected]
        assert scores[i].tolist() == pytest.approx([score for score, _ in expected], abs=1e-6)


@pytest.mark.parametrize(("cheap", "deeper"), [(10, [(1, 24), (1, 53)]), (53, [(1, 53)])])
def test_lists_that_are_short_of_documents_are_searched_deeper(monkeypatch, cheap, deeper):
    """As deep as is certain to do, or in steps where such lists take much memory."""
    monkeypatch.setattr(retrieve, "CHEAP", cheap)
    documents = np.array([0, 50, 51, 52, 53])
    chunks = torch.cat([torch.full((50, 2), 5.0), torch.tensor([[1.0, 0], [2, 0], [3, 0]])])
    index, asked = ExactIndex(chunks), []

    def search(queries, k):
        asked.append((len(queries), k))
        return index.search(queries, k)

    found = search_documents(search, torch.tensor([[1.0, 0.0], [-1.0, 0.0]]), 3, documents, whole=True)
    scores, rows, whole = (part.tolist() for part in found)
    assert scores == [[5.0, 3.0, 2.0], [-1.0, -2.0, -3.0]]
    assert (rows, whole) == ([[0, 3, 2], [1, 2, 3]], [[True] * 3] * 2)
    assert asked == [(2, 6), *deeper]


def test_first_documents_by_hand():
    scores = np.array([[9, 8, 7, 6, 5]], np.float32)
    chunks, owner = np.array([[4, 5, 0, 1, 2]], np.int32), np.array([0, 1, 1, 1, 2, 2], np.int32)
    found = first_documents(scores, chunks, owner, 3)
    assert [part.tolist() for part in found] == [[[9, 7, 6]], [[2, 0, 1]], [3]]
    assert first_documents(scores, chunks, owner // 2, 3)[2].tolist() == [2]  # fewer than are wanted


def test_first_documents_equal_a_loop_in_any_blocks(monkeypatch):
    draw = np.random.default_rng(5)
    scores = -np.sort(-draw.standard_normal((23, 40)).astype(np.float32), axis=1)
    chunks = np.stack([draw.permutation(70)[:40] for _ in range(23)]).astype(np.int32)
    owner = np.sort(draw.integers(0, 12, 70)).astype(np.int32)
    monkeypatch.setattr(retrieve, "BLOCK", 7)
    best, rows, found = first_documents(scores, chunks, owner, 6)
    for i in range(23):
        seen = dict(zip(owner[chunks[i]][::-1].tolist(), scores[i][::-1].tolist(), strict=True))
        expected = sorted(seen.items(), key=lambda item: -item[1])[:6]
        assert list(zip(rows[i].tolist(), best[i].tolist(), strict=True)) == expected
    assert found.tolist() == [6] * 23


def test_a_search_for_nothing_is_refused():
    index = ExactIndex(torch.ones(2, 3))
    with pytest.raises(hn.HardnegError, match="BAD_K"):
        search_documents(index.search, torch.ones(1, 3), 0, np.array([0, 2]), whole=True)
    with pytest.raises(hn.HardnegError, match="NO_QUERIES"):
        search_documents(index.search, torch.ones(0, 3), 1, np.array([0, 2]), whole=True)


# ---------------------------------------------------------------- a state of the model


def snapshot_of(world, folder, *, chunks=3, passages_at=None):
    root, collection, model = world
    encoder = load_encoder(model, chunks=chunks, passage_length=5)
    options = {"encoding": Encoding(token_budget=512), "passages_at": passages_at}
    return Snapshot(encoder, collection, "state", folder, root / "cache", **options)


def brute_force(state, vectors, k):
    store = token_store(state.encoder, state.collection, state.cache, "passage")
    stored = torch.as_tensor(vectors_of(state.passages))
    return slow_documents(torch.as_tensor(vectors), stored, store.first, k)


def lists_of(run):
    return [
        [(score, row) for row, score in zip(*(part.tolist() for part in run.hits(i)), strict=True)]
        for i in range(len(run))
    ]


def test_runs_of_queries_and_of_positives_equal_a_loop(world, tmp_path):
    state, k = snapshot_of(world, tmp_path), 30
    train = choose_splits(state.collection).train
    first = token_store(state.encoder, state.collection, state.cache, "passage").first
    assert first[-1] > 1.5 * state.collection.n_passages  # there is something to reduce
    for name, run, vectors in (
        ("query", state.search("query", train.query_rows, k), state.queries.rows(train.query_rows)),
        (
            "lookahead",
            state.neighbours("lookahead", train.query_rows, train.first(), k),
            vectors_of(state.passages)[first[train.first()]],
        ),
    ):
        assert run.unit == "document"
        expected = brute_force(state, vectors, k)
        for found, best in zip(lists_of(run), expected, strict=True):
            assert [row for _, row in found] == [row for _, row in best], name
            assert [score for score, _ in found] == pytest.approx([score for score, _ in best], rel=1e-6)


@pytest.mark.parametrize("source", ["query", "lookahead"])
@pytest.mark.parametrize("chunks", [1, 3])
def test_margins_compare_documents_by_their_best_chunk_for_the_query(world, tmp_path, source, chunks):
    state = snapshot_of(world, tmp_path, chunks=chunks)
    train = choose_splits(state.collection).train
    run = state.search("query", train.query_rows, state.collection.n_passages)
    listed = [{row: score for score, row in hits} for hits in lists_of(run)]
    expected = [min(found[row] for row in train.of(i)) for i, found in enumerate(listed)]
    assert QueryScores.of(state, train, source).positives_lowest().tolist() == expected
    pool = mine_candidates(state, train, source, episode=1, depth=50, filters=hn.Filters(absolute_margin=0.05))
    left = 0
    for i in range(len(pool)):
        part = slice(pool.offsets[i], pool.offsets[i + 1])
        assert all(listed[i][row] <= expected[i] - 0.05 for row in pool.passage_rows[part].tolist())
        left += part.stop - part.start
    assert left > 100


def test_shards_made_apart_serve_a_search(world, tmp_path, monkeypatch):
    _, collection, model = world
    save_encoder(load_encoder(model, chunks=3, passage_length=5), tmp_path / "model")
    ours, place = str(tmp_path / "model"), tmp_path / "emb"
    options = {"token_budget": 512, "cache": tmp_path / "cache", "device": "cpu"}
    with monkeypatch.context() as patch:
        patch.setattr(encoding, "encode_store", partial(encoding.encode_store, shard_rows=64))
        parts = [hn.encode(collection, ours, place, shard=f"{i}/2", **options) for i in (0, 1)]
    assert [part["complete"] for part in parts] == [False, True]
    assert parts[-1]["vectors"] > 1.5 * collection.n_passages
    state, rows = snapshot_of(world, tmp_path, passages_at=place), np.arange(20, dtype=np.int32)
    assert len(state.passages.shards) > 2
    best = brute_force(state, state.queries.rows(rows), 500)
    assert [[row for _, row in hits] for hits in lists_of(state.search_queries(rows, 500))] == [
        [row for _, row in hits] for hits in best
    ]
    hn.search_split(
        collection, tmp_path / "run", model=ours, embeddings=place, k=500, cache=tmp_path / "cache", device="cpu"
    )
    lines = [line.split() for line in (tmp_path / "run").read_text().splitlines()]
    assert len(lines) == len({(line[0], line[2]) for line in lines}) == 16 * collection.n_passages


@pytest.mark.parametrize("kind", ["flat", "ivf"])
def test_an_index_of_chunks_gives_documents(world, tmp_path, kind):
    state, rows = snapshot_of(world, tmp_path), np.arange(20, dtype=np.int32)
    options = {"lists": 8, "probes": 3} if kind == "ivf" else {}
    build_index(state.passages, tmp_path / "index", kind, options)
    index = FaissIndex(tmp_path / "index")
    run = state.with_index(index, "index", tmp_path / "runs").search_queries(rows, 60)
    assert run.unit == "document"
    first, vectors = state.chunks, torch.as_tensor(state.queries.rows(rows))
    scores, chunks = (part.numpy() for part in index.search(vectors, int(first[-1])))
    for i, hits in enumerate(lists_of(run)):
        best = {}
        for score, chunk in zip(scores[i].tolist(), chunks[i].tolist(), strict=True):
            if chunk >= 0:  # which the lists of an inverted file may run out of
                best.setdefault(int(np.searchsorted(first, chunk, side="right")) - 1, score)
        expected = list(best.items())[:60]
        assert [(row, score) for score, row in hits] == expected
        assert 5 < len(hits) <= 60
    assert (chunks < 0).any() == (kind == "ivf")


def test_a_bad_vector_is_named_by_its_document(world, tmp_path):
    _, collection, model = world
    encoder = load_encoder(model, chunks=3, passage_length=5)
    tokens = tokenize(collection, encoder.template("passage"), encoder.tokenizer("passage"), tmp_path / "cache")
    documents = [
        set(tokens.read_documents(np.array([row]))[0].ids.tolist()) for row in range(collection.n_passages)
    ]
    bad = int(tokens.read(tokens.first[60:61] + 1).ids[-2])  # a word of the second chunk of p060
    row = next(row for row, ids in enumerate(documents) if bad in ids)
    words = next(p for name, p in encoder.named_parameters() if "word_embeddings" in name)
    words.data[bad] = np.nan
    save_encoder(encoder, tmp_path / "model")
    with pytest.raises(hn.HardnegError, match=f"BAD_VECTOR.*p{row:03d} "):
        hn.encode(collection, str(tmp_path / "model"), tmp_path / "emb", cache=tmp_path / "cache", device="cpu")


def test_a_document_without_text_has_one_chunk_and_is_found(world, tmp_path):
    model = world[2]
    words = world[1].texts.take([0])[0].split()
    passages = [("a", " ".join(words)), ("b", ""), ("c", " ".join(reversed(words)))]
    collection = hn.Collection.from_lists(
        passages, {"q": words[0]}, {"test": {"q": ["b"]}}, to=tmp_path / "c", allow_empty=True
    )
    encoder = load_encoder(model, chunks=3, passage_length=5)
    store = tokenize(collection, encoder.template("passage"), encoder.tokenizer("passage"), tmp_path)
    assert store.first.tolist() == [0, 3, 4, 7]
    cls, sep = (encoder.tokenizer("passage").token_to_id(token) for token in ("[CLS]", "[SEP]"))
    assert store.read_documents(np.array([1]))[0].ids.tolist() == [cls, sep]
    save_encoder(encoder, tmp_path / "model")
    hn.search_split(collection, tmp_path / "run", model=str(tmp_path / "model"), k=9, cache=tmp_path, device="cpu")
    assert sorted(line.split()[2] for line in (tmp_path / "run").read_text().splitlines()) == ["a", "b", "c"]


# ---------------------------------------------------------------- training


def test_the_best_chunk_gets_the_gradient():
    scores = torch.tensor([[1.0, 4.0, 2.0, 3.0], [0.0, -1.0, 5.0, 1.0]], requires_grad=True)
    best = best_chunks(scores, np.array([0, 2, 4]))
    assert best.tolist() == [[4, 3], [0, 5]]
    (best * torch.tensor([[1.0, 10.0], [100.0, 1000.0]])).sum().backward()
    assert scores.grad.tolist() == [[0, 1, 0, 10], [100, 0, 1000, 0]]


def test_equal_chunks_share_the_gradient():
    scores = torch.tensor([[2.0, 2.0, 1.0]], requires_grad=True)
    best_chunks(scores, np.array([0, 3])).sum().backward()
    assert scores.grad.tolist() == [[0.5, 0.5, 0]]


def test_group_scores_equal_a_loop_forward_and_backward(world):
    root, collection, model = world
    encoder = load_encoder(model, chunks=3, passage_length=5)
    queries = tokenize(collection, encoder.template("query"), encoder.tokenizer("query"), root / "cache")
    passages = tokenize(collection, encoder.template("passage"), encoder.tokenizer("passage"), root / "cache")
    batch = GroupBatch(np.array([0, 3, 5]), np.array([[1, 2], [2, 40], [7, 9]]), 3)
    weights = torch.randn(3, 6, generator=torch.Generator().manual_seed(0))
    encoder.eval()

    def gradient(loss):
        encoder.zero_grad()
        loss.backward()
        return torch.cat([p.grad.reshape(-1) for p in encoder.parameters() if p.grad is not None])

    fast = group_scores(encoder, batch, queries, passages, "float32")
    fast_gradient = gradient((fast * weights).sum())
    slow = []
    for query in batch.query_rows:
        vector = encoder.encode(queries.read(np.array([query])), "query")[0]
        for document in batch.passage_rows.reshape(-1):
            chunks = range(passages.first[document], passages.first[document + 1])
            each = [encoder.encode(passages.read(np.array([chunk])), "passage")[0] @ vector for chunk in chunks]
            slow.append(torch.stack(each).max())
    slow = torch.stack(slow).reshape(3, 6)
    assert torch.allclose(fast, slow, atol=1e-5)
    expected = gradient((slow * weights).sum())
    assert expected.norm() > 0
    assert (fast_gradient - expected).norm() < 1e-4 * expected.norm()


def test_it_trains_searches_and_is_saved_end_to_end(world, tmp_path):
    _, collection, model = world
    settings = {"chunks": 3, "passage_length": 5, "steps": 4, "episodes": 2, "depth": 10, "count": 4}
    options = {"device": "cpu", "measures": "RR@10", "token_budget": 512}  # in the precision that search takes
    results = hn.train_ance_tele(collection, model, tmp_path / "exp", **settings, **options)
    trained = load_encoder(str(tmp_path / "exp/model"))
    assert (trained.settings.chunks, trained.settings.passage_length) == (3, 5)
    facts = hn.search_split(collection, tmp_path / "run.trec", model=str(tmp_path / "exp/model"), k=50)
    again = hn.evaluate(tmp_path / "run.trec", data=collection, measures="RR@10")
    assert facts["queries"] == 16
    assert again["measures"]["RR@10"] == pytest.approx(results["test"]["final"]["RR@10"], abs=1e-6)


def test_settings_are_checked():
    for wrong in ({"chunks": 0}, {"max_characters": -1}):
        with pytest.raises(hn.HardnegError, match="BAD_SETTING"):
            EncoderSettings(**wrong)
