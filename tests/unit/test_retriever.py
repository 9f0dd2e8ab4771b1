"""A retriever: a model over a collection that loads once, answers many times, and may be asked by many threads."""

import ast
import copy
import gc
import inspect
import os
import pickle
import signal
import time
import weakref
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier, Event

import numpy as np
import pytest
import torch

import hardneg as hn
from architecture import floors
from hardneg.api import retrievers
from hardneg.api.searcher import Searcher
from hardneg.errors import ArtifactError, SettingsError
from hardneg.experiment.snapshot import Snapshot
from hardneg.models.loading import load_encoder
from hardneg.process import progress
from hardneg.search import ann, embedding_store, encoding, retriever
from hardneg.search.ann import open_index
from hardneg.search.ann_building import build_index
from hardneg.search.encoding import Encoding, encode_side
from hardneg.search.rerank import RerankedRetriever
from hardneg.search.retrieve import StoredIndex
from hardneg.search.retriever import CachedRetriever, Retriever
from hardneg.search.runs import save_run
from hardneg.storage.artifacts import remove
from worlds.tiny_world import one_thread, tiny_collection, tiny_model  # noqa: F401

ROWS = np.array([3, 90, 41, 7], np.int32)
ANCHORS = np.array([100, 7, 4, 55], np.int32)
TEXTS = ["ba be", "bo bu da", "du", "fa fe fi"]


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    root = tmp_path_factory.mktemp("world")
    collection = tiny_collection(root / "collection")
    return root, collection, tiny_model(root / "model", collection)


@pytest.fixture
def make(world, tmp_path):
    def retriever_of(kind="exact", precision="float32", **settings):
        _, collection, model = world
        made = Retriever(
            load_encoder(model, device="cpu", **settings),
            collection,
            tmp_path / "cache",
            encoding=Encoding(token_budget=512, precision=precision),
        )
        if kind == "exact":
            return made
        if not (tmp_path / f"index-{kind}").exists():
            build_index(made.passages, tmp_path / f"index-{kind}", kind, {"lists": 8, "probes": 3})
        return made.through(open_index(tmp_path / f"index-{kind}"))

    return retriever_of


def same(a, b):
    assert (a.unit, a.collection) == (b.unit, b.collection)
    for name in ("query_rows", "offsets", "passage_rows", "scores"):
        np.testing.assert_array_equal(getattr(a, name), getattr(b, name))


QUESTIONS = {
    "queries": lambda asked: asked.search_queries(ROWS, 20),
    "one query": lambda asked: asked.search_queries(ROWS[:1], 5),
    "as trained": lambda asked: asked.search_queries(ROWS[::-1], 20, as_trained=True),
    "passages": lambda asked: asked.search_passages(ROWS, ANCHORS, 10),
    "texts": lambda asked: asked.search_texts(TEXTS, 15),
    "one text": lambda asked: asked.search_texts(TEXTS[1:2], 3),
}


@pytest.mark.parametrize("held", [True, False])
@pytest.mark.parametrize("world_of", [("exact", {}), ("ivf", {}), ("exact", {"chunks": 3, "passage_length": 5})])
def test_many_threads_get_what_one_gets(make, world_of, held):
    kind, settings = world_of
    settings = {"query_length": 4, "search_query_length": 6, **settings}
    alone = make(kind, **settings)
    expected = {name: ask(alone) for name, ask in QUESTIONS.items()}
    asked, count = make(kind, **settings), 4
    if held:
        asked.hold()
    together = Barrier(count)

    def ask(number):
        together.wait()
        names = np.random.default_rng(number).permutation([*QUESTIONS] * 2)
        return [(name, QUESTIONS[name](asked)) for name in names]

    with ThreadPoolExecutor(count) as pool:
        for answers in pool.map(ask, range(count)):
            for name, run in answers:
                same(run, expected[name])
    asked.close()


def test_threads_are_let_in_one_at_a_time(make, monkeypatch):
    """The test above could pass by luck: here a second thread inside would be seen."""
    asked, inside, seen = make(), [], []
    real = Retriever._search

    def slow(self, *given):
        inside.append(1)
        seen.append(len(inside))
        time.sleep(0.01)
        found = real(self, *given)
        inside.pop()
        return found

    monkeypatch.setattr(Retriever, "_search", slow)
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda name: QUESTIONS[name](asked), [*QUESTIONS] * 2))
    assert seen == [1] * 2 * len(QUESTIONS)


