"""The verdict on experiments side by side: only what was tested is called better."""

from types import SimpleNamespace

import numpy as np
import pytest

from hardneg.evaluation.measures import Evaluation
from hardneg.experiment.layout import Layout
from hardneg.experiment.states import StateRecord
from hardneg.report.opened import Opened
from hardneg.report.side_by_side import Several, verdict_of

QUERIES = 40


def opened(place, values, collection):
    """An experiment whose final state has these values of RR@10 on test, over a collection of this digest."""
    found = Evaluation(np.arange(QUERIES, dtype=np.int32), {"RR@10": np.full(QUERIES, values)}, 0, 0)
    one = Opened(Layout(place), SimpleNamespace(collection=SimpleNamespace(digest=collection)))
    one.kept["evaluations"] = {"final": {"test": found}}
    one.__dict__ |= {"states": [StateRecord("final", "final")], "settings": {}, "results": {}}
    return one


def test_the_best_of_tested_experiments_is_named(tmp_path):
    several = Several([opened(tmp_path / "a", 0.25, "x"), opened(tmp_path / "b", 0.5, "x")])
    found = verdict_of(several)
    assert (found.kind, found.sentence) == ("better", "On test, b does best: RR@10 0.500 (a 0.250).")


@pytest.mark.parametrize("other", [0.125, 1.0])
def test_an_experiment_over_another_collection_is_in_no_verdict(tmp_path, other):
    ours = [opened(tmp_path / "a", 0.25, "x"), opened(tmp_path / "b", 0.5, "x")]
    found = verdict_of(Several([*ours, opened(tmp_path / "c", other, "y")]))
    assert (found.kind, found.sentence) == ("better", "On test, b does best: RR@10 0.500 (a 0.250).")
    assert len(found.details) == 1
