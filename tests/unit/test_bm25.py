"""BM25: by hand, against a slow loop, against bm25s' own search, and on collections with known figures."""

import contextlib
import gzip
import inspect
import io
import json
import math
import re
import tracemalloc
from dataclasses import replace
from types import SimpleNamespace

import ir_measures
import numpy as np
import pytest

from hardneg.errors import ArtifactError, InputError, ResourceError, SettingsError
from hardneg.process.memory import limit_memory, own_memory
from hardneg.search import bm25, bm25_building, runs
from hardneg.search.bm25 import KIND, bm25_run, bm25_texts, open_bm25
from hardneg.search.bm25_building import K1, B
from hardneg.storage import disk
from hardneg.storage.artifacts import Draft, verify

WORDS = [
    "ash",
    "bay",
    "cod",
    "dew",
    "elm",
    "fig",
    "gum",
    "hop",
    "ivy",
    "jam",
    "kit",
    "log",
    "mud",
    "nut",
    "oak",
    "pea",
    "rye",
    "sap",
    "tea",
    "urn",
]


class Column(list):
    def take(self, rows):
        return [self[i] for i in rows]


def collection(texts, titles=None, queries=(), digest="c"):
    return SimpleNamespace(
        digest=digest,
        language="english",
        n_passages=len(texts),
        titles=Column(titles or [""] * len(texts)),
        texts=Column(texts),
        query_texts=Column(queries),
    )


def random_collection(n=400, queries=40, seed=0):
    rng = np.random.default_rng(seed)
    texts = [" ".join(rng.choice(WORDS, rng.integers(1, 12))) for _ in range(n)]
    return collection(texts, queries=[" ".join(rng.choice(WORDS, rng.integers(1, 5))) for _ in range(queries)])


def slow_scores(texts, query):
    """Lucene's BM25, term by term."""
    documents = [text.split() for text in texts]
    mean = sum(map(len, documents)) / len(documents)
    scores = np.zeros(len(documents))
    for term in query.split():
        df = sum(term in document for document in documents)
        idf = math.log(1 + (len(documents) - df + 0.5) / (df + 0.5))
        for i, document in enumerate(documents):
            tf = document.count(term)
            scores[i] += idf * tf / (tf + K1 * (1 - B + B * len(document) / mean))
    return scores


def test_by_hand(tmp_path):
    run = bm25_texts(collection(["oak oak", "elm", "oak elm fig", "fig"]), ["oak"], 10, tmp_path)
    # Two of four passages hold the term: idf = log(1 + 2.5 / 2.5); the mean length is 7 / 4.
    twice = math.log(2) * 2 / (2 + 0.9 * (0.6 + 0.4 * 2 / 1.75))
    once = math.log(2) * 1 / (1 + 0.9 * (0.6 + 0.4 * 3 / 1.75))
    assert run.passage_rows.tolist() == [0, 2]
    assert run.scores.tolist() == pytest.approx([twice, once], rel=1e-6)
    assert (run.scores.dtype, run.passage_rows.dtype, run.collection) == (np.float32, np.int32, "c")


def test_equals_a_slow_loop(tmp_path):
    c = random_collection()
    run = bm25_run(c, np.arange(40, dtype=np.int32), 400, tmp_path)
    for i, query in enumerate(c.query_texts):
        rows, scores = run.hits(i)
        expected = slow_scores(c.texts, query)
        assert sorted(rows) == np.flatnonzero(expected).tolist()
        np.testing.assert_allclose(scores, expected[rows], rtol=1e-5)


def test_equals_bm25s(tmp_path):
    import bm25s
    import Stemmer

    c, stemmer = random_collection(seed=1), Stemmer.Stemmer("english")
    other = bm25s.BM25(k1=K1, b=B, method="lucene")
    other.index(bm25s.tokenize(c.texts, stemmer=stemmer, show_progress=False), show_progress=False)
    run = bm25_run(c, np.arange(40, dtype=np.int32), 400, tmp_path)
    for i, query in enumerate(c.query_texts):
        rows, scores = run.hits(i)
        found = other.get_scores([stemmer.stemWord(word) for word in query.split()])
        np.testing.assert_allclose(scores, found[rows], rtol=1e-6)
        assert len(rows) == np.count_nonzero(found)


