"""ADORE: steps against a slow re-implementation, what they retrieve against search, and what must not change."""

import hashlib
import math

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from slow_tele import SlowEncoder

import hardneg as hn
from hardneg.data.training_data import choose_splits
from hardneg.errors import Faults
from hardneg.experiment.fixed_negatives import FixedNegatives
from hardneg.models.loading import load_encoder
from hardneg.operations.recipes import settings_of
from hardneg.recipes.adore import RECIPE
from hardneg.search.ann import FaissIndex
from hardneg.training.retrieval import Retrieval
from slow_lambda import slow as slow_lambda
from tiny_world import one_thread  # noqa: F401

SMALL = {"cut": 10, "steps": 4, "warmup": 1, "depth": 12}

# Losses of all steps, recorded from this code once the slow re-implementation had given the same.
RECORDED = [0.22337, 0.28531, 0.30105, 0.248]


@pytest.fixture(scope="module")
def train(world):
    return choose_splits(world.collection, dev="none").train


class SlowAdore:
    """The query encoder trained on exact lists, one query and one pair at a time."""

    def __init__(self, world, train, *, measure="RR", weighted=True, depth=12, cut=10, encoders=None):
        self.query, fixed = encoders or (SlowEncoder(world.calm), SlowEncoder(world.calm))
        collection, everything = world.collection, np.arange(world.collection.n_passages)
        self.texts, titles = collection.texts.take(everything), collection.titles.take(everything)
        with torch.no_grad():
            parts = [(title, text) if title else (text,) for title, text in zip(titles, self.texts, strict=True)]
            self.passages = torch.stack([fixed.encode(*part) for part in parts])
        self.collection, self.train_set = collection, train
        self.measure, self.weighted, self.depth, self.cut = measure, weighted, depth, cut
        self.moments, self.made, self.lists = {}, 0, []

    def loss(self, query):
        known = self.train_set.of(int(np.flatnonzero(self.train_set.query_rows == query)[0])).tolist()
        vector = self.query.encode(self.collection.query_texts.take([query])[0])
        order = torch.argsort(-(self.passages.double() @ vector.detach().double()).float(), stable=True)
        rows = order[: self.depth].tolist()
        self.lists.append(rows)
        ranks = list(range(1, self.depth + 1))
        texts = {self.texts[row] for row in known}
        if not set(rows) & set(known):
            ranks += [self.depth + j for j in range(1, len(known) + 1)]
            rows = rows + known
        pairs = []
        for p, rank_p in zip(rows, ranks, strict=True):
            for n, rank_n in zip(rows, ranks, strict=True):
                if p in known and n not in known and self.texts[n] not in texts:
                    loss = torch.log1p(torch.exp(vector @ self.passages[n] - vector @ self.passages[p]))
                    pairs.append(self.change(rank_p, rank_n, len(known)) * loss)
        return sum(pairs) / len(pairs)

    def given(self, query, negatives):
        """The loss of a given list, ranked by the scores that it has now."""
        known = self.train_set.of(int(np.flatnonzero(self.train_set.query_rows == query)[0])).tolist()
        vector = self.query.encode(self.collection.query_texts.take([query])[0]).detach()
        rows = known + negatives
        scores = [float(vector @ self.passages[row]) for row in rows]
        order = sorted(range(len(rows)), key=lambda i: -scores[i])  # stable: some texts stand there twice
        ranks = {rows[i]: place for place, i in enumerate(order, 1)}
        pairs = [
            self.change(ranks[p], ranks[n], len(known))
            * math.log1p(math.exp(float(vector @ self.passages[n] - vector @ self.passages[p])))
            for p in known
            for n in negatives
        ]
        return sum(pairs) / len(pairs)

    def change(self, p, n, relevant):
        if not self.weighted:
            return 1.0
        if self.measure == "RR":
            return abs((1 / p if p <= self.cut else 0) - (1 / n if n <= self.cut else 0))
        disc = [1 / math.log2(1 + r) if r <= self.cut else 0.0 for r in (p, n)]
        return abs(disc[0] - disc[1]) / sum(1 / math.log2(1 + r) for r in range(1, min(relevant, self.cut) + 1))

    def train(self, queries, rate):
        parameters = list(self.query.model.parameters())
        for p in parameters:
            p.grad = None
        loss = sum(self.loss(query) for query in queries) / len(queries)
        loss.backward()
        norm = math.sqrt(sum(float(p.grad.double().square().sum()) for p in parameters if p.grad is not None))
        self.made += 1
        with torch.no_grad():
            for number, p in enumerate(parameters):
                if p.grad is not None:
                    g = p.grad * min(1.0, 1.0 / norm)
                    first, second = self.moments.get(number, (0.0, 0.0))
                    first, second = 0.9 * first + 0.1 * g, 0.999 * second + 0.001 * g * g
                    self.moments[number] = first, second
                    p -= rate * (first / (1 - 0.9**self.made)) / ((second / (1 - 0.999**self.made)).sqrt() + 1e-8)
        return loss.item(), norm


