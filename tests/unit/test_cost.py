"""What training cost, from the rows of the timing: by hand, and against a loop over time."""

import numpy as np
import pytest

from hardneg.diagnostics.cost import costs, covered, summary

ROWS = [
    {"stage": "begin", "begun": 0.0, "seconds": 0.0, "peak_mib": 900, "threads": 1},
    {
        "stage": "encode",
        "begun": 0.0,
        "seconds": 2.0,
        "peak_mib": 10,
        "own_peak_mib": 8,
        "side": "query",
        "tokens": 100,
        "cached": False,
    },
    {
        "stage": "encode",
        "begun": 2.0,
        "seconds": 4.0,
        "peak_mib": 30,
        "own_peak_mib": 22,
        "side": "passage",
        "tokens": 500,
    },
    {
        "stage": "encode",
        "begun": 6.0,
        "seconds": 0.0,
        "peak_mib": 30,
        "side": "query",
        "tokens": 0,
        "cached": True,
    },
    {"stage": "mine", "begun": 5.0, "seconds": 3.0, "peak_mib": 20, "episode": 1},
    {"stage": "train", "begun": 7.0, "seconds": 5.0, "episode": 1, "steps": 10},
    {"stage": "train", "begun": 100.0, "seconds": 1.0, "peak_mib": 25, "episode": 2},
    {"stage": "wait", "begun": 101.0, "seconds": 1.0, "peak_mib": 25},
]


def test_stages_by_hand():
    encode, mine, train, wait = costs(ROWS)
    assert (encode.of, encode.times, encode.cached) == (("encode",), 3, 1)
    assert (encode.seconds, encode.tokens, encode.peak_mib) == (6.0, 600, 30)
    assert encode.own_peak_mib == 22  # the third row is of an older hardneg
    assert train.own_peak_mib is None
    assert encode.tokens_per_second == 100
    assert encode.seconds_per_step is None
    assert (train.steps, train.seconds_per_step, train.peak_mib) == (10, 0.6, 25)
    assert mine.as_json()["of"] == ["mine"]
    assert wait.tokens_per_second is None


def test_kinds_by_hand():
    found = {cost.of: cost.seconds for cost in costs(ROWS, ("stage", "side"))}
    assert found[("encode", "passage")] == 4.0
    assert found[("train", None)] == 6.0
    assert costs([]) == []


def test_what_only_measures_the_last_state_is_no_refreshing():
    """A refresh may run while training goes on; what begins after the last step refreshes nothing."""
    train = [{"stage": "train", "begun": begun, "seconds": 10.0, "steps": 5} for begun in (10.0, 20.0)]
    beside = {"stage": "encode", "begun": 22.0, "seconds": 3.0, "tokens": 1}
    after = {"stage": "search", "begun": 30.0, "seconds": 2.0}
    found = summary([*train, beside, after])
    assert (found.refreshing, found.measuring, found.training) == (3.0, 2.0, 20.0)
    assert (summary([beside]).refreshing, summary([beside]).measuring) == (3.0, 0.0)  # nothing was trained yet


def test_summary_by_hand():
    found = summary(ROWS)
    assert found.as_json() == {
        "training": 6.0,
        "refreshing": 8.0,  # encode and mine ran at once for a second
        "measuring": 0.0,
        "found": 1,
        "refreshes": 1,
        "waiting": 1.0,
        "working": 14.0,  # 0 to 12, and 100 to 102
        "steps": 10,
        "tokens": 600,
        "trained_tokens": None,  # the steps did not say
        "peak_mib": 30,
    }
    assert summary([]).peak_mib is None


def test_tokens_of_training_stand_apart_from_those_of_vectors():
    trained = [row | ({"tokens": 40} if row["stage"] == "train" else {}) for row in ROWS]
    found = summary(trained)
    assert (found.tokens, found.trained_tokens) == (600, 80)
    (train,) = [cost for cost in costs(trained) if cost.of == ("train",)]
    assert (train.tokens, train.tokens_per_second) == (80, 80 / 6)
    older = [{**row} for row in trained]
    del older[5]["tokens"]
    assert summary(older).trained_tokens is None  # a sum without some steps would be wrong
    assert summary([]).trained_tokens == 0


def test_waiting_within_training_is_no_training():
    """ANCE waits for negatives in the midst of its steps, and AR2 before them."""
    train = {"stage": "train", "begun": 10.0, "seconds": 8.0, "steps": 5, "episode": 1}
    waits = [{"stage": "wait", "begun": begun, "seconds": 2.0} for begun in (5.0, 9.9995, 15.0, 17.9996)]
    own, wait = costs([*waits[:3], train, waits[3]], ("stage",))[::-1]
    assert (own.seconds, own.seconds_per_step, wait.seconds) == (4.0, 0.8, 8.0)
    found = summary([*waits, train, {"stage": "encode", "begun": 18.5, "seconds": 1.0}])
    assert (found.training, found.waiting, found.working) == (4.0, 8.0, pytest.approx(12.0, abs=0.01))
    assert found.measuring == 1.0, "after the last step"


def test_a_refresh_that_mined_nothing_is_not_counted():
    """A given pool, in-batch negatives, and mining that was interrupted; an older hardneg did not say."""
    mined = [{"mined": 0}, {"mined": 5}, {}]
    rows = [{"stage": "mine", "begun": 0.0, "seconds": 1.0, **one} for one in mined]
    assert (summary(rows).refreshes, summary(rows).refreshing) == (2, 1.0)


def test_covered_equals_a_loop():
    rng = np.random.default_rng(8)
    intervals = [
        (int(begin), int(n)) for begin, n in zip(rng.integers(0, 50, 12), rng.integers(0, 9, 12), strict=True)
    ]
    seconds = {second for begin, n in intervals for second in range(begin, begin + n)}
    assert covered(intervals) == pytest.approx(len(seconds))
