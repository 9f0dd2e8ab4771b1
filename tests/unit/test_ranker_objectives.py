"""The ranker's training step, against a padded one of transformers, in little memory, over several processes."""

import json
import math
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from torch.nn.functional import logsigmoid
from transformers import AutoModel, AutoModelForSequenceClassification, PreTrainedTokenizerFast

from hardneg.adversarial import retriever_losses
from hardneg.data.judgements import JudgedIds
from hardneg.data.training_data import amended, choose_splits
from hardneg.experiment.metrics import Metrics
from hardneg.models.loading import load_encoder
from hardneg.models.rankers import load_ranker, new_ranker, save_ranker
from hardneg.models.saving import save_encoder
from hardneg.models.source import ModelSource
from hardneg.models.tokenizing import pair_store
from hardneg.search.retriever import untimed
from hardneg.training import ranker_objectives, sharing
from hardneg.training.batches import GroupBatch, KnownPositives
from hardneg.training.loop import backward, train_steps
from hardneg.training.optim import linear
from hardneg.training.ranker_objectives import (
    adversarial_objective,
    frozen_scores,
    own_columns,
    own_mask,
    own_sources,
    ranker_loss,
    ranker_objective,
    ranker_scores,
)
from hardneg.training.sharing import deal, shared
from hardneg.training.stage import Stage, Trainee
from reference_adversarial import sigmoid, softmax
from worlds.tiny_world import one_thread  # noqa: F401

LENGTH = 24
CHUNK = 64  # tokens: three pairs or so


def ranker_of(world, *, dropout=0.0, **settings):
    ranker = new_ranker(ModelSource.at(world.model), seed=1, **{"max_length": LENGTH} | settings)
    for module in ranker.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = dropout
    return ranker.train(dropout > 0)


def batch_of(world, queries=6, negatives=3, seed=0, **more):
    draw, train = np.random.default_rng(seed), choose_splits(world.collection).train
    chosen = np.sort(draw.permutation(len(train))[:queries])
    negative = draw.integers(0, 120, (queries, negatives))
    rows = np.column_stack([train.select(chosen).first(), negative]).astype(np.int32)
    return GroupBatch(train.query_rows[chosen], rows, queries, **more)


def objective_of(world, ranker, name="cross_entropy", **options):
    data = choose_splits(world.collection)
    return ranker_objective(data, ranker, world.root / "cache", ranker_loss(name), **options)


def pairs_of(world, ranker):
    return pair_store(ranker.tower, ranker.template, world.collection, world.root / "cache")


def loss_and_gradients(objective, model, batch):
    model.zero_grad()
    loss, facts = backward(objective, batch)
    return loss.item(), {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}, facts


def check_equal(found, expected, tolerance=1e-6):
    assert found[0] == pytest.approx(expected[0], abs=tolerance)
    assert found[1].keys() == expected[1].keys()
    norm = np.sqrt(sum(float(gradient.double().square().sum()) for gradient in expected[1].values()))
    assert norm > 1e-3
    for name, gradient in expected[1].items():
        assert float((found[1][name] - gradient).norm()) < tolerance * norm, name


# ---------------------------------------------------------------- against plain PyTorch


