"""Training queries are searched for mining, and for diagnostics only if these are asked for."""

import json

import pytest

import hardneg as hn
from hardneg.diagnostics.seeds import pool_seeds, spread
from hardneg.models.bi_encoder import BiEncoder
from hardneg.search.runs import KIND
from hardneg.storage.artifacts import is_published
from worlds.tiny_world import COMMON, one_thread  # noqa: F401

SMALL = COMMON | {"queries_per_step": 16, "measures": "RR@10", "measure_every": 2, "keep": "best"}
ALL = {
    "warmup": {"mixtures": ["in_batch"], "steps": [6]},
    "ance-tele": {"episodes": 2, "steps": 6, "stop_step": 4, "passages_reference": [3], "count": 6},
    "ance": {"refresh_every": 3, "refreshes": 1, "loss": "contrastive", "in_batch": True},
    "star": {"steps": 6},
    "adore": {"steps": 6, "cut": 10},
}
MINED = {  # runs of the training queries and of their positives' neighbours that mining needs
    "warmup": [],
    "ance-tele": ["lookahead", "lookahead", "query", "query"],
    "ance": ["query", "query"],
    "star": ["query"],
    "adore": [],
}


@pytest.fixture
def train(world, tmp_path):
    """A function that trains with dev and test; returns results, and where they are."""

    def run(recipe, out, **changes):
        settings = SMALL | ALL[recipe] | changes
        to = tmp_path / out
        options = {"cache": tmp_path / f"cache-{out}", "splits": hn.Splits("train", "dev", "test")}
        return hn.train(recipe, world.collection, world.calm, to, **options, device="cpu", **settings), to

    return run


def runs_in(path):
    """The runs of training queries and of neighbours below a folder, by name."""
    found = (place for name in ("lookahead", "query") for place in path.rglob(name))
    return sorted(place.name for place in found if is_published(place, KIND))


@pytest.mark.parametrize("recipe", ALL)
def test_a_run_that_examines_nothing_trains_and_measures_the_same(train, recipe):
    full, one = train(recipe, "full")
    spared, other = train(recipe, "spared", examine="judged")
    assert (one / "metrics.jsonl").read_bytes() == (other / "metrics.jsonl").read_bytes()
    for name in ("test", "dev", "kept"):
        assert spared[name] == full[name]
    assert spared["comparisons"] == full["comparisons"]
    assert spared["examined"] == "judged"
    assert not {"forgetting", "informative"} & set(spared)
    assert {"forgetting", "informative"} < set(full)
    assert "examined" not in full
    assert runs_in(other) == MINED[recipe] != runs_in(one)
    states = [json.loads(line) for line in (other / "states.jsonl").read_text().splitlines()]
    assert {state["asked"] for state in states} <= {"judged", "dev"}


@pytest.mark.parametrize("recipe", ["warmup", "adore"])
def test_training_queries_that_nobody_needs_are_never_encoded(train, monkeypatch, recipe):
    """Beside the steps of training, which encode their own, only dev and test are."""
    encoded, real = [], BiEncoder.encode

    def encode(self, tokens, side):
        if side == "query" and not self.training:
            encoded.append(len(tokens))
        return real(self, tokens, side)

    monkeypatch.setattr(BiEncoder, "encode", encode)
    train(recipe, "spared", examine="judged", measure_every=None, keep="last")
    assert sum(encoded) == 2 * (16 + 16)  # untrained and final; a state's pairwise errors read the same vectors
    assert max(encoded) == 16


def test_the_state_at_an_early_end_is_encoded_once(train):
    """Patience ends training at a look, whose embeddings serve the last state."""
    changes = {"learning_rate": 0.3, "warmup": 0, "patience": 1, "keep": "last"}
    results, path = train("star", "ended", **changes, examine="judged")
    assert results["kept"]["step"] == 2
    timing = [json.loads(line) for line in (path / "timing.jsonl").read_text().splitlines()]
    made = [row for row in timing if row["stage"] == "encode" and row["side"] == "passage" and not row["cached"]]
    assert len(made) == 2  # untrained, and the state after two steps


def test_seeds_say_what_was_not_examined():
    one = {"test": {"final": {"RR@10": 0.5}}, "examined": "judged"}
    pooled = pool_seeds({1: one, 2: one})
    assert pooled["examined"] == "judged"
    assert "forgetting" not in pooled


def test_equal_values_of_seeds_have_no_deviation():
    third = 0.7708333333333333  # whose mean of three is another number
    assert spread([third] * 3) == {"mean": third, "std": 0.0, "values": [third] * 3}
    assert spread([0.5]) == {"mean": 0.5, "std": 0.0, "values": [0.5]}
    assert spread([0.0, 1.0])["std"] == pytest.approx(0.5**0.5)
