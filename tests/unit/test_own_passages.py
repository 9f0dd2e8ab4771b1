"""Queries that are passages of the corpus themselves: the passage is neither their hit nor a negative."""

import itertools
import json
from dataclasses import replace

import numpy as np
import pytest

import hardneg as hn
from hardneg.api.audit import evidence, facts_of, open_world
from hardneg.data.collection import Collection
from hardneg.data.judgements import JudgedIds
from hardneg.data.own_passages import own_passages, without_own
from hardneg.data.training_data import Labels, TrainingData, amended
from hardneg.diagnostics.counted_errors import load_errors
from hardneg.diagnostics.forgetting import reciprocal_ranks
from hardneg.diagnostics.judge import Judge
from hardneg.diagnostics.search_state import bm25_judged
from hardneg.errors import ArtifactError
from hardneg.evaluation.measures import first_relevant_rank, parse_measures
from hardneg.experiment.layout import Layout
from hardneg.experiment.layout import run_of as run_place
from hardneg.experiment.snapshot import ArchivedState
from hardneg.experiment.states import StateRecord
from hardneg.negatives.labels import answers_of, current_positives, relevant
from hardneg.negatives.mining import Corpus
from hardneg.recipes.adore.lists import Noted, without_itself
from hardneg.records import Positives, owners
from hardneg.report.opened import Opened
from hardneg.search.runs import load_run, save_run
from hardneg.training.batches import KnownPositives, no_negatives
from worlds.tiny_records import run_of

PASSAGES = {
    "x": "red fox jumps",
    "copy": "red fox jumps",
    "y": "red fox sleeps",
    "t": ("red", "whale"),
    "0": "red dog",
    "z": "red cat runs",
}
QUERIES = {"x": "red  fox jumps ", "t": "red whale", "0": "red cow", "q": "red fox sleeps"}
TRAIN = {"x": ["y"], "t": ["z"], "0": ["z"], "q": ["y"]}


def argued(folder, train=TRAIN, **options):
    """A collection whose queries x and t are passages; the id 0 is of a passage with another text by chance."""
    passages = [(name, *([text] if isinstance(text, str) else text)) for name, text in PASSAGES.items()]
    return Collection.from_lists(passages, QUERIES, {"train": train, "test": train}, to=folder / "c", **options)


def data_of(collection):
    return TrainingData(collection, collection.qrels("train").positives(), None, None)


def test_a_query_is_a_passage_if_id_and_text_are_equal(tmp_path):
    c = argued(tmp_path)
    queries, passages = own_passages(c, np.arange(c.n_queries, dtype=np.int32))
    assert c.query_ids.take(queries) == c.passage_ids.take(passages) == ["t", "x"]
    assert own_passages(c, c.query_ids.rows(["0", "q"]))[0].tolist() == []


@pytest.mark.parametrize("source", ["bm25", "random", "file"])
def test_no_source_mines_the_query_itself_or_its_copy(tmp_path, source):
    c = argued(tmp_path)
    hits = [f"{query} Q0 {passage} 0 {9 - i} r\n" for query in QUERIES for i, passage in enumerate(PASSAGES)]
    (tmp_path / "run.trec").write_text("".join(hits))
    given = {"file": tmp_path / "run.trec"} if source == "file" else {}
    pool = hn.mine(
        c, None, tmp_path / "pool", sources=[source], count=6, depth=6, cache=tmp_path / "cache", **given
    )
    found = {}
    for query, passage in zip(pool.query_rows[owners(pool.offsets)], pool.passage_rows, strict=True):
        found.setdefault(c.query_ids.take([query])[0], set()).add(c.passage_ids.take([passage])[0])
    assert not found["x"] & {"x", "copy", "y"}
    assert found["x"] >= {"0", "z"}
    assert found["t"] & {"t", "z"} == set()
    assert "0" in found["0"]


def test_the_query_itself_takes_no_place_within_the_depth(tmp_path):
    c = argued(tmp_path)
    pool = hn.mine(c, None, tmp_path / "pool", sources=["bm25"], count=1, depth=1, cache=tmp_path / "cache")
    assert np.diff(pool.offsets).tolist() == [1] * 4
    first = int(pool.offsets[np.flatnonzero(pool.query_rows == c.query_ids.rows(["x"]))[0]])
    assert c.passage_ids[int(pool.passage_rows[first])] in ("0", "t", "z")


