"""ANCE that keeps few versions of its negatives: nothing else differs, however often it is interrupted."""

import json

import pytest

import hardneg as hn
from faults.power import power_cut
from hardneg.api.diagnose import opened_at
from hardneg.errors import ArtifactError
from hardneg.report.facts_time import gap_table
from hardneg.storage.artifacts import remove
from hardneg.training.checkpoint import checkpoints
from worlds.tiny_world import COMMON, one_thread  # noqa: F401

SMALL = {"refresh_every": 2, "refreshes": 4, "checkpoint_every": 1, "measures": "RR@10"}


@pytest.fixture(scope="module")
def train(world, tmp_path_factory):
    cache = tmp_path_factory.mktemp("cache")

    def run(out, **changes):
        where = {"data": world.collection, "model": world.calm, "out": out, "cache": cache}
        return hn.train("ance", **where, **COMMON | SMALL | changes)

    return run


@pytest.fixture(scope="module")
def all_kept(train, tmp_path_factory):
    path = tmp_path_factory.mktemp("experiment") / "all"
    return path, train(path)


def rows_of(file):
    return [json.loads(line) for line in file.read_text().splitlines()]


def versions_in(path):
    return sorted(folder.name for folder in path.glob("versions/v*"))


@pytest.mark.slow
def test_old_versions_go_and_the_results_stay(train, all_kept, tmp_path):
    path, results = all_kept
    out = tmp_path / "few"
    assert train(out, keep_versions=1) == results
    assert results["informative"].keys() == {"refresh-1", "refresh-2", "refresh-3", "refresh-4", "final"}
    assert (out / "metrics.jsonl").read_bytes() == (path / "metrics.jsonl").read_bytes()
    assert versions_in(path) == ["v0000", "v0001", "v0002", "v0003", "v0004"]
    assert versions_in(out) == ["v0003", "v0004"]  # the last was mined by what was trained on the one before
    assert not list(out.glob("models/step-*"))
    assert hn.verify(out)["whole"]
    told = [(row["step"], row["negative_version"], row["async_gap"]) for row in rows_of(out / "metrics.jsonl")]
    assert gap_table(opened_at(out)).rows == tuple(told), "also of steps whose version was deleted"


def test_without_its_checkpoints_it_does_not_wait_for_what_was_deleted(train, tmp_path):
    out = tmp_path / "few"
    train(out, keep_versions=1, horizon=40)
    for checkpoint in checkpoints(out / "episodes/1/checkpoint"):
        remove(checkpoint)
    with pytest.raises(ArtifactError, match="MISSING_FILE: the checkpoints are missing"):
        train(out, keep_versions=1, horizon=40, refreshes=5)


@pytest.mark.parametrize("at", [5, *(pytest.param(at, marks=pytest.mark.slow) for at in (6, 8))])
def test_interrupted_it_mines_nothing_anew(train, all_kept, tmp_path, at):
    out = tmp_path / "few"
    with power_cut(at):
        train(out, keep_versions=1)
    kept = versions_in(out)
    oldest = int(checkpoints(out / "episodes/1/checkpoint")[0].name[5:])
    used = [row["negative_version"] for row in rows_of(out / "metrics.jsonl")]
    assert kept[0] != "v0000"
    assert {f"v{version:04d}" for version in used[oldest:]} <= set(kept)
    assert train(out, keep_versions=1) == all_kept[1]
    mined = [row["version"] for row in rows_of(out / "timing.jsonl") if row["stage"] == "mine"]
    assert sorted(mined) == [0, 1, 2, 3, 4]