@pytest.fixture
def watched_batches(monkeypatch):
    """The queries of every step that is trained."""
    batches, real = [], Retrieval.lists

    def lists(self, batch, vectors):
        batches.append(batch.query_rows.tolist())
        return real(self, batch, vectors)

    monkeypatch.setattr(Retrieval, "lists", lists)
    return batches


@pytest.mark.parametrize(("measure", "weighted"), [("RR", True), ("nDCG", True), ("RR", False)])
def test_steps_equal_a_slow_reimplementation(run_states, world, train, watched_batches, measure, weighted):
    done = run_states(RECIPE, **SMALL, measure=measure, weighted=weighted)
    slow = SlowAdore(world, train, measure=measure, weighted=weighted)
    for row, queries in zip(done.metrics, watched_batches, strict=True):
        loss, norm = slow.train(queries, row["lr"])
        assert row["loss"] == pytest.approx(loss, abs=1e-4)
        assert row["grad_norm"] == pytest.approx(norm, rel=2e-3)
        lists = np.array(slow.lists[-len(queries) :], np.int32)
        # a stale embedding, of the step before, would retrieve other lists
        assert row["retrieved"] == hashlib.sha256(lists.tobytes()).hexdigest()[:16]
        assert row["overlap"] == 1.0
    assert len({row["retrieved"] for row in done.metrics}) == len(done.metrics)
    if measure == "RR" and weighted:
        assert done.losses(1) == pytest.approx(RECORDED, abs=1e-4)


def test_a_stale_embedding_is_noticed(run_states, world, train, monkeypatch, watched_batches):
    real, before = Retrieval.lists, []

    def stale(self, batch, vectors):
        before.append(vectors)
        return real(self, batch, before[-2] if len(before) > 1 and len(before[-2]) == len(vectors) else vectors)

    monkeypatch.setattr(Retrieval, "lists", stale)
    done = run_states(RECIPE, **SMALL)
    slow, same = SlowAdore(world, train), []
    for row, queries in zip(done.metrics, watched_batches, strict=True):
        slow.train(queries, row["lr"])
        lists = np.array(slow.lists[-len(queries) :], np.int32)
        same.append(row["retrieved"] == hashlib.sha256(lists.tobytes()).hexdigest()[:16])
    assert same[0]
    assert not all(same[1:])


def test_only_the_query_side_changes(run_states, world):
    done = run_states(RECIPE, **SMALL)
    trained, given = load_encoder(str(done.path / "model")), load_encoder(world.calm)
    assert not trained.tied
    for name, tensor in given.tower("passage").state_dict().items():
        assert torch.equal(trained.tower("passage").state_dict()[name], tensor), name
    files = [load_file(done.path / f"model/{side}/model.safetensors") for side in ("passage", "query")]
    assert any(not torch.equal(files[0][name], files[1][name]) for name in files[0])
    assert trained.digest("passage") == given.digest("passage") != trained.digest("query")
    longer = load_encoder(str(done.path / "model"), query_length=9, query_prompt="ask: ", scale=7.0)
    assert longer.digest("passage") == given.digest("passage")
    assert longer.digest() != trained.digest()
    encodings = [row for row in experiment_timing(done.path) if row["stage"] == "encode"]
    assert [row["side"] for row in encodings] in (["passage"], [])  # never again for the trained model


