"""A public function takes any argument from Python, or refuses it in one line that says what to give."""

import inspect
import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import TypedDict, Unpack

import numpy as np
import pytest

import hardneg as hn
from hardneg.api import train as training
from hardneg.api.prepare import prepare
from hardneg.api.recipes import RECIPES
from hardneg.arguments import checked, expected, fits, plain
from hardneg.data.collection import Collection
from hardneg.data.training_data import Labels
from hardneg.errors import HardnegError, InputError, SettingsError
from hardneg.recipes import estimate
from hardneg.storage.artifacts import read_manifest
from worlds.tiny_world import one_thread, tiny_collection, tiny_model  # noqa: F401


class Odd:
    """Nothing that anybody expects, and rude when it is shown."""

    def __repr__(self):
        raise ValueError("not to be shown")


WRONG = {
    "None": None,
    "an integer": 7,
    "below zero": -1,
    "a fraction": 1.5,
    "nan": float("nan"),
    "True": True,
    "no text": "",
    "a text": "x",
    "a NUL": "a\0b",
    "a lone surrogate": "a\ud800b",
    "bytes": b"x",
    "a path": Path("/nowhere/at/all"),
    "an empty list": [],
    "a list of texts": ["x"],
    "a list of integers": [1, 2],
    "a list of lists": [["a", "b", "c", "d"], [1]],
    "an empty dict": {},
    "a flat dict": {"q1": ["p1"]},
    "a dict of dicts": {"test": {"q1": 3}},
    "integer keys": {1: {2: 3}},
    "a tuple": ("a", 1),
    "an array": np.zeros((2, 2)),
    "a class": dict,
    "an object": Odd(),
}
NOT_CALLED = {
    "HardnegError",
    "Retriever",
    "Searcher",
    "__version__",
}  # an exception, what a function opens, and a string


@pytest.fixture(scope="module")
def world(world):
    root, (collection, model) = world.root, world
    run = root / "run.trec"
    run.write_text("".join(f"test-{i:02d} Q0 p{i:03d} 1 1.0 made\n" for i in range(16)))
    pool = hn.mine(collection, None, root / "pool", sources=["random"], count=4, cache=root / "cache")
    hn.encode(collection, model, root / "embeddings", cache=root / "cache", device="cpu", dtype="float32")
    (root / "beir").mkdir()
    return SimpleNamespace(root=root, collection=collection, run=run, pool=pool, model=model, cache=root / "cache")


@pytest.fixture(autouse=True)
def quick(monkeypatch, tmp_path):
    """Training itself is looked at elsewhere, and so is the time that it takes."""
    monkeypatch.chdir(tmp_path)  # a text is a path there
    monkeypatch.setattr(training, "train_seeds", lambda *given: {})
    monkeypatch.setattr(estimate, "time_stages", lambda *given: ({"encode": 0.0, "search": 0.0}, 0.0))


