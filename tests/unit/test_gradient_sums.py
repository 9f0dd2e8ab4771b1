"""Sums of gradients over processes: in buckets, begun while the backward pass runs, the same bits as after it."""

from dataclasses import dataclass

import numpy as np
import pytest
import torch
import torch.distributed as dist  # before processes are forked: it takes seconds
from torch import nn

from hardneg.losses import contrastive
from hardneg.models.loading import load_encoder
from hardneg.models.tokenizing import token_store
from hardneg.process import distributed
from hardneg.process.distributed import member
from hardneg.process.signals import stop_flag
from hardneg.training import gradient_sums, loop
from hardneg.training.batches import GroupBatch, group_scores
from hardneg.training.gradient_norms import source_norms
from hardneg.training.gradient_sums import GradientSums, add_gradients, buckets_of
from hardneg.training.loop import NotFinite, StepOutput, train_steps
from hardneg.training.optim import adamw
from processes import in_group
from worlds.tiny_world import one_thread, tiny_collection, tiny_model  # noqa: F401

SMALL = 200  # bytes of a bucket


def parameters_of(*sizes):
    return [nn.Parameter(torch.zeros(n)) for n in sizes]


# ---------------------------------------------------------------- alone


def test_alone_nothing_is_summed():
    (p,) = parameters_of(2)
    with GradientSums([p]) as sums, sums.early():
        (p.sum() * 3).backward()
    assert add_gradients(sums) == 0
    assert p.grad.tolist() == [3, 3]
    assert sums.hooks == []


# ---------------------------------------------------------------- buckets


def test_buckets_go_from_the_last_parameter_to_the_first_and_a_large_one_is_alone(monkeypatch):
    monkeypatch.setattr(gradient_sums, "BUCKET", 40)  # 10 numbers
    parameters = parameters_of(3, 50, 4, 6, 1)
    found = [[p.numel() for p in bucket.parameters] for bucket in buckets_of(parameters)]
    assert found == [[1, 6], [4], [50], [3]]
    assert [p.numel() for bucket in buckets_of(parameters) for p in bucket.parameters] == [1, 6, 4, 50, 3]


def test_a_bucket_holds_one_type_of_numbers():
    parameters = [
        nn.Parameter(torch.zeros(2, dtype=kind)) for kind in (torch.float32, torch.float64, torch.float64)
    ]
    assert [len(bucket.parameters) for bucket in buckets_of(parameters)] == [2, 1]


class Other:
    """The other one of two processes, which has the gradients of this one where it has some, or 1."""

    def __init__(self, monkeypatch, flags):
        self.sent = []
        monkeypatch.setattr(gradient_sums, "member", lambda: (0, 2))
        monkeypatch.setattr(gradient_sums, "begin_sum", self.begin_sum)
        monkeypatch.setattr(gradient_sums, "any_of", lambda own: flags)

    def begin_sum(self, flat):
        self.sent.append(flat.tolist())
        flat.mul_(2)
        return lambda: None


def test_sums_come_in_buckets_and_skip_what_nobody_trains(monkeypatch):
    monkeypatch.setattr(gradient_sums, "BUCKET", 20)
    monkeypatch.setattr(gradient_sums, "ALIGNED", 4)
    other = Other(monkeypatch, [15, 1, 1, 0, 1])  # it has the second
    parameters = parameters_of(3, 4, 1, 2)
    parameters[0].grad, parameters[3].grad = torch.ones(3), torch.ones(2)
    assert add_gradients(GradientSums(parameters)) == 15  # and was asked to stop
    assert other.sent == [[1, 1, 0, 0, 0, 0, 0, 0], [0, 0, 0, 0], [1, 1, 1, 0]]
    grads = [None if p.grad is None else p.grad.tolist() for p in parameters]
    assert grads == [[2, 2, 2], [0, 0, 0, 0], None, [2, 2]]


def test_a_gradient_after_its_sum_has_begun_is_a_bug_that_is_said(monkeypatch):
    Other(monkeypatch, [0, 1])
    (p,) = parameters_of(2)
    with GradientSums([p]) as sums, sums.early():
        p.sum().backward()
        with pytest.raises(AssertionError, match="gave it twice"):
            p.sum().backward()
    assert not sums.hooks


# ---------------------------------------------------------------- several processes


