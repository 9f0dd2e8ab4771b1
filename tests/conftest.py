"""Shared fixtures: where the real collections are, and the command line in this process."""

import copy
import logging
import os
import signal
import warnings
from collections import OrderedDict
from pathlib import Path

import pytest

import unflushed.sitecustomize

os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
# Threads that wait sleep: beside other programs, spinning ones made these tests ten times as slow.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
os.environ.setdefault("HARDNEG_REPORT", "0")  # what trains here is looked at by tests, not by people

UNFLUSHED = str(Path(unflushed.sitecustomize.__file__).parent)
PLACES = [place for place in os.environ.get("PYTHONPATH", "").split(os.pathsep) if place not in ("", UNFLUSHED)]
os.environ["PYTHONPATH"] = os.pathsep.join([UNFLUSHED, *PLACES])

ALONE = os.environ.get("HARDNEG_TEST_SHARED") == "0"  # as if nothing lay beside the project
SHARED = Path(os.devnull if ALONE else Path(__file__).resolve().parents[2] / "shared" / "data")
PRECISIONS = ("float32", "bfloat16")
SMALL = 8 << 20  # bytes


@pytest.fixture(scope="session", autouse=True)
def sketched():
    """A learning curve takes a quarter of the time of a tiny experiment: what is published in its place is a stub.

    The function that draws it is tested in ``test_results.py``, and its place in an experiment in ``test_api.py``.
    """
    from hardneg.diagnostics import results
    from hardneg.storage.artifacts import publish_file

    def sketch(path, *drawn, **named):
        with publish_file(path) as stream:
            stream.write(b"\x89PNG")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(results, "draw_learning_curve", sketch)
        yield


@pytest.fixture(scope="session", autouse=True)
def read_once():
    """A small model whose files were read before is copied in memory: transformers takes longer to read it."""
    from hardneg.models import tower

    known = OrderedDict()

    def read(folder, source, *, real=tower.read_transformer):
        files = sorted(file for file in Path(folder).rglob("*") if file.is_file())
        stats = [file.stat() for file in files]
        if sum(stat.st_size for stat in stats) > SMALL or any(file.suffix == ".py" for file in files):
            return real(folder, source)
        key = (source, *zip(files, ((stat.st_ino, stat.st_size, stat.st_mtime_ns) for stat in stats), strict=True))
        if key not in known:
            known[key] = real(folder, source)
            if len(known) > 8:
                known.popitem(last=False)
        return copy.deepcopy(known[key])

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tower, "read_transformer", read)
        yield


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    """No test reads or writes the user's cache."""
    monkeypatch.setenv("HARDNEG_CACHE", str(tmp_path / "cache"))


@pytest.fixture(params=PRECISIONS)
def precision(request, monkeypatch):
    """The test runs twice: as on a machine without hardware for bfloat16, and as on one with it.

    Where there is none bfloat16 is emulated. The variable reaches processes that the test starts, too.
    """
    monkeypatch.setenv("HARDNEG_PRECISION", request.param)
    return request.param


@pytest.fixture
def in_float32(monkeypatch):
    """For comparisons with what is computed in float32, and with the truth: in bfloat16 they say nothing."""
    monkeypatch.setenv("HARDNEG_PRECISION", "float32")


@pytest.fixture
def flushes(monkeypatch):
    """For tests about flushing: here, and in processes that the test starts, the disk is waited for."""
    monkeypatch.setattr(os, "fsync", os.fsync.real)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(PLACES))


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    """A tiny collection and the folder of a tiny model; ``root`` is where they lie."""
    from worlds.tiny_world import tiny_world

    return tiny_world(tmp_path_factory.mktemp("world"))


@pytest.fixture(scope="module")
def calm(tmp_path_factory):
    """The same without dropout."""
    from worlds.tiny_world import tiny_world

    return tiny_world(tmp_path_factory.mktemp("calm"), dropout=0.0)


@pytest.fixture(scope="session")
def shared_data():
    """The folder of real collections; the test is skipped where it is absent."""
    if not SHARED.is_dir():
        pytest.skip("the real collections are not here")
    return SHARED


@pytest.fixture
def hardneg(capsys, monkeypatch):
    """Run a command in this process: status, stdout, stderr; what it sets for the process is undone."""
    from hardneg import cli
    from hardneg.process import progress

    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    root = logging.getLogger()
    before = list(root.handlers)
    monkeypatch.setattr(progress, "enabled", False)
    monkeypatch.setattr(warnings, "formatwarning", warnings.formatwarning)

    def run(*arguments):
        for handler in [handler for handler in root.handlers if handler not in before]:
            root.removeHandler(handler)
        root.handlers = []
        with pytest.raises(SystemExit) as left:
            cli.main([str(argument) for argument in arguments])
        return left.value.code, *capsys.readouterr()

    yield run
    root.handlers = before
    for number, handler in handlers.items():
        signal.signal(number, handler)


@pytest.fixture(autouse=True)
def quiet():
    """A command that a test runs in this process turns reporting on; the next test must not find it so."""
    from hardneg.process import progress

    yield
    progress.enabled = False
