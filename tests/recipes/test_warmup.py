"""Warm-up: every mixture's losses against a slow re-implementation, its draws by counting, and resuming."""

import numpy as np
import pytest
from executed import read_pool
from reference_pairs import SlowPairs, bce, hinge, nll
from reference_tele import SlowEncoder, SlowTele

from hardneg.api.recipes import settings_of
from hardneg.data.training_data import choose_splits
from hardneg.errors import Faults, SettingsError
from hardneg.negatives.pool import load_pool
from hardneg.recipes.warmup import RECIPE, Warmup, sources_of
from worlds.tiny_world import one_thread  # noqa: F401

VARIANTS = {
    "bm25": ({}, nll, {"in_batch": False}),
    "random": ({"negatives": [3]}, nll, {"in_batch": False}),
    "bm25+random": ({"negatives": [2]}, nll, {"in_batch": False}),
    "in_batch": ({}, None, {}),
    "bm25+in_batch": ({}, None, {}),
    "nce": ({}, nll, {}),
    "bm25 ": ({"loss": "bce", "negatives": [2]}, bce, {"in_batch": False}),
    " bm25": ({"loss": "hinge", "margin": 0.7, "negatives": [2]}, hinge, {"in_batch": False}),
}


# Losses of two mixtures, recorded from this code once the slow re-implementation had given the same.
RECORDED = [[2.67053, 2.4224, 1.91619, 2.19012], [0.11663, 0.25983, 0.31528]]


def test_the_losses_of_every_step(run_states):
    done = run_states(RECIPE, mixtures=["bm25+in_batch", "nce"], steps=[4, 3], negatives=[2], warmup=2)
    for episode, recorded in enumerate(RECORDED, 1):
        assert done.losses(episode) == pytest.approx(recorded, abs=1e-4)


def test_a_chain_equals_two_slow_reimplementations_one_after_the_other(run_states, world):
    done = run_states(RECIPE, mixtures=["bm25+in_batch", "nce"], steps=[4, 3], negatives=[2], warmup=2)
    train = choose_splits(world.collection, dev="none").train
    encoder, rows = SlowEncoder(world.calm), iter(zip(done.metrics, done.batches, strict=True))
    rates = {1: (0.5e-3, 1e-3, 1e-3, 0.5e-3), 2: (0.5e-3, 1e-3, 1e-3)}
    for episode, kind in ((1, SlowTele), (2, SlowPairs)):
        slow = kind(world.collection, train, encoder)  # the weights are those of the mixture before
        slow.pair, slow.only_hardest = nll, True
        for rate in rates[episode]:
            row, batch = next(rows)
            loss, norm = slow.train([(batch.query_rows.tolist(), batch.passage_rows.tolist())], rate=rate)
            assert row["episode"] == episode
            assert row["lr"] == pytest.approx(rate)
            assert row["loss"] == pytest.approx(loss, abs=2e-4)
            assert row["grad_norm"] == pytest.approx(norm, rel=2e-3)
    assert next(rows, None) is None


@pytest.mark.parametrize("mixture", VARIANTS)
def test_steps_equal_a_slow_reimplementation(run_states, world, mixture):
    changes, pair, options = VARIANTS[mixture]
    done = run_states(RECIPE, mixtures=[mixture], steps=[3], warmup=1, **changes)
    train = choose_splits(world.collection, dev="none").train
    slow = (SlowPairs if pair else SlowTele)(world.collection, train, SlowEncoder(world.calm), **options)
    slow.pair, slow.only_hardest = pair, mixture == "nce"
    for row, batch, rate in zip(done.metrics, done.batches, (1e-3, 1e-3, 1e-3 / 2), strict=True):
        parts = [(batch.query_rows.tolist(), batch.passage_rows.tolist())]
        loss, norm = slow.train(parts, rate=rate)
        assert row["lr"] == pytest.approx(rate)
        assert row["loss"] == pytest.approx(loss, abs=1e-4)
        assert row["grad_norm"] == pytest.approx(norm, rel=1e-3)