def test_every_public_method_is_guarded():
    # They ask others.
    unguarded = {"through", "queries_as", "shortened", "search", "neighbours", "inputs_of", "stores"}
    for kind in (Retriever, CachedRetriever):
        for name, value in vars(kind).items():
            if inspect.isfunction(value) and not name.startswith("_") and name not in unguarded:
                assert hasattr(value, "__wrapped__"), name
    assert hasattr(CachedRetriever._run, "__wrapped__")


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_a_held_retriever_answers_alike_and_gives_the_encoder_back(make, precision):
    asked = make(precision=precision)
    asked.encoder.train()
    before = {name: value.clone() for name, value in asked.encoder.state_dict().items()}
    expected = {name: ask(asked) for name, ask in QUESTIONS.items()}
    with asked as held:
        assert held is asked
        assert torch.is_grad_enabled()
        assert held.encoder.digest() == held.digest
        for name, ask in QUESTIONS.items():
            same(ask(held), expected[name])
            assert torch.is_grad_enabled()
    assert torch.is_grad_enabled()
    assert asked.encoder.training
    for name, value in asked.encoder.state_dict().items():
        assert torch.equal(value, before[name]), name
    same(QUESTIONS["texts"](asked), expected["texts"])


def test_a_retriever_that_is_forgotten_leaves_the_gradients_of_other_work_as_they_are(make):
    """Python may collect it at any time, so also where scores are computed without gradient."""
    forgotten = make().hold()
    forgotten.itself = forgotten  # only the collector finds it
    alive = weakref.ref(forgotten)
    del forgotten
    with torch.no_grad():
        gc.collect()
        assert alive() is None
        assert not torch.is_grad_enabled()


def counting(monkeypatch, place, name, counts):
    real = getattr(place, name)

    def call(*given, **options):
        counts[name] = counts.get(name, 0) + 1
        return real(*given, **options)

    monkeypatch.setattr(place, name, call)


@pytest.mark.parametrize("by", ["embeddings", "cache", "index"])
def test_a_resident_retriever_opens_everything_once(world, tmp_path, monkeypatch, by):
    _, collection, model = world
    options = {"cache": tmp_path / "cache", "device": "cpu"}
    hn.encode(collection, model, tmp_path / "embeddings", **options)
    hn.index(tmp_path / "embeddings", tmp_path / "index", kind="flat")
    given = {} if by == "cache" else {by: tmp_path / by}
    expected = hn.search_text(collection, TEXTS[0], model=model, **given, **options)
    counts = {}
    counting(monkeypatch, retrievers, "open_encoder", counts)
    counting(monkeypatch, retriever, "StoredIndex", counts)
    counting(monkeypatch, retriever, "token_store", counts)
    counting(monkeypatch, retrievers, "open_index", counts)
    with hn.open_retriever(collection, model, **given, **options) as asked:
        opened = dict(counts)
        assert opened["open_encoder"] == 1
        assert opened.get("StoredIndex", 0) == (by != "index")
        assert opened.get("open_index", 0) == (by == "index")
        for text in TEXTS:
            hn.search_text(asked.collection, text, retriever=asked)
        assert hn.search_text(asked.collection, TEXTS[0], retriever=asked) == expected
        assert counts == opened, "nothing is opened again"
        facts = hn.search_split(asked.collection, tmp_path / "a.trec", retriever=asked, k=9)
    hn.search_split(collection, tmp_path / "b.trec", model=model, k=9, **given, **options)
    assert facts["hits"] == 16 * 9
    assert (tmp_path / "a.trec").read_bytes() == (tmp_path / "b.trec").read_bytes()
    assert counts["open_encoder"] == 2, "the model is loaded where none is open"


def test_weights_are_not_copied_again_for_each_answer(make, monkeypatch):
    asked = make(precision="bfloat16").hold()
    weights = {tensor.data_ptr() for tensor in asked.encoder.parameters()}
    seen = []
    real = type(asked.encoder).encode
    monkeypatch.setattr(
        type(asked.encoder),
        "encode",
        lambda self, *given: (
            seen.append({tensor.data_ptr() for tensor in self.parameters()}) or real(self, *given)
        ),
    )
    asked.search_texts(TEXTS, 3)
    asked.search_texts(TEXTS, 3)
    asked.close()
    assert seen == [weights, weights]


def test_embeddings_that_another_experiment_deletes_meanwhile_are_made_again(make, monkeypatch):
    """Two equal trainings with one cache have states of the same digest; each deletes what it is done with."""
    alone, times = make().search_queries(ROWS, 20), []

    def encoded(encoder, collection, store, path, **options):
        made = encode_side(encoder, collection, store, path, **options)
        times.append(path)
        if len(times) == 1:
            retriever.discard(path)
            return None  # as if another process had finished them
        return made

    monkeypatch.setattr(retriever, "encode_side", encoded)
    asked = make()
    asked.discard()
    same(asked.search_queries(ROWS, 20), alone)
    assert len(times) == len({*times}) + 1


