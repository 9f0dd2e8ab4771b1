"""Checkpoints: the restored state equals the saved one, bit for bit, and damaged checkpoints are passed over."""

import logging

import pytest
import torch
from torch import nn

from hardneg.training.checkpoint import checkpoints, latest_checkpoint, restore, save_checkpoint, weights
from hardneg.training.loop import StepOutput, train_steps
from hardneg.training.optim import adamw, linear

INPUTS = {"pool": "a", "start": "b"}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.one, self.two = nn.Linear(6, 5), nn.Linear(5, 2, bias=False)
        self.register_buffer("scale", torch.tensor([1.5]))
        self.unused = nn.Parameter(torch.ones(3))

    def loss(self, batch):
        return StepOutput(self.two(self.one(torch.full((1, 6), float(batch.query_rows[0])))).square().sum())


class Batch:
    def __init__(self, step):
        self.query_rows = [step + 1]

    def micro(self):
        return [self]


def net(seed=0):
    torch.manual_seed(seed)
    return Net()


def advance(model, optimizer, start, stop):
    schedule = linear(0.1, warmup=1, horizon=30)
    list(train_steps(model, model.loss, Batch, optimizer, schedule, start=start, stop=stop, seed=0))


def save(folder, step, model, optimizer, **options):
    return save_checkpoint(folder, {"net": step}, {"net": model}, {"net": optimizer}, inputs=INPUTS, **options)


def latest(folder, at_most=1000):
    return latest_checkpoint(folder, INPUTS, [{"net": at_most}])


def names(folder):
    return [path.name for path in checkpoints(folder)]


def equal_states(model, optimizer, other, other_optimizer):
    a, b = optimizer.state_dict()["state"], other_optimizer.state_dict()["state"]
    same = all(torch.equal(x, y) for x, y in zip(weights(model).values(), weights(other).values(), strict=True))
    return same and a.keys() == b.keys() and all(torch.equal(a[i][k], b[i][k]) for i in a for k in a[i])


@pytest.fixture
def trained():
    model = net()
    optimizer = adamw(model, weight_decay=0.1)
    advance(model, optimizer, 0, 5)
    return model, optimizer


def test_restored_bit_for_bit_and_goes_on_alike(tmp_path, trained):
    model, optimizer = trained
    path = save(tmp_path, 5, model, optimizer)
    other = net(seed=1)
    other_optimizer = adamw(other, weight_decay=0.1)
    assert not equal_states(model, optimizer, other, other_optimizer)
    assert restore(path, {"net": other}, {"net": other_optimizer}) == {"net": 5}
    assert equal_states(model, optimizer, other, other_optimizer)
    assert {key for state in other_optimizer.state.values() for key in state} == {"step", "exp_avg", "exp_avg_sq"}
    advance(model, optimizer, 5, 9)
    advance(other, other_optimizer, 5, 9)
    assert equal_states(model, optimizer, other, other_optimizer)


def test_a_tensor_of_two_names_is_saved_once_and_loaded_under_both(tmp_path, trained):
    models = [net(seed=seed) for seed in (0, 1)]
    for model in models:
        model.shared = nn.Module()
        model.shared.weight = model.one.weight
    assert "shared.weight" not in weights(models[0])
    path = save(tmp_path, 0, models[0], adamw(models[0], weight_decay=0.1))
    restore(path, {"net": models[1]}, {"net": adamw(models[1], weight_decay=0.1)})
    assert torch.equal(models[1].shared.weight, models[0].one.weight)
    assert models[1].shared.weight is models[1].one.weight


def test_a_used_optimizer_is_overwritten(tmp_path, trained):
    model, optimizer = trained
    path = save(tmp_path, 5, model, optimizer)
    kept = {name: value.clone() for name, value in weights(model).items()}
    advance(model, optimizer, 5, 8)
    restore(path, {"net": model}, {"net": optimizer})
    assert all(torch.equal(kept[name], value) for name, value in weights(model).items())
    assert all(float(state["step"]) == 5 for state in optimizer.state.values())


def test_only_the_newest_are_kept(tmp_path, trained):
    for step in (5, 10, 200):
        save(tmp_path, step, *trained)
    assert names(tmp_path) == ["step-0000010", "step-0000200"]
    save(tmp_path, 300, *trained, keep=1)
    assert names(tmp_path) == ["step-0000300"]


def test_later_ones_go_when_a_state_before_them_is_reached_again(tmp_path, trained):
    for step in (5, 10):
        save(tmp_path, step, *trained)
    save(tmp_path, 7, *trained)
    assert names(tmp_path) == ["step-0000005", "step-0000007"]


def test_the_newest_of_these_inputs_is_found(tmp_path, trained):
    assert latest(tmp_path) is None
    assert latest(tmp_path / "nowhere") is None
    save(tmp_path, 5, *trained)
    save(tmp_path, 10, *trained)
    assert latest(tmp_path).name == "step-0000010"
    assert latest(tmp_path, at_most=9).name == "step-0000005"
    assert latest(tmp_path, at_most=4) is None
    assert latest_checkpoint(tmp_path, {**INPUTS, "pool": "another"}) is None


def flip(file):
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)


def shorten(file):
    file.write_bytes(file.read_bytes()[:-9])


@pytest.mark.parametrize("damage", [flip, shorten, lambda file: file.unlink()])
@pytest.mark.parametrize("name", ["net.weights.safetensors", "net.optimizer.safetensors", "manifest.json"])
def test_a_damaged_newest_falls_back_to_the_one_before_and_says_so(tmp_path, trained, caplog, damage, name):
    save(tmp_path, 5, *trained)
    damage(save(tmp_path, 10, *trained) / name)
    with caplog.at_level(logging.WARNING, "hardneg"):
        assert latest(tmp_path).name == "step-0000005"
    (record,) = caplog.records
    assert record.levelname == "WARNING"
    assert "step-0000010" in record.getMessage()


def test_all_damaged_is_as_none(tmp_path, trained, caplog):
    for step in (5, 10):
        flip(save(tmp_path, step, *trained) / "net.weights.safetensors")
    assert latest(tmp_path) is None
    assert len(caplog.records) == 2


def test_a_damaged_one_cannot_push_out_those_that_are_whole(tmp_path, trained):
    save(tmp_path, 5, *trained)
    for step in (10, 20):
        (save(tmp_path, step, *trained, keep=3) / "manifest.json").unlink()
    save(tmp_path, 7, *trained)  # made again from step 5, and stopped early
    assert latest(tmp_path).name == "step-0000007"


def test_of_several_models_none_may_be_behind_its_limit(tmp_path, trained):
    model, optimizer = trained
    models, optimizers = {"net": model, "judge": net(1)}, {"net": optimizer, "judge": adamw(net(1))}
    for made in ({"net": 5, "judge": 0}, {"net": 5, "judge": 2}):
        save_checkpoint(tmp_path, made, models, optimizers, inputs=INPUTS)
    assert names(tmp_path) == ["step-0000005", "step-0000007"]
    assert latest_checkpoint(tmp_path, INPUTS).name == "step-0000007"
    assert latest_checkpoint(tmp_path, INPUTS, [{"net": 5, "judge": 2}, {"net": 9}]).name == "step-0000007"
    assert latest_checkpoint(tmp_path, INPUTS, [{"net": 9}, {"judge": 1}]).name == "step-0000005"
    assert latest_checkpoint(tmp_path, INPUTS, [{"net": 4, "judge": 9}]) is None