def cases(world, new):
    """For each public name how it is called rightly: function and arguments by name."""
    basic = {"data": world.collection, "model": world.model, "cache": world.cache, "device": "cpu"}
    training_of = {**basic, "out": new / "exp", "preset": "demo", "query_length": 12, "passage_length": 16}
    lists = {
        "passages": [("p1", "text"), ("p2", "A title", "text"), {"id": "p3", "title": "t", "text": "x"}],
        "queries": {"q1": "a query"},
        "qrels": {"test": {"q1": ["p1"]}},
    }
    common = {"data": world.collection, "cache": world.cache}
    return {
        "AnceTele": (hn.settings_of, {"recipe": "ance-tele", "preset": None, "episodes": 2, "extra": []}),
        "Collection": (Collection.from_lists, {**lists, "answers": {"q1": ["x"]}, "to": new / "made"}),
        "Embeddings": (hn.Embeddings.open, {"path": world.root / "embeddings"}),
        "Filters": (hn.Filters, {"rank_from": 1, "rank_to": 2, "max_score": 1.0, "absolute_margin": 0.1}),
        "NegativePool": (hn.pool_stats, {"pool": world.pool}),
        "Splits": (hn.Splits, {"train": "train", "dev": "dev", "test": "test"}),
        "allow_code": (lambda revision: hn.allow_code(revision), {"revision": "0" * 40}),
        "audit": (
            hn.audit,
            {
                "path": world.root / "pool",
                **common,
                "model": None,
                "ranker": None,
                "bm25": False,
                "judgements": None,
                "thresholds": {"text": 0.5},
                "most": 3,
                "out": new / "a.tsv",
                "page": new / "a.html",
            },
        ),
        "bm25": (hn.bm25, {**common, "split": "test", "k": 3, "language": None}),
        "check_import": (
            hn.check_import,
            {"source": str(new / "nowhere"), "format": "auto", "allow_empty": False},
        ),
        "compare_experiments": (hn.compare_experiments, {"experiments": [], **common, "out": new / "both.html"}),
        "clean": (hn.clean, {"experiment": new / "exp", "delete": False}),
        "compare": (
            hn.compare,
            {"runs": [world.run, world.run], **common, "split": "test", "qrels": None, "seed": 1},
        ),
        "diagnose": (
            hn.diagnose,
            {"experiment": new / "exp", **common, "save": False, "pictures": False},
        ),
        "doctor": (hn.doctor, {}),
        "encode": (hn.encode, {**basic, "out": new / "emb", "side": "query", "shard": None, "dtype": "float32"}),
        "evaluate": (
            hn.evaluate,
            {"run": world.run, **common, "split": "test", "measures": "RR@10", "qrels": None},
        ),
        "examine": (hn.examine, {**common, "model": None, "allow_bin": False}),
        "export_pool": (
            hn.export_pool,
            {
                "pool": world.root / "pool",
                **common,
                "out": new / "f.jsonl",
                "format": "dpr",
                "negatives": 2,
                "seed": 1,
            },
        ),
        "follow": (
            lambda experiment, poll: list(hn.follow(experiment, wait=False, poll=poll)),
            {"experiment": new / "exp", "poll": 0.1},
        ),
        "fuse": (
            hn.fuse,
            {
                **common,
                "runs": [world.run, world.run],
                "out": new / "r.trec",
                "method": "linear",
                "weights": [1.0, 2.0],
                "k": 3,
            },
        ),
        "group_loss": (
            lambda **given: hn.group_loss(**given),
            {"name": "contrastive", "scale": 1.0, "margin": 1.0, "own": 0, "distill": "kl", "distill_weight": 0.5},
        ),
        "import_negatives": (
            hn.import_negatives,
            {
                "source": f"beir:{world.root / 'beir'}",
                **common,
                "out": new / "given",
                "split": "train",
                "format": "auto",
            },
        ),
        "import_collection": (
            hn.import_collection,
            {"source": f"beir:{world.root / 'beir'}", "to": new / "c", "format": "auto", "on_duplicate": "first"},
        ),
        "index": (
            hn.index,
            {
                "embeddings": world.root / "embeddings",
                "out": new / "i",
                "kind": "flat",
                "data": None,
                "model": None,
            },
        ),
        "inspect": (hn.inspect, {"path": world.root / "pool", **common, "query_id": None, "random": 1, "seed": 0}),
        "load_encoder": (
            hn.load_encoder,
            {"model": world.model, "passage_model": None, "device": "cpu", "prompts": None, "pooling": "mean"},
        ),
        "load_pool": (hn.load_pool, {"path": world.root / "pool"}),
        "load_run": (hn.load_run, {"path": world.root / "nowhere"}),
        "mine": (
            hn.mine,
            {
                **common,
                "model": None,
                "out": new / "pool",
                "sources": ["random"],
                "count": 2,
                "depth": 5,
                "alpha": 0.5,
                "filters": hn.Filters(),
                "labels": Labels(),
                "file": None,
                "previous": None,
                "seed": 1,
                "split": "train",
            },
        ),
        "plan": (hn.plan, {"recipe": "ance", **training_of, "estimate": False, "devices": 1, "settings": None}),
        "pool_stats": (hn.pool_stats, {"pool": world.pool}),
        "open_collection": (hn.open_collection, {"data": world.collection, "cache": world.cache}),
        "open_reranker": (
            hn.open_reranker,
            {
                "data": world.collection,
                "ranker": world.model,
                "retriever": None,
                "k": 3,
                "embeddings": None,
                "cache": world.cache,
                "device": "cpu",
            },
        ),
        "open_searcher": (
            lambda **given: hn.open_searcher(**given).close(),
            {**common, "model": None, "bm25": True, "language": None, "rerank_by": None, "rerank_k": 3},
        ),
        "open_retriever": (
            lambda **given: hn.open_retriever(**given).close(),
            {**basic, "embeddings": None, "index": None, "query_length": 12, "prompts": None, "allow_bin": False},
        ),
        "rerank": (
            hn.rerank,
            {
                "run": world.run,
                "out": new / "r.trec",
                **{name: value for name, value in basic.items() if name != "model"},
                "ranker": world.model,
                "k": 3,
            },
        ),
        "score": (
            hn.score,
            {
                "pool": world.root / "pool",
                "out": new / "scored",
                "data": world.collection,
                "ranker": world.model,
                "filters": hn.Filters(),
                "embeddings": world.root / "embeddings",
                "cache": world.cache,
                "device": "cpu",
            },
        ),
        "search_split": (
            hn.search_split,
            {**common, "out": new / "r.trec", "bm25": True, "model": None, "split": "test", "k": 3},
        ),
        "search_text": (
            hn.search_text,
            {**common, "text": "words", "bm25": True, "model": None, "retriever": None, "k": 2},
        ),
        "settings_of": (
            hn.settings_of,
            {"recipe": "ance", "preset": "demo", "learning_rate": 1e-5, "mode": "sync"},
        ),
        "train": (
            hn.train,
            {"recipe": "ance", **training_of, "splits": hn.Splits(), "seeds": 1, "role": None, "negatives": None},
        ),
        "train_adore": (hn.train_adore, {**training_of, "index_folder": None} | {"passage_length": 16}),
        "train_ance": (hn.train_ance, {**training_of, "role": None}),
        "train_ance_tele": (hn.train_ance_tele, {**training_of, "negatives": None}),
        "train_ar2": (hn.train_ar2, {**training_of, "ranker": None}),
        "train_ranker": (
            hn.train_ranker,
            {**basic, "out": new / "exp", "preset": "demo", "retriever": None, "negatives": None},
        ),
        "train_star": (hn.train_star, training_of),
        "train_warmup": (hn.train_warmup, {**training_of, "passage_model": None, "allow_bin": False}),
        "verify": (lambda path: hn.verify(path), {"path": world.root / "pool"}),
    }


