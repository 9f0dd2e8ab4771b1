"""A publish that is killed at any step leaves a whole artefact or none, and the next publish deletes leftovers."""

import os
import signal
import socket

import pytest

from faults.injected import dead_pid, run_python, temporaries
from faults.small_artefact import make, text_of
from hardneg.errors import ArtifactError
from hardneg.storage.artifacts import (
    TEMPORARY,
)

pytestmark = pytest.mark.usefixtures("flushes")

CRASH = """
import os, sys
from pathlib import Path
from hardneg.storage import artifacts

folder, kind = Path(sys.argv[1]), sys.argv[2]
path = folder / "place"

def write(text):
    if kind == "file":
        artifacts.write_json(path, text)
    else:
        with artifacts.publish(path, "pool", replace=True) as draft:
            draft.json("a/text.json", text)
            draft.json("b.json", text)

def read():
    if kind == "file":
        return artifacts.read_json(path)
    artifacts.open_artifact(path, "pool")
    return artifacts.read_json(path / "a/text.json")

def die_at(steps):
    left = [steps]
    def wrapped(real):
        def call(*arguments, **options):
            if left[0] == 0:
                os._exit(9)
            left[0] -= 1
            return real(*arguments, **options)
        return call
    for name in ("mkdir", "fsync", "rename", "replace", "unlink", "rmdir"):
        setattr(os, name, wrapped(getattr(os, name)))

def survivors():
    return [p.name for p in folder.iterdir() if p != path]

def child(steps):
    pid = os.fork()
    if pid == 0:
        die_at(steps)
        write("new")
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

for old in (False, True):
    steps = 0
    while True:
        if old:
            write("old")
        status = child(steps)
        seen = read() if path.exists() else None
        assert seen in ("old", "new", None), (old, steps, seen)
        assert len(survivors()) <= 2
        try:  # whatever comes next at this place sweeps, even if it fails
            with artifacts.publish_file(path) if kind == "file" else artifacts.publish(path, "x", replace=True):
                raise ZeroDivisionError
        except ZeroDivisionError:
            pass
        assert survivors() == [], (old, steps, survivors())
        assert path.exists() or not old, (old, steps)
        after = read() if path.exists() else None
        assert after in ("old", "new", None) and not (seen == "new" and after == "old"), (old, steps, seen, after)
        assert status in (0, 9)
        if status == 0:
            assert after == "new"
            break
        steps += 1
        if path.is_dir():
            artifacts.remove(path)
        path.unlink(missing_ok=True)
    print(steps)
    artifacts.remove(path)
"""


@pytest.mark.parametrize(("kind", "least"), [("folder", 8), ("file", 2)])
def test_killed_at_any_step_it_is_whole_or_absent_and_the_next_publish_sweeps(tmp_path, kind, least):
    (tmp_path / "place").mkdir()  # the cache of digests, which a slow machine makes use of, stands elsewhere
    child = run_python(CRASH, tmp_path / "place", kind)
    out, _ = child.communicate(timeout=300)
    assert child.returncode == 0
    assert all(int(steps) >= least for steps in out.split())  # that many places to die were tried
    assert len(out.split()) == 2


SLOW_WRITER = """
import sys, time
from pathlib import Path
from hardneg.storage import artifacts
with artifacts.publish(Path(sys.argv[1]), "pool") as draft:
    draft.json("a.json", 1)
    print("writing", flush=True)
    time.sleep(60)
"""


def test_a_killed_process_leaves_a_temporary_that_the_next_publish_sweeps(tmp_path):
    child = run_python(SLOW_WRITER, tmp_path / "pool")
    assert child.stdout.readline() == "writing\n"
    alive = temporaries(tmp_path)
    assert len(alive) == 1
    make(tmp_path / "other")
    make(tmp_path / "pool")  # while it lives, its draft is its own
    assert temporaries(tmp_path) == alive
    child.send_signal(signal.SIGKILL)
    child.wait()
    child.stdout.close()
    assert temporaries(tmp_path) == alive
    make(tmp_path / "pool", "two", replace=True)
    assert temporaries(tmp_path) == []
    assert text_of(tmp_path / "pool") == "two"


def test_an_old_artefact_that_stepped_aside_for_one_that_never_came_is_put_back(tmp_path):
    path = make(tmp_path / "pool", "old")
    os.rename(path, tmp_path / f"{TEMPORARY}old-pool-{dead_pid()}@{socket.gethostname()}")
    with pytest.raises(ArtifactError, match="EXISTS"):
        make(path, "new")
    assert text_of(path) == "old"
    assert temporaries(tmp_path) == []
