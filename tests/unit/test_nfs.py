"""On NFS a file that is deleted while it is mapped stays, and its folder with it: nothing may stop at that."""

from pathlib import Path

import numpy as np
import pytest

import hardneg as hn
from faults.injected import temporaries
from faults.nfs import HIDDEN
from hardneg.storage import disk
from hardneg.storage.artifacts import load_array, publish, verify
from hardneg.storage.disk import delete, remove
from worlds.small_trainings import train_small
from worlds.tiny_world import one_thread, tiny_collection  # noqa: F401


def fill(folder):
    """Publish an artefact of one array, and map it."""
    with publish(folder, "index", replace=True) as draft:
        draft.array("deep/values.npy", np.arange(5))
    return load_array(folder / "deep/values.npy")


def test_what_is_mapped_can_be_deleted_and_goes_when_it_is_released(nfs, tmp_path):
    mapped = fill(tmp_path / "one")
    remove(tmp_path / "one")
    assert mapped.tolist() == [0, 1, 2, 3, 4]
    (left,) = tmp_path.iterdir()
    delete(left)  # again, while NFS refuses
    assert left.exists()
    del mapped
    fill(tmp_path / "other")  # the next that is published beside it sweeps
    assert [place.name for place in tmp_path.iterdir()] == ["other"]


def test_what_is_mapped_can_be_replaced_again_and_again(nfs, tmp_path):
    mapped = [fill(tmp_path / "one") for _ in range(4)]
    assert len(nfs.kept) == 3
    assert [one.tolist() for one in mapped] == [[0, 1, 2, 3, 4]] * 4
    verify(tmp_path / "one")
    del mapped
    fill(tmp_path / "one")
    assert [place.name for place in tmp_path.iterdir()] == ["one"]


def test_what_nfs_keeps_in_a_draft_is_no_part_of_what_is_published(nfs, tmp_path):
    with publish(tmp_path / "one", "index") as draft:
        draft.array("parts/first.npy", np.arange(3))
        mapped = load_array(draft.path / "parts/first.npy")
        delete(draft.path / "parts")
        draft.array("values.npy", mapped)
    assert [*tmp_path.rglob(f"{HIDDEN}*")]
    assert verify(tmp_path / "one").files.keys() == {"values.npy"}


def test_a_folder_that_somebody_fills_meanwhile_is_a_fault(tmp_path, monkeypatch):
    (tmp_path / "one").mkdir()
    (tmp_path / "one/a").write_text("a")
    monkeypatch.setattr(disk, "point", lambda action, path, data=b"": (path.parent / "one/b").touch())
    with pytest.raises(OSError, match="not empty"):
        delete(tmp_path / "one")


@pytest.mark.parametrize("keep", ["last", "best"])
@pytest.mark.parametrize("recipe", ["ance-tele", "warmup", "star", "ance", "adore"])
def test_trainings_release_the_vectors_that_they_delete(nfs, world, tmp_path, recipe, keep):
    """Only weights of a model in use are replaced: those of a model are few, and vectors may be many."""
    train_small(recipe, world, tmp_path / "out", keep=keep)
    assert {Path(kept).name for kept in nfs.kept} <= {"model.safetensors"}
    assert hn.verify(tmp_path / "out")["whole"]


def test_data_are_imported_and_searched(nfs, world, tmp_path, hardneg):
    """An import replaces columns that it reads; no manifest names what stays of them for a while."""
    data = tiny_collection(tmp_path / "data").path
    assert {Path(kept).parent.name for kept in nfs.kept} == {"content"}
    nfs.kept.clear()
    nfs.expire(data / "content")
    verify(data)
    for model in (["--bm25"], ["--model", world.model]):
        status, _, said = hardneg("search", "--data", data, *model, "--query", "bade")
        assert status == 0, said
    assert nfs.kept == temporaries(tmp_path) == []
