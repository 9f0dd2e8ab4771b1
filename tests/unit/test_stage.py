"""A stage of training: resumed, stopped, killed at the worst moments, it ends in the same bytes."""

import json
import signal
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from hardneg.errors import Interrupted, NumericError
from hardneg.experiment.folder import Experiment
from hardneg.models.loading import load_encoder
from hardneg.models.saving import save_encoder
from hardneg.process import progress
from hardneg.process.signals import stop_flag
from hardneg.recipes.settings import per_episode
from hardneg.storage.artifacts import read_manifest
from hardneg.training import stage
from hardneg.training.checkpoint import checkpoints
from hardneg.training.loop import StepOutput
from hardneg.training.optim import linear
from hardneg.training.stage import Stage, Trainee
from worlds.tiny_world import one_thread, tiny_collection, tiny_model  # noqa: F401

STOP, EARLY, EVERY = 23, 9, 7
SCHEDULE = linear(1e-2, warmup=0.1, horizon=40)  # the stage stops early; the schedule does not know


@dataclass
class Rows:
    query_rows: list
    poison: bool = False

    def micro(self):
        return [self]


@pytest.fixture(autouse=True)
def unstopped(monkeypatch):
    monkeypatch.setattr(stop_flag, "signal", None)


@pytest.fixture
def stage_in(world):
    """A function that runs the stage in a folder, as a fresh process would."""
    collection, model = world

    def run(path, *, poison=None, models=None, before=lambda step: None, saving=save_encoder, **changes):
        path.mkdir(exist_ok=True)
        encoder = load_encoder(model)
        embeddings = encoder.towers[0].transformer.embeddings

        def objective(batch):
            found = embeddings(torch.tensor([[1 + row % 90 for row in batch.query_rows]])).square().mean()
            return StepOutput(found * (torch.nan if batch.poison else 1.0))

        def batches(step):
            before(step)
            return Rows(np.random.default_rng(step).integers(0, 92, 4).tolist(), step == poison)

        experiment, models = Experiment(path, path / "cache"), models or {"episodes/2/model": EARLY, "model": STOP}
        places = {path / name: step for name, step in models.items()}
        trainee = Trainee("retriever", encoder, objective, batches, SCHEDULE, saving, models=places)
        told = {"episode": 2, "seed": 5, "inputs": {"pool": "p"}, "checkpoint_every": EVERY} | changes
        training = Stage(
            [trainee],
            path / "episodes/2/checkpoint",
            experiment.metrics,
            timed=experiment.timed,
            query_id=lambda row: collection.query_ids[row],
            **told,
        )
        training.advance("retriever", max(models.values()))
        return experiment

    return run


def contents(path):
    """What a told leaves: metrics, models, and the newest checkpoint's weights and optimiser."""
    found = {"metrics": (path / "metrics.jsonl").read_bytes()}
    for name in ("episodes/2/model", "model"):
        found[name] = read_manifest(path / name).digest
    last = checkpoints(path / "episodes/2/checkpoint")[-1]
    return found | {"last": last.name, "checkpoint": read_manifest(last).digest}


@pytest.fixture(scope="module")
def straight(tmp_path_factory):
    return {}


@pytest.fixture
def expected(straight, stage_in, tmp_path_factory):
    if not straight:
        path = tmp_path_factory.mktemp("straight")
        stage_in(path)
        straight.update(contents(path))
    return straight


def weights_of(folder):
    return load_file(folder / "model.safetensors")


def equal(a, b):
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


# ---------------------------------------------------------------- straight through


def test_metrics_have_every_step_with_the_rate_of_the_whole_schedule(stage_in, tmp_path):
    rows = stage_in(tmp_path).metrics.read()
    assert [row["step"] for row in rows] == list(range(1, STOP + 1))
    assert [row["lr"] for row in rows] == [SCHEDULE(step) for step in range(STOP)]
    assert rows[-1]["lr"] == 1e-2 * (40 - 22) / 36
    assert all(row["episode"] == row["negative_version"] == 2 and row["queries"] == 4 for row in rows)
    assert all(np.isfinite([row["loss"], row["grad_norm"]]).all() for row in rows)
    assert rows[0]["loss"] > rows[-1]["loss"]