class Plain:
    """The same step by transformers: texts tokenised in pairs and padded, torch's losses, no mask."""

    def __init__(self, world, folder):
        self.collection = world.collection
        self.model = AutoModelForSequenceClassification.from_pretrained(folder).eval()
        self.tokenizer = PreTrainedTokenizerFast.from_pretrained(folder)

    def scores(self, batch):
        rows = batch.passage_rows.reshape(-1)
        texts, titles = (column.take(rows) for column in (self.collection.texts, self.collection.titles))
        passages = [f"{title} [SEP] {text}" if title else text for title, text in zip(titles, texts, strict=True)]
        queries = self.collection.query_texts.take(np.repeat(batch.query_rows, batch.passage_rows.shape[1]))
        inputs = self.tokenizer(
            list(queries),
            passages,
            truncation="only_second",
            max_length=LENGTH,
            padding=True,
            return_tensors="pt",
            return_token_type_ids=True,
        )
        return self.model(**inputs).logits.view(batch.passage_rows.shape)

    def loss(self, name, batch):
        scores = self.scores(batch)
        if name == "cross_entropy":
            return torch.nn.functional.cross_entropy(scores, torch.zeros(len(scores), dtype=torch.long))
        wanted = torch.zeros_like(scores)
        wanted[:, 0] = 1
        weights = torch.full_like(scores, 1 / (scores.shape[1] - 1))
        weights[:, 0] = 1
        losses = torch.nn.functional.binary_cross_entropy_with_logits(scores, wanted, weights, reduction="sum")
        return losses / len(scores)


def names_in_files(ranker):
    """Our names of the parameters → transformers'."""
    head = ranker.tower.head.stored_names("bert")
    for name, _ in ranker.named_parameters():
        _, _, part, rest = name.split(".", 3)
        yield name, head[rest] if part == "head" else f"bert.{rest}"


@pytest.mark.parametrize("name", ["cross_entropy", "bce"])
def test_a_step_is_that_of_plain_torch(calm, tmp_path, name):
    ranker, batch = ranker_of(calm), batch_of(calm)
    save_ranker(ranker, tmp_path / "ranker")
    plain = Plain(calm, tmp_path / "ranker")
    own = {theirs: ours for ours, theirs in names_in_files(ranker)}
    torch.testing.assert_close(
        ranker_scores(ranker, batch, pairs_of(calm, ranker), "float32"), plain.scores(batch), rtol=0, atol=1e-5
    )
    loss, gradients, _ = loss_and_gradients(
        objective_of(calm, ranker, name, mask_known_positives=False), ranker, batch
    )
    expected = plain.loss(name, batch)
    expected.backward()
    theirs = {own[there]: p.grad for there, p in plain.model.named_parameters() if p.grad is not None}
    check_equal((loss, gradients), (expected.item(), theirs), 1e-5)

    ranker.zero_grad()
    made = train_steps(  # by SGD: AdamW's first step would be the sign of what is rounding
        ranker,
        objective_of(calm, ranker, name, mask_known_positives=False),
        lambda step: batch,
        torch.optim.SGD(ranker.parameters(), fused=True),
        lambda step: 0.5,
        start=0,
        stop=1,
        seed=3,
    )
    assert float(next(made).loss) == pytest.approx(expected.item(), abs=1e-5)
    norm = torch.nn.utils.clip_grad_norm_(plain.model.parameters(), 1.0)
    assert norm > 0
    torch.optim.SGD(plain.model.parameters(), lr=0.5).step()
    weights = dict(ranker.named_parameters())
    for there, p in plain.model.named_parameters():
        if there in own:
            torch.testing.assert_close(weights[own[there]], p, rtol=0, atol=1e-5)


# ---------------------------------------------------------------- micro-batches and gradient cache


@pytest.mark.parametrize("name", ["cross_entropy", "bce"])
def test_parts_of_a_step_make_the_whole(calm, name):
    ranker, batch = ranker_of(calm), batch_of(calm, 7)
    whole = loss_and_gradients(objective_of(calm, ranker, name), ranker, batch)
    for size in (1, 3):
        parts = replace(batch, micro_queries=size)
        check_equal(loss_and_gradients(objective_of(calm, ranker, name), ranker, parts), whole)
    for tokens in (1, CHUNK, 300, 100_000):
        check_equal(
            loss_and_gradients(objective_of(calm, ranker, name, cache_tokens=tokens), ranker, batch), whole
        )


