"""Every recipe on models as the papers publish them: RoBERTa with a head, a tower for each side, LAMB.

Some steps of each recipe against slow loops, beyond the two of warm-up; the rates are worked out here.
"""

import numpy as np
import pytest
import torch
from reference_adore import SlowAdore
from reference_pairs import SlowPairs, nll
from reference_star import SlowStar
from reference_tele import HEAD, SlowEncoder, SlowLamb, SlowTele
from safetensors.torch import load_file, save_file

from hardneg.data.training_data import choose_splits
from hardneg.models.loading import load_encoder
from hardneg.recipes import ance_tele, star, warmup
from hardneg.recipes.adore import recipe as adore
from hardneg.recipes.ance import recipe as ance
from worlds.tiny_models import tiny_roberta
from worlds.tiny_world import COMMON, one_thread  # noqa: F401

PEAK, DECAY, CLIP = 1e-3, 0.2, 0.7
OPTIMISER = {"optimizer": "lamb", "weight_decay": DECAY, "clip": CLIP, "warmup": 2}
SIDES = ("query", "passage")


class LambTele(SlowLamb, SlowTele):
    """ANCE-Tele's and the warm-up's contrastive loss."""


class LambPairs(SlowLamb, SlowPairs):
    """ANCE's loss of pairs."""


class LambStar(SlowLamb, SlowStar):
    """STAR's."""


class LambAdore(SlowAdore):
    """ADORE's lists and pairs; of the query's tower alone."""

    def train(self, queries, rate):
        tele = self.__dict__.setdefault("tele", LambTele(self.collection, self.train_set, self.query))
        tele.loss = lambda parts: sum(self.loss(query) for query in parts) / len(parts)
        return tele.train(queries, rate=rate, clip=CLIP, weight_decay=DECAY)


@pytest.fixture(scope="module")
def published(world, tmp_path_factory):
    """Folders of two towers, with the names that the weights have in a released checkpoint."""
    root, draw = tmp_path_factory.mktemp("published"), torch.Generator().manual_seed(3)
    collection = world.collection
    texts = collection.texts.take(np.arange(collection.n_passages))
    for seed, side in enumerate(SIDES):
        tiny_roberta(root / side, texts, seed=seed, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
        file = root / side / "model.safetensors"
        shapes = ((64, 64), (64,), (64,), (64,))
        head = {name: torch.randn(*one, generator=draw) for name, one in zip(HEAD, shapes, strict=True)}
        head["norm.weight"] = 0.3 + head["norm.weight"].abs()
        head["embeddingHead.weight"] /= 8
        stored = {f"roberta.{name}": tensor for name, tensor in load_file(file).items()}
        save_file(stored | head, file, metadata={"format": "pt"})
    return [str(root / side) for side in SIDES]


@pytest.fixture(scope="module")
def base(published):
    encoder = load_encoder(*published)
    assert (encoder.settings.head, encoder.tied) == ("ance", False)
    assert not torch.equal(*(encoder.tower(side).head.linear.weight for side in SIDES))
    return encoder


def rates(horizon, steps):
    """Two steps of warm-up, then down to nothing at the horizon."""
    return [PEAK * (i + 1) / 2 if i < 2 else PEAK * (horizon - i) / (horizon - 2) for i in range(steps)]


RECIPES = {
    "warmup": (
        warmup.RECIPE,
        {"mixtures": ["bm25+in_batch"], "steps": [7], "stop_step": 3},
        LambTele,
        {},
        rates(7, 3),
    ),
    "ance-tele": (
        ance_tele.RECIPE,
        {"episodes": 1, "count": 6, "passages_reference": [4], "steps": 4},
        LambTele,
        {},
        rates(4, 4),
    ),
    "ance": (ance.RECIPE, {"refresh_every": 2, "refreshes": 1}, LambPairs, {"in_batch": False}, rates(4, 4)),
    "star": (star.RECIPE, {"steps": 7, "stop_step": 3}, LambStar, {}, rates(7, 3)),
}


@pytest.mark.parametrize("name", RECIPES)
def test_steps_equal_a_slow_reimplementation(run_states, world, published, base, name):
    recipe, settings, kind, options, expected = RECIPES[name]
    done = run_states(recipe, base=base, **settings, **OPTIMISER)
    train = choose_splits(world.collection, dev="none").train
    towers = [SlowEncoder(folder, head=True) for folder in published]
    slow = kind(world.collection, train, *towers, **options)
    slow.pair = nll
    assert COMMON["learning_rate"] == PEAK
    assert len(done.metrics) == len(done.batches) == len(expected)
    losses = []
    for row, batch, rate in zip(done.metrics, done.batches, expected, strict=True):
        parts = [(batch.query_rows.tolist(), batch.passage_rows.tolist())]
        loss, norm = slow.train(parts, rate=rate, clip=CLIP, weight_decay=DECAY)
        assert row["lr"] == pytest.approx(rate)
        assert row["loss"] == pytest.approx(loss, rel=1e-4, abs=1e-4)
        assert row["grad_norm"] == pytest.approx(norm, rel=2e-3)
        losses.append(loss)
    assert np.ptp(losses) > 1e-2  # steps do something
    check_weights(load_encoder(str(done.path / "model")), towers)


def check_weights(trained, towers):
    """The head's and the transformer's weights on both sides are the slow loop's.

    All but the last shift of passages: it changes no difference of scores, so its gradient is rounding, and LAMB
    moves it as far as any other.
    """
    for side, slow in zip(SIDES, towers, strict=True):
        tower = trained.tower(side)
        ours = dict(tower.transformer.named_parameters()) | dict(tower.head.named_parameters())
        names = ("linear.weight", "linear.bias", "norm.weight", "norm.bias")
        theirs = dict(slow.model.named_parameters()) | dict(zip(names, slow.head, strict=True))
        looked_at = names if side == "query" else names[:-1]
        for name in (
            *looked_at,
            "encoder.layer.0.attention.self.value.weight",
            "encoder.layer.1.output.dense.bias",
        ):
            torch.testing.assert_close(ours[name], theirs[name], rtol=1e-3, atol=2e-5, msg=f"{side} {name}")


def test_adore_trains_the_querys_tower_alone(run_states, world, published, base, watched_batches):
    settings = {"cut": 10, "steps": 4, "depth": 12}
    done = run_states(adore.RECIPE, base=base, **settings, **OPTIMISER)
    train = choose_splits(world.collection, dev="none").train
    towers = tuple(SlowEncoder(folder, head=True) for folder in published)
    slow = LambAdore(world, train, encoders=towers)
    assert len(done.metrics) == 4
    for row, queries, rate in zip(done.metrics, watched_batches, rates(4, 4), strict=True):
        loss, norm = slow.train(queries, rate)
        assert row["lr"] == pytest.approx(rate)
        assert row["loss"] == pytest.approx(loss, rel=1e-4, abs=1e-4)
        assert row["grad_norm"] == pytest.approx(norm, rel=2e-3)
    trained = load_encoder(str(done.path / "model"))
    check_weights(trained, towers)
    assert trained.digest("passage") == base.digest("passage")