def test_once_its_models_stand_one_checkpoint_stays(stage_in, tmp_path):
    stage_in(tmp_path)
    assert len(checkpoints(tmp_path / "episodes/2/checkpoint")) == 1


def test_models_are_those_after_their_steps(stage_in, tmp_path):
    stage_in(tmp_path / "long")
    stage_in(tmp_path / "short", models={"model": EARLY})
    assert equal(weights_of(tmp_path / "long/episodes/2/model"), weights_of(tmp_path / "short/model"))
    last = load_file(checkpoints(tmp_path / "long/episodes/2/checkpoint")[-1] / "retriever.weights.safetensors")
    final = weights_of(tmp_path / "long/model")
    assert all(torch.equal(final[name.removeprefix("towers.0.transformer.")], last[name]) for name in last)
    assert not equal(final, weights_of(tmp_path / "short/model"))


def test_two_models_of_the_same_step(stage_in, tmp_path):
    stage_in(tmp_path, models={"episodes/2/model": 5, "model": 5})
    assert equal(weights_of(tmp_path / "episodes/2/model"), weights_of(tmp_path / "model"))


def test_episodes_draw_their_own_dropout(stage_in, tmp_path):
    def first_loss(name, **changes):
        return stage_in(tmp_path / name, models={"model": 1}, **changes).metrics.read()[0]["loss"]

    assert first_loss("a") == first_loss("b")
    assert len({first_loss("c"), first_loss("d", episode=3), first_loss("e", seed=6)}) == 3


def test_a_finished_stage_is_left_alone(stage_in, tmp_path, expected):
    def times():
        files = [file for file in tmp_path.rglob("*") if file.is_file() and file.name != "digests.sqlite"]
        return {file: file.stat().st_mtime_ns for file in files}

    stage_in(tmp_path)
    before = times()
    stage_in(tmp_path, before=lambda step: pytest.fail("a step was made"))
    assert times() == before
    assert contents(tmp_path) == expected


# ---------------------------------------------------------------- interrupted


class Killed(BaseException):
    """What a power cut is to this process."""


@pytest.mark.parametrize("at", [0, 6, 7, 9, 22])
def test_killed_in_a_step_it_ends_alike(stage_in, tmp_path, expected, at):
    def kill(step):
        if step == at:
            raise Killed

    with pytest.raises(Killed):
        stage_in(tmp_path, before=kill)
    made = []
    stage_in(tmp_path, before=made.append)
    assert made[0] == at // EVERY * EVERY  # the newest checkpoint
    assert contents(tmp_path) == expected


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize(
    ("name", "call"), [("save_encoder", 0), ("save_encoder", 1), ("save_checkpoint", 0), ("save_checkpoint", 3)]
)
def test_killed_about_a_publication_it_ends_alike(stage_in, tmp_path, expected, monkeypatch, name, after, call):
    calls = iter(range(100))
    real = save_encoder if name == "save_encoder" else stage.save_checkpoint

    def killing(*args, **kwargs):
        number = next(calls)
        if number == call and not after:
            raise Killed
        real(*args, **kwargs)
        if number == call:
            raise Killed

    with monkeypatch.context() as patch:
        if name == "save_checkpoint":
            patch.setattr(stage, name, killing)
        with pytest.raises(Killed):
            stage_in(tmp_path, saving=killing if name == "save_encoder" else save_encoder)
    stage_in(tmp_path)
    assert contents(tmp_path) == expected


def test_metrics_written_after_the_last_checkpoint_are_not_doubled(stage_in, tmp_path, expected):
    def kill(step):
        if step == 12:  # ten rows are on the disk, the checkpoint is of step 7
            raise Killed

    with pytest.raises(Killed):
        stage_in(tmp_path, before=kill)
    assert len((tmp_path / "metrics.jsonl").read_text().splitlines()) > EVERY
    with open(tmp_path / "metrics.jsonl", "a") as stream:
        stream.write('{"step": 11, "episode": 2, "lo')  # torn
    stage_in(tmp_path)
    assert contents(tmp_path) == expected


def test_metrics_of_earlier_episodes_stay(stage_in, tmp_path):
    older = [{"step": step, "episode": 1, "model": "retriever", "loss": 0.5} for step in (1, 2, 30)]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in older))
    assert stage_in(tmp_path, models={"model": 4}).metrics.read()[:3] == older


