"""The training loop: accumulation, clipping, keyed dropout, and steps that are not finite."""

from dataclasses import dataclass

import numpy as np
import pytest
import torch
from torch import nn

from hardneg.errors import NumericError
from hardneg.losses import contrastive
from hardneg.training.batches import GroupBatch, masked_columns
from hardneg.training.loop import NotFinite, StepOutput, train_steps
from hardneg.training.optim import adamw, linear


@dataclass
class Rows:
    """A batch of numbered rows; poisoned where the loss or its gradient shall not be finite."""

    query_rows: list
    poison: str = ""

    def micro(self):
        return [self]


def rows_of(step):
    return Rows([(10 * step + i) % 1000 for i in range(4)])


class Toy(nn.Module):
    def __init__(self, dropout=0.5):
        super().__init__()
        self.table = nn.Embedding(1000, 8)
        self.dropout = nn.Dropout(dropout)
        self.out = nn.Linear(8, 1)

    def loss(self, batch):
        found = self.out(self.dropout(self.table(torch.tensor(batch.query_rows)))).square().mean()
        if batch.poison == "nan":
            found = found * torch.nan
        if batch.poison == "inf":
            found = found + torch.inf
        if batch.poison == "gradient":  # finite itself
            found = found + (self.out.bias.sum() * 0).sqrt()
        return StepOutput(found, {"seen": float(len(batch.query_rows))})


def toy(dropout=0.5):
    torch.manual_seed(0)
    return Toy(dropout)


def steps_of(model, optimizer, start, stop, *, batches=rows_of, seed=3, **options):
    schedule = linear(0.01, warmup=2, horizon=20)
    return train_steps(
        model, model.loss, batches, optimizer, schedule, start=start, stop=stop, seed=seed, **options
    )


def values_of(model):
    return [p.detach().clone() for p in model.parameters()]


def equal(a, b):
    return all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


def test_steps_say_what_they_were():
    model = toy()
    steps = list(steps_of(model, adamw(model), 2, 5))
    assert [step.index for step in steps] == [2, 3, 4]
    assert [step.learning_rate for step in steps] == [linear(0.01, warmup=2, horizon=20)(i) for i in (2, 3, 4)]
    assert [step.queries for step in steps] == [4, 4, 4]
    assert [step.facts for step in steps] == [{"seen": 4.0}] * 3
    assert all(float(step.grad_norm) > 0 and not step.loss.requires_grad for step in steps)


def test_steps_equal_a_plain_loop():
    model, plain = toy(dropout=0.0), toy(dropout=0.0)
    steps = list(steps_of(model, adamw(model), 0, 6, clip=0.05))
    optimizer = torch.optim.AdamW(plain.parameters(), weight_decay=0.0, foreach=False)
    for step in steps:
        optimizer.zero_grad()
        loss = plain.loss(rows_of(step.index)).loss
        loss.backward()
        norm = torch.sqrt(sum(p.grad.square().sum() for p in plain.parameters()))
        for p in plain.parameters():
            p.grad *= min(1.0, 0.05 / norm.item())
        optimizer.param_groups[0]["lr"] = linear(0.01, warmup=2, horizon=20)(step.index)
        optimizer.step()
        assert step.loss.item() == pytest.approx(loss.item(), rel=1e-5)
        assert step.grad_norm.item() == pytest.approx(norm.item(), rel=1e-4)
    for a, b in zip(model.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-5)


# ---------------------------------------------------------------- accumulation


class Towers(nn.Module):
    """Queries and passages as free vectors."""

    def __init__(self):
        super().__init__()
        self.queries, self.passages = nn.Embedding(20, 6), nn.Embedding(50, 6)

    def objective(self, in_batch):
        def loss(batch):
            q, p = self.queries(torch.tensor(batch.query_rows)), self.passages(torch.tensor(batch.passage_rows))
            masked = torch.from_numpy(masked_columns(batch, None, in_batch=in_batch))
            losses = contrastive(q @ p.flatten(0, 1).T, torch.from_numpy(batch.targets()), masked)
            return StepOutput(losses.sum() / batch.step_queries, {"queries": float(len(batch.query_rows))})

        return loss


def trained_towers(micro_queries, *, in_batch):
    def batches(step):
        draw = np.random.default_rng(step)
        queries, passages = draw.permutation(20)[:5], draw.integers(0, 50, (5, 4))
        return GroupBatch(queries.astype(np.int32), passages.astype(np.int32), 5, micro_queries)

    torch.manual_seed(1)
    model = Towers()
    schedule = linear(0.05, warmup=0, horizon=10)
    steps = list(
        train_steps(
            model, model.objective(in_batch), batches, adamw(model), schedule, start=0, stop=4, seed=0, clip=0.1
        )
    )
    return model, steps


