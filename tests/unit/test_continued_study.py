"""The study of continued episodes: what it executes, its tables by hand, and its page from the kept outcomes."""

import importlib
import itertools
import re
from pathlib import Path

import numpy as np
import pytest

from hardneg.api.recipes import settings_of

ROOT = Path(__file__).resolve().parents[2]
PAGES = ROOT / "docs/studies"


@pytest.fixture
def module(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "studies"))
    return importlib.import_module("continued")


@pytest.fixture
def harness(module):
    return importlib.import_module("harness")


@pytest.fixture
def outcome(module):
    """An outcome with these ranks of the positives on test, and these dev figures in order of training."""
    made = importlib.import_module("outcomes")

    def of(ranks, dev=(0.1, 0.2, 0.3, 0.4), forgotten=(0.1, 0.1, 0.1)):
        values = 1 / np.array(ranks, np.float64)
        measured = {name: float(values.mean()) for name in ("RR@10", "nDCG@10", "R@100")}
        states = ("episode-1-step-80", "episode-1", "episode-2", "final")
        return made.Outcome(
            "one",
            {},
            {
                "test": dict.fromkeys((*states[1:], "bm25", "untrained-as-trained"), measured),
                "dev": {"bm25": {"RR@10": 9.0}, "untrained": {"RR@10": 9.0}}
                | {state: {"RR@10": value} for state, value in zip(states, dev, strict=True)},
                "forgetting": [{"forgotten": share} for share in forgotten],
            },
            queries={"test": {"final": {name: made.packed(values, name) for name in measured}}},
        )

    return of


def cells(line):
    return [cell.strip() for cell in line.strip("|").split("|")]


def test_arms_differ_in_their_mix_and_start_alone(module, harness, tmp_path):
    options = harness.command_line("", module.options).parse_args(["--out", str(tmp_path), "--seeds", "1,2"])
    study = harness.Study(tmp_path, "D", "M", module.common_of(options), 1)
    seen = {}
    for step in module.steps(options):
        words = [b for a, b in itertools.pairwise(study.command(step)) if a == "--set"]
        settings = settings_of(step.recipe, None, None, words)
        settings.check()
        seen[step.name] = {"alpha": settings.alpha, "beta": settings.beta, "start": settings.start}
        assert settings.seed == int(step.name[-1])
        assert (settings.steps, settings.stop_step, settings.episodes) == (240, 120, 3)
    assert len(seen) == 2 * len(module.ARMS) == 16
    assert seen["q-neg-anew-seed-1"] == {"alpha": 0.0, "beta": 0.0, "start": "scratch"}
    assert seen["tele-continued-seed-2"] == {"alpha": 0.5, "beta": 0.5, "start": "continue"}
    assert seen["momentum-anew-seed-1"] == {"alpha": 0.5, "beta": 0.0, "start": "scratch"}
    assert seen["lookahead-anew-seed-1"] == {"alpha": 0.0, "beta": 0.5, "start": "scratch"}


def test_the_dev_curve_has_no_state_before_training(module, outcome):
    assert module.curve(outcome([1], dev=(0.1, 0.2, 0.3, 0.6))) == pytest.approx(0.3)


def test_ways_of_training_are_tested_over_the_seeds_that_both_have(module, outcome):
    done = {
        "q-neg-anew": {1: outcome([2, 2]), 2: outcome([1, 2])},
        "tele-anew": {1: outcome([1, 2]), 2: outcome([1, 1]), 3: outcome([5, 5])},
    }
    _, _, *lines = module.training_table(done).splitlines()
    final = next(cells(line) for line in lines if "test RR@10, final" in line)
    assert final[2:6] == ["+0.2500, +0.2500", "+0.2500", "", "not tested"]  # no spread over seeds
    done["q-neg-anew"][2] = outcome([1, 1])
    _, _, *lines = module.training_table(done).splitlines()
    final = next(cells(line) for line in lines if "test RR@10, final" in line)
    assert final[2:5] == ["+0.2500, +0.0000", "+0.1250", "0.1768"]
    assert final[5] == "0.5"  # t = 0.125 / (0.1768 / sqrt(2)) = 1 with one degree of freedom


def test_each_mix_meets_q_neg_of_its_start_and_each_start_the_other(module, outcome):
    one = {1: outcome([1])}
    done = dict.fromkeys(["q-neg-anew", "tele-anew", "q-neg-continued", "tele-continued"], one)
    assert module.pairs_of(done) == [
        ("tele-anew", "q-neg-anew"),
        ("tele-continued", "q-neg-continued"),
        ("q-neg-continued", "q-neg-anew"),
        ("tele-continued", "tele-anew"),
    ]
    assert module.pairs_of({"tele-anew": one, "q-neg-anew": {2: outcome([1])}}) == []


def test_curves_are_means_over_seeds(module, outcome):
    done = {
        "tele-continued": {1: outcome([1], dev=(0.1, 0.2, 0.3, 0.4)), 2: outcome([1], dev=(0.3, 0.4, 0.5, 0.6))}
    }
    heads, _, line = module.curves_table(done).splitlines()
    assert cells(heads)[1:] == ["episode-1-step-80", "episode-1", "episode-2", "final"]
    assert cells(line) == ["ANCE-Tele, continued", "0.2000", "0.3000", "0.4000", "0.5000"]


@pytest.mark.slow
def test_the_page_is_what_its_kept_outcomes_say(module, harness, tmp_path):
    said = (PAGES / "continued.md").read_text("utf-8")
    block = re.search(r"```bash\n(.*?)```", said, re.DOTALL).group(1).replace("\\\n", " ")
    (command,) = [line.split("studies/continued.py ")[1] for line in block.splitlines() if "continued.py " in line]
    for name in ("continued.md", "continued.jsonl.gz"):
        (tmp_path / name).write_bytes((PAGES / name).read_bytes())
    words = command.replace("FOLDER", str(tmp_path / "none")).replace("docs/studies", str(tmp_path)).split()
    module.main(harness.command_line("", module.options).parse_args([*words, "--only-report"]))
    assert (tmp_path / "continued.md").read_text("utf-8") == said
