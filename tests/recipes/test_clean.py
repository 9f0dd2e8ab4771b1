"""`hardneg clean` on a real experiment: deleted files can be made again, and no needed file is deleted."""

import shutil
import socket
from functools import partial
from pathlib import Path

import pytest

import hardneg as hn
from faults.injected import dead_pid, run_python
from hardneg.api.clean import old_checkpoints
from hardneg.api.recipes import RECIPES
from hardneg.errors import ArtifactError, BusyError
from hardneg.experiment.folder import write_settings
from hardneg.experiment.layout import Layout
from hardneg.recipes import catalogue
from hardneg.recipes.catalogue import RecipeFacts
from hardneg.recipes.settings import TrainingSettings
from hardneg.storage.disk import NEW, OLD, TEMPORARY
from worlds.tiny_world import one_thread  # noqa: F401


@pytest.fixture(scope="module")
def two(execute):
    """An experiment of two episodes."""
    return execute(episodes=2)


@pytest.fixture
def finished(two, tmp_path):
    """A copy of it, to be spoilt."""
    return Path(shutil.copytree(two.path, tmp_path / "exp"))


def left_by_the_dead(path, role, text="half"):
    """A temporary of a process that is no more."""
    dead = name_of_the_dead(path, role)
    dead.mkdir(parents=True)
    (dead / "file.txt").write_text(text)
    return dead


def name_of_the_dead(path, role):
    """What such a process called its temporary."""
    return path.with_name(f"{TEMPORARY}{role}-{path.name}-{dead_pid()}@{socket.gethostname()}")


def kinds(report):
    return sorted({item["kind"] for item in report["items"]})


def names(folder):
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*")}


def test_what_the_user_put_into_the_cache_stays(finished, tmp_path):
    for place in ("tokens/my-notes.txt", "embeddings/mine/thesis.txt"):
        (finished / "cache" / place).parent.mkdir(parents=True, exist_ok=True)
        (finished / "cache" / place).write_text("mine")
    report = hn.clean(finished, delete=True)
    assert "embeddings" in kinds(report)
    assert (finished / "cache/tokens/my-notes.txt").read_text() == "mine"
    assert (finished / "cache/embeddings/mine/thesis.txt").read_text() == "mine"


@pytest.mark.parametrize("linked", ["cache", "cache/embeddings"])
def test_links_lead_to_what_is_others(finished, tmp_path, linked):
    elsewhere = shutil.move(finished / linked, tmp_path / "elsewhere")
    (finished / linked).symlink_to(elsewhere)
    before = names(tmp_path / "elsewhere")
    report = hn.clean(finished, delete=True)
    assert "embeddings" not in kinds(report)
    assert names(tmp_path / "elsewhere") == before


def test_a_link_has_its_own_size(finished, tmp_path):
    checkpoint = finished / "episodes/1/checkpoint"
    shutil.rmtree(checkpoint, ignore_errors=True)
    (tmp_path / "large").mkdir()
    (tmp_path / "large/file").write_bytes(b"x" * 10_000)
    checkpoint.symlink_to(tmp_path / "large")
    found = next(one for one in hn.clean(finished)["items"] if one["path"] == str(checkpoint))
    assert found["bytes"] < 1000


def test_nothing_is_deleted_unless_asked(finished):
    before = names(finished)
    report = hn.clean(finished)
    assert report["finished"]
    assert not report["deleted"]
    assert kinds(report) == ["bm25", "checkpoints", "embeddings", "tokens"]
    assert report["bytes"] == sum(item["bytes"] for item in report["items"]) > 0
    assert names(finished) - {".lock"} == before - {".lock"}


def test_what_goes_is_made_again_and_the_results_stand(world, execute, whole, two, finished, hardneg):
    report = hn.clean(finished, delete=True)
    assert report["deleted"]
    gone = {item["path"] for item in report["items"]}
    assert not [place for place in gone if Path(place).exists()]
    assert names(two.path) - names(finished) == {
        name for name in names(two.path) if any(str(finished / name).startswith(place) for place in gone)
    }
    assert hn.clean(finished)["items"] == []
    assert hn.verify(finished)["whole"]
    assert hardneg("inspect", finished)[0] == 0
    assert execute(finished, episodes=2).results == two.results
    longer = execute(finished)
    assert longer.results == whole.results
    for name in ("model/model.safetensors", "episodes/3/negatives/passage_rows.npy", "results.json"):
        assert (finished / name).read_bytes() == (whole.path / name).read_bytes()
    assert hn.verify(finished)["whole"]


