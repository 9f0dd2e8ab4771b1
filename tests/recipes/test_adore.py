"""ADORE: steps against a slow re-implementation, retrieved negatives against search, and unchanged parts."""

import hashlib
import json
from collections import Counter
from functools import partial

import numpy as np
import pytest
import torch
from reference_adore import TIE, SlowAdore, settled
from reference_tele import SlowEncoder
from safetensors.torch import load_file

import hardneg as hn
from faults.power import assert_resumes
from hardneg.api.recipes import settings_of
from hardneg.data.training_data import choose_splits
from hardneg.errors import Faults, NumericError
from hardneg.models.bi_encoder import BiEncoder
from hardneg.models.loading import load_encoder
from hardneg.recipes.adore import lists, recipe
from hardneg.recipes.adore.fixed_negatives import FixedNegatives
from hardneg.recipes.adore.lists import Retrieval, ranked
from hardneg.recipes.adore.query_batches import QueryBatch
from hardneg.recipes.adore.recipe import RECIPE
from hardneg.search.ann import FaissIndex
from hardneg.search.exact import ExactIndex
from worlds.tiny_records import positives_of
from worlds.tiny_world import one_thread  # noqa: F401

SMALL = {"cut": 10, "steps": 4, "warmup": 1, "depth": 12}

# Rates of all steps by hand: one step of warm-up, then down to 0 after the fourth.
RATES = (1e-3, 1e-3, 2e-3 / 3, 1e-3 / 3)


@pytest.fixture(scope="module")
def train(world):
    return choose_splits(world.collection, dev="none").train


@pytest.fixture
def orders(monkeypatch):
    """Of every step, in order: what its queries retrieved, and how what they were given was ranked; best first."""
    retrieved, given = [], []
    search, rank = lists.search_in_step, recipe.ranks_of

    def search_in_step(*arguments):
        scores, rows = search(*arguments)
        retrieved.append(rows.tolist())
        return scores, rows

    def ranks_of(of, scores, valid):
        ranks = rank(of, scores, valid)
        order = torch.where(valid, ranks, len(of.rows[0]) + 1).argsort(dim=1).numpy()
        rows = [one[at][:count] for one, at, count in zip(of.rows, order, valid.sum(1).tolist(), strict=True)]
        given.append([row.tolist() for row in rows])
        return ranks

    monkeypatch.setattr(lists, "search_in_step", search_in_step)
    monkeypatch.setattr(recipe, "ranks_of", ranks_of)
    return retrieved, given


def follow(slow, queries, orders, step):
    """Let the slow one settle its ties as the tool did in a step."""
    retrieved, given = orders
    slow.seen = dict(zip(queries, retrieved[step], strict=True))
    slow.ranked_then = dict(zip(queries, given[step], strict=True))


def test_the_tokens_of_its_steps_are_those_of_queries(run_states, world, watched_batches):
    done = run_states(RECIPE, **SMALL)
    rows = [json.loads(line) for line in (done.path / "timing.jsonl").read_text().splitlines()]
    texts = world.collection.query_texts
    expected = sum(len(texts[row].split()) + 2 for batch in watched_batches for row in batch)
    assert sum(row["tokens"] for row in rows if row["stage"] == "train") == expected > 0


@pytest.mark.parametrize(("measure", "weighted"), [("RR", True), ("nDCG", True), ("RR", False)])
def test_steps_equal_a_slow_reimplementation(run_states, world, train, watched_batches, orders, measure, weighted):
    done = run_states(RECIPE, **SMALL, measure=measure, weighted=weighted)
    slow = SlowAdore(world, train, measure=measure, weighted=weighted)
    for step, (row, queries, rate) in enumerate(zip(done.metrics, watched_batches, RATES, strict=True)):
        follow(slow, queries, orders, step)
        loss, norm = slow.train(queries, rate)
        assert row["lr"] == pytest.approx(rate)
        assert row["loss"] == pytest.approx(loss, abs=1e-4)
        assert row["grad_norm"] == pytest.approx(norm, rel=2e-3)
        found = np.array(slow.lists[-len(queries) :], np.int32)
        # a stale embedding, of the step before, would retrieve other lists
        assert row["retrieved"] == hashlib.sha256(found.tobytes()).hexdigest()[:16]
        assert row["overlap"] == 1.0
        assert_ranked(row, found, [slow.known(query) for query in queries])
    assert len({row["retrieved"] for row in done.metrics}) == len(done.metrics)


def test_the_rate_rises_and_falls_over_the_whole_schedule(run_states):
    done = run_states(RECIPE, **SMALL | {"steps": 6, "warmup": 2}, learning_rate=4e-3)
    assert [row["lr"] for row in done.metrics] == pytest.approx([2e-3, 4e-3, 4e-3, 3e-3, 2e-3, 1e-3])