def test_postings_are_those_of_bm25s_bit_by_bit(tmp_path, monkeypatch):
    import bm25s
    import Stemmer

    c = random_collection(300, seed=2)
    c.texts[7] = "the"  # no term at all
    monkeypatch.setattr(bm25_building, "POSTINGS", 100)
    index = open_bm25(c, tmp_path)
    tokenizer = bm25s.tokenization.Tokenizer(stopwords="english", stemmer=Stemmer.Stemmer("english"))
    ids = list(tokenizer.streaming_tokenize(c.texts, update_vocab=True, allow_empty=False))
    # The order of what is built by NumPy differs. bm25s 0.2 knows scipy alone, and no name for it.
    choice = {"csc_backend": "scipy"} if "csc_backend" in inspect.signature(bm25s.BM25).parameters else {}
    other = bm25s.BM25(k1=K1, b=B, method="lucene", **choice)
    built = other.build_index_from_ids(list(range(len(index.terms))), ids, show_progress=False)
    assert index.terms == tokenizer.get_vocab_dict()
    for ours, name in ((index.offsets, "indptr"), (index.rows, "indices"), (index.scores, "data")):
        np.testing.assert_array_equal(ours, built[name])


@pytest.mark.parametrize(("tokens", "merged"), [(30, 1), (50, 7), (1000, 100)])
def test_an_index_built_in_blocks_has_the_same_bytes(tmp_path, monkeypatch, tokens, merged):
    c = random_collection(300, seed=2)
    c.texts[7] = c.texts[150] = c.texts[-1] = "the"  # no term at all
    c.texts[200] = " ".join(f"late{i}" for i in range(60))  # a block of terms that no other has
    open_bm25(c, tmp_path / "whole")
    monkeypatch.setattr(bm25_building, "TOKENS", tokens)
    monkeypatch.setattr(bm25_building, "FEWEST", 1)
    monkeypatch.setattr(bm25_building, "MERGED", merged)
    monkeypatch.setattr(bm25_building, "TEXTS", 7)
    open_bm25(c, tmp_path / "blocks")
    files = [{f.name: f.read_bytes() for f in (tmp_path / way / KIND).rglob("*.*")} for way in ("whole", "blocks")]
    assert files[0] == files[1]
    assert len(files[0]) == 5


@pytest.mark.parametrize("size", [10, 12])
def test_memory_to_build_an_index_grows_neither_with_the_tokens_nor_with_the_blocks(tmp_path, monkeypatch, size):
    c = random_collection(1)
    words = [f"w{i}" for i in range(1000)]
    c.texts[:] = [" ".join(words[i : i + 20]) for i in range(0, 1000, 20)] * 240
    c.titles, c.n_passages = Column([""] * len(c.texts)), len(c.texts)
    for name, value in {"TOKENS": size, "FEWEST": size, "MERGED": 12, "POSTINGS": 10, "TEXTS": 8}.items():
        monkeypatch.setattr(bm25_building, name, 1 << value)
    monkeypatch.setattr(disk, "BUFFER", 1 << 12)
    open_bm25(random_collection(5), tmp_path / "warm")
    tracemalloc.start()
    bm25_building.build(Draft(tmp_path), c, "english")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    tokens = 12_000 * 20
    assert np.load(tmp_path / "rows.npy").shape == (tokens,)
    assert peak < 8 * tokens  # 38 bytes a token if all are held at once, and 12 more for the terms of each block


@pytest.mark.parametrize("given", [2, 6])
def test_the_limit_that_is_named_is_enough(tmp_path, monkeypatch, given):
    """A limit that is too small at the start, and one that is too small when the terms of a part are known."""
    c, rng = random_collection(1), np.random.default_rng(0)
    c.texts[:] = [" ".join(f"w{i}" for i in rng.integers(0, 50_000, 20)) for _ in range(8000)]
    c.titles, c.n_passages = Column([""] * len(c.texts)), len(c.texts)
    monkeypatch.setattr(bm25_building, "FEWEST", 1 << 16)
    limit, refused = f"{own_memory() + (given << 20)}", []
    try:
        while len(refused) < 2:
            limit_memory(limit)
            try:
                open_bm25(c, tmp_path)
                break
            except ResourceError as fault:
                limit = re.search(r"give --max-ram (\d+M) or more", f"{fault}")[1]
                refused.append(f"{fault}")
    finally:
        limit_memory()
    assert len(refused) == 1, refused