def test_the_checkpoint_of_a_recipe_with_one_episode_goes(world, tmp_path):
    said = {"preset": "demo", "steps": 2, "queries_per_step": 2, "depth": 5}
    said |= {"query_length": None, "passage_length": None}
    train = partial(hn.train_star, world.collection, world.calm, tmp_path / "exp", device="cpu", **said)
    train()
    report = hn.clean(tmp_path / "exp", delete=True)
    assert "checkpoints" in kinds(report)
    assert not list((tmp_path / "exp").rglob("*optimizer*"))
    assert hn.verify(tmp_path / "exp")["whole"]
    assert "RR@5" in train(measures="RR@5")["test"]["final"], "it is measured anew without the checkpoint"


@pytest.mark.parametrize("one_episode", [True, False])
def test_the_checkpoint_of_a_new_recipe_goes_if_its_facts_say_so(tmp_path, monkeypatch, one_episode):
    facts = RecipeFacts("new", "A new recipe.", ("hardneg train new",), one_episode=one_episode)
    monkeypatch.setattr(catalogue, "CATALOGUE", (*catalogue.CATALOGUE, facts))
    write_settings(tmp_path, {"recipe": "new", "inputs": {}, "result_settings": {}})
    checkpoint = Layout(tmp_path).episode(1).checkpoints
    checkpoint.mkdir(parents=True)
    assert list(old_checkpoints(Layout(tmp_path))) == []  # it is not finished
    Layout(tmp_path).results.write_text("{}")
    assert list(old_checkpoints(Layout(tmp_path))) == [checkpoint] * one_episode


def test_nothing_extends_a_recipe_of_one_episode():
    single = {facts.name for facts in catalogue.CATALOGUE if facts.one_episode}
    assert single == {"star", "adore"}
    for name in single:
        assert RECIPES[name].settings.may_grow is TrainingSettings.may_grow


def test_of_an_unfinished_experiment_only_what_the_dead_left_goes(finished):
    (finished / "results.json").unlink()
    draft = left_by_the_dead(finished / "episodes/3/model", NEW)
    report = hn.clean(finished, delete=True)
    assert not report["finished"]
    assert [(item["path"], item["kind"]) for item in report["items"]] == [(str(draft), "temporary")]
    assert not draft.exists()
    assert (finished / "episodes/2/checkpoint").is_dir()


def test_what_stepped_aside_and_was_never_replaced_comes_back(finished):
    place = finished / "episodes/1/negatives"
    place.rename(name_of_the_dead(place, OLD))
    hn.clean(finished, delete=True)
    assert place.is_dir()
    assert hn.verify(finished)["whole"]


HOLDER = """
import sys, time
from pathlib import Path
from hardneg.storage.artifacts import lease
with lease(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(60)
"""


def test_an_experiment_in_use_is_left_alone(finished, hardneg):
    holder = run_python(HOLDER, finished)
    try:
        assert holder.stdout.readline() == "held\n"
        before = names(finished)
        with pytest.raises(BusyError, match=f"IN_USE: in use by process {holder.pid} "):
            hn.clean(finished, delete=True)
        assert hardneg("clean", finished, "--yes")[0] == 6
        assert names(finished) == before
    finally:
        holder.kill()
        holder.communicate()


def test_only_an_experiment_is_cleaned(tmp_path):
    (tmp_path / "cache/tokens").mkdir(parents=True)
    with pytest.raises(ArtifactError, match=r"NOT_EXPERIMENT: there is no settings\.json here"):
        hn.clean(tmp_path, delete=True)
    assert (tmp_path / "cache/tokens").is_dir()


def test_the_command_lists_and_deletes(finished, hardneg):
    status, out, err = hardneg("clean", finished)
    assert (status, err) == (0, "")
    assert "can be deleted with --yes" in out
    status, out, err = hardneg("clean", finished, "--yes")
    assert (status, err) == (0, "")
    assert " bytes (" in out
    assert out.endswith("deleted\n")
    assert hardneg("clean", finished)[1] == "nothing to delete\n"


def test_all_seeds_are_cleaned_at_once(finished, tmp_path):
    for seed in (1, 2):
        shutil.copytree(finished, tmp_path / f"seeds/seed-{seed}")
    report = hn.clean(tmp_path / "seeds", delete=True)
    assert report["finished"]
    assert {Path(item["path"]).relative_to(tmp_path / "seeds").parts[0] for item in report["items"]} == {
        "seed-1",
        "seed-2",
    }
