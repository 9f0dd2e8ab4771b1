"""Measures: by hand, against a slow loop, against pytrec_eval and ir_measures, and on published runs."""

import math
import re
from dataclasses import replace

import ir_measures
import numpy as np
import pytest
import pytrec_eval

from hardneg.data.formats.trec import open_qrels, read_runs
from hardneg.errors import Faults, InputError, SettingsError
from hardneg.evaluation import judged
from hardneg.evaluation.compare import UNJUDGED, compare_runs, first_disagreement, overlap
from hardneg.evaluation.measures import Measure, evaluate, first_relevant_rank, parse_measures
from hardneg.records import Qrels, offsets_of
from worlds.tiny_records import run_of

LIST = "RR@10 RR R@5 R(rel=2)@20 nDCG@10 nDCG AP AP@5 AP(rel=2)@20 P@5 Success@5 Success(rel=2)@1 Judged@10"


def qrels_of(judged):
    """Qrels from {query row: {passage row: grade}}."""
    flat = [pair for query in sorted(judged) for pair in sorted(judged[query].items())]
    return Qrels(
        np.array(sorted(judged), np.int32),
        offsets_of(np.array([len(judged[query]) for query in sorted(judged)], np.int64)),
        np.array([row for row, _ in flat], np.int32),
        np.array([grade for _, grade in flat], np.int32),
    )


def random_case(seed, queries=60, passages=80, levels=6):
    """A run of ragged lists with many ties, in no order, and qrels with grades from -1 to 3."""
    generator = np.random.default_rng(seed)
    names = [f"d{i}" for i in generator.permutation(passages * 3)[:passages]]
    rank = np.empty(passages, np.int32)
    rank[sorted(range(passages), key=lambda row: names[row])] = np.arange(passages)
    hits, judgements = {}, {}
    for query in generator.permutation(queries):
        count = int(generator.integers(0, 40))
        rows = generator.choice(passages, count, replace=False)
        hits[int(query)] = [(int(row), float(generator.integers(levels)) / 7) for row in rows]
    for query in range(5, queries + 5):
        count = int(generator.integers(0, 12))
        rows = generator.choice(passages, count, replace=False)
        judgements[query] = {int(row): int(generator.integers(-1, 4)) for row in rows}
    return hits, judgements, names, rank


def loop_ranking(ranked, names):
    return [row for row, _ in sorted(ranked, key=lambda hit: (np.float32(hit[1]), names[hit[0]]), reverse=True)]


def loop_value(measure, ranking, grades):
    """One query's value, step by step."""
    top = ranking if measure.cutoff is None else ranking[: measure.cutoff]
    relevant = [grades.get(row, -9) >= measure.rel for row in top]
    total = sum(grade >= measure.rel for grade in grades.values())
    if measure.name == "RR":
        return next((1 / rank for rank, is_relevant in enumerate(relevant, 1) if is_relevant), 0.0)
    if measure.name == "R":
        return sum(relevant) / total if total else 0.0
    if measure.name == "P":
        return sum(relevant) / measure.cutoff
    if measure.name == "Success":
        return float(any(relevant))
    if measure.name == "Judged":
        return sum(row in grades for row in top) / len(top) if top else 0.0
    if measure.name == "AP":
        found = [sum(relevant[:rank]) / rank for rank, is_relevant in enumerate(relevant, 1) if is_relevant]
        return sum(found) / total if total else 0.0
    gains = [max(grades.get(row, 0), 0) for row in top]
    ideal = sorted((max(grade, 0) for grade in grades.values()), reverse=True)[: measure.cutoff]
    return dcg(gains) / dcg(ideal)


def dcg(gains):
    return sum(gain / math.log2(rank + 1) for rank, gain in enumerate(gains, 1))


# ---------------------------------------------------------------- by hand


