"""Settings that many recipes share are in force in the steps of each: scale, first positives, micro-batches.

One training for each recipe has all of them; its first step is computed again, one text at a time.
"""

import math
from functools import cache
from itertools import groupby

import numpy as np
import pytest
import torch
from reference_adore import SlowAdore
from reference_ar2 import SlowGame
from reference_pairs import SlowPairs, hinge, nll
from reference_star import SlowStar
from reference_tele import SlowEncoder

from hardneg.data.training_data import choose_splits
from hardneg.diagnostics.sharpness import sharpness
from hardneg.experiment.snapshot import Snapshot
from hardneg.models.loading import load_encoder
from hardneg.models.rankers import new_ranker, save_ranker
from hardneg.models.source import ModelSource
from hardneg.recipes import star, warmup
from hardneg.recipes.adore import recipe as adore
from hardneg.recipes.adore.lists import Retrieval
from hardneg.recipes.ance import recipe as ance
from hardneg.recipes.ar2 import recipe as ar2
from hardneg.recipes.ranker import RECIPE as RANKER
from hardneg.recipes.starting_ranker import starting_ranker
from hardneg.search.encoding import Encoding
from reference_adversarial import slow_distillation, slow_entropy, slow_p_theta
from worlds.tiny_world import one_thread  # noqa: F401

SCALE, RANKER_SCALE, TEMPERATURE, LONGEST = 20.0, 3.0, 2.0, 24

# Of 60 training queries, so four steps are more than an epoch.
SHARED = {"queries_per_step": 20, "micro_queries": 7, "positives": "first", "warmup": 1, "checkpoint_every": 100}
SIZES = [7, 7, 6]
RUNS = {
    "star": (star.RECIPE, {"steps": 4}),
    "warmup": (warmup.RECIPE, {"steps": [4], "mixtures": ["bm25"], "negatives": [2]}),
    "ance": (ance.RECIPE, {"refresh_every": 4, "refreshes": 0, "loss": "hinge", "margin": 0.7}),
    "ranker": (RANKER, {"steps": 4, "negatives_per_query": 3, "scale": RANKER_SCALE}),
    "ar2": (
        ar2.RECIPE,
        {
            "order": "retriever-first",
            "iterations": 1,
            "retriever_steps": 4,
            "ranker_steps": 2,
            "first_ranker_steps": 2,
            "negatives_per_query": 3,
            "ranker_queries_per_step": 6,
            "ranker_micro_queries": 4,
            "first_ranker_queries_per_step": 5,
            "learning_rate": 1e-3,
            "ranker_learning_rate": 2e-3,
            "first_ranker_learning_rate": 3e-3,
            "temperature": TEMPERATURE,
        },
    ),
}
OF_AR2 = 2 * [4, 1] + 4 * SIZES + 2 * [4, 2]  # the first ranker, the retriever, the ranker


class Logits(SlowEncoder):
    """Vectors of length 1 times the root of the scale, so that products of two are logits."""

    def encode_ids(self, ids):
        return SCALE**0.5 * super().encode_ids(ids)


@pytest.fixture(scope="module")
def cosine(world):
    return load_encoder(world.calm, normalize=True, scale=SCALE)


@pytest.fixture(scope="module")
def slow(world):
    return Logits(world.calm, normalize=True)


@pytest.fixture(scope="module")
def train(world):
    return choose_splits(world.collection, dev="none", test="none").train


@pytest.fixture(scope="module")
def ranker(world):
    """A new ranker, and its folder."""
    made, place = new_ranker(ModelSource.at(world.calm), seed=3, max_length=LONGEST), world.root / "new-ranker"
    save_ranker(made, place)
    return made, place


@pytest.fixture(scope="module")
def trained(world, run_states, cosine, ranker):
    """A function that trains by a recipe of ``RUNS``, each once."""

    @cache
    def run(name):
        recipe, settings = RUNS[name]
        more = {"base": ranker[0] if name == "ranker" else cosine}
        if name == "ar2":
            more["ranker"] = starting_ranker(ModelSource.at(world.calm), {"max_length": LONGEST}, seed=7)
        return run_states(recipe, **more, **SHARED | settings)

    return run


def parts_of(batches):
    return [(batch.query_rows.tolist(), batch.passage_rows.tolist()) for batch in batches]


@pytest.mark.parametrize(
    ("name", "kind", "pair"), [("star", SlowStar, None), ("warmup", SlowPairs, nll), ("ance", SlowPairs, hinge)]
)
def test_the_loss_of_a_step_has_the_scale_of_the_model(trained, world, train, slow, name, kind, pair):
    done, loop = trained(name), kind(world.collection, train, slow, in_batch=name == "star")
    loop.pair = pair
    with torch.no_grad():
        found = [(len(part[0]), loop.loss([part]).item()) for part in parts_of(done.batches[: len(SIZES)])]
    assert done.losses(1)[0] == pytest.approx(sum(size * loss for size, loss in found) / 20, abs=1e-4)


