"""A stage of two models that train each other in turn, with refreshes between: killed anywhere, the same bytes."""

import contextlib
import hashlib
import json
import shutil
import signal
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from faults.aftermath import GHOST
from faults.injected import tree
from hardneg.errors import ArtifactError, Interrupted, NumericError
from hardneg.experiment.metrics import Metrics
from hardneg.process.signals import stop_flag
from hardneg.search.retriever import untimed
from hardneg.storage import disk
from hardneg.storage.artifacts import is_published, publish, read_json, read_manifest
from hardneg.storage.disk import TEMPORARY, foreign, sweep_below
from hardneg.training import stage as stage_module
from hardneg.training.checkpoint import checkpoints
from hardneg.training.loop import StepOutput
from hardneg.training.optim import adamw, lamb, linear
from hardneg.training.stage import Stage, Trainee

TURNS, RANKER, RETRIEVER, EVERY = 3, 2, 3, 2  # iterations; steps of a turn; steps between two checkpoints


class Net(nn.Module):
    """A score of every row, with dropout."""

    def __init__(self, seed):
        super().__init__()
        draw = torch.Generator().manual_seed(seed)
        self.table = nn.Parameter(torch.randn(40, 3, generator=draw))
        self.out = nn.Parameter(torch.randn(3, generator=draw))
        self.dropout = nn.Dropout(0.3)

    def forward(self, rows):
        return self.dropout(self.table[torch.tensor(rows)]) @ self.out

    def digest(self):
        values = [self.table.detach().numpy().tobytes(), self.out.detach().numpy().tobytes()]
        return hashlib.sha256(b"".join(values)).hexdigest()


@dataclass
class Rows:
    query_rows: list

    def micro(self):
        return [self]


def save_net(net, path, *, inputs, replace):
    with (
        publish(path, "model", inputs=inputs, replace=replace) as draft,
        foreign(draft / "net.safetensors") as file,
    ):
        save_file(net.state_dict(), file)


def refreshed(folder, turn):
    """Where the rows stand that the retriever trains on after so many turns."""
    return folder / f"refreshes/{turn}"