def test_with_dropout_both_passes_of_the_gradient_cache_agree_and_a_seed_draws_the_same(world):
    ranker, batch = ranker_of(world, dropout=0.1), batch_of(world)
    pairs, calls, score = pairs_of(world, ranker), [], ranker.score

    def recorded(tokens):
        calls.append(score(tokens))
        return calls[-1]

    def scored(seed):
        torch.manual_seed(seed)
        return ranker_scores(ranker, batch, pairs, "float32", cache_tokens=CHUNK)

    ranker.score = recorded
    scores = scored(3)
    count = len(calls)
    assert count > 3
    scores.square().sum().backward()
    first, second = calls[:count], calls[count:]
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))
    assert torch.equal(scored(3), scores)
    assert not torch.equal(scored(4), scores)


class Saved:
    """Counts the bytes that are kept for backward passes."""

    def __init__(self):
        self.now = self.most = 0

    def pack(self, tensor):
        self.now += tensor.nbytes
        self.most = max(self.most, self.now)
        return Kept(self, tensor)

    @staticmethod
    def unpack(kept):
        return kept.tensor


class Kept:
    def __init__(self, saved, tensor):
        self.saved, self.tensor = saved, tensor.detach()

    def __del__(self):
        self.saved.now -= self.tensor.nbytes


def test_memory_does_not_grow_with_the_batch(world):
    ranker = ranker_of(world, dropout=0.1)

    def peak(queries, micro=None, **options):
        saved, batch = Saved(), batch_of(world, queries, micro_queries=micro)
        with torch.autograd.graph.saved_tensors_hooks(saved.pack, saved.unpack):
            loss_and_gradients(objective_of(world, ranker, **options), ranker, batch)
        return saved.most

    plain = [peak(queries) for queries in (4, 16)]
    assert plain[1] > 3 * plain[0]
    for options in ({"cache_tokens": CHUNK}, {"micro": 1}):
        flat = [peak(queries, **options) for queries in (4, 16)]
        assert flat[1] < 1.3 * flat[0]
        assert flat[1] < plain[1] / 5


# ---------------------------------------------------------------- pairs, masks, documents, sources


def test_a_pair_is_read_once_however_often_it_stands_there(calm):
    ranker = ranker_of(calm)
    query, other = choose_splits(calm.collection).train.query_rows[:2]
    rows = np.array([[4, 9, 9, 4], [9, 4, 7, 7]], np.int32)
    read, score = [], ranker.score
    ranker.score = lambda tokens: (read.append(len(tokens)), score(tokens))[1]
    scores = ranker_scores(
        ranker, GroupBatch(np.array([query, other]), rows, 2), pairs_of(calm, ranker), "float32"
    )
    assert read == [5]
    assert scores[0, 0] == scores[0, 3] != scores[1, 1]
    assert scores[1, 2] == scores[1, 3]


def test_a_known_positive_and_a_copy_of_one_are_no_negatives(calm):
    ranker, train = ranker_of(calm), choose_splits(calm.collection).train
    two = next(i for i in range(len(train)) if len(train.of(i)) == 2)
    copied = next(i for i in range(len(train)) if train.of(i)[0] in range(0, 100, 10))
    first, second = train.of(two)
    copy = 100 + train.of(copied)[0] // 10
    rows = np.array([[first, 3, second], [train.of(copied)[0], copy, 3]], np.int32)
    batch = GroupBatch(train.query_rows[[two, copied]], rows, 2)
    known = KnownPositives(train, calm.collection.text_keys)
    assert own_mask(batch, known).tolist() == [[True, False, True], [True, True, False]]
    assert own_mask(batch, None).tolist() == [[True, False, False]] * 2
    scores = ranker_scores(ranker, batch, pairs_of(calm, ranker), "float32").tolist()
    kept = torch.tensor([[scores[0][0], scores[0][1]], [scores[1][0], scores[1][2]]])
    expected = torch.nn.functional.cross_entropy(kept, torch.zeros(2, dtype=torch.long)).item()
    found = loss_and_gradients(objective_of(calm, ranker), ranker, batch)[0]
    assert found == pytest.approx(expected, abs=1e-6)
    unmasked = loss_and_gradients(objective_of(calm, ranker, mask_known_positives=False), ranker, batch)[0]
    assert unmasked > found