def test_what_can_be_made_of_a_wrong_argument_is_said(world, tmp_path):
    with pytest.raises(SettingsError, match=r"from_pairs makes one of rows in memory"):
        hn.train("star", [{"anchor": "a", "positive": "b"}], world.model, tmp_path / "e")
    with pytest.raises(SettingsError, match=r"the folder that hn\.mine was given as out"):
        hn.inspect(world.pool, world.collection)
    assert hn.pool_stats(world.root / "pool") == hn.pool_stats(world.pool)


def test_every_public_name_is_tried(world, tmp_path):
    assert set(cases(world, tmp_path)) == set(hn.__all__) - NOT_CALLED


@pytest.mark.parametrize("name", sorted(set(hn.__all__) - NOT_CALLED))
def test_wrong_shapes_are_refused_in_a_line(world, tmp_path, name):
    """Each argument in turn is each of the wrong things; some are right all the same: a text can be a path."""
    tried = 0
    for argument in cases(world, tmp_path)[name][1]:
        for number, (what, value) in enumerate(WRONG.items()):
            function, arguments = cases(world, tmp_path / f"{argument}-{number}")[name]
            try:
                function(**arguments | {argument: value})
            except HardnegError:
                pass
            except Exception as fault:
                fault.add_note(f"{name}({argument} = {what})")
                raise
            tried += 1
    assert tried == len(WRONG) * len(cases(world, tmp_path)[name][1])


# ---------------------------------------------------------------- what the lines say


@pytest.mark.parametrize(
    ("change", "line"),
    [
        (
            {"qrels": {"q1": ["p1"]}},
            r"WRONG_TYPE: the qrels of 'q1' are \['p1'\] \(list\), .*give \{split: \{query id",
        ),
        (
            {"qrels": {"test": {"q1": "p1"}}},
            r"WRONG_TYPE: the judgements of query 'q1' of split 'test' are 'p1' \(str",
        ),
        ({"qrels": ["p1"]}, r"WRONG_TYPE: qrels are given as \['p1'\] \(list\)"),
        (
            {"queries": ["a query"]},
            r"BAD_QUERY: a query is given as 'a query' \(str\); give text by id, \(id, text\)",
        ),
        ({"queries": "a query"}, r"WRONG_TYPE: queries are given as 'a query' \(str\); give a list of text by id"),
        (
            {"passages": ["text"]},
            r"BAD_PASSAGE: a passage is given as 'text' \(str\); give \(id, text\), \(id, title",
        ),
        ({"passages": 7}, r"WRONG_TYPE: passages are given as 7 \(int\)"),
        (
            {"answers": {"q1": "x"}},
            r"WRONG_TYPE: the answers of 'q1' are 'x' \(str\); give \{query id: \[answers\]",
        ),
    ],
)
def test_lists_of_another_shape_are_named_with_what_to_give(tmp_path, change, line):
    lists = {"passages": [("p1", "text")], "queries": {"q1": "a query"}, "qrels": {"test": {"q1": ["p1"]}}}
    with pytest.raises(InputError, match=line):
        Collection.from_lists(**lists | change, to=tmp_path / "never")
    assert not (tmp_path / "never").exists()