@dataclass(frozen=True)
class Batch:
    """A step and its micro-batches, by number."""

    step: int
    parts: int = 1
    query_rows: tuple = (0,)

    def micro(self):
        return [(self.step, part) for part in range(self.parts)]


class Net(nn.Module):
    """Layers, some of which are not used: never, by one process, or in some steps only."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(7)
        self.first, self.second, self.third = nn.Linear(5, 11), nn.Linear(11, 11), nn.Linear(11, 3)
        self.frozen = nn.Linear(3, 3).requires_grad_(requires_grad=False)
        self.sometimes, self.by_one, self.never = nn.Linear(3, 3), nn.Linear(3, 3), nn.Linear(3, 3)

    def loss(self, part, rank):
        step, number = part
        draw = np.random.default_rng([step, number, rank])
        x = torch.from_numpy(draw.standard_normal((4, 5)).astype(np.float32))
        x = self.frozen(self.third(self.second(self.second(self.first(x).tanh())).tanh()))
        if step in (2, 3, 5) and rank == 1:
            x = self.sometimes(x)
        if rank == 0:
            x = self.by_one(x)
        return x.square().mean()

    def values(self):
        return torch.cat([p.detach().reshape(-1) for p in self.parameters()])


def steps_of(net, objective, *, parts=1, start=0, stop=7):
    batches = lambda step: Batch(step, parts)  # noqa: E731
    return train_steps(net, objective, batches, adamw(net), lambda step: 1e-2, start=start, stop=stop, seed=0)


def by_one_process(size, parts):
    """The weights, had one process computed what all compute."""
    net = Net()

    def objective(part):
        return StepOutput(sum(net.loss(part, rank) for rank in range(size)))

    norms = [float(step.grad_norm) for step in steps_of(net, objective, parts=parts)]
    return net.values(), norms


@pytest.mark.parametrize(("size", "parts"), [(2, 1), (3, 1), (3, 3)])
def test_sums_during_the_backward_pass_have_the_bits_of_those_after_it(tmp_path, monkeypatch, size, parts):
    monkeypatch.setattr(gradient_sums, "BUCKET", SMALL)
    torch.set_num_threads(1)
    values, norms = by_one_process(size, parts)

    def work(rank):
        found = []
        for once in (True, False, rank == 0):  # of the last, one alone begins early
            net = Net()

            def objective(part, net=net, once=once):
                return StepOutput(net.loss(part, rank), once=once)

            steps = steps_of(net, objective, parts=parts)
            assert [float(step.grad_norm) for step in steps] == pytest.approx(norms, rel=1e-5)
            found.append(net.values())
            torch.testing.assert_close(found[-1], values, rtol=1e-5, atol=1e-6)
            assert torch.equal(net.never.weight, Net().never.weight)
        assert torch.equal(found[0], found[1])
        assert torch.equal(found[0], found[2])
        same = [torch.empty_like(found[0]) for _ in range(size)]
        dist.all_gather(same, found[0])
        assert all(torch.equal(one, found[0]) for one in same)

    in_group(size, work, tmp_path / "log")


def test_a_run_that_went_on_has_the_bits_of_one_that_did_not_stop(tmp_path, monkeypatch):
    # what was trained in the step before is forgotten there, and ``sometimes`` is trained in step 5 again
    monkeypatch.setattr(gradient_sums, "BUCKET", SMALL)
    torch.set_num_threads(1)

    def work(rank):
        gradients = [gradients_of_step(5, rank, start) for start in (0, 5)]
        assert gradients[0].keys() == gradients[1].keys() >= {"sometimes.weight"}
        assert all(torch.equal(value, gradients[1][name]) for name, value in gradients[0].items())

    in_group(3, work, tmp_path / "log")


def gradients_of_step(step, rank, start):
    """The gradients of a step, by name, of training that begins with the step ``start`` and leaves the weights."""
    net, found = Net(), {}

    def probe(index):
        grads = {name: p.grad for name, p in net.named_parameters() if p.grad is not None} if index == step else {}
        found.update({name: grad.clone() for name, grad in grads.items()})
        return {}

    steps = train_steps(
        net,
        lambda part: StepOutput(net.loss(part, rank), once=True),
        Batch,
        adamw(net),
        lambda step: 0.0,
        start=start,
        stop=step + 1,
        seed=0,
        probe=probe,
    )
    assert len(list(steps)) == step + 1 - start
    return found


def traced(monkeypatch, net):
    """The events in order: sums that begin, with the layers that have a gradient; ends of backward passes."""
    events, layers = [], {"first": net.first, "second": net.second, "third": net.third}

    def begin_sum(flat, real=gradient_sums.begin_sum):
        events.append({name for name, layer in layers.items() if layer.weight.grad is not None})
        return real(flat)

    def backward(*arguments, real=loop.backward):
        found = real(*arguments)
        events.append("end")
        return found

    monkeypatch.setattr(gradient_sums, "begin_sum", begin_sum)
    monkeypatch.setattr(loop, "backward", backward)
    return events


@pytest.mark.parametrize("parts", [1, 3])
def test_sums_begin_before_the_backward_pass_ends_and_only_in_the_last_one(tmp_path, monkeypatch, parts):
    monkeypatch.setattr(gradient_sums, "BUCKET", SMALL)

    def work(rank):
        net = Net()
        events = traced(monkeypatch, net)
        passes = []

        def objective(part):
            passes.append(part)
            assert not events, "no sum begins before the last pass"
            return StepOutput(net.loss(part, rank=0), once=True)

        for step in steps_of(net, objective, parts=parts, stop=3):
            end = events.index("end")
            early, late = events[:end], events[end + 1 :]
            if step.index:  # in the first step ``never`` is waited for, which is in the first bucket
                assert len(early) >= 4, events
                assert not late, events
                if parts == 1:
                    assert "first" not in early[0], "it began when the layers below had no gradient"
            else:
                assert not early, events
                assert len(late) >= 4, events
            events.clear()
        assert len(passes) == 3 * parts

    in_group(2, work, tmp_path / "log")


def test_where_a_gradient_may_come_twice_sums_begin_after_the_backward_pass(tmp_path, monkeypatch):
    monkeypatch.setattr(gradient_sums, "BUCKET", SMALL)

    def work(rank):
        net = Net()
        events = traced(monkeypatch, net)
        for _ in steps_of(net, lambda part: StepOutput(net.loss(part, rank)), stop=3):
            assert events[0] == "end"
            assert len(events) > 4
            events.clear()

    in_group(2, work, tmp_path / "log")


def test_norms_by_source_are_summed_at_once_and_leave_the_step_alone(tmp_path, monkeypatch):
    monkeypatch.setattr(gradient_sums, "BUCKET", SMALL)

    def work(rank):
        results = []
        for measured in (False, True):
            net = nn.Sequential(nn.Linear(3, 9), nn.Tanh(), nn.Linear(9, 2))
            for p in net.parameters():
                nn.init.constant_(p, 0.25)

            def objective(part, net=net, measured=measured):
                scores = net(torch.full((4, 3), float(rank + 1)) + torch.arange(4.0)[:, None])
                total = scores.logsumexp(1).mean()
                columns = {"mined": torch.tensor([[True, False]] * 4)}
                facts = source_norms(total, scores, net.parameters(), columns) if measured else {}
                return StepOutput(total, facts, once=True)

            steps = list(steps_of(net, objective, stop=2))
            results.append([p.detach().clone() for p in net.parameters()])
            norms = [step.facts["grad_norm_mined"] for step in steps] if measured else []
        assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))
        told = [torch.empty(2) for _ in range(2)]
        dist.all_gather(told, torch.stack(norms))
        assert torch.equal(told[0], told[1])

    in_group(2, work, tmp_path / "log")


# ---------------------------------------------------------------- what a step sends


def collectives(calls):
    """List in ``calls`` the names of all that is sent from now on."""
    for name in ("all_reduce", "all_gather", "gather", "broadcast", "broadcast_object_list"):
        real = getattr(dist, name)

        def spy(*args, name=name, real=real, **more):
            calls.append(name)
            return real(*args, **more)

        setattr(dist, name, spy)


@pytest.mark.parametrize("once", [True, False])
def test_a_step_has_one_collective_beside_its_gradient_which_also_says_whether_to_stop(tmp_path, once):
    def work(rank):
        calls = []
        collectives(calls)
        torch.manual_seed(0)
        model, x = torch.nn.Linear(3, 1), torch.full((2, 3), float(rank + 1))
        heard = {2: 15} if rank == 1 else {}

        def batches(step):
            stop_flag.heard = heard.get(step)
            return Batch(step)

        def objective(part):
            return StepOutput(model(x).sum(), once=once)

        stops = []
        for step in train_steps(
            model, objective, batches, adamw(model), lambda step: 1e-3, start=0, stop=4, seed=0
        ):
            stops.append(step.stop)
            assert float(step.grad_norm) == pytest.approx(np.sqrt(3 * 6.0**2 + 4.0**2))  # of both processes
        assert calls == ["all_reduce", "all_reduce"] * 4
        assert stops == [0, 0, 15, 0]

    in_group(2, work, tmp_path / "log")


def trained(calm, *, tied, cache_tokens=None):
    """The weights of a bi-encoder after three steps, and what each sent."""
    torch.set_num_threads(1)
    encoder, cache = load_encoder(calm.model, normalize=True), calm.root / "cache"
    encoder = encoder if tied else encoder.untied()
    stores = [token_store(encoder, calm.collection, cache, side) for side in ("query", "passage")]

    def batches(step):
        draw = np.random.default_rng(step)
        passages = draw.integers(0, 120, (6, 3)).astype(np.int32)
        return GroupBatch(draw.permutation(60)[:6].astype(np.int32), passages, 6)

    def objective(batch):
        scores = group_scores(encoder, batch, *stores, "float32", cache_tokens=cache_tokens)
        masked = torch.zeros(scores.shape, dtype=torch.bool)
        losses = contrastive(scores, torch.from_numpy(batch.targets()), masked, scale=5.0)
        return StepOutput(losses.sum() / batch.step_queries, once=cache_tokens is None)

    optimizer = torch.optim.SGD(encoder.parameters(), fused=True)  # AdamW would amplify rounding
    calls, sent = [], []
    collectives(calls)
    for _ in train_steps(encoder, objective, batches, optimizer, lambda step: 0.1, start=0, stop=3, seed=0):
        sent.append(list(calls))
        calls.clear()
    return torch.cat([p.detach().reshape(-1) for p in encoder.parameters()]), sent


@pytest.mark.parametrize("tied", [True, False])
def test_a_bi_encoder_trains_as_by_one_process_and_a_step_sends_vectors_gradients_and_one_message(
    calm, tmp_path, monkeypatch, tied
):
    expected, _ = trained(calm, tied=tied)
    start = load_encoder(calm.model, normalize=True)
    start = start if tied else start.untied()
    assert (torch.cat([p.detach().reshape(-1) for p in start.parameters()]) - expected).abs().max() > 1e-3
    monkeypatch.setattr(gradient_sums, "BUCKET", 30_000)
    buckets = len(buckets_of(list(start.parameters())))
    assert buckets > 2

    def work(rank):
        found, sent = trained(calm, tied=tied)
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
        assert sent == [["all_gather"] * (1 if tied else 2) + ["all_reduce"] * (buckets + 1)] * 3
        cached, sent = trained(calm, tied=tied, cache_tokens=40)
        torch.testing.assert_close(cached, expected, rtol=1e-5, atol=1e-5)

    in_group(2, work, tmp_path / "log")


def test_what_is_not_finite_for_one_process_is_so_for_all_without_another_collective(tmp_path):
    def work(rank):
        calls, made = [], []
        collectives(calls)
        model, x = torch.nn.Linear(3, 1), torch.ones(2, 3)

        def objective(part):
            bad = part[0] == 2 and rank == 1
            return StepOutput(model(x).sum() * (float("nan") if bad else 1.0), once=True)

        def train():
            made.extend(model.weight.detach().clone() for _ in steps_of(model, objective, stop=5))

        with pytest.raises(NotFinite) as raised:
            train()
        assert raised.value.step == 2
        assert len(made) == 4, "found when the flags are read"
        assert torch.equal(made[2], made[1]), "the weights no longer change"
        assert torch.equal(made[3], made[1])
        assert calls == ["all_reduce", "all_reduce"] * 5

    in_group(2, work, tmp_path / "log")


def test_the_end_of_another_process_is_seen_in_a_sum(monkeypatch):
    from hardneg.errors import PeerError

    class Work:
        def wait(self):
            raise RuntimeError("Connection closed by peer")

    monkeypatch.setattr(distributed, "LINGER_SECONDS", 0.0)
    monkeypatch.setattr(dist, "all_reduce", lambda *args, **more: Work())
    wait = distributed.begin_sum(torch.ones(1))
    with pytest.raises(PeerError, match="PEER_LOST"):
        wait()
    assert member() == (0, 1)