@pytest.mark.parametrize("at", [0, 6, 22])
def test_a_signal_in_a_step_makes_a_checkpoint_of_it(stage_in, tmp_path, expected, at):
    def stop(step):
        if step == at:
            stop_flag.signal = signal.SIGTERM

    with pytest.raises(Interrupted) as fault:
        stage_in(tmp_path, before=stop)
    assert fault.value.status == 75
    assert checkpoints(tmp_path / "episodes/2/checkpoint")[-1].name == f"step-{at + 1:07d}"
    stop_flag.signal = None
    made = []
    stage_in(tmp_path, before=made.append)
    assert made == list(range(at + 1, STOP))
    assert contents(tmp_path) == expected


def test_a_signal_at_the_very_end_of_a_step_does_too(stage_in, tmp_path, expected, monkeypatch):
    def late(done, total):
        if done == 11:
            stop_flag.signal = signal.SIGINT

    monkeypatch.setattr(progress, "silent", late)
    with pytest.raises(Interrupted, match="SIGINT"):
        stage_in(tmp_path)
    assert checkpoints(tmp_path / "episodes/2/checkpoint")[-1].name == "step-0000011"
    stop_flag.signal = None
    stage_in(tmp_path)
    assert contents(tmp_path) == expected


# ---------------------------------------------------------------- lost and damaged


def remove(folder):
    for file in sorted(folder.rglob("*"), reverse=True):
        file.rmdir() if file.is_dir() else file.unlink()
    folder.rmdir()


@pytest.mark.parametrize("lost", ["episodes/2/model", "model"])
def test_a_lost_model_is_made_again(stage_in, tmp_path, expected, lost):
    stage_in(tmp_path)
    remove(tmp_path / lost)
    made = []
    stage_in(tmp_path, before=made.append)
    assert made == ([] if lost == "model" else list(range(STOP)))  # the last checkpoint is the final model's
    assert contents(tmp_path) == expected


def test_a_damaged_newest_checkpoint_costs_its_steps_only(stage_in, tmp_path, expected, caplog):
    def kill(step):
        if step == 16:
            raise Killed

    with pytest.raises(Killed):
        stage_in(tmp_path, before=kill)
    file = tmp_path / "episodes/2/checkpoint/step-0000014/retriever.optimizer.safetensors"
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)
    made = []
    stage_in(tmp_path, before=made.append)
    assert made[0] == 7
    assert "step-0000014" in caplog.text
    assert contents(tmp_path) == expected


def test_another_pool_begins_anew(stage_in, tmp_path):
    stage_in(tmp_path, models={"model": 8})
    made = []
    stage_in(tmp_path, models={"model": 8}, inputs={"pool": "another"}, before=made.append)
    assert made == list(range(8))


# ---------------------------------------------------------------- not finite


@pytest.mark.parametrize("at", [0, 9, 22])
def test_a_step_that_is_not_finite_is_named_and_nothing_of_it_is_kept(stage_in, world, tmp_path, at):
    with pytest.raises(NumericError) as fault:
        stage_in(tmp_path, poison=at)
    collection, _ = world
    rows = np.random.default_rng(at).integers(0, 92, 4)
    assert fault.value.status == 7
    assert f"step {at + 1} " in str(fault.value)
    assert all(collection.query_ids[row] in str(fault.value) for row in rows)
    metrics = Experiment(tmp_path, tmp_path).metrics.read()
    assert all(row["step"] <= at for row in metrics)
    found = checkpoints(tmp_path / "episodes/2/checkpoint")
    assert [int(path.name[5:]) for path in found] == [step for step in (7, 14, 21) if step <= at][-2:]
    for path in found:
        assert all(torch.isfinite(x).all() for x in load_file(path / "retriever.weights.safetensors").values())
    assert (tmp_path / "episodes/2/model").exists() == (at >= EARLY)
    assert not (tmp_path / "model").exists()


def test_after_the_fault_is_mended_it_ends_alike(stage_in, tmp_path, expected):
    with pytest.raises(NumericError):
        stage_in(tmp_path, poison=12)
    stage_in(tmp_path)
    assert contents(tmp_path) == expected


def test_the_last_value_of_a_list_repeats():
    assert [per_episode([16, 32], episode) for episode in (1, 2, 3, 9)] == [16, 32, 32, 32]
    assert per_episode([4], 5) == 4
