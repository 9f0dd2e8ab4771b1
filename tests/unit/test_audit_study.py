"""The study of the audit: what is held out, what is planted, and its figures, on a tiny world."""

import argparse
import sys
from pathlib import Path

import numpy as np
import pytest

from worlds.tiny_records import positives_of
from worlds.tiny_world import one_thread  # noqa: F401

STUDIES = Path(__file__).resolve().parents[2] / "studies"


@pytest.fixture(scope="module")
def study():
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(STUDIES))
        import audit

        yield audit
    for name in ("audit", "harness", "outcomes"):
        sys.modules.pop(name, None)


def test_no_query_loses_its_last_positive(study):
    left, held = study.hold_out(positives_of([[1, 2, 3], [4], [5, 6]]), 10, np.random.default_rng(0))
    assert np.diff(left.offsets).tolist() == [1, 1, 1]
    assert np.diff(held.offsets).tolist() == [2, 0, 1]
    assert sorted([*left.passage_rows, *held.passage_rows]) == [1, 2, 3, 4, 5, 6]
    assert len(study.hold_out(positives_of([[1, 2, 3]]), 1, np.random.default_rng(0))[1].passage_rows) == 1


def test_precision_and_recall_by_hand(study):
    truth = np.array([True, True, False, False])
    assert study.precision_recall(np.array([True, False, True, False]), truth) == {
        "named": 2,
        "precision": 0.5,
        "recall": 0.5,
    }
    assert study.precision_recall(np.zeros(4, bool), truth)["precision"] == 0


def test_the_study_of_a_tiny_world(study, world, tmp_path):
    given = ["--data", str(world.collection.path), "--model", world.model, "--out", str(tmp_path / "out")]
    chosen = study.options().parse_args([*given, "--planted", "8", "--train"])
    assert isinstance(chosen, argparse.Namespace)
    small = {"steps": 2, "queries_per_step": 4, "precision": "float32", "device": "cpu"}
    facts = study.examine(chosen, **small)
    assert facts["planted"] == 8
    by_name = {row["signal"]: row for row in facts["signals"]}
    assert by_name["any"]["named"] >= by_name["text"]["named"]
    assert set(facts["trained"]) == {"untrained", "planted", "without", "filtered"}
    assert all(len(found) == 3 for name, found in facts["trained"].items() if name != "untrained")
    text = study.page("tiny", "model", facts)
    assert "| all signals |" in text
    assert "| filtered |" in text