def test_only_what_rounding_can_swap_is_settled_as_it_was_seen():
    scores = {1: 9.0, 2: 8.0 + TIE / 2, 3: 8.0, 4: 7.0 + TIE / 2, 5: 7.0}
    order = [1, 2, 3, 4, 5]
    assert settled(order, scores, None) == order
    assert settled(order, scores, [1, 3, 2]) == [1, 3, 2, 4, 5]
    assert settled(order, scores, [1, 2, 3, 5]) == [1, 2, 3, 5, 4]
    for wrong in ([2, 1, 3], [1, 2, 4], [1, 3, 3], [1, 2, 3, 1]):
        assert settled(order, scores, wrong) == order


def test_a_stale_embedding_is_noticed(run_states, world, train, monkeypatch, watched_batches, orders):
    real, before = Retrieval.lists, []

    def stale(self, batch, vectors):
        before.append(vectors)
        return real(self, batch, before[-2] if len(before) > 1 and len(before[-2]) == len(vectors) else vectors)

    monkeypatch.setattr(Retrieval, "lists", stale)
    done = run_states(RECIPE, **SMALL)
    slow, same = SlowAdore(world, train), []
    for step, (row, queries, rate) in enumerate(zip(done.metrics, watched_batches, RATES, strict=True)):
        follow(slow, queries, orders, step)
        slow.train(queries, rate)
        found = np.array(slow.lists[-len(queries) :], np.int32)
        same.append(row["retrieved"] == hashlib.sha256(found.tobytes()).hexdigest()[:16])
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


def test_the_corpus_is_encoded_once_and_never_by_the_trained_model(world, tmp_path, monkeypatch):
    encoded, real = Counter(), BiEncoder.encode

    def encode(self, tokens, side, *args, **named):
        encoded[side] += len(tokens)
        return real(self, tokens, side, *args, **named)

    monkeypatch.setattr(BiEncoder, "encode", encode)
    options = {"device": "cpu", "measures": "RR@10", "cache": tmp_path / "cache", "token_budget": 512}
    hn.train_adore(world.collection, world.calm, tmp_path / "exp", **SMALL, **options)
    queries = world.collection.n_queries
    assert encoded == {"passage": world.collection.n_passages, "query": 2 * queries + 8 + 8 + 8 + 8}


# ---------------------------------------------------------------- the other arms


@pytest.fixture
def watched_lists(monkeypatch):
    """Of every step that is trained, its queries and of each the positives and negatives that it is trained on."""
    steps, real = [], Retrieval.lists

    def lists(self, batch, vectors):
        made = real(self, batch, vectors)
        used = [
            (made.rows[i][made.valid[i] & made.positive[i]], made.rows[i][made.valid[i] & ~made.positive[i]])
            for i in range(len(batch.query_rows))
        ]
        steps.append((batch.query_rows.tolist(), [(a.tolist(), b.tolist()) for a, b in used]))
        return made

    monkeypatch.setattr(Retrieval, "lists", lists)
    return steps


def negatives_of(step):
    return [negatives for _, negatives in step[1]]


@pytest.mark.parametrize("negatives", ["static", "random"])
def test_the_other_arms_equal_a_slow_reimplementation(run_states, world, train, watched_lists, orders, negatives):
    done = run_states(RECIPE, **SMALL, negatives=negatives)
    slow = SlowAdore(world, train)
    for number, (row, step, rate) in enumerate(zip(done.metrics, watched_lists, RATES, strict=True)):
        queries, given = step[0], negatives_of(step)
        follow(slow, queries, orders, number)
        assert [positives for positives, _ in step[1]] == [slow.known(query) for query in queries]
        loss, norm = slow.train(queries, rate, given)
        assert row["loss"] == pytest.approx(loss, abs=1e-4)
        assert row["grad_norm"] == pytest.approx(norm, rel=2e-3)
        retrieved = slow.lists[-len(queries) :]
        shared = [len(set(one) & set(real)) / len(one) for one, real in zip(given, retrieved, strict=True)]
        assert row["overlap"] == pytest.approx(np.mean(shared), abs=1e-6)
        assert_ranked(row, retrieved, [slow.known(query) for query in queries])


def assert_ranked(row, lists, positives):
    """The metrics of a step say how its queries ranked their positives, counted here pair by pair."""
    ranks, errors = [], 0
    for found, own in zip(lists, positives, strict=True):
        found, own = [int(one) for one in found], {int(one) for one in own}
        wrong = [at for at, one in enumerate(found) if one not in own]
        places = {one: at for at, one in enumerate(found) if one in own}
        ranks.append(max((1 / (at + 1) for at in places.values() if at < 10), default=0))
        errors += sum(sum(at < places.get(one, len(found)) for at in wrong) for one in own)
    assert row["train_rr_10"] == pytest.approx(np.mean(ranks))
    assert row["train_errors"] == pytest.approx(errors / len(lists))


def test_the_rank_and_the_errors_of_a_list_by_hand():
    def of(found, positives):
        return ranked(np.array(found, np.int32), np.array(positives, np.int32))

    assert of([7, 3, 8, 4, 9], [3]) == (2, 1)
    assert of([7, 3, 8, 4, 9], [4, 3]) == (2, 1 + 2)
    assert of([7, 3, 8, 4, -1], [3, 5]) == (2, 1 + 3)  # 5 is not in the list, which has three others
    assert of([7, 8], [3]) == (0, 2)
    assert of([-1, -1], [3]) == (0, 0)