def test_values_by_hand():
    run = run_of({0: [(3, 9.0), (1, 8.0), (0, 7.0), (2, 6.0)], 1: [(5, 1.0)], 9: [(0, 1.0)]})
    qrels = qrels_of({0: {1: 1, 2: 3, 4: 2}, 1: {0: 1}, 2: {7: 1}, 3: {1: 0}})
    result = evaluate(run, qrels, parse_measures(LIST), id_rank=np.arange(10, dtype=np.int32))
    assert result.query_rows.tolist() == [0, 1, 2]
    assert (result.missing, result.unjudged) == (1, 1)
    first = {name: values[0] for name, values in result.values.items()}
    gain = 1 / math.log2(3) + 3 / math.log2(5)
    ideal = 3 + 2 / math.log2(3) + 1 / 2
    assert first == pytest.approx(
        {
            "RR@10": 1 / 2,
            "RR": 1 / 2,
            "R@5": 2 / 3,
            "R(rel=2)@20": 1 / 2,
            "nDCG@10": gain / ideal,
            "nDCG": gain / ideal,
            "AP": (1 / 2 + 2 / 4) / 3,
            "AP@5": (1 / 2 + 2 / 4) / 3,
            "AP(rel=2)@20": (1 / 4) / 2,
            "P@5": 2 / 5,
            "Success@5": 1.0,
            "Success(rel=2)@1": 0.0,
            "Judged@10": 2 / 4,
        },
        rel=1e-12,
    )
    assert all(values[1:].tolist() == [0.0, 0.0] for values in result.values.values())
    assert result.means["RR@10"] == pytest.approx(1 / 6)
    assert result.as_json()["queries"] == 3


def test_ties_go_to_the_greater_id_and_to_the_order_given_without_ids():
    run = run_of({0: [(0, 1.0), (1, 1.0), (2, 1.0)]})
    qrels = qrels_of({0: {0: 1}})
    rank = np.array([1, 0, 2], np.int32)  # ids b, a, c: c, b, a
    measures = parse_measures("RR")
    assert evaluate(run, qrels, measures, id_rank=rank).means["RR"] == 1 / 2
    assert evaluate(run, qrels, measures, id_rank=None).means["RR"] == 1.0


def test_scores_tie_as_float32():
    run = run_of({0: [(0, 1.0), (1, 1.0 + 1e-9)]})
    result = evaluate(run, qrels_of({0: {1: 1}}), parse_measures("RR"), id_rank=np.array([1, 0], np.int32))
    assert result.means["RR"] == 1 / 2


def test_nothing_relevant_is_a_fault():
    with pytest.raises(InputError, match="NO_RELEVANT"):
        evaluate(run_of({0: [(0, 1.0)]}), qrels_of({0: {0: 0}}), parse_measures("RR"), id_rank=None)


def test_an_empty_run_scores_zero():
    result = evaluate(run_of({}), qrels_of({0: {0: 1}}), parse_measures(LIST), id_rank=None)
    assert result.missing == 1
    assert set(result.means.values()) == {0.0}


# ---------------------------------------------------------------- against others


@pytest.mark.parametrize("block", [1 << 18, 7])
@pytest.mark.parametrize("levels", [3, 40, 10**6])
def test_equals_the_slow_loop(monkeypatch, levels, block):
    monkeypatch.setattr(judged, "_BLOCK", block)
    monkeypatch.setattr(judged, "_PAIRS", block)
    hits, judgements, names, rank = random_case(levels, levels=levels)
    measures = parse_measures(LIST)
    result = evaluate(run_of(hits), qrels_of(judgements), measures, id_rank=rank)
    kept = [query for query in sorted(judgements) if max(judgements[query].values(), default=0) >= 1]
    assert result.query_rows.tolist() == kept
    assert result.missing == sum(query not in hits for query in kept)
    assert result.unjudged == sum(query not in kept for query in hits)
    rankings = {query: loop_ranking(hits.get(query, []), names) for query in kept}
    for measure in measures:
        expected = [loop_value(measure, rankings[query], judgements[query]) for query in kept]
        np.testing.assert_allclose(result.values[str(measure)], expected, rtol=1e-12, atol=0, err_msg=str(measure))


def test_sorting_first_changes_nothing():
    hits, judgements, names, rank = random_case(5)
    ranked = {
        query: sorted(found, key=lambda hit: (hit[1], names[hit[0]]), reverse=True)
        for query, found in hits.items()
    }
    measures, qrels = parse_measures(LIST), qrels_of(judgements)
    plain = evaluate(run_of(hits), qrels, measures, id_rank=rank)
    for other in (
        evaluate(run_of(ranked), qrels, measures, id_rank=rank),
        evaluate(run_of(ranked), qrels, measures, id_rank=None),
        evaluate(run_of(dict(sorted(ranked.items()))), qrels, measures, id_rank=None),
    ):
        for name, values in plain.values.items():
            np.testing.assert_array_equal(values, other.values[name])


