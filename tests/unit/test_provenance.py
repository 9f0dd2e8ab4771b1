"""An experiment remembers the place of its collection, and notices if the collection is no longer there."""

import json
import os
import shutil

import pytest

import hardneg as hn
from hardneg.errors import ArtifactError, InputError, SettingsError
from hardneg.experiment.folder import write_settings
from hardneg.experiment.layout import PLACES
from hardneg.experiment.provenance import remember_collection
from worlds.tiny_world import tiny_collection


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    root = tmp_path_factory.mktemp("origin")
    collection = tiny_collection(root / "collection")
    hn.mine(collection, None, root / "pool", sources=["bm25"], count=2, cache=root / "cache")
    return root, collection


@pytest.fixture
def experiment(made, tmp_path):
    """What an experiment looks like that has mined a pool."""
    root, collection = made
    shutil.copytree(root / "collection", tmp_path / "collection")
    shutil.copytree(root / "pool", tmp_path / "exp/episodes/1/negatives")
    record = {"recipe": "ance-tele", "result_settings": {}, "inputs": {"collection": collection.digest}}
    write_settings(tmp_path / "exp", record)
    remember_collection(tmp_path / "exp", hn.Collection.open(tmp_path / "collection"))
    return tmp_path / "exp"


def other_collection(folder):
    shutil.rmtree(folder)
    hn.Collection.from_lists([("p", "other text")], {"q": "query"}, {"train": {"q": ["p"]}}, to=folder)


@pytest.mark.parametrize("inside", ["", "episodes/1/negatives"])
def test_an_experiment_and_a_pool_in_it_know_their_collection(experiment, made, inside):
    known = hn.inspect(experiment / inside, query_id="train-00")
    assert known == hn.inspect(experiment / inside, made[1], query_id="train-00")
    assert known[0]["negatives"]


def test_a_relative_path_is_remembered_whole(experiment, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    remember_collection(experiment, hn.Collection.open("collection"))
    assert json.loads((experiment / PLACES).read_text()) == {"collection": str(tmp_path / "collection")}


def test_a_collection_whose_name_is_not_utf_8_is_remembered(experiment, tmp_path, made):
    odd = tmp_path / os.fsdecode(b"coll\xe9")
    (tmp_path / "collection").rename(odd)
    remember_collection(experiment, hn.Collection.open(odd))
    assert hn.inspect(experiment, query_id="train-00")[0]["negatives"]


@pytest.mark.parametrize("place", [b"run\xe9", b"dir\xe9/run"])
def test_no_experiment_begins_where_no_model_can_be_read(made, hardneg, tmp_path, place):
    out = tmp_path / os.fsdecode(place)
    status, _, err = hardneg("train", "warmup", "--data", "x", "--model", "y", "--out", out)
    assert (status, err.startswith("BAD_SETTING: the path '")) == (2, True)
    assert err.endswith(" is not UTF-8; give a path that is UTF-8\n")


def test_nothing_is_written_that_is_known_already(experiment, tmp_path):
    before = (experiment / PLACES).stat().st_ino
    remember_collection(experiment, hn.Collection.open(tmp_path / "collection"))
    assert (experiment / PLACES).stat().st_ino == before


@pytest.mark.parametrize("damage", [lambda file: file.unlink(), lambda file: file.write_text('{"collection": 3}')])
def test_what_nobody_remembers_is_asked_for(experiment, hardneg, damage):
    damage(experiment / PLACES)
    status, _, said = hardneg("inspect", experiment)
    assert (status, said.count("\n")) == (2, 1)
    assert "NO_DATA: nothing here says where the collection is; give it with --data" in said


def test_a_named_query_and_random_ones_are_not_asked_for_together(experiment, hardneg):
    status, _, said = hardneg("inspect", experiment, "--query", "train-00", "--random", "2")
    assert (status, said.count("\n")) == (2, 1)
    assert "the query 'train-00' is named, and 2 random ones are asked for" in said


def test_a_pool_that_is_in_no_experiment_needs_the_collection(made):
    with pytest.raises(SettingsError, match=r"NO_DATA.*give it with data="):
        hn.inspect(made[0] / "pool")
    with pytest.raises(InputError, match="NOT_FOUND"):
        hn.inspect(made[0] / "nothing")


def test_a_collection_that_is_gone_is_asked_for(experiment, tmp_path, hardneg):
    (tmp_path / "collection").rename(tmp_path / "moved")
    status, _, said = hardneg("inspect", experiment)
    assert (status, said.count("\n")) == (2, 1)
    assert f"is not at {tmp_path / 'collection'} any more; give it with --data" in said
    assert hardneg("inspect", experiment, "--data", tmp_path / "moved")[0] == 0


def test_another_collection_in_its_place_is_not_taken(experiment, tmp_path, hardneg):
    other_collection(tmp_path / "collection")
    with pytest.raises(ArtifactError, match="INPUT_CHANGED"):
        hn.inspect(experiment)
    status, _, said = hardneg("inspect", experiment)
    assert (status, said.count("\n")) == (4, 1)
    assert "is another one now (digest " in said
    assert said.endswith("give it with --data\n")