def test_an_index_needs_room_for_a_block_under_a_limit(tmp_path):
    limit_memory("1M")
    try:
        with pytest.raises(ResourceError, match="MEMORY_TOO_SMALL: building BM25's index needs 15 MiB"):
            open_bm25(random_collection(), tmp_path)
    finally:
        limit_memory()


def test_the_hits_of_a_search_need_room_under_a_limit(tmp_path, monkeypatch):
    """A list is at least as long as the passages that have one term of its query; a few hits are not asked for."""
    c, asked = random_collection(), []
    rows = np.arange(len(c.query_texts), dtype=np.int32)
    monkeypatch.setattr(runs, "require", lambda size, what: asked.append((size, what)))
    few = bm25_run(c, rows, 50, tmp_path)
    assert asked == []
    monkeypatch.setattr(runs, "UNASKED", 0)
    run = bm25_run(c, rows, 50, tmp_path)
    assert asked == [(size := asked[0][0], "a run")]
    assert 0 < size <= 8 * len(run.scores) == 8 * len(few.scores)


def long_run(hits, limit):
    """The run of 1,000 lists of so many hits, of queries of four terms that 1,000 passages have, under a limit."""
    one, made = np.arange(hits, dtype=np.int32), []

    def lists():
        for _ in range(1000):
            made.append(hits)
            yield one, one.astype(np.float32)

    terms, offsets = np.full(4000, 1000), np.arange(0, 4001, 4)
    limit_memory(limit)
    try:
        return len(runs.run_of_lists(lists(), np.arange(1000, dtype=np.int32), 4000, terms, offsets, "c").scores)
    except ResourceError as fault:
        return len(made), re.search(r"give --max-ram (\d+M) or more", f"{fault}")[1]
    finally:
        limit_memory()


def test_hits_are_refused_only_where_they_do_not_fit(monkeypatch):
    """Of 8 MiB in all if all terms stand in the same passages, up to 31 MiB if they do not."""
    monkeypatch.setattr(runs, "UNASKED", 1 << 20)
    held = own_memory()
    assert long_run(1000, f"{held + (16 << 20)}") == 1_000_000
    made, named = long_run(1000, f"{held + (4 << 20)}")
    assert made == 0, "it is clear from the start"
    assert long_run(1000, named) == 1_000_000
    made, named = long_run(4000, f"{held + (16 << 20)}")
    assert 250 < made < 1000
    assert long_run(4000, named) == 4_000_000


def test_a_search_reads_only_the_terms_that_are_asked_for(tmp_path):
    """There may be millions of others, at which a search of one query must not look."""
    c = random_collection()

    class Offsets(np.ndarray):
        def __array_wrap__(self, *made):
            assert made[0].size < len(index.terms), "one number for each term"
            return super().__array_wrap__(*made)

    index, asked = open_bm25(c, tmp_path), (c.query_texts[:1], np.zeros(1, np.int32), 9)
    watched = replace(index, offsets=np.asarray(index.offsets).view(Offsets))
    part, whole = bm25.search(watched, *asked), bm25.search(index, *asked)
    assert part.passage_rows.tolist() == whole.passage_rows.tolist()


def test_order_and_cut(tmp_path):
    """By score descending, then row ascending; a smaller k is a cut of a larger one, through ties too."""
    c = random_collection()
    rows = np.arange(40, dtype=np.int32)
    full = bm25_run(c, rows, 400, tmp_path)
    ties = 0
    for i in range(40):
        hits, scores = full.hits(i)
        order = np.lexsort((hits, -scores))
        assert (order == np.arange(len(order))).all()
        ties += (np.diff(scores) == 0).sum()
    assert ties > 100
    for k in (1, 5, 37):
        cut, run = full.cut(k), bm25_run(c, rows, k, tmp_path)
        np.testing.assert_array_equal(run.offsets, cut.offsets)
        np.testing.assert_array_equal(run.passage_rows, cut.passage_rows)
        np.testing.assert_array_equal(run.scores, cut.scores)