def test_embeddings_of_another_process_are_waited_for_where_nfs_does_not_show_them_yet(make, monkeypatch):
    """A machine that asked for the manifest before it was there may be told for a while that it is not."""
    made, looks = make().passages, []

    def shown(path):
        looks.append(path)
        return len(looks) == 3

    monkeypatch.setattr(encoding, "is_published", shown)
    monkeypatch.setattr(encoding, "has_others", lambda: True)
    monkeypatch.setattr(time, "sleep", lambda seconds: None)
    before = progress.beats
    assert encoding.opened_soon(made.path).digest == made.digest
    assert (len(looks), progress.beats - before) == (3, 2), "those who wait for this process see that it lives"
    monkeypatch.setattr(encoding, "UNSEEN_SECONDS", 0)
    with pytest.raises(ArtifactError, match="NO_MANIFEST"):
        encoding.opened_soon(made.path.with_name("none"))


def test_a_retriever_of_another_collection_is_refused(world, tmp_path):
    _, collection, model = world
    other = hn.Collection.from_lists(
        [("p1", "a text"), ("p2", "another")], {"q": "words"}, {"test": {"q": ["p1"]}}, to=tmp_path / "other"
    )
    with hn.open_retriever(other, model, cache=tmp_path / "cache", device="cpu") as asked:
        with pytest.raises(ArtifactError, match="OTHER_COLLECTION: the retriever was opened over another"):
            hn.search_text(collection, "words", retriever=asked)
        for besides in ({"model": model}, {"bm25": True}, {"index": "somewhere"}, {"query_length": 3}):
            with pytest.raises(SettingsError, match="TWO_SEARCHERS"):
                hn.search_text(other, "words", retriever=asked, **besides)


def test_a_retriever_knows_nothing_of_experiments(make):
    experiment = {"name", "step", "episode", "pool", "asked", "weights", "keeps", "folder"}
    assert not experiment & vars(make()).keys()
    assert not experiment & {*inspect.signature(Retriever).parameters}
    assert issubclass(Snapshot, CachedRetriever)


def test_an_index_is_opened_by_the_kind_of_its_manifest(make, tmp_path, monkeypatch):
    made = make("ivf")
    assert made.index.describe() == {
        "kind": "ivf",
        "options": {"lists": 8, "probes": 3},
        "digest": made.index.digest,
    }
    exact = StoredIndex(made.passages)
    assert exact.describe() == {}
    assert exact.digest == made.passages.digest
    assert exact.made_from()["encoder"] == made.index.made_from()["encoder"] == made.sides["passage"]
    monkeypatch.setitem(ann.OPENERS, embedding_store.KIND, lambda path: f"opened {path.name}")
    assert open_index(made.passages.path) == f"opened {made.passages.path.name}"
    monkeypatch.undo()
    with pytest.raises(ArtifactError):
        open_index(made.passages.path)  # embeddings are no index
    with pytest.raises(ArtifactError):
        open_index(tmp_path / "nothing")


def asks_for_a_kind(tree):
    """What a module says of indexes that only their floor may: the class, or a comparison with a kind."""
    for node in ast.walk(tree):
        if "FaissIndex" in (getattr(node, "id", ""), getattr(node, "name", "")):
            yield ast.unparse(node)
        if isinstance(node, ast.Compare) and "about" in ast.unparse(node) and "kind" in ast.unparse(node):
            yield ast.unparse(node)
        if isinstance(node, ast.Attribute) and ast.unparse(node).endswith("index.manifest"):
            yield ast.unparse(node)


def test_nothing_above_search_asks_what_an_index_is():
    source, above = Path(hn.__file__).parent, floors()
    names = [*above]
    for floor in names[names.index("search") + 1 :]:
        for module in above[floor]:
            path = source / f"{module.replace('.', '/')}.py"
            path = path if path.is_file() else source / module.replace(".", "/") / "__init__.py"
            assert [*asks_for_a_kind(ast.parse(path.read_text("utf-8")))] == [], module
    seen = "if isinstance(index, FaissIndex) or about['kind'] == 'pq': index.manifest.digest"
    assert len([*asks_for_a_kind(ast.parse(seen + "\n"))]) == 3  # or the test could not fail