@pytest.mark.parametrize("levels", [3, 40])
def test_equals_pytrec_eval_query_by_query(levels):
    hits, judgements, names, rank = random_case(levels + 1, levels=levels)
    ours = evaluate(run_of(hits), qrels_of(judgements), parse_measures(LIST), id_rank=rank)
    qrel = {str(q): {names[row]: grade for row, grade in found.items()} for q, found in judgements.items()}
    run = {str(q): {names[row]: score for row, score in found} for q, found in hits.items()}
    cut = {
        str(q): {names[row]: dict(found)[row] for row in loop_ranking(found, names)[:10]}
        for q, found in hits.items()
    }
    theirs = {
        "nDCG@10": (run, 1, "ndcg_cut.10"),
        "nDCG": (run, 1, "ndcg"),
        "AP": (run, 1, "map"),
        "AP@5": (run, 1, "map_cut.5"),
        "AP(rel=2)@20": (run, 2, "map_cut.20"),
        "R@5": (run, 1, "recall.5"),
        "R(rel=2)@20": (run, 2, "recall.20"),
        "P@5": (run, 1, "P.5"),
        "Success@5": (run, 1, "success.5"),
        "Success(rel=2)@1": (run, 2, "success.1"),
        "RR": (run, 1, "recip_rank"),
        "RR@10": (cut, 1, "recip_rank"),
    }
    for name, (searched, level, measure) in theirs.items():
        evaluator = pytrec_eval.RelevanceEvaluator(qrel, {measure}, relevance_level=level)
        found = evaluator.evaluate(searched)
        expected = [found.get(str(q), {}).get(measure.replace(".", "_"), 0.0) for q in ours.query_rows]
        np.testing.assert_allclose(ours.values[name], expected, rtol=1e-9, atol=1e-12, err_msg=name)


def test_equals_ir_measures_query_by_query():
    hits, judgements, names, rank = random_case(8, levels=10**9)  # its providers break ties in several ways
    measures = parse_measures(LIST)
    ours = evaluate(run_of(hits), qrels_of(judgements), measures, id_rank=rank)
    qrels = {str(q): {names[row]: grade for row, grade in found.items()} for q, found in judgements.items()}
    run = {str(q): {names[row]: score for row, score in found} for q, found in hits.items()}
    place = {str(q): i for i, q in enumerate(ours.query_rows)}
    seen = 0
    for metric in ir_measures.iter_calc([ir_measures.parse_measure(str(m)) for m in measures], qrels, run):
        if metric.query_id in place:
            mine = ours.values[str(metric.measure)][place[metric.query_id]]
            assert mine == pytest.approx(metric.value, rel=1e-9, abs=1e-12), metric
            seen += 1
    assert seen > 100


# ---------------------------------------------------------------- published values


def read(run_path, qrels_path):
    qrels, queries, passages = open_qrels(qrels_path)
    (run,), queries, passages = read_runs([run_path], queries, passages)
    return run, qrels, queries, passages


@pytest.mark.shared
def test_dl19_bm25(shared_data):
    folder = shared_data / "metric_checks" / "dl19_bm25"
    run, qrels, _, passages = read(
        folder / "run.msmarco-v1-passage.bm25-default.dl19.txt.gz", folder / "qrels.dl19-passage.txt.gz"
    )
    measures = parse_measures("nDCG@10 AP(rel=2) R(rel=2)@100 R(rel=2)@1000")
    result = evaluate(run, qrels, measures, id_rank=None)
    assert {name: round(value, 4) for name, value in result.means.items()} == {
        "nDCG@10": 0.5058,
        "AP(rel=2)": 0.3013,
        "R(rel=2)@100": 0.4910,
        "R(rel=2)@1000": 0.7501,
    }
    again = evaluate(run, qrels, measures, id_rank=passages.id_rank)
    assert again.means == result.means


def published(path):
    """{query id: {measure: value}} of trec_eval's output."""
    values = {}
    for line in path.read_text().splitlines():
        name, query, value = line.split()
        values.setdefault(query, {})[name] = value
    return values