def test_the_query_itself_is_masked_in_a_step(tmp_path):
    c = argued(tmp_path)
    data, rows = data_of(c), np.arange(c.n_passages, dtype=np.int32)
    mask = KnownPositives(data.known, c.text_keys, data).mask(c.query_ids.rows(["x", "0"]), rows)
    assert [c.passage_ids.take(np.flatnonzero(one)) for one in mask] == [["x", "copy", "y"], ["z"]]
    alone = no_negatives(data, masked=False).mask(c.query_ids.rows(["x", "0"]), rows)
    assert [c.passage_ids.take(np.flatnonzero(one)) for one in alone] == [["x", "copy"], []]


def test_the_query_itself_is_not_relevant_either(tmp_path):
    """It raises no rank of a training query, and it stays a positive where the judgements call it one."""
    c = argued(tmp_path)
    data, contains = data_of(c), answers_of(data_of(c), tmp_path)
    run = run_of([range(6)] * 4)
    assert relevant(run, data, contains).passage_rows.tolist() == data.train.passage_rows.tolist()
    same = argued(tmp_path / "same", {"x": ["x"]})
    assert data_of(same).train.passage_rows.tolist() == same.passage_ids.rows(["x"]).tolist()


def test_an_answer_in_the_query_itself_teaches_nothing(tmp_path):
    """The passages x, copy and y hold the answer of x; BM25 ranks x first."""
    c = argued(tmp_path, answers={"x": ["red fox"]})
    data = replace(data_of(c), labels=Labels("answers", use_positive_ctxs=False))
    assert c.query_ids.take(data.train.query_rows) == ["x"]
    contains = answers_of(data, tmp_path)
    found = current_positives(Corpus(c, tmp_path), data, 6, contains)
    assert c.passage_ids.take(found.passage_rows) == ["y"]
    run = run_of([range(6)], query_rows=data.train.query_rows)
    assert c.passage_ids.take(relevant(run, data, contains).passage_rows) == ["y"]


def test_what_people_judged_negative_stays_one(tmp_path):
    c = argued(tmp_path)
    judged = JudgedIds(tmp_path, {("x", "x"): ("negative", 2)}).known(c.query_ids, c.passage_ids)
    data = amended(data_of(c), judged)
    rows = np.arange(c.n_passages, dtype=np.int32)
    told = data.no_negative(np.full(len(rows), c.query_ids.rows(["x"])[0], np.int32), rows)
    assert c.passage_ids.take(np.flatnonzero(told)) == ["copy"]
    mask = KnownPositives(data.known, c.text_keys, data).mask(c.query_ids.rows(["x"]), rows)
    assert c.passage_ids.take(np.flatnonzero(mask[0])) == ["y"]


@pytest.mark.parametrize("label", ["relevant", "positive"])
def test_a_query_that_people_judged_relevant_to_itself_stays_a_hit(tmp_path, label):
    c = argued(tmp_path)
    judged = JudgedIds(tmp_path, {("x", "x"): (label, 2)}).known(c.query_ids, c.passage_ids)
    judge = Judge(amended(data_of(c), judged), parse_measures("RR@10"), tmp_path)
    run = run_of([c.passage_ids.rows(["x", "z", "y"])] * 4)
    assert reciprocal_ranks(judge.hits(run), judge.relevant(run))[c.query_ids.rows(["x"])[0]] == 1


RUN = {"x": {"x": 3.0, "y": 2.0}, "0": {"0": 3.0, "z": 2.0}}


def test_the_query_itself_is_no_hit(tmp_path):
    """It has rank 1 in the run; the passage 0 has its query's id by chance and stays."""
    c = argued(tmp_path)
    given = {"data": c, "measures": "RR@10", "cache": tmp_path / "cache"}
    found = hn.evaluate(RUN, per_query=tmp_path / "each.jsonl", **given)
    each = [line.split(",")[:2] for line in (tmp_path / "each.jsonl").read_text().splitlines()]
    assert [values[1].strip(" }") for values in each] == [
        '"RR@10": 0.5',
        '"RR@10": 0.0',
        '"RR@10": 0.0',
        '"RR@10": 1.0',
    ]
    assert found["missing"] == 2
    assert hn.evaluate(RUN, leave_out_own=True, **given)["measures"]["RR@10"] == 0.5