def test_a_limited_retriever_encodes_and_searches_some_passages_alone(make, world):
    whole, rows = make(), np.array([90, 3, 41, 7, 100, 55, 3], np.int32)
    limited = whole.limited(rows, alone=True)
    found, all_found = limited.search_queries(ROWS, 5), whole.search_queries(ROWS, whole.collection.n_passages)
    assert sum(map(len, limited.passages.shards)) == 6, "each passage once, and no other"
    assert sum(map(len, whole.passages.shards)) == whole.collection.n_passages
    for i in range(len(ROWS)):
        passages, scores = all_found.hits(i)
        kept = np.isin(passages, rows)
        got, got_scores = found.hits(i)
        assert got.tolist() == passages[kept][:5].tolist()
        np.testing.assert_allclose(got_scores, scores[kept][:5], atol=2e-3)


@pytest.mark.parametrize("alone", [True, False])
def test_a_held_retriever_and_a_limited_one_made_of_it_do_not_disturb_each_other(make, alone):
    rows, others = np.array([2, 5, 9, 30, 77, 100], np.int32), np.array([3, 41], np.int32)
    expected = make().limited(rows, alone=alone).search_queries(ROWS, 5)
    expected_others = make().limited(others, alone=not alone).search_queries(ROWS, 5)
    whole = make().hold()
    opened = whole._searched()
    with whole.limited(rows, alone=alone) as limited:
        same(limited.search_queries(ROWS, 5), expected)
        same(limited.limited(others, alone=not alone).search_queries(ROWS, 5), expected_others)
    assert whole._searched() is opened, "closing the one closes nothing of the other"
    assert not whole.encoder.training
    whole.close()


REPLACED = {
    "by that of other queries": lambda theirs, path, run, made: theirs.search(path.name, ROWS[:1], 3),
    "by a shallower one": lambda theirs, path, run, made: save_run(
        run.cut(3), path, **made | {"settings": {"k": 3}}
    ),
    "and is not there": lambda theirs, path, run, made: remove(path),
}


@pytest.mark.parametrize("how", REPLACED)
def test_a_run_that_another_command_replaced_before_it_was_loaded_is_searched_again(
    world, tmp_path, monkeypatch, how
):
    _, collection, model = world
    encoder = load_encoder(model, device="cpu")
    ours, theirs = (
        CachedRetriever(encoder, collection, tmp_path / "runs", tmp_path / "cache", encoding=Encoding(512))
        for _ in range(2)
    )
    saved = []

    def save(run, path, **made):
        save_run(run, path, **made)
        saved.append(path)
        if len(saved) == 1:
            REPLACED[how](theirs, path, run, made)

    monkeypatch.setattr(retriever, "save_run", save)
    same(ours.search("query", ROWS, 10), theirs.search_queries(ROWS, 10))
    assert len(saved) >= 2


def test_runs_of_a_limited_retriever_and_of_the_whole_are_not_taken_for_each_other(world, tmp_path):
    _, collection, model = world
    encoder = load_encoder(model, device="cpu")
    whole = CachedRetriever(encoder, collection, tmp_path / "runs", tmp_path / "cache", encoding=Encoding(512))
    limited = whole.limited(np.arange(20, dtype=np.int32), alone=True)
    assert limited.search("dev", ROWS, 3).passage_rows.max() < 20
    assert whole.search("dev", ROWS, 3).passage_rows.max() >= 20
    limited.discard("passage")
    assert sum(map(len, whole.passages.shards)) == collection.n_passages


def test_a_forked_process_does_not_wait_for_a_thread_that_it_lacks(make):
    """The thread may be inside the retriever when the process is forked."""
    asked, inside, done = make().hold(), Event(), Event()
    expected = asked.search_texts(TEXTS, 5)

    def stay():
        with asked.lock:
            inside.set()
            done.wait()

    with ThreadPoolExecutor(1) as pool:
        pool.submit(stay)
        inside.wait()
        if (child := os.fork()) == 0:
            signal.alarm(20)  # ends a child that waits
            try:
                same(asked.search_texts(TEXTS, 5), expected)
                os._exit(0)
            finally:
                os._exit(1)
        _, status = os.waitpid(child, 0)
        done.set()
    asked.close()
    assert status == 0


@pytest.mark.parametrize("copied", [copy.deepcopy, pickle.dumps])
def test_an_open_retriever_is_neither_pickled_nor_copied_deeply(make, copied):
    asked = make()
    searcher = Searcher(asked.collection, asked, "model")
    for one in (asked, RerankedRetriever(asked, None, 10), searcher):
        with pytest.raises(TypeError, match="open one in each process"):
            copied(one)


def test_a_shallow_copy_holds_nothing(make):
    with make() as asked:
        other = copy.copy(asked)
        other.close()
        assert other.lock is asked.lock
        assert asked._exact is not None