@pytest.mark.parametrize("sparse", [1, 10**9])
@pytest.mark.parametrize("block", [1, 7, 64, 500])
def test_blocks_and_few_postings_change_nothing(tmp_path, monkeypatch, sparse, block):
    c, rows = random_collection(), np.arange(40, dtype=np.int32)
    for k in (1, 9, 400):
        plain = bm25_run(c, rows, k, tmp_path)
        with monkeypatch.context() as patch:
            patch.setattr(bm25, "SPARSE", sparse)
            patch.setattr(bm25, "BLOCK", block)
            other = bm25_run(c, rows, k, tmp_path)
        for one, two in zip(vars(plain).values(), vars(other).values(), strict=True):
            np.testing.assert_array_equal(one, two)


@pytest.mark.parametrize("part", [1, 3, 37, 400])
@pytest.mark.parametrize("compiled", [1, 1 << 62])
def test_among_some_passages_the_order_and_the_scores_are_those_among_all(tmp_path, monkeypatch, part, compiled):
    monkeypatch.setattr(bm25, "COMPILED", compiled)
    c, rows = random_collection(), np.arange(40, dtype=np.int32)
    some = np.sort(np.random.default_rng(1).choice(400, part, replace=False)).astype(np.int32)
    whole = bm25_run(c, rows, 400, tmp_path)
    for k in (1, 9, 400):
        found = bm25_run(c, rows, k, tmp_path, among=some)
        for query in range(40):
            hits, scores = whole.hits(query)
            kept = np.flatnonzero(np.isin(hits, some))[:k]
            assert found.hits(query)[0].tolist() == hits[kept].tolist()
            assert found.hits(query)[1].tolist() == scores[kept].tolist()