def test_lists_of_other_shapes_that_can_mean_one_thing_are_taken(tmp_path):
    shapes = [
        ([("p1", "t", "text"), ("p2", "", "more")], {"q1": "a query"}),
        ([{"id": "p1", "title": "t", "text": "text"}, {"_id": "p2", "text": "more"}], [("q1", "a query")]),
        ([["p1", "t", "text"], ["p2", "more"]], [{"id": "q1", "text": "a query"}]),
        (iter([("p1", "t", "text"), ("p2", "more")]), iter([["q1", "a query"]])),
    ]
    qrels = {"test": {"q1": ["p1"]}}
    made = [Collection.from_lists(*shape, qrels, to=tmp_path / str(i)) for i, shape in enumerate(shapes)]
    assert len({one.digest for one in made}) == 1
    by_id = Collection.from_lists({"p1": "text"}, {"q1": "a query"}, qrels, to=tmp_path / "by-id")
    assert (by_id.passage_ids[0], by_id.texts[0]) == ("p1", "text")


@pytest.mark.parametrize("kind", [int, np.int64])
def test_ids_may_be_integers_as_tables_have_them(tmp_path, kind):
    texts = Collection.from_lists(
        [("1", "text"), ("2", "more")], {"7": "a"}, {"dev": {"7": ["2"]}}, answers={"7": ["x"]}, to=tmp_path / "a"
    )
    one, two, seven = kind(1), kind(2), kind(7)
    for number, graded in enumerate(([two], {two}, {two: 1})):
        passages = [(one, "text"), {"id": two, "text": "more"}]
        found = Collection.from_lists(
            passages, {seven: "a"}, {"dev": {seven: graded}}, answers={seven: ["x"]}, to=tmp_path / f"b{number}"
        )
        assert found.digest == texts.digest
    with pytest.raises(InputError, match="BAD_QUERY: a query is given as"):
        Collection.from_lists([(one, "text")], [(1.5, "a")], to=tmp_path / "c")


@pytest.mark.parametrize(
    ("call", "line"),
    [
        (
            lambda w: hn.search_text(w.collection, ["a"], bm25=True),
            r"search_text: text is \['a'\] \(list\); give a string",
        ),
        (
            lambda w: hn.evaluate({"q": 1}, data=w.collection),
            r"evaluate: run is \{'q': 1\} \(dict\); give a string or a p",
        ),
        (
            lambda w: hn.compare("a.trec", data=w.collection),
            r"compare: runs is 'a.trec' \(str\); give a list; each item is a string or a path",
        ),
        (
            lambda w: hn.mine(w.collection, None, "x", sources="bm25"),
            r"mine: sources is 'bm25' \(str\); give a list of",
        ),
        (lambda w: hn.inspect(7), r"inspect: path is 7 \(int\); give a string or a path"),
        (lambda w: hn.train("ance", w.collection, 7, "x"), r"train: model is 7 \(int\); give a string or a path"),
        (
            lambda w: hn.train("ance", w.collection, "m", "x", seeds="2"),
            r"train: seeds is '2' \(str\); give an integer",
        ),
        (lambda w: hn.Splits(train=["train"]), r"Splits: train is \['train'\] \(list\); give a string"),
        (lambda w: Labels("bogus"), r"Labels: labels is 'bogus' \(str\); give 'qrels' or 'answers'"),
        (lambda w: Labels("answers", answer_mode="regexp"), r"Labels: answer_mode is 'regexp'"),
        (lambda w: hn.group_loss("contrastive", scale=20.0, distill="KL"), r"group_loss: distill is 'KL'"),
        (
            lambda w: hn.group_loss("contrastive", scale=-1.0),
            r"OUT_OF_RANGE: scale is -1.0; give a number above 0",
        ),
        (
            lambda w: hn.group_loss("contrastive", scale=1.0, distill_weight=7.0),
            r"distill_weight is 7.0; .*\(0, 1\]",
        ),
        (lambda w: hn.group_loss("contrastive", scale=1.0, own=-1), "OUT_OF_RANGE: own is -1; give 0 or more"),
        (
            lambda w: hn.mine(w.collection, None, "x", labels="bogus"),
            r"mine: labels is 'bogus' \(str\); give a Labels or 'qrels' or 'answers'",
        ),
        (lambda w: hn.verify("x", 7), r"verify: paths is 7 \(int\); give a string or a path"),
        (
            lambda w: hn.search_text(w.collection, "a", k="2", bm25=True),
            r"search_text: k is '2' \(str\); give an integer",
        ),
    ],
)
def test_a_wrong_argument_is_named_with_what_to_give(world, call, line):
    with pytest.raises(SettingsError, match=line):
        call(world)