def test_a_document_has_the_score_of_its_best_sequence(calm):
    ranker, batch = ranker_of(calm, chunks=2, query_length=6, max_length=14), batch_of(calm)
    pairs = pairs_of(calm, ranker)
    first, several = pairs.passages.first, 0
    scores = ranker_scores(ranker, batch, pairs, "float32", cache_tokens=CHUNK)
    for i, query in enumerate(batch.query_rows):
        for j, passage in enumerate(batch.passage_rows[i]):
            sequences = np.arange(first[passage], first[passage + 1])
            each = ranker.score(pairs.read(np.full(len(sequences), query), sequences))
            assert scores[i, j].item() == pytest.approx(each.max().item(), abs=1e-5)
            several += len(sequences) > 1
    assert several > 3


def test_the_gradient_is_measured_by_source(calm):
    ranker, sources = ranker_of(calm), np.tile([2, 3, 3], (6, 1)).astype(np.uint8)
    batch = batch_of(calm, sources=sources)
    assert {name: mask.sum(axis=0).tolist() for name, mask in own_sources(batch).items()} == {
        "bm25": [0, 6, 0, 0],
        "query": [0, 0, 6, 6],
    }
    plain = loss_and_gradients(objective_of(calm, ranker), ranker, batch)
    cached = loss_and_gradients(objective_of(calm, ranker, cache_tokens=CHUNK), ranker, batch)
    assert set(plain[2]) == {"grad_norm_bm25", "grad_norm_query"}
    assert {k: float(v) for k, v in cached[2].items()} == pytest.approx({k: float(v) for k, v in plain[2].items()})
    check_equal(plain, loss_and_gradients(objective_of(calm, ranker), ranker, replace(batch, sources=None)))


# ---------------------------------------------------------------- scores to learn from


def test_frozen_scores_have_no_gradient_no_dropout_and_leave_no_trace(world):
    ranker, batch = ranker_of(world, dropout=0.1), batch_of(world)
    pairs, weights = pairs_of(world, ranker), ranker.digest()
    before = torch.get_rng_state()
    found = frozen_scores(ranker, batch, pairs, "float32", budget=CHUNK)
    assert torch.equal(torch.get_rng_state(), before)
    assert ranker.training
    assert ranker.digest() == weights
    assert not found.requires_grad
    with torch.no_grad():
        expected = ranker_scores(ranker.eval(), batch, pairs, "float32")
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)
    near = frozen_scores(ranker, batch, pairs, "bfloat16", budget=10_000)
    assert near.dtype == torch.float32
    torch.testing.assert_close(near, expected, rtol=0, atol=0.2)


# ---------------------------------------------------------------- the retriever's objective


def retriever_objective_of(
    world, encoder, ranker, *, mask_known_positives=False, cache_tokens=None, data=None, **options
):
    return adversarial_objective(
        data or choose_splits(world.collection),
        encoder,
        ranker,
        world.root / "cache",
        partial(retriever_losses, scale=encoder.settings.scale, **options),
        budget=200,
        mask_known_positives=mask_known_positives,
        cache_tokens=cache_tokens,
    )


def by_hand(scores, ranker, *, weighting, game, balance):
    """dL/ds of every query's list, as it follows from the formulas of AR2's Section 3.2 and Eq. 3."""
    found = []
    for s, r in zip(scores, ranker, strict=True):
        p, own = softmax(s), [0.0, *softmax(s[1:])]
        if game == "irgan":
            reward = [0.0, *(math.log(1 - sigmoid(x)) for x in r[1:])]
        else:
            reward = [math.log(sigmoid(r[0] - x)) for x in r]
        mean = sum(a * b for a, b in zip(own, reward, strict=True))
        against = [a * (b - mean) for a, b in zip(own, reward, strict=True)]
        if weighting == "reference":
            against = [len(scores) * (b - a * sum(reward)) for a, b in zip(p, reward, strict=True)]
        towards = [a - b for a, b in zip(p, softmax(r), strict=True)]
        whole = [balance * a + (1 - balance) * b for a, b in zip(against, towards, strict=True)]
        found.append([x / len(scores) for x in whole])
    return torch.tensor(found)