def experiment_timing(path):
    from hardneg.experiment.folder import Experiment

    return Experiment(path, path).timing


@pytest.mark.parametrize("negatives", ["static", "random"])
def test_the_other_arms_train_on_fixed_negatives(run_states, negatives):
    done = run_states(RECIPE, **SMALL | {"steps": 8}, negatives=negatives)
    overlaps = [row["overlap"] for row in done.metrics]
    assert all(0 <= overlap <= 1 for overlap in overlaps)
    assert overlaps != [1.0] * 8
    if negatives == "static":
        assert overlaps[0] > overlaps[-1] or np.mean(overlaps) > 0.5


def test_the_random_arm_draws_anew_at_each_visit(run_states, world, train, monkeypatch):
    real, visits = FixedNegatives.of, {}

    def of(self, batch):
        found = real(self, batch)
        again = real(self, batch)  # a keyed draw, whatever came between
        assert all(np.array_equal(a, b) for a, b in zip(found, again, strict=True))
        for query, rows in zip(batch.query_rows.tolist(), found, strict=True):
            visits.setdefault(query, []).append(rows.tolist())
        return found

    monkeypatch.setattr(FixedNegatives, "of", of)
    done = run_states(RECIPE, **SMALL | {"steps": 24}, negatives="random")
    assert {len(drawn) for drawn in visits.values()} == {3}  # three epochs
    for query, drawn in visits.items():
        known = set(train.of(int(np.flatnonzero(train.query_rows == query)[0])).tolist())
        assert len({tuple(rows) for rows in drawn}) == 3
        assert all(len(set(rows)) == SMALL["depth"] and not known & set(rows) for rows in drawn)
    slow = SlowAdore(world, train)
    first = [slow.given(query, visits[query][0]) for query in list(visits)[:8]]  # before any weight has moved
    assert done.losses(1)[0] == pytest.approx(float(sum(first)) / 8, abs=1e-4)
    monkeypatch.undo()
    halves = run_states(RECIPE, **SMALL | {"steps": 24}, negatives="random", micro_queries=3)
    assert halves.losses(1) == pytest.approx(done.losses(1), abs=2e-3)


def test_it_resumes_to_the_same_bytes(run_states, tmp_path, monkeypatch):
    from hardneg.experiment import stage

    class Power(BaseException):
        pass

    whole = run_states(RECIPE, **SMALL | {"steps": 7})
    real = stage.save_checkpoint

    def failing(folder, step, *args, **named):
        real(folder, step, *args, **named)
        if step == 4:
            raise Power

    monkeypatch.setattr(stage, "save_checkpoint", failing)
    with pytest.raises(Power):
        run_states(RECIPE, path=tmp_path, **SMALL | {"steps": 7})
    monkeypatch.undo()
    run_states(RECIPE, path=tmp_path, **SMALL | {"steps": 7})
    for name in ("model/query/model.safetensors", "model/passage/model.safetensors", "metrics.jsonl"):
        assert (tmp_path / name).read_bytes() == (whole.path / name).read_bytes()


def test_over_a_compressed_index_from_start_to_results(world, tmp_path):
    results = hn.train_adore(
        world.collection,
        world.calm,
        tmp_path / "exp",
        cut=10,
        steps=3,
        depth=12,
        index="pq",
        subvectors=4,
        bits=4,
        device="cpu",
        measures="RR@10",
        token_budget=512,
    )
    assert list(results["test"]) == ["bm25", "untrained", "untrained/pq", "final/pq", "final"]
    assert len(results["forgetting"]) == 1
    index = FaissIndex(tmp_path / "exp/index")
    assert index.manifest.settings["options"] == {"subvectors": 4, "bits": 4}
    rows = np.arange(5)
    assert index.vectors(rows).shape == (5, load_encoder(world.calm).dim)


def test_the_cut_is_required():
    with pytest.raises(Faults, match="MISSING_SETTING: 'cut' has no default"):
        settings_of("adore")
    assert settings_of("adore", "passage").cut == 200
    assert slow_lambda([0.0], [True], [1], [True], 1, "RR", 1, True) == 0