@pytest.mark.shared
@pytest.mark.parametrize(
    ("qrels_name", "run_name", "out", "rel", "depth"),
    [
        ("qrels.test", "results.test", "out.test.aq", 1, None),
        ("qrels.test.with-comments", "results.test", "out.test.aq", 1, None),
        ("qrels.rel_level", "results.test", "out.test.aql", 2, None),
        ("qrels.test", "results.trunc", "out.test.aqcM", 1, 100),  # a query is missing and counts 0
    ],
)
def test_trec_eval_own_outputs(shared_data, qrels_name, run_name, out, rel, depth):
    folder = shared_data / "metric_checks" / "trec_eval"
    run, qrels, queries, _ = read(folder / run_name, folder / qrels_name)
    run = run if depth is None else run.cut(depth)
    binary = [
        "map",
        "recip_rank",
        "P_5",
        "P_10",
        "P_100",
        "recall_5",
        "recall_100",
        "map_cut_10",
        "success_1",
        "success_10",
    ]
    graded = ["ndcg", "ndcg_cut_10", "ndcg_cut_100"]
    measures = {name: replace(Measure.parse(name), rel=rel) for name in binary}
    measures |= {name: Measure.parse(name) for name in graded}
    result = evaluate(run, qrels, list(measures.values()), id_rank=None)
    expected = published(folder / out)
    assert queries.take(result.query_rows) == ["301", "302", "303"]
    assert result.missing == (1 if run_name == "results.trunc" else 0)
    for name, measure in measures.items():
        values = result.values[str(measure)]
        for query, value in zip(["301", "302", "303", "all"], [*values, values.mean()], strict=True):
            assert f"{value:.4f}" == expected[query][name], (name, query)


# ---------------------------------------------------------------- names


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("nDCG@10", "nDCG@10"),
        ("MRR@10", "RR@10"),
        ("ndcg_cut_10", "nDCG@10"),
        ("recall_1000", "R@1000"),
        ("map", "AP"),
        ("map_cut_100", "AP@100"),
        ("recip_rank", "RR"),
        ("P_10", "P@10"),
        ("success_5", "Success@5"),
        ("AP(rel=2)@100", "AP(rel=2)@100"),
        ("R(rel=2)@1000", "R(rel=2)@1000"),
        ("Judged@10", "Judged@10"),
    ],
)
def test_names_parse_to_one_spelling(text, expected):
    assert str(Measure.parse(text)) == expected
    assert Measure.parse(expected) == Measure.parse(text)


def test_measures_of_ir_measures_are_taken_as_they_are():
    theirs = pytest.importorskip("ir_measures")
    given = [theirs.RR @ 10, theirs.AP(rel=2) @ 100, "P@5"]
    assert list(map(str, parse_measures(given))) == ["RR@10", "AP(rel=2)@100", "P@5"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("nDGC@10", r"UNKNOWN_MEASURE.*'nDGC@10'; did you mean nDCG@10\?"),
        ("MMR@5", "did you mean RR@5"),
        ("Zebra", "there are RR@k"),
        ("", "UNKNOWN_MEASURE"),
        ("R", "no cut-off"),
        ("P@0", "begin at 1"),
        ("AP(rel=0)", "begin at 1"),
        ("nDCG(rel=2)@10", "takes no rel"),
        ("nDCG@-1", "UNKNOWN_MEASURE"),
    ],
)
def test_wrong_names_are_usage_faults(text, message):
    with pytest.raises(SettingsError, match=message) as caught:
        Measure.parse(text)
    assert caught.value.status == 2


def test_a_list_reports_all_faults_and_drops_repeats():
    assert [str(m) for m in parse_measures(" RR@10, MRR@10 nDCG@10")] == ["RR@10", "nDCG@10"]
    with pytest.raises(Faults) as caught:
        parse_measures("RR@10 foo@3 R")
    assert len(caught.value.lines) == 2
    assert caught.value.status == 2


# ---------------------------------------------------------------- ranks, overlap, partings


def test_first_relevant_rank_breaks_ties_by_row():
    run = run_of({2: [(5, 2.0), (9, 1.0), (3, 1.0)], 0: [(1, 1.0)], 4: [(8, 1.0), (7, 1.0)]})
    positives = qrels_of({0: {2: 1}, 1: {1: 1}, 2: {3: 1, 9: 1}, 4: {8: 1}}).positives()
    assert first_relevant_rank(run, positives, 100).tolist() == [0, 0, 2, 2]
    assert first_relevant_rank(run, positives, 1).tolist() == [0, 0, 0, 0]