@pytest.mark.parametrize("depth", [3, 4])  # of four passages
def test_a_passage_that_is_the_query_itself_takes_no_rank(depth):
    """Query 0 is passage 2, which it retrieves first; its positive comes next."""
    passages = np.eye(4, dtype=np.float32)
    vectors = torch.tensor([[0.0, 0.5, 1.0, 0.2], [0.0, 0.5, 1.0, 0.2]])
    own = np.array([0], np.int32), np.array([2], np.int32)
    index = ExactIndex(passages)
    retrieval = Retrieval(
        positives_of([[1], [1]]), index, depth=depth, dtype=torch.float32, known=None, given=None, own=own
    )
    batch = QueryBatch(0, np.arange(2, dtype=np.int32), np.arange(2), 2)
    lists = retrieval.lists(batch, vectors)
    hits = [lists.rows[i][lists.valid[i]].tolist() for i in range(2)]
    assert hits == [[1, 3, 0], [2, 1, 3, 0][:depth]]
    assert lists.ranks[lists.positive].tolist() == [1, 2]
    facts = retrieval.facts(0)
    assert (facts["train_rr_10"], facts["train_errors"]) == ((1 + 1 / 2) / 2, 1 / 2)
    assert facts["overlap"] == 1


@pytest.mark.parametrize("every", [None, 4])
def test_static_negatives_are_what_was_retrieved_at_the_last_refresh(
    run_states, world, train, watched_lists, every
):
    settings = SMALL | {"steps": 8, "learning_rate": 1e-2, "measure_every": 4, "refresh_every": every}
    done = run_states(RECIPE, **settings, negatives="static")
    slow = SlowAdore(world, train)
    later = SlowAdore(world, train)
    later.query = SlowEncoder(done.path / "states/4/model/query")
    rows = train.query_rows.tolist()
    assert sum(slow.negatives(query) != later.negatives(query) for query in rows) > 30  # or this could not fail
    assert len(watched_lists) == 8
    for number, step in enumerate(watched_lists):
        then = later if every and number >= every else slow
        for query, negatives in zip(step[0], negatives_of(step), strict=True):
            assert negatives == then.negatives(query, negatives)


def test_random_negatives_are_uniform_and_no_positives(run_states, train, watched_lists, world):
    run_states(RECIPE, **SMALL | {"steps": 8, "depth": 40}, negatives="random")  # one epoch
    slow, counts = SlowAdore(world, train), np.zeros(len(world.collection.texts))
    for queries, used in watched_lists:
        for query, (_, negatives) in zip(queries, used, strict=True):
            assert len(set(negatives)) == len(negatives) == 40
            assert all(0 <= row < len(counts) for row in negatives)
            assert not {slow.texts[row] for row in negatives} & {slow.texts[row] for row in slow.known(query)}
            counts[negatives] += 1
    assert counts.sum() == len(train) * 40
    expected = counts.mean()
    spread = ((counts - expected) ** 2 / expected).sum()  # chi-squared, of 119 degrees of freedom
    assert 119 - 5 * (2 * 119) ** 0.5 < spread < 119 + 5 * (2 * 119) ** 0.5


@pytest.mark.parametrize(
    "changes", [{}, {"mask_known_positives": False}, {"negatives": "static"}, {"negatives": "random"}]
)
def test_what_people_judged_relevant_is_no_negative(world, train, tmp_path, watched_lists, changes):
    passages, judged = range(30), []
    for i, query in enumerate(world.collection.query_ids.take(train.query_rows)):
        some = set(passages) - set(train.of(i).tolist())
        judged += [f"{query}\t{world.collection.passage_ids[row]}\trelevant\n" for row in sorted(some)]
    file = tmp_path / "judgements.tsv"
    file.write_text("query-id\tpassage-id\tlabel\n" + "".join(judged))
    splits = hn.Splits(dev="none", test="none")
    given = {"device": "cpu", "cut": 10, "steps": 8, "depth": 40, "queries_per_step": 8} | changes
    hn.train_adore(world.collection, world.calm, tmp_path / "exp", splits=splits, judgements=file, **given)
    assert len(watched_lists) == 8
    for step in watched_lists:
        for used in negatives_of(step):
            assert len(used) > 5
            assert not set(used) & set(passages)


# ---------------------------------------------------------------- the experiment


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


def test_it_resumes_to_the_same_bytes(run_states, tmp_path):
    files = ("model/query/model.safetensors", "model/passage/model.safetensors", "metrics.jsonl")
    execute = partial(run_states, RECIPE, **SMALL | {"steps": 7})
    assert_resumes(execute, tmp_path, after=4, files=files)


def test_vectors_that_are_not_finite_name_the_step_and_its_queries(run_states):
    with pytest.raises(NumericError, match=r"NOT_FINITE: loss or gradient of step 2 of the .* \(queries train-"):
        run_states(RECIPE, **SMALL | {"steps": 3, "learning_rate": 1e30, "warmup": 0})


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