@pytest.mark.parametrize("grade", [2**31, -(2**31) - 1, 10**30])
def test_a_grade_beyond_32_bits_is_refused(grade):
    with pytest.raises(
        InputError, match=r"BAD_GRADE: query q1, passage p1: the relevance -?\d+ is no 32-bit integer"
    ):
        hn.evaluate({"q1": {"p1": 2.0, "p2": 1.0}}, qrels={"q1": {"p1": grade, "p2": 1}})


def test_an_integer_beyond_all_floats_is_infinite_as_in_a_file():
    run = {"q1": {"p1": 1.0, "p2": 10**400, "p3": -(10**400), "p4": 5}}
    assert hn.evaluate(run, qrels={"q1": {"p4": 1}}, measures="RR")["measures"] == {"RR": 0.5}


def test_settings_made_by_their_class_tell_what_is_wrong():
    with pytest.raises(HardnegError, match=r"BAD_SETTING: episodes = \"three\"; it should be a valid integer"):
        hn.AnceTele(episodes="three")


def test_several_wrong_arguments_are_told_together():
    with pytest.raises(HardnegError) as caught:
        hn.evaluate(7, split=8, measures=9)
    assert [line.split(":")[2].split()[0] for line in caught.value.lines] == ["run", "split", "measures"]


def test_numbers_of_numpy_and_paths_of_any_kind_are_taken(world):
    assert fits(np.int64(3), int)
    assert fits(np.float32(3), float)
    assert fits(np.True_, bool)
    assert not fits(True, int)
    assert not fits("a\0b", str | Path)
    word = world.collection.texts[0].split()[0]
    hits = hn.search_text(str(world.collection.path), word, bm25=True, k=np.int64(2), cache=world.cache)
    assert len(hits) == 2
    assert hn.load_encoder(Path(world.model)).dim == hn.load_encoder(world.model).dim


class OtherPath:
    """A path of another library, such as ``py.path.local``."""

    def __init__(self, place):
        self.place = str(place)

    def __fspath__(self):
        return self.place


def test_a_path_of_another_library_is_guarded_as_any_path(tmp_path):
    pairs = tmp_path / "pairs.jsonl"
    words = ("whales", "otters", "seals")
    pairs.write_text("".join(f'{{"query": "where {word} swim", "positive": "{word} swim"}}\n' for word in words))
    before = pairs.read_bytes()
    with pytest.raises(HardnegError, match="EXISTS: this file is an input"):
        hn.search_split(OtherPath(pairs), str(pairs), bm25=True, split="train", cache=tmp_path / "cache")
    assert pairs.read_bytes() == before
    run = hn.search_split(OtherPath(pairs), OtherPath(tmp_path / "r"), bm25=True, split="train")["run"]
    found = hn.evaluate(OtherPath(run), data=OtherPath(pairs), split="train")
    assert found == hn.evaluate(run, data=str(pairs), split="train")


def test_numbers_of_numpy_become_pythons(world, tmp_path):
    numbers = {"depth": np.int64(12), "count": np.int32(3), "alpha": np.float32(0.5), "seed": np.int64(1)}
    bounds = hn.Filters(rank_from=np.int64(2), max_score=np.float64(9))
    pool = hn.mine(world.collection, None, tmp_path / "pool", sources=["bm25"], filters=bounds, **numbers)
    same = hn.Filters(rank_from=2, max_score=9.0)
    options = {"depth": 12, "count": 3, "alpha": 0.5, "seed": 1, "filters": same}
    other = hn.mine(world.collection, None, tmp_path / "other", sources=["bm25"], **options)
    assert np.array_equal(pool.passage_rows, other.passage_rows)
    assert (type(bounds.rank_from), type(bounds.max_score)) == (int, float)
    kinds = [np.True_, np.int64(2), [np.float32(0.5), 1], {"a": np.int32(3)}, (np.bool_(False),)]
    assert json.loads(json.dumps([plain(one) for one in kinds])) == [True, 2, [0.5, 1], {"a": 3}, [False]]
    array = np.zeros(3)
    assert plain(array) is array
    assert read_manifest(tmp_path / "pool").settings == read_manifest(tmp_path / "other").settings