@pytest.mark.parametrize("spread", [0, 600, 1 << 25])
@pytest.mark.parametrize("block", [7, 32])
def test_spread_terms_change_nothing(tmp_path, monkeypatch, spread, block):
    c, rows = random_collection(), np.arange(40, dtype=np.int32)
    monkeypatch.setattr(bm25, "SPREAD", 0)
    plain = [bm25_run(c, rows, k, tmp_path) for k in (1, 9, 400)]
    monkeypatch.setattr(bm25, "SPREAD", spread)
    monkeypatch.setattr(bm25, "BLOCK", block)
    monkeypatch.setattr(bm25, "DENSE", 10**9)  # any term
    monkeypatch.setattr(bm25, "ASKED", 1)
    terms = bm25.query_terms(index := open_bm25(c, tmp_path), c.query_texts)[1]
    assert len(bm25._spread(index, terms)[0]) == min(spread // 400, 20)
    for one, k in zip(plain, (1, 9, 400), strict=True):
        other = bm25_run(c, rows, k, tmp_path)
        for mine, theirs in zip(vars(one).values(), vars(other).values(), strict=True):
            np.testing.assert_array_equal(mine, theirs)


def test_scores_are_sums_of_float32_term_by_term(tmp_path):
    """Bit by bit, so that a run does not change with the way it is added up."""
    c = collection(random_collection(300).texts, queries=["oak elm fig oak gum", "tea urn rye"])
    index, run = open_bm25(c, tmp_path), bm25_run(c, np.arange(2, dtype=np.int32), 400, tmp_path)
    for i, query in enumerate(c.query_texts):
        expected = np.zeros(300, np.float32)
        for term in sorted(set(query.split()), key=index.terms.__getitem__):
            span = slice(*index.offsets[index.terms[term] :][:2])
            expected[index.rows[span]] += np.float32(query.split().count(term)) * index.scores[span]
        rows, scores = run.hits(i)
        np.testing.assert_array_equal(scores, expected[rows])


def test_titles_stems_and_stopwords(tmp_path):
    c = collection(["a tree", "the of and", "nothing here"], titles=["", "", "Running Trees"])
    run = bm25_texts(c, ["TREE the of", "runs", "the", "unheard", ""], 5, tmp_path)
    assert [sorted(run.hits(i)[0].tolist()) for i in range(5)] == [[0, 2], [2], [], [], []]
    assert run.query_rows.tolist() == [0, 1, 2, 3, 4]


def test_a_term_twice_counts_twice(tmp_path):
    c = collection(["oak elm", "fig"])
    once, twice = (bm25_texts(c, [query], 5, tmp_path).scores[0] for query in ("oak", "oak oak"))
    assert twice == pytest.approx(2 * once)


def test_nothing_to_find(tmp_path):
    """Passages of stopwords only have no terms at all."""
    run = bm25_texts(collection(["the", "of"]), ["oak", "the"], 5, tmp_path)
    assert run.offsets.tolist() == [0, 0, 0]


def test_query_rows_are_kept(tmp_path):
    c = random_collection()
    run = bm25_run(c, np.array([7, 3], np.int32), 5, tmp_path)
    assert run.query_rows.tolist() == [7, 3]
    np.testing.assert_array_equal(run.hits(1)[0], bm25_run(c, np.array([3], np.int32), 5, tmp_path).passage_rows)


def test_the_index_is_built_once(tmp_path):
    c = random_collection()
    first = open_bm25(c, tmp_path)
    (folder,) = (tmp_path / "bm25").iterdir()
    before = (folder / "manifest.json").stat().st_mtime_ns
    second = open_bm25(c, tmp_path)
    assert (folder / "manifest.json").stat().st_mtime_ns == before
    assert isinstance(second.scores, np.memmap)
    np.testing.assert_array_equal(first.scores, second.scores)
    verify(folder)
    open_bm25(collection(c.texts, digest="other"), tmp_path)
    assert len(list((tmp_path / "bm25").iterdir())) == 2


def test_a_second_build_has_the_same_digest(tmp_path):
    manifests = []
    for name in ("one", "two"):
        open_bm25(random_collection(), tmp_path / name)
        (manifest,) = (tmp_path / name).glob("bm25/*/manifest.json")
        manifests.append(manifest.read_bytes())
    assert manifests[0] == manifests[1]


def test_a_damaged_index_is_refused(tmp_path):
    c = random_collection()
    open_bm25(c, tmp_path)
    (file,) = (tmp_path / "bm25").glob("*/scores.npy")
    file.write_bytes(file.read_bytes()[:-1] + b"\x7f")
    with pytest.raises(ArtifactError, match="CORRUPT"):
        open_bm25(c, tmp_path)


def test_it_is_silent(tmp_path):
    with contextlib.redirect_stderr(io.StringIO()) as err, contextlib.redirect_stdout(io.StringIO()) as out:
        bm25_run(random_collection(), np.arange(3, dtype=np.int32), 5, tmp_path)
    assert (err.getvalue(), out.getvalue()) == ("", "")


def test_requests_that_make_no_sense(tmp_path):
    c = random_collection()
    with pytest.raises(SettingsError, match="BAD_K"):
        bm25_texts(c, ["oak"], 0, tmp_path)
    with pytest.raises(InputError, match="NO_QUERIES"):
        bm25_texts(c, [], 5, tmp_path)
    with pytest.raises(InputError, match="NO_PASSAGES"):
        bm25_texts(collection([]), ["oak"], 5, tmp_path)


# ---------------------------------------------------------------- collections with known figures


def read_lines(folder, name):
    path = next(folder.glob(f"{name}.jsonl*"))
    data = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    return [json.loads(line) for line in data.decode().split("\n") if line]


@pytest.mark.shared
@pytest.mark.parametrize(("name", "ndcg"), [("scifact", 0.676), ("cranfield", 0.358), ("cacm", 0.503)])
def test_known_figures(shared_data, tmp_path, name, ndcg):
    passages, queries = read_lines(shared_data / name, "corpus"), read_lines(shared_data / name, "queries")
    judged = (shared_data / name / "qrels" / "test.tsv").read_text().split("\n")[1:]
    qrels = [ir_measures.Qrel(*re.split("\t", line)[:2], int(line.split("\t")[2])) for line in judged if line]
    asked = {qrel.query_id for qrel in qrels}
    queries = [query for query in queries if query["_id"] in asked]
    c = collection([p["text"] for p in passages], [p.get("title", "") for p in passages])
    run = bm25_texts(c, [query["text"] for query in queries], 100, tmp_path)
    hits = [
        ir_measures.ScoredDoc(query["_id"], passages[row]["_id"], float(score))
        for i, query in enumerate(queries)
        for row, score in zip(*run.hits(i), strict=True)
    ]
    measure = ir_measures.nDCG @ 10
    assert ir_measures.calc_aggregate([measure], qrels, hits)[measure] == pytest.approx(ndcg, abs=0.005)