GAMES = [("p_theta", "ar2", 0.5), ("p_theta", "ar2", 1.0), ("reference", "ar2", 0.5), ("p_theta", "irgan", 1.0)]


@pytest.mark.parametrize(("weighting", "game", "balance"), GAMES)
def test_the_gradient_by_hand_reaches_a_querys_own_scores_alone(calm, monkeypatch, weighting, game, balance):
    draw, b, width = torch.Generator().manual_seed(3), 5, 4
    every = torch.randn(b, b * width, generator=draw, requires_grad=True)
    wanted = torch.randn(b, width, generator=draw)
    monkeypatch.setattr(ranker_objectives, "group_scores", lambda *args, **options: every)
    monkeypatch.setattr(ranker_objectives, "frozen_scores", lambda *args, **options: wanted)
    encoder = load_encoder(calm.model)
    options = {"weighting": weighting, "game": game, "balance": balance}
    objective = retriever_objective_of(calm, encoder, ranker_of(calm), **options)
    objective(batch_of(calm, b, width - 1)).loss.backward()
    own = own_columns(every.detach()).tolist()
    expected = torch.zeros(b, b, width)
    expected[torch.arange(b), torch.arange(b)] = by_hand(own, wanted.tolist(), **options)
    torch.testing.assert_close(every.grad.view(b, b, width), expected, rtol=0, atol=1e-6)


class PlainRetriever(Plain):
    """A retriever's step by transformers: padded texts, first tokens, torch's own functions."""

    def __init__(self, world, ranker_folder):
        super().__init__(world, ranker_folder)
        self.encoder = AutoModel.from_pretrained(world.model, add_pooling_layer=False).eval()

    def vectors(self, texts):
        inputs = self.tokenizer(texts, padding=True, return_tensors="pt", return_token_type_ids=True)
        inputs["token_type_ids"] *= 0
        return self.encoder(**inputs).last_hidden_state[:, 0]

    def step_loss(self, batch, *, weighting, game, balance):
        rows = batch.passage_rows.reshape(-1)
        texts, titles = (column.take(rows) for column in (self.collection.texts, self.collection.titles))
        passages = [f"{title} [SEP] {text}" if title else text for title, text in zip(titles, texts, strict=True)]
        queries = self.vectors(list(self.collection.query_texts.take(batch.query_rows)))
        scores = (queries[:, None] * self.vectors(passages).view(*batch.passage_rows.shape, -1)).sum(-1)
        wanted = self.scores(batch).detach()
        others, preferred = torch.log_softmax(scores[:, 1:], 1), logsigmoid(wanted[:, :1] - wanted)
        if game == "irgan":
            against = (others.exp() * logsigmoid(-wanted[:, 1:])).sum()
        elif weighting == "p_theta":
            against = (others.exp().detach() * preferred[:, 1:] * others).sum()
        else:
            against = len(scores) * (preferred * torch.log_softmax(scores, 1)).sum()
        towards = -(torch.softmax(wanted, 1) * torch.log_softmax(scores, 1)).sum()
        return (balance * against + (1 - balance) * towards) / len(scores)