def test_a_query_that_is_judged_relevant_to_itself_stays_a_hit(tmp_path):
    c = argued(tmp_path, {"x": ["x"]})
    assert hn.evaluate(RUN, data=c, measures="RR@10", cache=tmp_path)["measures"]["RR@10"] == 1


def test_hits_with_the_id_of_their_query_are_left_out_if_asked(tmp_path):
    qrels = {"x": {"y": 1}, "0": {"z": 1}}
    given = {"qrels": qrels, "measures": "RR@10"}
    assert hn.evaluate(RUN, **given)["measures"]["RR@10"] == 0.5
    assert hn.evaluate(RUN, leave_out_own=True, **given)["measures"]["RR@10"] == 1
    other = {"x": {"y": 3.0}, "0": {"z": 2.0}}
    rows = hn.compare([RUN, other], **given)
    assert [row["difference"] for row in rows] == [-0.5]
    assert [row["difference"] for row in hn.compare([RUN, other], leave_out_own=True, **given)] == [0]


def test_dev_and_training_ranks_do_not_count_the_query_itself(tmp_path):
    c = argued(tmp_path)
    data = TrainingData(c, c.qrels("train").positives(), c.qrels("test"), None)
    judge = Judge(data, parse_measures("RR@10"), tmp_path)
    rows = c.passage_ids.rows(["x", "y", "0", "z"])
    run = run_of([rows] * 4)
    assert judge.evaluate({"dev": run})["dev"].values["RR@10"].tolist() == [0.25, 0.5, 0.25, 1]
    assert reciprocal_ranks(judge.hits(run), judge.relevant(run)).tolist() == [0.25, 0.5, 0.25, 1]


def test_the_query_itself_is_no_hit_in_comparisons(tmp_path):
    """Values, the first difference and the overlap go by the same hits."""
    c = argued(tmp_path)
    others = [{"x": {"x": 3.0, "y": 2.0, "z": 1.0}}, {"x": {"y": 2.0, "z": 1.0}}]
    (row,) = hn.compare(others, data=c, measures="RR@10", per_query=tmp_path / "each.jsonl", cache=tmp_path)
    assert (row["overlap"], row["ties"]) == (1, 4)
    each = [json.loads(line) for line in (tmp_path / "each.jsonl").read_text().splitlines()]
    assert [(one["RR@10"], one["differ_at"]) for one in each if one["query_id"] == "x"] == [([1, 1], None)]


@pytest.mark.parametrize("name", ["query", "dev", "test"])
def test_a_report_leaves_the_query_itself_out_of_all_lists(tmp_path, name):
    """So the ranks beside the values are those of the values."""
    c = argued(tmp_path)
    data = TrainingData(c, c.qrels("train").positives(), c.qrels("test"), c.qrels("test"))
    rows = c.passage_ids.rows(["x", "copy", "y"])
    run = run_of([rows] * 4)
    save_run(run, run_place(tmp_path / "runs", name), inputs={}, settings={})
    found = Opened(Layout(tmp_path), data).run(StateRecord("final", "final", runs="runs"), name)
    assert [c.passage_ids.take(found.hits(i)[0]) for i in c.query_ids.rows(["x", "q"])] == [
        ["copy", "y"],
        ["x", "copy", "y"],
    ]
    assert len(Opened(Layout(tmp_path)).run(StateRecord("final", "final", runs="runs"), name).passage_rows) == 12


def numbered(folder, n):
    """A collection of n passages, p0 and so on, of which two are queries that are judged by the next one."""
    passages = {f"p{i}": f"red word{i}" for i in range(n)}
    queries = {name: passages[name] for name in ("p0", "p1")} | {"q": "red word0"}
    judged = {"p0": ["p1"], "p1": ["p2"]}
    return Collection.from_lists(passages, queries, {"test": judged, "dev": {"q": ["p1"]}}, to=folder / "c")