def test_every_visit_draws_afresh_and_sources_share_equally(run_states):
    done = run_states(RECIPE, mixtures=["bm25+random"], steps=[160], count=15, negatives=[2])
    pool = read_pool(done.path / "episodes/1/negatives")
    by_query = {}
    for batch in done.batches:
        for query, rows in zip(batch.query_rows.tolist(), batch.passage_rows[:, 1:].tolist(), strict=True):
            by_query.setdefault(query, []).append(tuple(rows))
    assert all(len(visits) == 20 and len(set(visits)) > 12 for visits in by_query.values())  # 20 epochs
    loaded = load_pool(done.path / "episodes/1/negatives", n_passages=120)
    drawn = []
    for row, entries in zip(loaded.query_rows.tolist(), pool, strict=True):
        kinds = [entry["sources"] for entry in entries]
        assert kinds.count("bm25") == kinds.count("random") > 0
        once = {entry["passage_rows"]: entry["sources"] for entry in entries}
        if len(once) == len(entries):
            drawn += [once[negative] for rows in by_query[row] for negative in rows]
    assert len(drawn) > 400
    assert np.mean([source == "random" for source in drawn]) == pytest.approx(0.5, abs=0.06)


def test_a_chain_trains_each_mixture_from_the_model_before(run_states):
    chain = run_states(RECIPE, mixtures=["bm25", "in_batch"], steps=[4, 3])
    first = run_states(RECIPE, mixtures=["bm25"], steps=[4])
    assert chain.losses(1) == first.losses(1)
    assert chain.results["states"] == ["untrained", "episode-1", "final"]
    assert [row["step"] for row in chain.metrics] == [1, 2, 3, 4, 1, 2, 3]
    assert not (chain.path / "episodes/2/negatives").exists() or not len(
        load_pool(chain.path / "episodes/2/negatives", n_passages=120).passage_rows
    )
    weights = [path / "model.safetensors" for path in (chain.path / "episodes/1/model", first.path / "model")]
    assert weights[0].read_bytes() == weights[1].read_bytes()


def test_given_negatives_are_drawn_from(run_states):
    made = run_states(RECIPE, mixtures=["random"], steps=[1], count=7)
    given = load_pool(made.path / "episodes/1/negatives", n_passages=120)
    done = run_states(RECIPE, mixtures=["file"], steps=[2], given=given)
    rows = {
        int(q): set(given.passage_rows[a:b].tolist())
        for q, a, b in zip(given.query_rows, given.offsets[:-1], given.offsets[1:], strict=True)
    }
    for batch in done.batches:
        for query, negative in zip(batch.query_rows.tolist(), batch.passage_rows[:, 1].tolist(), strict=True):
            assert negative in rows[query]


def test_negatives_are_given_where_a_mixture_takes_them_and_only_there():
    takes, takes_none = Warmup(mixtures=["in_batch", "file+in_batch"]), Warmup(mixtures=["in_batch", "bm25"])
    takes.check_pool(given=True)
    takes_none.check_pool(given=False)
    with pytest.raises(SettingsError, match="NO_POOL: source 'file' has no negatives; give --pool"):
        takes.check_pool(given=False)
    with pytest.raises(SettingsError, match=r"no mixture takes them \(in_batch, bm25\)"):
        takes_none.check_pool(given=True)


def test_lamb_and_early_stop_reach_the_recipe(run_states):
    done = run_states(RECIPE, mixtures=["bm25"], steps=[10], stop_step=2, optimizer="lamb", warmup=0.5)
    assert [row["lr"] for row in done.metrics] == pytest.approx([0.2e-3, 0.4e-3])
    adam = run_states(RECIPE, mixtures=["bm25"], steps=[10], stop_step=2, warmup=0.5)
    assert done.losses(1)[0] == adam.losses(1)[0]
    assert done.losses(1)[1] != adam.losses(1)[1]


@pytest.mark.parametrize("mixture", ["bm26", "bm25+bm25", "nce+in_batch", "", "bm25+"])
def test_wrong_mixtures_are_refused_before_anything_runs(mixture):
    with pytest.raises(Faults) as caught:
        settings_of("warmup", mixtures=[mixture])
    assert caught.value.status == 2


def test_mixtures_are_read():
    assert sources_of("bm25 + random") == ["bm25", "random"]
    assert Warmup(mixtures=["in_batch"]).drawn(1) == 0
