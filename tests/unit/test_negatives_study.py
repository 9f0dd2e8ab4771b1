"""The study of negatives at equal steps: what it executes, its tables, and its page from the kept outcomes."""

import importlib
import itertools
from pathlib import Path

import numpy as np
import pytest

from hardneg.api.recipes import settings_of
from hardneg.negatives.groups import epoch_order

ROOT = Path(__file__).resolve().parents[2]
PAGES = ROOT / "docs/studies"


@pytest.fixture
def module(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "studies"))
    return importlib.import_module("negatives")


@pytest.fixture
def harness(module):
    return importlib.import_module("harness")


@pytest.fixture
def outcome(module):
    """An outcome with these ranks of the positive of each test query."""
    made = importlib.import_module("outcomes")

    def of(ranks, *, seconds=0.0, errors=1.0):
        values = 1 / np.array(ranks, np.float64)
        measured = {"RR@10": float(values.mean()), "nDCG@10": float(values.mean())}
        counted = {split: {"final": {"total": 10 * errors, "top": errors}} for split in ("dev", "test")}
        return made.Outcome(
            "one",
            {},
            {split: {"final": measured} for split in ("dev", "test")} | {"pairwise_errors": counted},
            timing=[{"stage": "train", "seconds": seconds}],
            queries={"test": {"final": {name: made.packed(values, name) for name in measured}}},
        )

    return of


def asked(module, harness, tmp_path, *words):
    return harness.command_line("", module.options).parse_args(["--out", str(tmp_path / "study"), *words])


def test_every_step_is_a_valid_experiment(module, harness, tmp_path):
    options = asked(module, harness, tmp_path)
    study = harness.Study(tmp_path, "D", "M", module.common_of(options), 1)
    steps = [step for seed in (42, 43) for row in module.rows(options, seed).values() for step in row.steps]
    names = {step.name for step in steps}
    assert len(harness.unique(steps)) == len(names) == 2 * (len(module.TITLES) + 1)
    for step in steps:
        words = study.command(step)
        settings = settings_of(step.recipe, None, None, [b for a, b in itertools.pairwise(words) if a == "--set"])
        settings.check()
        row, _, seed = step.name.partition("-seed-")
        assert settings.seed == int(seed) + 1000 * row.endswith(("-adore", "-more"))
        assert step.model is None or step.model in names


def test_rows_and_what_is_trained_further_make_equal_steps(module, harness, tmp_path):
    options = asked(module, harness, tmp_path, "--steps", "12")
    study = harness.Study(tmp_path, "D", "M", module.common_of(options), 1)

    def steps_of(step):
        words = [b for a, b in itertools.pairwise(study.command(step)) if a == "--set"]
        settings = settings_of(step.recipe, None, None, words)
        if step.recipe == "warmup":
            return settings.steps[0]
        return settings.refresh_every * (settings.refreshes + 1) if step.recipe == "ance" else settings.steps

    for name, row in module.rows(options, 42).items():
        further = name.endswith(("-adore", "-more"))
        assert sum(map(steps_of, row.steps)) == (24 if further else 12)


def test_what_trains_on_takes_queries_in_another_order(module, harness, tmp_path):
    options = asked(module, harness, tmp_path)
    for name, row in module.rows(options, 42).items():
        if name.endswith("-more"):
            *before, further = [step.settings["seed"] for step in row.steps]
            orders = [
                epoch_order(np.arange(100, dtype=np.int32), seed=seed, episode=1, epoch=0).tolist()
                for seed in (before[-1], further)
            ]
            assert orders[0] != orders[1]


@pytest.mark.parametrize(
    ("words", "said"), [(["--rows", "bm52"], "no bm52"), (["--steps", "100"], "multiple of 6")]
)
def test_wrong_options_are_refused(module, harness, tmp_path, words, said):
    with pytest.raises(SystemExit, match=said):
        module.main(asked(module, harness, tmp_path, *words))


def test_a_difference_is_over_the_seeds_that_both_rows_have(module, outcome):
    done = {
        "random": {1: outcome([2, 2, 2, 1])},
        "bm25": {1: outcome([1, 2, 1, 1]), 2: outcome([1, 1, 1, 1])},
    }
    _, _, line = module.tests_table(done).splitlines()
    title, seeds, by_seed, reciprocal, _ = [cell.strip() for cell in line.strip("|").split("|")]
    assert (title, seeds, by_seed) == ("BM25 − Rand (corpus)", "1", "+0.2500")
    assert reciprocal.startswith("+0.2500 [")


def test_a_mean_over_seeds_has_its_deviation(module, harness, outcome, tmp_path):
    options = asked(module, harness, tmp_path, "--rows", "random,bm25")
    done = {"random": {42: outcome([2, 2]), 43: outcome([1, 1])}, "bm25": {}}
    study = harness.Study(tmp_path, "D", "M", {}, 1)
    study.found["random-seed-42"] = outcome([1], seconds=10)
    study.found["random-seed-43"] = outcome([1], seconds=30)
    _, _, first, second = module.quality_table(study, options, done).splitlines()
    assert first.split(" | ")[1:3] == ["2", "0.7500 ± 0.3536"]
    assert first.split(" | ")[-2:] == ["20", "0 |"]
    assert second.split(" | ")[1:3] == ["0", "not run"]
    _, _, errors, _ = module.errors_table(
        {"random": {1: outcome([1], errors=2), 2: outcome([1], errors=4)}} | {"bm25": {}}
    ).splitlines()
    assert errors == "| Rand (corpus) | 30.0 | 3.0 | 30.0 | 3.0 |"


@pytest.mark.slow
def test_the_page_is_what_its_kept_outcomes_say(module, harness, tmp_path):
    kept, page = tmp_path / "negatives.jsonl", tmp_path / "negatives.md"
    (there,) = PAGES.glob("negatives.jsonl*")  # compressed if it is large
    kept.with_name(there.name).write_bytes(there.read_bytes())
    page.write_bytes((PAGES / "negatives.md").read_bytes())
    words = ["--kept", str(kept), "--report", str(page), "--threads", "1", "--only-report"]
    module.main(asked(module, harness, tmp_path, *words))
    assert page.read_text("utf-8") == (PAGES / "negatives.md").read_text("utf-8")