def test_a_split_with_such_a_query_is_searched_one_deeper(tmp_path):
    """So R@100 looks at 100 hits; a split without one is searched as before."""
    c = numbered(tmp_path, 110)
    data = TrainingData(c, c.qrels("test").positives(), c.qrels("dev"), c.qrels("test"))
    judge = Judge(data, parse_measures("R@100"), tmp_path)
    runs = bm25_judged(judge)
    assert {name: np.diff(run.offsets).tolist() for name, run in runs.items()} == {"test": [101] * 2, "dev": [100]}
    hits = without_own(runs["test"], c.qrels("test").positives(), c)
    assert np.diff(hits.offsets).tolist() == [100] * 2


@pytest.mark.parametrize(("passages", "told"), [(30, ["at most 11 hits, so nDCG@12 may be too low"]), (12, [])])
def test_the_query_itself_is_no_hit_of_a_run_that_may_be_too_short(tmp_path, caplog, passages, told):
    """A run of 12 hits has 11 of a query that is a passage; they may be all other passages that there are."""
    c = numbered(tmp_path, passages)
    last = {f"p{i}": float(i) for i in range(passages - 11, passages)}
    run = {query: {query: 99.0} | last for query in ("p0", "p1")}
    with caplog.at_level("WARNING"):
        hn.evaluate(run, data=c, measures="nDCG@12", cache=tmp_path)
    assert [message.split("have ")[1].split(";")[0] for message in caplog.messages if "hits" in message] == told


def test_training_counts_no_error_for_the_query_itself(tmp_path, world):
    """The test queries are passages, so each is the first hit of its own search, and its positive comes later."""
    known, model = world
    words = list(dict.fromkeys(" ".join(known.texts.take(np.arange(known.n_passages))).split()))
    pairs = itertools.islice(itertools.combinations(words, 2), 120)
    passages = {f"p{i}": " ".join(pair) for i, pair in enumerate(pairs)}
    judged = {"p0": ["p1"], "p5": ["p6"]}
    queries = {name: passages[name] for name in judged} | {"q": words[0], "r": words[1]}
    splits = {"train": {"q": ["p1"], "r": ["p9"]}, "test": judged}
    c = Collection.from_lists(passages, queries, splits, to=tmp_path / "c")
    given = {"mixtures": ["in_batch"], "steps": [1], "device": "cpu", "splits": hn.Splits(dev="none")}
    hn.train_warmup(c, model, tmp_path / "out", examine="judged", measures="RR@10", **given)
    place = next((tmp_path / "out").glob("**/runs/test-errors"))
    run, errors = load_run(place.with_name("test")), load_errors(place)
    assert np.diff(run.offsets).tolist() == [101, 101]
    relevant = c.qrels("test").positives()
    ranks = first_relevant_rank(without_own(run, relevant, c), relevant, 1000)
    assert errors.errors.tolist() == (ranks - 1).tolist()


def test_tuned_weights_are_judged_like_the_run_that_they_make(tmp_path):
    """A measure at 2 looks at two hits besides the query itself."""
    c = argued(tmp_path)
    lines = [f"x Q0 {passage} 0 {9 - i} r\n" for i, passage in enumerate(["x", "z", "y"])]
    (tmp_path / "run.trec").write_text("".join(lines))
    runs = [tmp_path / "run.trec"] * 2
    tuned = hn.fuse(runs, tmp_path / "out.trec", data=c, tune="test", measure="RR@2")["tuned"]
    found = hn.evaluate(tmp_path / "out.trec", data=c, split="test", measures="RR@2")["measures"]
    assert tuned["RR@2"] == found["RR@2"] == 0.5 / 4  # of four queries, one is in the run


def test_an_experiment_whose_runs_are_one_hit_short_goes_on(tmp_path):
    """Before, a split whose queries are passages was searched no deeper."""
    run = run_of([range(5)] * 2)
    save_run(run, tmp_path / "dev", inputs={}, settings={"k": 5})
    state = ArchivedState("final", tmp_path)
    assert np.array_equal(state.search("dev", run.query_rows, 6).passage_rows, run.passage_rows)
    with pytest.raises(ArtifactError, match="OTHER_RUN"):
        state.search("dev", run.query_rows, 7)


