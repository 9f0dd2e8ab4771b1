"""Metrics: one object a logged step, on the disk, cut back to a checkpoint."""

import json
import os

import pytest

from hardneg.errors import ArtifactError, ResourceError
from hardneg.experiment.metrics import Metrics

pytestmark = pytest.mark.usefixtures("flushes")


def rows_of(*places):
    return [
        {"step": step, "episode": episode, "model": "retriever", "loss": 1 / (3 * step)}
        for episode, step in places
    ]


ROWS = rows_of((1, 1), (1, 2), (1, 3), (2, 1), (2, 2), (3, 1))


def test_metrics_are_appended_one_object_a_line(tmp_path):
    metrics = Metrics(tmp_path / "metrics.jsonl")
    assert metrics.read() == []
    metrics.append(ROWS[:2])
    metrics.append([])
    metrics.append(ROWS[2:])
    assert metrics.read() == ROWS
    assert [json.loads(line) for line in metrics.path.read_text().splitlines()] == ROWS


@pytest.mark.parametrize(
    ("episode", "step", "kept"), [(1, 0, 0), (1, 2, 2), (1, 99, 3), (2, 0, 3), (2, 1, 4), (3, 1, 6), (9, 0, 6)]
)
def test_metrics_are_cut_back_to_a_checkpoint(tmp_path, episode, step, kept):
    metrics = Metrics(tmp_path / "metrics.jsonl")
    metrics.append(ROWS)
    whole = metrics.path.read_bytes().splitlines(keepends=True)
    metrics.truncate(episode, {"retriever": step})
    assert metrics.path.read_bytes() == b"".join(whole[:kept])  # what is kept is kept to the byte


def test_cutting_nothing_back_makes_an_empty_file(tmp_path):
    metrics = Metrics(tmp_path / "metrics.jsonl")
    metrics.truncate(1, {"retriever": 0})
    assert metrics.read() == []
    assert metrics.path.read_bytes() == b""


@pytest.mark.parametrize("torn", ['{"step": 3, "epi', '{"step": 3, "episode": 2}', "{", "\0\0\0"])
def test_a_torn_last_line_is_forgotten(tmp_path, torn):
    metrics = Metrics(tmp_path / "metrics.jsonl")
    metrics.append(ROWS)
    whole = metrics.path.read_bytes()
    metrics.path.write_bytes(whole + torn.encode())
    assert metrics.read() == ROWS
    metrics.truncate(3, {"retriever": 1})
    assert metrics.path.read_bytes() == whole
    metrics.append(rows_of((3, 2)))
    assert metrics.read() == [*ROWS, *rows_of((3, 2))]


def test_a_damaged_line_before_the_last_is_named(tmp_path):
    metrics = Metrics(tmp_path / "metrics.jsonl")
    metrics.append(ROWS)
    lines = metrics.path.read_bytes().splitlines(keepends=True)
    metrics.path.write_bytes(b"".join([*lines[:2], b"\0\0\n", *lines[3:]]))
    with pytest.raises(ArtifactError, match=r"metrics\.jsonl:3: BAD_JSON: "):
        metrics.truncate(1, {"retriever": 1})


def test_metrics_hold_numbers_only(tmp_path):
    metrics = Metrics(tmp_path / "metrics.jsonl")
    with pytest.raises(ValueError, match="not JSON compliant"):
        metrics.append([{"step": 1, "episode": 1, "loss": float("nan")}])


def test_metrics_are_flushed_to_the_disk(tmp_path, monkeypatch):
    flushed, real = [], os.fsync
    monkeypatch.setattr(os, "fsync", lambda handle: (flushed.append(os.fstat(handle)), real(handle))[1])
    metrics = Metrics(tmp_path / "metrics.jsonl")
    metrics.append(ROWS)
    assert [(status.st_ino, status.st_size) for status in flushed] == [
        (metrics.path.stat().st_ino, metrics.path.stat().st_size)
    ]


def test_a_full_disk_under_the_metrics_is_told(tmp_path):
    if not os.path.exists("/dev/full"):
        pytest.skip("needs /dev/full")
    (tmp_path / "metrics.jsonl").symlink_to("/dev/full")
    with pytest.raises(ResourceError, match=r"metrics\.jsonl: DISK_FULL"):
        Metrics(tmp_path / "metrics.jsonl").append(ROWS)
