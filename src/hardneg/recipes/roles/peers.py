"""Communication between the roles of an experiment: signs of life, waiting, and models that are published."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol, TypeVar

import torch

from hardneg.errors import ArtifactError, PeerError
from hardneg.experiment.folder import Experiment
from hardneg.experiment.snapshot import RESTORE
from hardneg.models.bi_encoder import BiEncoder
from hardneg.models.loading import load_encoder
from hardneg.models.saving import save_encoder
from hardneg.process.distributed import by_leader, look_for_others
from hardneg.process.progress import pulse
from hardneg.process.signals import stop_flag
from hardneg.storage.artifacts import is_published
from hardneg.storage.lease import Heartbeat, Observer

log = logging.getLogger(__name__)

T = TypeVar("T")

TRAINER, INFERENCER = "trainer", "inferencer"
POLL_SECONDS = 0.1
LOOK_SECONDS = 5.0  # after so long, whoever waits looks whether the other processes of its group live
BEAT_SECONDS = 0.5


class Supervisor(Protocol):
    """A supervisor of the roles of an experiment: it says whether they still work, and raises if one failed."""

    def __call__(self, done: int, *, both: bool = False) -> bool:
        """See :class:`~hardneg.recipes.roles.supervision.Team`."""
        ...


# ---------------------------------------------------------------- signs of life


class RoleHeartbeat(Heartbeat):
    """The heartbeat of a role; observers measure by their own clock how long it is silent."""

    def __init__(self, path: Path, name: str) -> None:
        super().__init__(path)
        self.name = name

    @contextmanager
    def beating(
        self, progress: Callable[[], int], *, every: float = BEAT_SECONDS, last: int = -1
    ) -> Iterator[None]:
        """Beat while the block runs and ``progress`` grows, so that a process that hangs falls silent.

        Parameters
        ----------
        every : seconds between two looks.
        last : the progress that is no news.
        """
        done = threading.Event()

        def work(last: int = last) -> None:
            while not done.wait(every):
                if (now := progress()) != last:
                    last = now
                    self.touch(now)

        thread = threading.Thread(target=work, daemon=True)
        thread.start()
        try:
            yield
        finally:
            done.set()
            thread.join()


def heartbeat_of(experiment: Experiment, role: str) -> RoleHeartbeat:
    """The heartbeat of a role of an experiment."""
    return RoleHeartbeat(experiment.layout.beat(role), role)


# ---------------------------------------------------------------- waiting for a peer


class Wait(Protocol):
    """A function that blocks until ``ready`` returns something."""

    def __call__(self, ready: Callable[[], T | None], what: str) -> T:
        """Wait, and return the result of ``ready``; ``what`` names it in messages."""
        ...


def wait_for_peer(beat: RoleHeartbeat, seconds: float) -> Wait:
    """Make a function that waits as long as the peer is alive, that is, its heartbeat changes within ``seconds``.

    Raises
    ------
    PeerError : the peer, or another process of this one's group, is dead or hung (exit 8).
    """

    def wait(ready: Callable[[], Any], what: str) -> Any:
        if (found := ready()) is not None:
            return found
        start = looked = time.monotonic()
        observer = Observer(beat)
        while (found := ready()) is None:
            stop_flag.check()
            pulse()
            if time.monotonic() - looked > LOOK_SECONDS:
                look_for_others()
                looked = time.monotonic()
            if observer.silence() > seconds:
                fault = f"no sign of life of the {beat.name} for {seconds:.0f} s, while waiting for {what}"
                raise PeerError(
                    "PEER_SILENT", fault, "look at its log, and run the same command again", path=beat.path
                )
            time.sleep(POLL_SECONDS)
        if (waited := time.monotonic() - start) > 1:
            log.info("waited %.1f s for %s", waited, what)
        return found

    return wait


def no_wait(ready: Callable[[], Any], what: str) -> Any:
    """Return what ``ready`` gives, without waiting: this process made it itself."""
    found = ready()
    assert found is not None, what
    return found


def timed_wait(experiment: Experiment, wait: Wait) -> Wait:
    """Make ``wait`` record in ``timing.jsonl`` how long it took."""

    def waiting(ready: Callable[[], T | None], what: str) -> T:
        if (found := ready()) is not None:
            return found
        with experiment.timed("wait", what=what):
            return wait(ready, what)

    return waiting


# ---------------------------------------------------------------- models to mine with


def publish_model(encoder: BiEncoder, experiment: Experiment, step: int) -> None:
    """Publish the model of a step for mining, unless it is published already."""
    path = experiment.layout.exported(step)
    if not by_leader(is_published, path):
        by_leader(save_encoder, encoder, path, inputs={"step": str(step)})


def published_model(experiment: Experiment, step: int, device: torch.device) -> BiEncoder:
    """Load the model of a step that was published for mining.

    Raises
    ------
    ArtifactError : it was deleted, because the negatives that it mined were published; these are gone since.
    """
    path = experiment.layout.exported(step)
    if not is_published(path):
        what = f"the negatives that the model of step {step} mined are gone, and the model is gone, too"
        raise ArtifactError("MISSING_FILE", what, RESTORE, path=experiment.layout.versions)
    return load_encoder(str(path), device=device)