@pytest.mark.parametrize("normalisation", ["min-max", "z"])
def test_weights_are_tuned_on_the_lists_that_are_fused(tmp_path, normalisation):
    """Each query is its own first hit, with a score far above the others, and so changes what is normalised."""
    names, draw = [f"p{i}" for i in range(16)], np.random.default_rng(3)
    judged = {name: {names[i - 1]: 1} for i, name in enumerate(names)}
    texts = {name: f"text {name}" for name in names}
    c = Collection.from_lists([*texts.items()], texts, {"dev": judged}, to=tmp_path / "c")
    runs = [
        {name: {p: draw.random() * scale + far * (p == name) for p in names} for name in names}
        for scale, far in ((1.0, 9.0), (1.0, 0.5))
    ]
    options = {"method": "linear", "normalisation": normalisation, "data": c, "cache": tmp_path}
    for k, measure in ((16, "RR@10"), (16, "nDCG@3"), (3, "RR@3")):
        facts = hn.fuse(runs, tune="dev", measure=measure, k=k, **options)
        found = hn.evaluate(facts["run"], data=c, split="dev", measures=measure, cache=tmp_path)["measures"]
        assert facts["tuned"][measure] == pytest.approx(found[measure], abs=1e-12)
        tried = [hn.fuse(runs, weights=[w / 10, 1 - w / 10], k=k, **options)["run"] for w in range(11)]
        values = [hn.evaluate(one, data=c, split="dev", measures=measure, cache=tmp_path) for one in tried]
        assert found[measure] == pytest.approx(max(one["measures"][measure] for one in values), abs=1e-12)


def test_metrics_of_adore_leave_out_the_query_itself():
    positives = Positives(np.array([2, 5, 9], np.int32), np.array([0, 1, 2, 3]), np.array([7, 7, 7], np.int32))
    found = np.array([[1, 7, -1], [1, 7, 3], [4, 1, 7]], np.int32)
    own = np.array([2, 6, 9], np.int32), np.array([1, 1, 1], np.int32)
    left = without_itself(found, positives.query_rows, own)
    assert left.tolist() == [[7, -1, -1], [1, 7, 3], [4, 7, -1]]
    assert left.dtype == np.int32
    noted = Noted()
    noted.add(left, [left[0]] * 3, positives)
    assert noted.reciprocal_rank == [1.0, 0.5, 0.5]
    assert noted.errors == [0, 1, 1]


def test_a_run_is_too_short_whether_few_or_most_of_its_queries_are_passages(tmp_path, caplog):
    """Lists that lost the query itself are one hit shorter than the others; all were cut at one depth."""
    c = numbered(tmp_path, 30)
    hits = {f"p{i}": float(i) for i in range(19, 30)}
    for own in (["p0"], ["p0", "p1"]):
        run = {query: hits | {query if query in own else "p2": 99.0} for query in ("p0", "p1")}
        caplog.clear()
        hn.evaluate(run, data=c, split="test", measures="nDCG@20", cache=tmp_path)
        assert any("so nDCG@20 may be too low" in message for message in caplog.messages)


def test_an_audit_does_not_count_the_query_itself(tmp_path, monkeypatch):
    """Else the negatives of such a query would seem a place lower than they are."""
    c = argued(tmp_path)
    hn.mine(c, None, tmp_path / "pool", sources=["bm25"], count=6, depth=6, cache=tmp_path / "cache")
    run = run_of({int(c.query_ids.rows(["x"])[0]): c.passage_ids.rows(["x", "z", "y"])})
    monkeypatch.setattr("hardneg.api.audit.model_run", lambda *_: replace(run, collection=c.digest))
    world = open_world(tmp_path / "pool", c, tmp_path / "cache")
    gathered = evidence(world, model="model", ranker=None, bm25=True, reading={})
    found = facts_of(world, gathered, None, thresholds={"text": 2.0})["suspects"]
    assert [(one["query_id"], one["passage_id"], one["signals"]["retriever"]) for one in found] == [("x", "z", 1)]
