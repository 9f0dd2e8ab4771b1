"""Tables: aligned, honest about small numbers, and safe to show on a terminal."""

import tomllib

import pytest

from hardneg.cli.tables import (
    comparison_table,
    estimate_text,
    evaluation_table,
    facts_table,
    hits_text,
    inspection_text,
    p_value,
    plain,
    results_table,
    settings_text,
    table,
)
from hardneg.config import build
from hardneg.recipes.ance_tele import AnceTele

EPISODES = [
    {"episode": 1, "queries": 60, "steps": 4, "queries_per_step": 8, "passages_per_query": 4},
    {"episode": 2, "queries": 1234, "steps": 12, "queries_per_step": 8, "passages_per_query": 5},
]


def test_columns_are_as_wide_as_their_widest_cell():
    lines = table(["", "R@10"], [["bm25", 0.5], ["a longer name", 12345]]).splitlines()
    assert lines == [
        "                 R@10",
        "---------------------",
        "bm25           0.5000",
        "a longer name  12,345",
    ]


@pytest.mark.parametrize(
    ("p", "shown"), [(1.0, "1.0000"), (0.0012, "0.0012"), (0.00099, "1e-03"), (1e-5, "1e-05")]
)
def test_a_p_value_is_never_nought(p, shown):
    assert p_value(p) == shown


def test_facts_of_a_table_within_stand_under_its_name():
    facts = {"passages": 1398, "splits": {"test": {"queries": 225, "positives": 1611}}, "share": {"bm25": 0.25}}
    assert facts_table(facts).splitlines() == [
        "passages     1,398",
        "splits.test  225 queries, 1,611 positives",
        "share.bm25   0.2500",
    ]


def test_an_evaluation_says_over_what():
    result = {"measures": {"RR@10": 0.25}, "queries": 1200, "missing": 0, "unjudged": 0}
    assert evaluation_table(result).splitlines()[-2:] == ["RR@10    0.2500", "1,200 queries"]
    last = evaluation_table(result | {"missing": 3, "unjudged": 4}).splitlines()[-1]
    assert "3 of them are not in the run and score 0" in last
    assert "4 queries of the run are not judged and left out" in last


def test_a_comparison_shows_both_runs_and_every_p():
    row = {"a": "runs/x.trec", "b": "runs/old/y.trec", "measure": "RR@10", "difference": -0.1}
    row |= {"interval": (-0.25, 0.05), "p": 0.01, "p_t": 1e-6, "p_holm": 0.02}
    row |= {"wins": 1, "ties": 2, "losses": 3, "overlap": 0.5}
    header, _, line = comparison_table([row]).splitlines()
    assert header.split()[:7] == ["measure", "a", "b", "difference", "95", "%", "interval"]
    assert header.split()[7:] == ["p", "p", "t", "p", "holm", "wins", "ties", "losses", "overlap@100"]
    assert line.split()[:6] == ["RR@10", "x.trec", "old/y.trec", "-0.1000", "[-0.2500,", "+0.0500]"]
    assert line.split()[6:] == ["0.0100", "1e-06", "0.0200", "1", "2", "3", "0.5000"]


def test_the_settings_shown_are_a_settings_file():
    settings = build(
        AnceTele, {"learning_rate": 5e-6, "query_prompt": 'ask "é": ', "extra": ["bm25"], "dedup": True}
    )
    plan = {"settings": settings.model_dump(mode="json"), "episodes": EPISODES, "facts": {"passages": 120}}
    text = settings_text(plan)
    assert build(AnceTele, tomllib.loads(text)) == settings
    assert "# episode 2: 1,234 queries, 12 steps of 8 queries, 5 passages a query" in text.splitlines()
    assert "learning_rate = 5e-06" in text.splitlines()


def test_an_estimate_has_a_line_an_episode():
    text = estimate_text({"episodes": EPISODES, "facts": {"time in all, about": "1m02s"}})
    assert text.splitlines() == [
        "episode 1: 60 queries, 4 steps of 8 queries, 4 passages a query",
        "episode 2: 1,234 queries, 12 steps of 8 queries, 5 passages a query",
        "time in all, about  1m02s",
    ]


FORGETTING = {"episode": 1, "before": "untrained", "after": "final"}
FORGETTING |= {"forgotten": 0.125, "learned": 0.5, "train_mrr_100": 0.75}


def test_results_show_states_tests_and_forgetting(tmp_path):
    comparison = {"a": "final", "b": "bm25", "measure": "RR@10", "difference": 0.25, "interval": [0.1, 0.4]}
    results = {
        "test": {"bm25": {"RR@10": 0.25}, "final": {"RR@10": 0.5}},
        "compared_on": "test",
        "comparisons": [comparison | {"p": 0.03, "p_holm": 0.06}],
        "forgetting": [FORGETTING],
    }
    text = results_table(results, tmp_path)
    lines = [line.split() for line in text.splitlines()]
    assert ["final", "-", "bm25", "RR@10", "+0.2500", "[+0.1000,", "+0.4000]", "0.0300", "0.0600"] in lines
    assert ["untrained", "final", "0.1250", "0.5000", "0.7500"] in lines
    assert "dev" not in text.split("\n")[0]
    assert text.endswith(f"model:      {tmp_path / 'model'}")


def test_results_of_an_experiment_that_nothing_judges(tmp_path):
    assert results_table({"forgetting": []}, tmp_path).startswith("experiment:")


def test_results_of_several_seeds_show_mean_and_deviation(tmp_path):
    pooled = {"seeds": [1, 2], "test": {"final": {"RR@10": {"mean": 0.5, "std": 0.1, "values": [0.4, 0.6]}}}}
    assert "final  0.5000 ±0.1000" in results_table(pooled, tmp_path)
    value = {"mean": 0.125, "std": 0.0, "values": [0.125, 0.125]}
    step = {"before": "untrained", "after": "final", "forgotten": value, "learned": value, "train_mrr_100": value}
    lines = [line.split() for line in results_table(pooled | {"forgetting": [step]}, tmp_path).splitlines()]
    assert ["untrained", "final", *["0.1250", "±0.0000"] * 3] in lines


def test_foreign_texts_cannot_steer_the_terminal():
    hit = {
        "rank": 1,
        "score": 0.5,
        "passage_id": "p\x1b[2J",
        "title": "a\nb",
        "text": "\x1b]0;x\x07 red\r\n" + "y" * 200,
    }
    text = hits_text("who\x1b[31m", [hit])
    assert "\x1b" not in text
    assert "\r" not in text
    assert len(text.splitlines()) == 3
    assert text.splitlines()[-1].endswith("…")
    assert plain("naïve 東京\tx") == "naïve 東京 x"


def test_an_inspection_shows_provenance_and_says_how_much_is_left():
    passage = {"passage_id": "p1", "title": "", "text": "words"}
    negative = passage | {
        "source": "query",
        "rank": 3,
        "score": 1.5,
        "episode": 1,
        "momentum": True,
        "anchor": None,
    }
    found = {"query_id": "q1", "text": "ask", "positives": [passage], "negatives": [negative, negative, negative]}
    lines = inspection_text(found, 1).splitlines()
    assert lines[0] == "query q1: ask"
    assert lines[1] == "  + [p1]"
    assert lines[3] == "  - momentum/query rank 3, episode 1, score 1.5000 [p1]"
    assert lines[-1] == "  ... and 2 more"