@pytest.mark.parametrize(("weighting", "game", "balance"), GAMES)
def test_a_step_of_the_retriever_is_that_of_plain_torch(calm, tmp_path, weighting, game, balance):
    ranker, batch, encoder = ranker_of(calm), batch_of(calm), load_encoder(calm.model)
    with torch.no_grad():  # so that the ranker has something to say
        ranker.tower.head.out.weight.mul_(40)
    save_ranker(ranker, tmp_path / "ranker")
    options = {"weighting": weighting, "game": game, "balance": balance}
    plain = PlainRetriever(calm, tmp_path / "ranker")
    objective = retriever_objective_of(calm, encoder, ranker, **options)
    loss, gradients, _ = loss_and_gradients(objective, encoder, batch)
    expected = plain.step_loss(batch, **options)
    expected.backward()
    prefix = next(iter(gradients)).split("transformer.")[0] + "transformer."
    theirs = {prefix + name: p.grad for name, p in plain.encoder.named_parameters() if p.grad is not None}
    assert loss == pytest.approx(expected.item(), rel=1e-5, abs=1e-5)
    check_equal((0.0, gradients), (0.0, theirs), 1e-5)
    assert all(p.grad is None for p in ranker.parameters())


def test_parts_of_a_retrievers_step_make_the_whole_and_so_do_its_facts(calm):
    encoder, ranker, batch = load_encoder(calm.model), ranker_of(calm), batch_of(calm, 7)
    for options in ({"weighting": "p_theta"}, {"weighting": "reference"}):
        whole = loss_and_gradients(retriever_objective_of(calm, encoder, ranker, **options), encoder, batch)
        assert set(whole[2]) == {"adversarial", "distillation", "entropy"}
        objective = retriever_objective_of(calm, encoder, ranker, **options)
        cached = retriever_objective_of(calm, encoder, ranker, cache_tokens=CHUNK, **options)
        for other, part in ((objective, replace(batch, micro_queries=3)), (cached, batch)):
            found = loss_and_gradients(other, encoder, part)
            check_equal(found, whole, 1e-5)
            for name, value in whole[2].items():
                assert float(found[2][name]) == pytest.approx(float(value), rel=1e-5), name


def test_known_positives_are_left_out_of_a_retrievers_list(calm):
    train = choose_splits(calm.collection).train
    two = next(i for i in range(len(train)) if len(train.of(i)) == 2)
    first, second = train.of(two)
    encoder, ranker = load_encoder(calm.model), ranker_of(calm)
    batch = GroupBatch(train.query_rows[[two]], np.array([[first, 3, second]], np.int32), 1)
    without = GroupBatch(train.query_rows[[two]], np.array([[first, 3]], np.int32), 1)
    masked = retriever_objective_of(calm, encoder, ranker, mask_known_positives=True)
    check_equal(
        loss_and_gradients(masked, encoder, batch),
        loss_and_gradients(retriever_objective_of(calm, encoder, ranker), encoder, without),
        1e-5,
    )


def test_what_people_judged_relevant_is_no_negative_of_either_model(calm):
    """A passage that is no positive to train on, and no negative either."""
    collection, data = calm.collection, choose_splits(calm.collection)
    query, positive = int(data.train.query_rows[0]), int(data.train.first()[0])
    pair = (collection.query_ids[query], collection.passage_ids[3])
    judged = JudgedIds(calm.root, {pair: ("relevant", 1)}).known(collection.query_ids, collection.passage_ids)
    data = amended(data, judged)
    assert 3 not in data.train.of(0)
    encoder, ranker = load_encoder(calm.model), ranker_of(calm)
    both, alone = (
        GroupBatch(data.train.query_rows[:1], np.array([[positive, *rows]], np.int32), 1)
        for rows in ((3, 7), (7,))
    )
    masked = {"data": data, "mask_known_positives": True}
    for model, objective in (
        (encoder, retriever_objective_of(calm, encoder, ranker, **masked)),
        (ranker, ranker_objective(data, ranker, calm.root / "cache", ranker_loss("cross_entropy"))),
    ):
        found = [loss_and_gradients(objective, model, batch) for batch in (both, alone)]
        check_equal(*found, 1e-5)


# ---------------------------------------------------------------- several processes