def test_overlap_by_hand_and_by_loop():
    a, b = (
        run_of({0: [(1, 3.0), (2, 2.0), (3, 1.0)], 1: [(4, 1.0)]}),
        run_of({0: [(3, 3.0), (2, 2.0)], 2: [(4, 1.0)]}),
    )
    assert overlap(a, b, depth=2) == pytest.approx((1 / 2 + 0 + 0) / 3)
    assert overlap(a, b) == pytest.approx((2 / 3 + 0 + 0) / 3), "query 0: two of the longer list's three"
    first, second = random_case(1)[0], random_case(2)[0]
    expected = []
    for query in {*first, *second}:
        one, two = ({row for row, _ in run.get(query, [])[:7]} for run in (first, second))
        expected.append(len(one & two) / max(len(one), len(two)))
    assert overlap(run_of(first), run_of(second), depth=7) == pytest.approx(np.mean(expected))


def test_a_run_overlaps_itself_wholly_however_short_it_is():
    run = run_of({0: [(1, 3.0), (2, 2.0)], 1: [(4, 1.0)], 2: []})
    assert overlap(run, run) == 1
    assert overlap(run_of({2: []}), run_of({2: []})) == 0, "there is nothing to share"


def test_measures_are_one_text_or_a_list():
    wanted = parse_measures("RR@10 nDCG@10")
    assert parse_measures("RR@10,nDCG@10") == parse_measures(["RR@10", "nDCG@10"]) == wanted
    assert parse_measures(("RR@10 nDCG@10", "RR@10")) == wanted
    with pytest.raises(SettingsError, match="UNKNOWN_MEASURE: no measure is called ''"):
        parse_measures([])
    with pytest.raises(Faults) as caught:
        parse_measures(["RR@10", "RRR@10", "NDGC@10"])
    assert len(caught.value.faults) == 2


def test_first_disagreement():
    a = run_of({0: [(1, 3.0), (2, 2.0)], 1: [(4, 1.0)], 2: [(6, 1.0)]})
    b = run_of({0: [(1, 3.0), (5, 2.0)], 1: [(4, 1.0)]})
    queries = np.array([2, 0, 7, 1], np.int32)  # 7 is neither judged nor in a run
    parting = first_disagreement(a, b, queries, qrels_of({0: {2: 3, 9: 1}, 1: {4: 1}, 2: {6: 0}}))
    assert parting.rank.tolist() == [1, 2, 0, 0]
    assert parting.passages.tolist() == [[6, -1], [2, 5], [-1, -1], [-1, -1]]
    assert parting.grades.tolist() == [[0, UNJUDGED], [3, UNJUDGED], *[[UNJUDGED, UNJUDGED]] * 2]


def test_compare_runs_by_hand():
    values = [np.array([1.0, 0.5, 0.5, 0.0]), np.array([0.5, 0.5, 0.0, 1.0]), np.zeros(4)]
    rows = compare_runs(["a", "b", "c"], values, measure="RR@10", seed=1)
    assert [(row.a, row.b) for row in rows] == [("a", "b"), ("a", "c"), ("b", "c")]
    first = rows[0]
    assert first.difference == pytest.approx(0.0)
    assert (first.wins, first.ties, first.losses) == (2, 1, 1)
    assert first.interval == pytest.approx((-0.75, 0.5), abs=0.13)  # means of four draws from 0.5, 0, 0.5, -1
    assert rows[2].interval[0] > 0  # of 0.5, 0.5, 0, 1: a mean of 0 is one draw in 256
    assert first.p == 1.0
    assert rows[1].p == 2 / 8  # only all-plus and all-minus of three differences reach the sum
    assert rows[1].p_holm == 3 / 4
    assert first.p_holm == 1.0


def test_help_names_every_measure():
    with pytest.raises(SettingsError) as caught:
        Measure.parse("12")
    assert set(re.findall(r"[A-Za-z]+(?=@k|, )", caught.value.fix)) >= {
        "RR",
        "R",
        "nDCG",
        "AP",
        "P",
        "Success",
        "Judged",
    }