def test_words_that_are_values_of_settings_are_no_paths(world, tmp_path):
    out = {"data": world.collection, "model": world.model, "out": None}
    task = prepare(RECIPES["adore"], **out, negatives="static", cut=10)
    assert (task.settings.negatives, task.given.pool) == ("static", None)
    task = prepare(RECIPES["star"], **out, filter_by="start", relative_margin=0.05)
    assert (task.settings.filter_by, task.source.filter_by) == ("start", None)
    with pytest.raises(SettingsError, match="NO_MODEL: filter_by = given, but no model to filter by is given"):
        prepare(RECIPES["star"], **out, filter_by="given", relative_margin=0.05)


def test_a_checked_function_is_what_it_was():
    def some(a: int, *more: str, b: list[int] | None = None) -> int:
        """Words."""
        return a

    held = checked(some)
    assert (held.__name__, held.__doc__) == ("some", "Words.")
    assert inspect.signature(held) == inspect.signature(some)
    assert held(1, "x", b=[2]) == 1
    with pytest.raises(TypeError, match=r"some\(\): missing a required argument: 'a'"):
        held()
    assert expected(list[int] | None) == "a list of integers"
    assert expected(Mapping[str, Mapping[str, float]]) == "a mapping {string: {string: number}}"
    assert expected(Callable[[int], None] | None) == "a function"


class Options(TypedDict, total=False):
    """Of a function that names them once for several."""

    length: int | None
    name: str


def test_options_of_a_dict_are_checked_by_name():
    @checked
    def some(a: int, **options: Unpack[Options]) -> dict:
        return {"a": a, **options}

    assert some(1, length=None, name="x") == {"a": 1, "length": None, "name": "x"}
    with pytest.raises(SettingsError, match=r"some: length is '3' \(str\); give an integer"):
        some(1, length="3")
    with pytest.raises(TypeError, match="unexpected keyword argument 'lenght'"):
        some(1, lenght=3)
    with pytest.raises(TypeError, match="unexpected keyword argument 'modle'"):
        hn.search_text("data", "text", modle="m")


def test_a_keyword_of_another_library_is_answered_with_ours():
    said = re.escape("search_text() got an unexpected keyword argument 'top_k'; did you mean 'k'?")
    with pytest.raises(TypeError, match=said):
        hn.search_text("pydocs", "copy", bm25=True, top_k=3)
    said = re.escape("evaluate() got an unexpected keyword argument 'metrics'; did you mean 'measures'?")
    with pytest.raises(TypeError, match=said):
        hn.evaluate("run", metrics="RR@10")
    with pytest.raises(TypeError, match=re.escape("'qqq'") + "$"):
        hn.evaluate("run", qqq=1)


Places = dict[str, str | Path]


@pytest.mark.parametrize(
    ("value", "hint", "found"),
    [
        ("~", str | Path, "/home/me"),
        ("~/data", str | Path | None, "/home/me/data"),
        (Path("~/data"), Path, Path("/home/me/data")),
        (["~/a", "b"], list[str | Path], ["/home/me/a", "b"]),
        ([OtherPath("~/a"), OtherPath("b")], list[str | Path], [Path("/home/me/a"), Path("b")]),
        ({"a": OtherPath("b")}, Places, {"a": Path("b")}),
        ({"~/a": "~/b"}, Places, {"~/a": "/home/me/b"}),
        ("~/data", str, "~/data"),
        ("~notes.txt", str | Path, "~notes.txt"),
        ("beir:~/data", str | Path, "beir:~/data"),
        (7, int | None, 7),
    ],
)
def test_only_a_path_may_begin_in_the_home_folder(monkeypatch, value, hint, found):
    monkeypatch.setenv("HOME", "/home/me")

    @checked
    def one(place: hint, **others: hint):
        return place, others

    assert one(value, more=value) == (found, {"more": found})
