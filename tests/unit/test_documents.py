"""Documents of several chunks: cut, searched and trained on, each against a slow loop."""

from itertools import pairwise

import numpy as np
import pytest
import torch

import hardneg as hn
from hardneg.data.tokens import tokenize
from hardneg.models.bi_encoder import EncoderSettings
from hardneg.models.loading import load_encoder
from hardneg.records import TextTemplate, offsets_of
from hardneg.search.exact import ExactIndex
from hardneg.search.retrieve import first_documents, search_documents
from hardneg.training.batches import GroupBatch, best_chunks, group_scores
from tiny_world import one_thread, tiny_collection, tiny_model  # noqa: F401


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    root = tmp_path_factory.mktemp("documents")
    collection = tiny_collection(root / "collection")
    return root, collection, tiny_model(root / "model", collection, dropout=0.0)


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
    scores, rows = search_documents(ExactIndex([chunks[:100], chunks[100:]]), queries, k, documents)
    for i, expected in enumerate(slow_documents(queries, chunks, documents, k)):
        assert rows[i].tolist() == [row for _, row in expected]
        assert scores[i].tolist() == pytest.approx([score for score, _ in expected], abs=1e-6)


def test_lists_that_are_short_of_documents_are_searched_deeper():
    documents = np.array([0, 50, 51, 52, 53])
    chunks = torch.cat([torch.full((50, 2), 5.0), torch.tensor([[1.0, 0], [2, 0], [3, 0]])])
    scores, rows = search_documents(ExactIndex(chunks), torch.tensor([[1.0, 0.0]]), 3, documents)
    assert (rows.tolist(), scores.tolist()) == ([[0, 3, 2]], [[5.0, 3.0, 2.0]])


def test_first_documents_by_hand():
    scores = np.array([[9, 8, 7, 6, 5]], np.float32)
    chunks, documents = np.array([[4, 5, 0, 1, 2]], np.int32), np.array([0, 1, 4, 6])
    found = first_documents(scores, chunks, documents, 3)
    assert [part.tolist() for part in found] == [[[9, 7, 6]], [[2, 0, 1]], [3]]


# ---------------------------------------------------------------- training


def test_the_best_chunk_gets_the_gradient():
    scores = torch.tensor([[1.0, 4.0, 2.0, 3.0], [0.0, -1.0, 5.0, 1.0]], requires_grad=True)
    best = best_chunks(scores, np.array([0, 2, 4]))
    assert best.tolist() == [[4, 3], [0, 5]]
    (best * torch.tensor([[1.0, 10.0], [100.0, 1000.0]])).sum().backward()
    assert scores.grad.tolist() == [[0, 1, 0, 10], [100, 0, 1000, 0]]


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
    assert torch.allclose(fast_gradient, gradient((slow * weights).sum()), atol=1e-4)


def test_it_trains_searches_and_is_saved_end_to_end(world, tmp_path):
    _, collection, model = world
    settings = {"chunks": 3, "passage_length": 5, "steps": 4, "episodes": 2, "depth": 10, "count": 4}
    options = {"device": "cpu", "measures": "RR@10", "precision": "float32", "token_budget": 512}
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
