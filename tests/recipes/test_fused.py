"""What ``results.json`` says of fusing with BM25 is what ``hardneg fuse`` and ``evaluate`` say of the runs."""

import pytest

import hardneg as hn
from hardneg.api.diagnose import opened_at
from hardneg.cli.ending import ending_text
from hardneg.cli.tables import pooled_table
from hardneg.diagnostics.seeds import pool_seeds
from hardneg.report.facts_results import fused_table, fused_tests_table
from hardneg.report.table import NotMeant, NotRecorded
from hardneg.report.verdict import verdict
from worlds.tiny_world import COMMON, one_thread  # noqa: F401

SMALL = COMMON | {"queries_per_step": 16, "measures": "RR@10 nDCG@10", "steps": 4, "seed": 3}


@pytest.fixture(scope="module")
def trained(world, tmp_path_factory):
    """The results of a training with dev and test, and its folder."""
    out = tmp_path_factory.mktemp("fused") / "exp"
    found = hn.train(
        "star",
        world.collection,
        world.calm,
        out,
        cache=out.parent / "cache",
        device="cpu",
        **SMALL,
        examine="judged",
    )
    return found, out


def test_figures_are_those_of_the_commands(trained, world):
    results, out = trained
    assert set(results["fused"]) == {"method", "rank_constant", "test", "dev", "comparisons"}
    runs = {name: out / f"runs/{name}.test.trec.gz" for name in ("bm25", "untrained", "final")}
    test = results["fused"]["test"]
    assert list(test) == ["untrained+bm25", "final+bm25"]
    fused = {}
    for state in ("untrained", "final"):
        fused[state] = hn.fuse([runs["bm25"], runs[state]], k=100)["run"]
        found = hn.evaluate(fused[state], data=world.collection, split="test", measures=SMALL["measures"])
        assert test[f"{state}+bm25"] == found["measures"]
    for row, (other, run_of_other) in zip(
        results["fused"]["comparisons"],
        (("untrained+bm25", fused["untrained"]), ("final", hn.fuse([runs["final"], runs["final"]])["run"])),
        strict=True,
    ):
        assert (row["a"], row["b"], row["measure"]) == ("final+bm25", other, "RR@10")
        tested = hn.compare(
            [fused["final"], run_of_other],
            data=world.collection,
            split="test",
            measures="RR@10",
            seed=SMALL["seed"],
        )
        assert row["difference"] == pytest.approx(tested[0]["difference"])
        assert row["p"] == tested[0]["p"]


def test_dev_judged_among_bm25s_first_passages_is_not_fused(world, tmp_path):
    splits, few = hn.Splits("train", "dev", "none"), {"dev_passages": 1}
    found = hn.train(
        "star", world.collection, world.calm, tmp_path / "exp", device="cpu", splits=splits, **SMALL, **few
    )
    assert found["dev_among"]["passages"] < found["dev_among"]["of"]
    assert "fused" not in found


def test_the_report_and_the_end_of_training_tell_it(trained):
    results, out = trained
    opened = opened_at(out)
    table = fused_table(opened)
    shown = ["bm25", "untrained", "untrained + BM25", "final", "final + BM25"]
    assert table.column("split") == ["test"] * 5 + ["dev"] * 5
    assert table.column("state") == shown * 2
    assert table.column("RR@10")[4] == results["fused"]["test"]["final+bm25"]["RR@10"]
    assert fused_tests_table(opened).column("final + BM25 against") == ["untrained + BM25", "final"]
    lines = ending_text(results, out).splitlines()
    assert any(line.startswith("final + BM25 beats final by ") for line in lines)


def test_a_ranker_is_not_fused(trained):
    _, out = trained
    opened = opened_at(out)
    assert opened.results.pop("fused")
    with pytest.raises(NotRecorded, match="evaluated on all passages"):
        fused_table(opened)
    opened = opened_at(out)
    assert opened.results.pop("fused")
    opened.settings["course"]["trains"] = "ranker"
    with pytest.raises(NotMeant, match="A ranker was trained"):
        fused_table(opened)


def test_advice_names_what_fusing_gives():
    def row(a, b, difference, p):
        return {
            "a": a,
            "b": b,
            "measure": "RR@10",
            "difference": difference,
            "interval": [0, 1],
            "p": p,
            "p_holm": p,
        }

    told = {
        "compared_on": "test",
        "test": {name: {"RR@10": value} for name, value in (("untrained", 0.4), ("bm25", 0.6), ("final", 0.5))},
        "comparisons": [row("final", "untrained", 0.1, 0.001), row("final", "bm25", -0.1, 0.001)],
        "fused": {
            "test": {"final+bm25": {"RR@10": 0.7}},
            "comparisons": [row("final+bm25", "final", 0.2, 0.001)],
        },
    }
    assert (
        verdict(told)
        .advice[0]
        .startswith("BM25 is ahead here: fuse the model with it (hardneg fuse: RR@10 0.700)")
    )
    told["fused"]["test"]["final+bm25"]["RR@10"] = 0.58  # better than the model, but not than BM25 alone
    assert (
        verdict(told)
        .advice[0]
        .startswith("BM25 alone is best here; fusing it with the model gives only RR@10 0.580. Search with BM25, ")
    )
    row_of_bm25 = told["comparisons"].pop()
    assert row_of_bm25["b"] == "bm25"
    assert "fuse" not in verdict(told).advice[0]
    told["fused"]["test"]["final+bm25"]["RR@10"] = 0.7
    assert (
        verdict(told)
        .advice[0]
        .startswith(
            "Fuse the model with BM25 (hardneg fuse): together they are better than the model alone (RR@10 "
        )
    )
    told["fused"]["comparisons"][0]["p_holm"] = 0.2
    assert "fuse" not in verdict(told).advice[0]


def test_several_seeds_show_the_fused_states_beside_the_others(trained):
    results, out = trained
    table = pooled_table(pool_seeds({1: results, 2: results}), out)
    value = results["fused"]["test"]["final+bm25"]["RR@10"]
    rows = [line for line in table.splitlines() if line.startswith("final + BM25")]
    assert len(rows) == 2, "dev and test"
    assert f"{value:.4f} ±0.0000" in rows[1]
