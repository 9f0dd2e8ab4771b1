"""An experiment that was stopped midway and then damaged is refused in one line, or ends in the same bytes."""

import contextlib
import json
import shutil

import pytest

import hardneg as hn
from hardneg.errors import ArtifactError, InputError
from worlds.small_trainings import train_small
from worlds.tiny_world import one_thread  # noqa: F401


class StopHereError(Exception):
    """Raised by a function that is told of every step."""


def stopped(recipe, world, out, at, **more):
    """Train until a row for which ``at`` holds is told; returns the experiment's folder."""

    def stop(row):
        if at(row):
            raise StopHereError

    with pytest.raises(StopHereError):
        train_small(recipe, world, out, on_step=stop, **more)
    return out


def stop_after_episode_1(state):
    if state["name"] == "episode-1":
        raise StopHereError


@pytest.fixture(scope="module")
def between(world, tmp_path_factory):
    """ANCE-Tele, stopped in its last episode before that has a checkpoint."""
    out = tmp_path_factory.mktemp("between") / "exp"
    with pytest.raises(StopHereError):
        train_small("ance-tele", world, out, on_state=stop_after_episode_1)
    assert not list(out.glob("episodes/2/checkpoint/*"))
    assert list(out.glob("episodes/1/checkpoint/*"))
    return out


@pytest.fixture
def midway(between, tmp_path):
    shutil.copytree(between.parent, tmp_path / "copy")
    return tmp_path / "copy" / "exp"


def cut_in_half(data):
    return data[: len(data) // 2]


def other_digit(data):
    at = data.index(b'"loss": ') + 10
    return data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]


@pytest.mark.parametrize(
    ("name", "damage"),
    [
        ("metrics.jsonl", cut_in_half),
        ("metrics.jsonl", other_digit),
        ("metrics.jsonl", lambda data: b""),
        ("margins.tsv", cut_in_half),
        ("margins.tsv", lambda data: None),
    ],
)
def test_what_the_episode_before_wrote_is_checked(midway, world, name, damage):
    file = midway / name
    damaged = damage(file.read_bytes())
    if damaged is None:
        file.unlink()
    else:
        file.write_bytes(damaged)
    with pytest.raises(ArtifactError, match=rf"{name}: CORRUPT: .*restore the file, or give a new folder"):
        train_small("ance-tele", world, midway)
    assert (file.read_bytes() if file.exists() else None) == damaged, "nothing is changed"


def test_an_undamaged_one_ends_in_the_same_bytes(midway, world, tmp_path):
    train_small("ance-tele", world, midway)
    train_small("ance-tele", world, tmp_path / "straight")
    for name in ("metrics.jsonl", "margins.tsv", "results.json"):
        assert (midway / name).read_bytes() == (tmp_path / "straight" / name).read_bytes()


def test_no_episode_is_trained_again_once_a_later_one_has_begun(world, tmp_path):
    out = stopped("ance-tele", world, tmp_path / "exp", lambda row: row["episode"] == 2 and row["step"] == 3)
    assert list(out.glob("episodes/2/checkpoint/*"))
    shutil.rmtree(out / "episodes/1/model")
    before = (out / "metrics.jsonl").read_bytes()
    with pytest.raises(ArtifactError, match=r"episodes/1/model: CORRUPT: episode 1 lacks .* episode 2 has begun"):
        train_small("ance-tele", world, out)
    assert (out / "metrics.jsonl").read_bytes() == before


@pytest.mark.parametrize("line", [b'{"step": null, "version": 0}\n', b'{"stdp": 1, "version": 0}\n', b""])
def test_a_log_of_versions_that_says_nothing_is_refused(world, tmp_path, line):
    out = stopped("ance", world, tmp_path / "exp", lambda row: row["step"] == 3)
    (out / "versions.jsonl").write_bytes(line)
    with pytest.raises(ArtifactError, match=r"versions.jsonl: .*restore the file, or give a new folder"):
        train_small("ance", world, out)


@pytest.mark.parametrize("line", [b'{"episode": 1, "stdp": 1, "model": "retriever"}\n', b"5\n", b"{\n"])
def test_a_row_of_metrics_of_another_form_is_refused(midway, world, line):
    with (midway / "metrics.jsonl").open("ab") as stream:
        stream.write(line)
    with pytest.raises(ArtifactError, match=r"metrics.jsonl:\d+: (CORRUPT|BAD_JSON): .*restore the file"):
        train_small("ance-tele", world, midway)