def run(folder, *, seen=None, poison=None, stop_at=None):
    """The whole training, as a fresh process would do it; ``seen`` gets (model, step) of every step."""
    folder.mkdir(exist_ok=True)
    sweep_below(folder)
    retriever, ranker = Net(1), Net(2)
    made = []

    def note(name, step):
        made.append(f"{name} {step}")
        if seen is not None:
            seen.append((name, step))
        if stop_at == len(made):
            stop_flag.signal = signal.SIGTERM

    def rows_of(step):
        note("retriever", step)
        rows = read_json(refreshed(folder, step // RETRIEVER) / "rows.json")
        return Rows([rows[(step + i) % len(rows)] for i in range(4)])

    def pairs_of(step):
        note("ranker", step)
        return Rows(np.random.default_rng(step).integers(0, 40, 4).tolist())

    def loss_of_retriever(batch):  # the ranker's scores, without gradient, are what it imitates
        with torch.no_grad():
            wanted = ranker.eval()(batch.query_rows)
        found = (retriever(batch.query_rows) - wanted).square().mean()
        return StepOutput(found * (torch.nan if poison == ("retriever", len(seen or [])) else 1.0))

    def loss_of_ranker(batch):
        with torch.no_grad():
            hard = retriever.eval()(batch.query_rows)
        return StepOutput((ranker(batch.query_rows) * hard.sigmoid()).square().mean())

    turns = range(TURNS)
    stage = Stage(
        [
            Trainee(
                "ranker",
                ranker,
                loss_of_ranker,
                pairs_of,
                linear(0.05, warmup=1, horizon=20),
                save_net,
                models={folder / "ranker": TURNS * RANKER},
                optimizer=lamb,
            ),
            Trainee(
                "retriever",
                retriever,
                loss_of_retriever,
                rows_of,
                linear(0.1, warmup=0.1, horizon=20),
                save_net,
                models={folder / "model": TURNS * RETRIEVER, folder / "early": 4},
                optimizer=adamw,
            ),
        ],
        folder / "checkpoint",
        Metrics(folder / "metrics.jsonl"),
        episode=1,
        seed=3,
        inputs={"data": "d"},
        timed=untimed,
        query_id=lambda row: f"q{row}",
        before=[
            {"ranker": turn * RANKER, "retriever": turn * RETRIEVER}
            for turn in turns
            if not is_published(refreshed(folder, turn))
        ],
        checkpoint_every=EVERY,
    )
    for turn in turns:
        if not is_published(refreshed(folder, turn)):
            assert stage.at(ranker=turn * RANKER, retriever=turn * RETRIEVER)
            refresh(folder, turn, retriever)
        stage.advance("ranker", (turn + 1) * RANKER)
        stage.advance("retriever", (turn + 1) * RETRIEVER)
    return stage


def refresh(folder, turn, retriever):
    """The rows that the retriever scores highest now."""
    with torch.no_grad():
        best = torch.argsort(retriever.eval()(list(range(40))), descending=True)[:10].tolist()
    with publish(refreshed(folder, turn), "rows") as draft:
        draft.json("rows.json", best)


def contents(folder):
    """Every file, of the checkpoints only the newest."""
    found, last = tree(folder), checkpoints(folder / "checkpoint")[-1].name
    aside = [
        name for name in found if name.startswith("checkpoint/") and not name.startswith(f"checkpoint/{last}/")
    ]
    return {name: data for name, data in found.items() if name not in aside and "digests" not in name}


@pytest.fixture(autouse=True)
def unstopped(monkeypatch):
    monkeypatch.setattr(stop_flag, "signal", None)


@pytest.fixture(scope="module")
def straight(tmp_path_factory):
    folder = tmp_path_factory.mktemp("straight") / "run"
    run(folder)
    return contents(folder)


def test_the_two_train_in_turn_with_their_own_steps_and_rates(tmp_path):
    seen = []
    run(tmp_path / "run", seen=seen)
    turn = ["ranker"] * RANKER + ["retriever"] * RETRIEVER
    assert [name for name, _ in seen] == turn * TURNS
    rows = Metrics(tmp_path / "run/metrics.jsonl").read()
    assert [(row["model"], row["step"]) for row in rows] == [(name, step + 1) for name, step in seen]
    rates = {"ranker": linear(0.05, warmup=1, horizon=20), "retriever": linear(0.1, warmup=0.1, horizon=20)}
    assert all(row["lr"] == rates[row["model"]](row["step"] - 1) for row in rows)


def test_one_optimizer_state_a_model_over_all_turns(tmp_path):
    run(tmp_path / "run")
    last = checkpoints(tmp_path / "run/checkpoint")[-1]
    assert last.name == f"step-{TURNS * (RANKER + RETRIEVER):07d}"
    state = load_file(last / "retriever.optimizer.safetensors")
    assert all(float(value) == TURNS * RETRIEVER for name, value in state.items() if name.endswith(".step"))
    assert {name for name in load_file(last / "ranker.optimizer.safetensors") if name.endswith(".exp_avg")}


def test_the_models_draw_dropout_of_their_own(tmp_path):
    """Both begin with step 0 of episode 1; with one key for both, the same masks would be drawn."""
    net = Net(1)
    stages = [
        Stage(
            [Trainee(name, Net(1), lambda batch: None, Rows, lambda step: 0.1, save_net, {tmp_path / name: 1})],
            tmp_path / f"checkpoint-{name}",
            Metrics(tmp_path / f"{name}.jsonl"),
            episode=1,
            seed=3,
            inputs={},
            timed=untimed,
        )
        for name in ("retriever", "ranker")
    ]
    masks = []
    for stage in stages:
        (trainee,) = stage.trainees.values()
        heard = []

        def objective(batch, net=trainee.model, heard=heard):
            heard.append(net.dropout(torch.ones(64)))
            return StepOutput(net([1, 2]).square().sum())

        stage.trainees[trainee.name] = Trainee(
            trainee.name, trainee.model, objective, lambda step: Rows([1]), trainee.schedule, save_net
        )
        stage.advance(trainee.name, 1)
        masks += heard
    assert net.dropout.p > 0
    assert not torch.equal(*masks)


# ---------------------------------------------------------------- killed


class Copies:
    """What a process leaves that is killed before each change of the disk."""

    def __init__(self, folder, place):
        self.folder, self.place, self.count, self.seen = folder, place, 0, set()

    def __call__(self, action, path, data):
        left = tree(self.folder)
        key = hashlib.sha256(repr(sorted(left.items())).encode()).digest()
        if key in self.seen:
            return
        self.seen.add(key)
        copy = self.place / f"kill-{self.count:04d}"
        shutil.copytree(self.folder, copy)
        for draft in sorted(copy.rglob(f"{TEMPORARY}*"), reverse=True):  # of a process that is no more
            left, _, host = draft.name.rpartition("@")
            draft.rename(draft.with_name(f"{left.rpartition('-')[0]}-{GHOST}@{host}"))
        self.count += 1


@pytest.mark.parametrize("every", [17, pytest.param(1, marks=pytest.mark.slow)])
def test_killed_at_any_change_of_the_disk_it_ends_in_the_same_bytes(tmp_path, straight, monkeypatch, every):
    copies = Copies(tmp_path / "run", tmp_path)
    monkeypatch.setattr(disk, "watch", copies)
    run(tmp_path / "run")
    monkeypatch.setattr(disk, "watch", None)
    assert contents(tmp_path / "run") == straight
    assert copies.count > 100  # so many places to die were tried
    for number in range(every // 2, copies.count, every):
        folder = tmp_path / f"kill-{number:04d}"
        run(folder)
        found = contents(folder)
        assert [name for name in {*found, *straight} if found.get(name) != straight.get(name)] == [], number
        shutil.rmtree(folder)


class Killed(BaseException):
    """What a power cut is to this process."""


@pytest.mark.parametrize("at", range(1, TURNS * (RANKER + RETRIEVER) + 1))
def test_killed_in_any_step_it_ends_in_the_same_bytes(tmp_path, straight, at):
    class Dying(list):
        def append(self, step):
            super().append(step)
            if len(self) == at:
                raise Killed

    with pytest.raises(Killed):
        run(tmp_path / "run", seen=Dying())
    seen = []
    run(tmp_path / "run", seen=seen)
    assert len(seen) <= TURNS * (RANKER + RETRIEVER) - at + EVERY  # no more is lost than since a checkpoint
    assert contents(tmp_path / "run") == straight


@pytest.mark.parametrize("at", range(1, TURNS * (RANKER + RETRIEVER) + 1))
def test_a_signal_in_any_step_makes_a_checkpoint_of_it(tmp_path, straight, at):
    with pytest.raises(Interrupted) as fault:
        run(tmp_path / "run", stop_at=at)
    assert fault.value.status == 75
    assert checkpoints(tmp_path / "run/checkpoint")[-1].name == f"step-{at:07d}"
    stop_flag.signal = None
    seen = []
    run(tmp_path / "run", seen=seen)
    assert len(seen) == TURNS * (RANKER + RETRIEVER) - at
    assert contents(tmp_path / "run") == straight


# ---------------------------------------------------------------- lost, damaged, not finite


@pytest.mark.parametrize("lost", ["model", "ranker", "early", "refreshes/0", "refreshes/1", "refreshes/2"])
def test_what_is_lost_is_made_again(tmp_path, straight, lost):
    run(tmp_path / "run")
    shutil.rmtree(tmp_path / "run" / lost)
    run(tmp_path / "run")
    assert contents(tmp_path / "run") == straight


def test_a_finished_stage_makes_no_step(tmp_path, straight):
    run(tmp_path / "run")
    seen = []
    assert run(tmp_path / "run", seen=seen).finished
    assert seen == []
    assert contents(tmp_path / "run") == straight


def ending(folder, end=None, seen=None):
    """A stage of one model that is kept after 4 and 8 steps, and of 7 on the way."""
    net = Net(1)

    def batches(step):
        if seen is not None:
            seen.append(step)
        return Rows([step])

    trainee = Trainee(
        "retriever",
        net,
        lambda batch: StepOutput(net(batch.query_rows).square().sum()),
        batches,
        linear(0.1, warmup=1, horizon=8),
        save_net,
        models={folder / "early": 4, folder / "model": 8},
        intermediate={folder / "intermediate": 7},
    ).until(end)
    rows = Metrics(folder / "metrics.jsonl")
    return Stage([trainee], folder / "checkpoint", rows, episode=1, seed=3, inputs={}, timed=untimed)


def test_training_that_ends_early_keeps_its_models_of_the_end(tmp_path):
    stage = ending(tmp_path)
    stage.advance("retriever", 6)
    stage.end("retriever")
    steps = {name: read_manifest(tmp_path / name).inputs["step"] for name in ("early", "model")}
    assert steps == {"early": "4", "model": "6"}
    assert not is_published(tmp_path / "intermediate")
    left, seen = tree(tmp_path), []
    again = ending(tmp_path, 6, seen)
    again.advance("retriever", 8)
    again.end("retriever")
    assert again.finished
    assert (seen, tree(tmp_path)) == ([], left)
    shutil.rmtree(tmp_path / "model")
    lost = ending(tmp_path, 6, seen)
    lost.advance("retriever", 6)
    assert (seen, tree(tmp_path)) == ([], left)  # the checkpoint of the end has it


def test_a_turn_that_asks_for_none_leaves_no_checkpoint(tmp_path):
    stage = ending(tmp_path)
    stage.advance("retriever", 2, checkpoint=False)
    assert checkpoints(tmp_path / "checkpoint") == []
    assert Metrics(tmp_path / "metrics.jsonl").steps == 2  # what was measured is written all the same
    stage.save()
    assert [path.name for path in checkpoints(tmp_path / "checkpoint")] == ["step-0000002"]


def test_an_observer_sees_every_batch_before_it_is_trained_on(tmp_path, monkeypatch):
    seen = []
    monkeypatch.setattr(Stage, "watch", staticmethod(lambda name, step, batch: seen.append((name, step, batch))))
    ending(tmp_path).advance("retriever", 3)
    assert seen == [("retriever", step, Rows([step])) for step in range(3)]


def test_the_rows_of_one_model_outlive_the_checkpoint_of_another(tmp_path):
    rows = [{"step": step, "episode": 1, "model": name} for name in ("ranker", "retriever") for step in (1, 2, 3)]
    metrics = Metrics(tmp_path / "metrics.jsonl")
    metrics.append(rows)
    metrics.truncate(1, {"ranker": 3, "retriever": 1})
    assert metrics.read() == rows[:4]


def test_metrics_that_are_not_those_of_the_checkpoint_are_refused(tmp_path):
    with pytest.raises(Interrupted):
        run(tmp_path / "run", stop_at=4)
    stop_flag.signal = None
    path = tmp_path / "run/metrics.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    lines[1]["loss"] += 1
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    with pytest.raises(
        ArtifactError, match="CORRUPT: not what was written up to step 2 of the ranker and 2 of the"
    ):
        run(tmp_path / "run")


def test_a_step_that_is_not_finite_names_the_model_and_its_queries(tmp_path):
    seen = []
    with pytest.raises(NumericError) as fault:
        run(tmp_path / "run", seen=seen, poison=("retriever", RANKER + 2))
    assert "step 2 of the retriever is not finite (queries q" in str(fault.value)
    assert fault.value.status == 7
    kept = checkpoints(tmp_path / "run/checkpoint")
    assert all(
        torch.isfinite(x).all()
        for path in kept
        for x in load_file(path / "retriever.weights.safetensors").values()
    )


@pytest.mark.parametrize(
    ("names", "title", "said"),
    [
        (("ranker",), "", "training, episode 1"),
        (("ranker",), "first ranker", "training the first ranker, episode 1"),
        (("ranker", "retriever"), "", "training the ranker, episode 1"),
    ],
)
def test_titles_of_progress_say_which_model_is_trained(tmp_path, monkeypatch, names, title, said):
    heard = []

    @contextlib.contextmanager
    def track(text, *_, **__):
        heard.append(text)
        yield lambda *_: None

    monkeypatch.setattr(stage_module, "track", track)

    def trainee(name):
        net, model = Net(1), {tmp_path / name: 1}
        rows = lambda step: Rows([step])  # noqa: E731
        loss = lambda batch: StepOutput(net(batch.query_rows).square().mean())  # noqa: E731
        return Trainee(name, net, loss, rows, lambda step: 1e-3, save_net, models=model, title=title)

    trainees, rows = [trainee(name) for name in names], Metrics(tmp_path / "metrics.jsonl")
    Stage(trainees, tmp_path / "checkpoint", rows, episode=1, seed=3, inputs={}, timed=untimed).advance(
        "ranker", 1
    )
    assert heard == [said]