def test_the_loss_of_a_ranker_has_its_scale(trained, world, train, ranker):
    done, losses = trained("ranker"), []
    game = SlowGame(world.collection, train, world.calm, ranker[1], longest=LONGEST)
    with torch.no_grad():
        for query, rows in (one for batch in done.batches[: len(SIZES)] for one in game.lists(batch)):
            logits = torch.stack([RANKER_SCALE * game.pair(query, row) for row in rows])
            losses.append(float(torch.logsumexp(logits, 0) - logits[0]))
    assert done.losses(1)[0] == pytest.approx(np.mean(losses), abs=1e-4)


def test_the_game_has_scale_and_temperature(trained, world, train, slow):
    done, found = trained("ar2"), []
    game = SlowGame(world.collection, train, world.calm, done.path / "first-ranker", longest=LONGEST)
    [row, *_] = [row for row in done.metrics if row["model"] == "retriever"]
    with torch.no_grad():
        for query, rows in (one for batch in done.batches[4:7] for one in game.lists(batch)):
            vector = slow.encode(world.collection.query_texts[query])
            passages = [slow.encode_ids([2, *game.passage(row), 3]) for row in rows]
            scores, wanted = (
                [float(vector @ one) for one in passages],
                [float(game.pair(query, row)) for row in rows],
            )
            towards = slow_distillation(scores, wanted, TEMPERATURE)
            found.append((slow_p_theta(scores, wanted), towards, slow_entropy(scores)))
    expected = np.mean(found, axis=0)
    assert [row["adversarial"], row["distillation"], row["entropy"]] == pytest.approx(expected.tolist(), abs=2e-4)


def test_the_two_models_of_the_game_and_the_first_ranker_have_their_own_rates(trained):
    turns = groupby(trained("ar2").metrics, lambda row: (row["model"], row["episode"]))
    first = [(*turn, next(rows)["lr"]) for turn, rows in turns]
    assert first == [("ranker", 0, 3e-3), ("retriever", 1, 1e-3), ("ranker", 1, 2e-3)]


def test_the_loss_of_lists_has_the_scale_of_the_model(run_states, world, train, cosine, slow, monkeypatch):
    made, real = [], Retrieval.lists

    def lists(self, batch, vectors):
        made.append((batch.query_rows.tolist(), real(self, batch, vectors)))
        return made[-1][1]

    monkeypatch.setattr(Retrieval, "lists", lists)
    done = run_states(adore.RECIPE, base=cosine, steps=1, cut=10, depth=12, weighted=False)
    loop = SlowAdore(world, train, weighted=False, encoders=(slow, slow))
    [(queries, found)] = made
    loop.seen = {query: rows[:12].tolist() for query, rows in zip(queries, found.rows, strict=True)}
    with torch.no_grad():
        losses = [float(loop.loss(query)) for query in queries]
    assert done.losses(1)[0] == pytest.approx(np.mean(losses), abs=1e-4)


def test_the_entropy_of_a_state_has_the_scale_of_its_model(world, cosine, tmp_path):
    state = Snapshot(
        cosine, world.collection, "s", tmp_path / "runs", tmp_path / "cache", encoding=Encoding(512, "float32")
    )
    qrels, total = choose_splits(world.collection).test, []
    run = state.search("test", qrels.query_rows, world.collection.n_passages)
    for i in range(len(qrels)):
        found, positives = slice(run.offsets[i], run.offsets[i + 1]), set(qrels.positives().of(i).tolist())
        hits = list(zip(run.passage_rows[found].tolist(), run.scores[found].tolist(), strict=True))
        best = max(score for row, score in hits if row in positives)
        others = [score for row, score in hits if row not in positives][:15]
        total.append(slow_entropy([SCALE * score for score in (best, *others)]))
    found = sharpness(state, run, qrels, as_trained=False)
    assert found == pytest.approx(np.mean(total), abs=1e-4)
    assert found < math.log(16) - 1e-3  # cosines without a scale would be nearly equal


@pytest.mark.parametrize("name", RUNS)
def test_the_first_positive_of_a_query_is_that_of_every_epoch(trained, train, name):
    first = dict(zip(train.query_rows.tolist(), (train.of(i)[0] for i in range(len(train))), strict=True))
    visits = [
        pair for queries, groups in parts_of(trained(name).batches) for pair in zip(queries, groups, strict=True)
    ]
    assert len(visits) > len(train)
    assert [rows[0] for _, rows in visits] == [first[query] for query, _ in visits]


@pytest.mark.parametrize("name", RUNS)
def test_micro_batches_have_the_size_that_is_set(trained, name):
    sizes = [len(batch.query_rows) for batch in trained(name).batches]
    assert sizes == (OF_AR2 if name == "ar2" else 4 * SIZES)