def test_times_may_be_damaged(midway, world):
    file = midway / "timing.jsonl"
    file.write_bytes(file.read_bytes().replace(b'"stage"', b'"stagd"', 1) + b'5\n{"st\xe2ge": 1}\n{"half')
    results = train_small("ance-tele", world, midway)
    assert json.loads(json.dumps(results)) == json.loads((midway / "results.json").read_text())


def test_a_collection_whose_folder_was_replaced_is_refused(tmp_path):
    passages = {f"p{number}": f"text {number}" for number in range(4)}
    queries = {f"q{number}": f"question {number}" for number in range(4)}

    def made(shift):
        qrels = {"train": {f"q{number}": [f"p{(number + shift) % 4}"] for number in range(4)}}
        return hn.Collection.from_lists(passages, queries, qrels, to=tmp_path / "c")

    opened = made(0)
    shutil.rmtree(tmp_path / "c")
    with pytest.raises(ArtifactError, match="NO_MANIFEST"):
        opened.qrels("train")
    made(1)
    with pytest.raises(ArtifactError, match="INPUT_CHANGED: this folder holds another collection"):
        opened.qrels("train")
    shutil.rmtree(tmp_path / "c")
    made(0)
    assert len(opened.qrels("train").query_rows) == 4


def test_a_run_whose_model_is_gone_cannot_be_made_again(world, tmp_path):
    out = stopped("ance", world, tmp_path / "exp", lambda row: row["step"] == 4, refreshes=2)
    shutil.rmtree(out / "episodes/0/runs/dev")
    with pytest.raises(ArtifactError, match=r"episodes/0/runs/dev: NO_MANIFEST: this run is gone, .*restore"):
        train_small("ance", world, out, refreshes=2)


def test_errors_whose_model_is_gone_cannot_be_counted_again(world, tmp_path):
    out = stopped("ance", world, tmp_path / "exp", lambda row: row["step"] == 4, refreshes=2)
    shutil.rmtree(out / "episodes/0/runs/dev-errors")
    with pytest.raises(ArtifactError, match=r"dev-errors: NO_MANIFEST: these pairwise errors are gone, .*restore"):
        train_small("ance", world, out, refreshes=2)


# ---------------------------------------------------------------- at the end, and afterwards


@pytest.mark.parametrize("name", ["metrics.jsonl", "margins.tsv"])
def test_what_was_written_is_checked_although_no_step_is_left(world, tmp_path, name):
    def stop_at_the_end(state):
        if state["name"] == "final":
            raise StopHereError

    out = tmp_path / "exp"
    with pytest.raises(StopHereError):
        train_small("star", world, out, on_state=stop_at_the_end)
    assert (out / "model/manifest.json").is_file()
    (out / name).write_bytes(cut_in_half((out / name).read_bytes()))
    with pytest.raises(ArtifactError, match=rf"{name}: CORRUPT: .*restore the file, or give a new folder"):
        train_small("star", world, out)
    assert not (out / "results.json").exists()


@pytest.mark.parametrize("recipe", ["star", "ranker"])
def test_a_finished_experiment_that_lost_its_model_makes_it_again(world, tmp_path, recipe):
    out = tmp_path / "exp"
    train_small(recipe, world, out)
    weights, results = (out / "model/model.safetensors").read_bytes(), (out / "results.json").read_bytes()
    shutil.rmtree(out / "model")
    faults = [fault["fix"] for fault in hn.verify(out)["faults"]]
    assert any("train again with the same command, which makes the model anew" in fault for fault in faults)
    train_small(recipe, world, out)
    assert (out / "model/model.safetensors").read_bytes() == weights
    assert (out / "results.json").read_bytes() == results
    assert not hn.verify(out)["faults"]


def test_making_a_lost_model_again_may_be_interrupted(world, tmp_path):
    out = tmp_path / "exp"
    train_small("star", world, out)
    weights = (out / "model/model.safetensors").read_bytes()
    hn.clean(out, delete=True)
    shutil.rmtree(out / "model")
    stopped("star", world, out, lambda row: row["step"] == 2)
    train_small("star", world, out)
    assert (out / "model/model.safetensors").read_bytes() == weights
    assert not hn.verify(out)["faults"]