@pytest.mark.parametrize("micro_queries", [1, 2, 3])
def test_accumulation_equals_the_full_batch_without_in_batch_negatives(micro_queries):
    whole, whole_steps = trained_towers(None, in_batch=False)
    parts, parts_steps = trained_towers(micro_queries, in_batch=False)
    for a, b in zip(whole.parameters(), parts.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=2e-6)
    for a, b in zip(whole_steps, parts_steps, strict=True):
        assert a.loss.item() == pytest.approx(b.loss.item(), abs=1e-6)
        assert a.grad_norm.item() == pytest.approx(b.grad_norm.item(), rel=1e-5)
        assert a.facts == b.facts == {"queries": 5.0}


def test_accumulated_in_batch_negatives_are_those_of_the_micro_batch():
    _, whole = trained_towers(None, in_batch=True)
    _, parts = trained_towers(2, in_batch=True)
    assert parts[0].loss.item() < whole[0].loss.item()  # fewer negatives


# ---------------------------------------------------------------- clipping


def test_the_whole_gradient_is_clipped_before_the_step():
    class Plane(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Parameter(torch.zeros(2)), nn.Parameter(torch.zeros(1))

        def loss(self, batch):
            return StepOutput(3 * self.a[0] + 4 * self.b[0] + 12 * self.a[1])  # gradient (3, 12, 4), norm 13

    for clip, expected in ((1.0, 1 / 13), (26.0, 1.0)):
        model = Plane()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.0, fused=True)
        schedule = linear(0.5, warmup=0, horizon=1)
        (step,) = train_steps(model, model.loss, rows_of, optimizer, schedule, start=0, stop=1, seed=0, clip=clip)
        assert step.grad_norm.item() == 13.0
        moved = -torch.cat([model.a, model.b]).detach()
        torch.testing.assert_close(moved, 0.5 * expected * torch.tensor([3.0, 12.0, 4.0]))


# ---------------------------------------------------------------- dropout


def test_a_run_in_two_parts_equals_one_run():
    straight, parted = toy(), toy()
    whole = list(steps_of(straight, adamw(straight), 0, 8))
    optimizer = adamw(parted)
    first = list(steps_of(parted, optimizer, 0, 3))
    torch.manual_seed(12345)  # whatever happens between is no matter
    torch.rand(7)
    parted.eval()
    second = list(steps_of(parted, optimizer, 3, 8))
    assert equal(values_of(straight), values_of(parted))
    assert [step.loss.item() for step in whole] == [step.loss.item() for step in [*first, *second]]


def test_dropout_differs_by_seed_and_by_step():
    def losses(seed, start):
        model = toy()
        batches = lambda step: rows_of(0)  # noqa: E731
        return next(iter(steps_of(model, adamw(model), start, 9, seed=seed, batches=batches))).loss.item()

    found = [losses(3, 0), losses(4, 0), losses(3, 1), losses(3, 2)]
    assert len(set(found)) == 4
    assert losses(3, 0) == found[0]


# ---------------------------------------------------------------- not finite


def poisoned(kind, at):
    return lambda step: Rows(rows_of(step).query_rows, kind if step == at else "")


@pytest.mark.parametrize("kind", ["nan", "inf", "gradient"])
@pytest.mark.parametrize("at", [0, 3])
def test_a_step_that_is_not_finite_freezes_the_weights_and_is_named(kind, at):
    sound, model = toy(), toy()
    list(steps_of(sound, adamw(sound), 0, at))
    optimizer = adamw(model)
    made = []

    def watch():
        for step in steps_of(model, optimizer, 0, 20, batches=poisoned(kind, at), check_every=6):
            made.append(step.index)
            if step.index >= at:
                assert equal(values_of(sound), values_of(model))

    with pytest.raises(NumericError) as fault:
        watch()
    assert isinstance(fault.value, NotFinite)
    assert (fault.value.step, fault.value.query_rows) == (at, rows_of(at).query_rows)
    assert fault.value.status == 7
    assert f"step {at}" in str(fault.value)
    assert str(rows_of(at).query_rows[1]) in str(fault.value)
    assert made[-1] < at + 6  # noticed in time, though nothing waited for it
    assert equal(values_of(sound), values_of(model))
    assert all(float(state["step"]) == at for state in optimizer.state.values())


def test_the_last_steps_are_looked_at_before_the_last_is_given_out():
    model = toy()
    with pytest.raises(NotFinite) as fault:
        list(steps_of(model, adamw(model), 0, 5, batches=poisoned("nan", 3), check_every=100))
    assert fault.value.step == 3


def test_confirm_looks_at_once():
    model = toy()
    steps = steps_of(model, adamw(model), 0, 20, batches=poisoned("nan", 2), check_every=10)
    for _ in range(2):
        next(steps).confirm()
    bad = next(steps)
    with pytest.raises(NotFinite) as fault:
        bad.confirm()
    assert fault.value.step == 2


def test_an_early_fault_is_still_named_when_many_steps_pass_unseen():
    model = toy()
    with pytest.raises(NotFinite) as fault:
        list(steps_of(model, adamw(model), 0, 150, batches=poisoned("nan", 1), check_every=120))
    assert fault.value.step == 1
