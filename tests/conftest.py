"""Shared fixtures: where the real collections are, and the command line in this process."""

import copy
import gc
import logging
import os
import signal
import warnings
from collections import OrderedDict
from pathlib import Path

import pytest

import collector
import unflushed.sitecustomize

os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
# Waiting threads sleep: while other programs ran, spinning threads made these tests ten times as slow.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
os.environ.setdefault("HARDNEG_REPORT", "0")  # nobody reads reports of trainings in tests

UNFLUSHED = str(Path(unflushed.sitecustomize.__file__).parent)
PLACES = [place for place in os.environ.get("PYTHONPATH", "").split(os.pathsep) if place not in ("", UNFLUSHED)]
os.environ["PYTHONPATH"] = os.pathsep.join([UNFLUSHED, *PLACES])

ALONE = os.environ.get("HARDNEG_TEST_SHARED") == "0"  # behave as if the real collections were absent
SHARED = Path(os.devnull if ALONE else Path(__file__).resolve().parents[2] / "shared" / "data")
PRECISIONS = ("float32", "bfloat16")
SMALL = 8 << 20  # bytes


@pytest.hookimpl(wrapper=True)
def pytest_collection():
    """Collect no garbage while tests are collected, and then pass over all that is there."""
    gc.disable()
    try:
        return (yield)
    finally:
        collector.rest()
        gc.enable()


@pytest.fixture(scope="session", autouse=True)
def sketched():
    """Publish a stub in place of the learning curve, which takes a quarter of the time of a tiny experiment.

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
    """Copy small models and tokenizers that were read before in memory: to read their files takes longer."""
    from hardneg.models import tower

    known = OrderedDict()

    def once(real):
        def read(folder, *source):
            files = sorted(file for file in Path(folder).rglob("*") if file.is_file())
            stats = [file.stat() for file in files]
            if sum(stat.st_size for stat in stats) > SMALL or any(file.suffix == ".py" for file in files):
                return real(folder, *source)
            states = [(stat.st_ino, stat.st_size, stat.st_mtime_ns) for stat in stats]
            key = (real, *source, *zip(files, states, strict=True))
            if key not in known:
                known[key] = real(folder, *source)
                if len(known) > 16:
                    known.popitem(last=False)
            known.move_to_end(key)
            return copy.deepcopy(known[key])

        return read

    with pytest.MonkeyPatch.context() as patch:
        for name in ("read_transformer", "read_tokenizer"):
            patch.setattr(tower, name, once(getattr(tower, name)))
        yield


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    """Give each test its own cache, so that no test reads or writes the user's."""
    monkeypatch.setenv("HARDNEG_CACHE", str(tmp_path / "cache"))


@pytest.fixture(params=PRECISIONS)
def precision(request, monkeypatch):
    """Run the test twice: as on a machine without hardware for bfloat16, and as on one with it.

    Without such hardware bfloat16 is emulated. The variable also reaches processes that the test starts.
    """
    monkeypatch.setenv("HARDNEG_PRECISION", request.param)
    return request.param


@pytest.fixture
def in_float32(monkeypatch):
    """Compute in float32, for comparisons with float32 or exact values, which would say nothing in bfloat16."""
    monkeypatch.setenv("HARDNEG_PRECISION", "float32")


@pytest.fixture
def flushes(monkeypatch):
    """Really flush to the disk, here and in processes that the test starts, for tests about flushing."""
    monkeypatch.setattr(os, "fsync", os.fsync.real)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(PLACES))


@pytest.fixture
def nfs(tmp_path):
    """Let files below the test's folder, its cache included, be deleted as on NFS (:class:`faults.nfs.Nfs`)."""
    from faults.nfs import Nfs

    with Nfs(tmp_path).mounted() as mounted:
        yield mounted


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    """A tiny collection and the folder of a tiny model; ``root`` is where they lie."""
    from worlds.tiny_world import tiny_world

    return tiny_world(tmp_path_factory.mktemp("world"))


@pytest.fixture(scope="module")
def calm(tmp_path_factory):
    """A world like ``world``, whose model has no dropout."""
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
    """Run a command in this process; gives status, stdout and stderr. Its changes to the process are undone."""
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
    """Turn progress off after a test, because a command that the test ran in this process turns it on."""
    from hardneg.process import progress

    yield
    progress.enabled = False