@pytest.mark.parametrize("cache_tokens", [None, CHUNK])
@pytest.mark.parametrize(("size", "queries", "negatives"), [(2, 6, 3), (4, 1, 1)])  # two have no pair to score
def test_gradients_of_all_processes_add_up(calm, monkeypatch, size, queries, negatives, cache_tokens):
    ranker, batch = ranker_of(calm), batch_of(calm, queries, negatives)
    objective = objective_of(calm, ranker, cache_tokens=cache_tokens)
    whole = loss_and_gradients(objective, ranker, batch)
    total = {}
    for rank in range(size):

        def in_turn(score, rank=rank):
            def scored(tokens, side):
                shares = deal(tokens.lengths, size)
                with torch.no_grad():
                    sent = [ranker.score(tokens.take(share))[:, None] for share in shares]
                monkeypatch.setattr(sharing, "member", lambda: (rank, size))
                monkeypatch.setattr(sharing, "exchange", lambda own, sizes: [*sent[:rank], own, *sent[rank + 1 :]])
                return shared(score)(tokens, side)

            return scored

        monkeypatch.setattr(ranker_objectives, "shared", in_turn)
        loss, gradients, _ = loss_and_gradients(objective, ranker, batch)
        assert loss == pytest.approx(whole[0], abs=1e-6)
        for name, gradient in gradients.items():
            total[name] = total.get(name, 0) + gradient
    check_equal((whole[0], total), whole, 2e-6)


# ---------------------------------------------------------------- both in one stage


def trained(world, folder, *, stop=None):
    """Two turns of both, as a fresh process would make them; ``stop``: of these, in the second."""
    folder.mkdir(exist_ok=True)
    ranker, encoder = ranker_of(world, dropout=0.1), load_encoder(world.model)
    pairs, rate = pairs_of(world, ranker), linear(2e-3, warmup=1, horizon=20)
    batches = partial(batch_of, world, 4, 3, micro_queries=2)
    own = objective_of(world, ranker, cache_tokens=CHUNK)
    kept = {"ranker": {folder / "ranker": 6}, "retriever": {folder / "model": 4}}
    stage = Stage(
        [
            Trainee(
                "ranker",
                ranker,
                own,
                lambda step: batches(),
                rate,
                save_ranker,
                kept["ranker"],
                kind="ranker",
            ),
            Trainee(
                "retriever",
                encoder,
                retriever_objective_of(world, encoder, ranker),
                lambda step: batches(seed=step),
                rate,
                save_encoder,
                kept["retriever"],
            ),
        ],
        folder / "checkpoint",
        Metrics(folder / "metrics.jsonl"),
        episode=1,
        seed=3,
        inputs={"pairs": pairs.queries.digest},
        timed=untimed,
        checkpoint_every=2,
    )
    for turn in (1, 2):
        stage.advance("ranker", 3 * turn)
        stage.advance("retriever", 2 * turn if turn == 1 else stop or 4)
    return ranker, encoder


def test_it_trains_in_a_stage_beside_a_retriever_and_goes_on_to_the_same_bytes(world, tmp_path):
    ranker, encoder = trained(world, tmp_path / "whole")
    rows = Metrics(tmp_path / "whole/metrics.jsonl").read()
    assert [row["model"] for row in rows] == [*["ranker"] * 3, *["retriever"] * 2] * 2
    losses = [row["loss"] for row in rows if row["model"] == "ranker"]
    assert losses[-1] < losses[0] - 0.1
    for row in rows:
        if row["model"] == "retriever":
            assert row["loss"] == pytest.approx((row["adversarial"] + row["distillation"]) / 2, abs=1e-6)
    trained(world, tmp_path / "run", stop=3)
    again = trained(world, tmp_path / "run")
    assert [model.digest() for model in again] == [ranker.digest(), encoder.digest()]
    assert load_ranker(tmp_path / "run/ranker").digest() == ranker.digest()
    assert load_encoder(tmp_path / "run/model").digest() == encoder.digest()
    lines = [(tmp_path / name / "metrics.jsonl").read_text().splitlines() for name in ("whole", "run")]
    assert list(map(json.loads, lines[0])) == list(map(json.loads, lines[1]))