def test_lost_weights_of_an_episode_that_is_over_leave_its_record(world, tmp_path):
    def stop_at_the_end(state):
        if state["name"] == "last":
            raise StopHereError

    several = {"mixtures": ["bm25", "in_batch"], "steps": [4], "measure_every": 2, "keep": "best"}
    with pytest.raises(StopHereError):
        train_small("warmup", world, tmp_path / "exp", on_state=stop_at_the_end, **several)
    measured = sorted((tmp_path / "exp").glob("states/1-*/measured"))
    assert measured
    for place in measured:
        shutil.rmtree(place.parent / "model", ignore_errors=True)
    with contextlib.suppress(ArtifactError, InputError):
        train_small("warmup", world, tmp_path / "exp", **several)
    assert sorted((tmp_path / "exp").glob("states/1-*/measured")) == measured


def test_advice_on_a_finished_experiment_does_not_lead_back_to_itself(world, tmp_path):
    out = tmp_path / "exp"
    train_small("star", world, out)
    shutil.rmtree(out / "episodes/1/runs/dev")
    faults = [fault["fix"] for fault in hn.verify(out)["faults"]]
    assert any("restore the folder, or train in a new one" in fault for fault in faults)
    (out / "metrics.jsonl").unlink()
    with pytest.raises(ArtifactError, match=r"metrics.jsonl: .*; restore the file, or give a new folder"):
        train_small("star", world, out)
    (out / "settings.json").write_bytes(cut_in_half((out / "settings.json").read_bytes()))
    with pytest.raises(ArtifactError, match=r"settings.json: BAD_JSON: .*; restore the file, or give"):
        train_small("star", world, out)


def test_sharpness_whose_model_is_gone_is_missed(world, tmp_path):
    out = stopped("ar2", world, tmp_path / "exp", lambda row: row["model"] == "retriever" and row["step"] == 3)
    shutil.rmtree(out / "episodes/1/runs-v0001/sharpness")
    with pytest.raises(ArtifactError, match=r"runs-v0001/sharpness: NO_MANIFEST: the sharpness .*; restore"):
        train_small("ar2", world, out)


def test_negatives_whose_model_is_gone_cannot_be_mined_again(world, tmp_path):
    out = stopped("ance", world, tmp_path / "exp", lambda row: row["step"] == 4, refreshes=2)
    shutil.rmtree(out / "versions")
    said = r"versions: MISSING_FILE: the negatives that the model of step 3 mined are gone, .*restore"
    with pytest.raises(ArtifactError, match=said):
        train_small("ance", world, out, refreshes=2)


def test_the_best_state_is_measured_again_if_its_weights_are_gone(world, tmp_path):
    def stop_at_the_end(state):
        if state["name"] == "last":
            raise StopHereError

    out, straight = tmp_path / "exp", tmp_path / "straight"
    train_small("star", world, straight, keep="best")
    with pytest.raises(StopHereError):
        train_small("star", world, out, keep="best", on_state=stop_at_the_end)
    shutil.rmtree(out / "states/1-2/model")
    train_small("star", world, out, keep="best")
    for name in ("metrics.jsonl", "results.json", "states.jsonl", "model/model.safetensors"):
        assert (out / name).read_bytes() == (straight / name).read_bytes()
    kept = [sorted(path.parent.name for path in one.glob("states/*/model")) for one in (out, straight)]
    assert kept[0] == kept[1]


def test_a_log_of_versions_that_has_lost_a_line_is_refused(world, tmp_path):
    out = stopped("ance", world, tmp_path / "exp", lambda row: row["step"] == 6, refreshes=2)
    lines = (out / "versions.jsonl").read_bytes().splitlines(keepends=True)
    assert len(lines) == 2
    (out / "versions.jsonl").write_bytes(lines[0] + lines[1][:9])
    said = r"versions.jsonl: CORRUPT: it does not say that step 4 used version 1, .*; restore the file"
    with pytest.raises(ArtifactError, match=said):
        train_small("ance", world, out, refreshes=2)
