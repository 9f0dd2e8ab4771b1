"""A second process that helps to read blocks of passages, if a corpus is large and a second CPU is usable.

Both processes read a block to the same result, and blocks stay in order. A block is sent to the helper through a
pipe that has room for all blocks that wait in it, so sending never blocks this process. If the helper ends early,
this process reads the helper's blocks itself.
"""

from __future__ import annotations

import contextlib
import fcntl
import marshal
import os
import select
import subprocess
import sys
from collections import deque
from collections.abc import Generator, Iterator
from typing import IO, Any

from hardneg.data.formats.moulds import MOST
from hardneg.data.ready import BlockReader, ReadyBlock
from hardneg.data.record_source import PassageLines, PassagePart
from hardneg.process.threads import usable_cpus
from hardneg.surroundings import places_of_modules

ALONE = 64  # blocks that are read before a helper is started, which takes some tenths of a second
ROOM = 1 << 20  # bytes of a pipe
WAITING = 2  # blocks that the helper has at most
HEAD = 8  # bytes of a message's length
AHEAD = 6  # blocks that wait to be written, at most

Found = tuple[PassagePart, ReadyBlock | None]


def ready_parts(parts: Iterator[PassagePart]) -> Generator[Found, None, None]:
    """Yield each part, in order, with its block ready to be written; None: its records must be read one by one.

    Parts that come before a fault of the source are yielded before it is raised.
    """
    reading = _Reading()
    try:
        for part in parts:
            if isinstance(part, PassageLines) and len(part.data) <= MOST:
                reading.add(part)
                yield from reading.found(AHEAD)
            else:
                yield from reading.found(0)
                yield part, None
        yield from reading.found(0)
    except Exception:
        yield from reading.found(0)
        raise
    finally:
        reading.close()


class _Reading:
    """Parts that are read, here or by a helper, and not yet given out."""

    def __init__(self) -> None:
        self.reader, self.helper = BlockReader(), Helper()
        self.seen, self.many = 0, usable_cpus() > 1
        self.waiting: deque[tuple[PassageLines, ReadyBlock | None, bool]] = deque()  # True: the helper has it

    def add(self, part: PassageLines) -> None:
        """Read a part, or let the helper."""
        self.seen += 1
        if self.many and self.seen > ALONE and self.helper.take(part):
            self.waiting.append((part, None, True))
        else:
            self.waiting.append((part, self.reader.read(part.data, part.fields), False))

    def found(self, most: int) -> Iterator[Found]:
        """Yield the first parts; wait for the helper only while more than ``most`` parts are left."""
        while self.waiting and (len(self.waiting) > most or not self.waiting[0][2] or self.helper.has_read()):
            part, block, given = self.waiting.popleft()
            if given:
                try:
                    block = self.helper.result()
                except (OSError, EOFError):
                    block = self.reader.read(part.data, part.fields)
            yield part, block
            del part, block  # otherwise they would stay in memory while the next ones are read

    def close(self) -> None:
        """End the helper."""
        self.helper.close()


class Helper:
    """Another process that reads blocks in their order; it is started with the first one."""

    def __init__(self) -> None:
        self.process: subprocess.Popen[bytes] | None = None
        self.sent: deque[int] = deque()  # bytes of each message that the process has not answered
        self.gone = False

    def take(self, part: PassageLines) -> bool:
        """Send the process a block, unless it has enough; returns whether the block was sent."""
        if self.gone or len(self.sent) >= WAITING:
            return False
        message = marshal.dumps((part.data, dict(part.fields)))
        size = len(message) + HEAD
        if sum(self.sent) + size > ROOM // 4 * 3:  # the last page of a message may be filled in part only
            return False
        try:
            stdin = (self.process or self._start()).stdin
            assert stdin is not None
            _send(stdin, message)
        except OSError:
            self.gone = True
            return False
        self.sent.append(size)
        return True

    def _start(self) -> subprocess.Popen[bytes]:
        """Start the process. Signals of the terminal do not reach it; it ends when this one's pipe closes."""
        same = {**os.environ, "PYTHONPATH": places_of_modules()}  # so that it finds this very package
        self.process = subprocess.Popen(
            [sys.executable, "-P", "-m", "hardneg.data.helper"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=same,
            start_new_session=True,
        )
        for stream in (self.process.stdin, self.process.stdout):
            fcntl.fcntl(stream, fcntl.F_SETPIPE_SZ, ROOM)  # type: ignore[arg-type]
        return self.process

    def has_read(self) -> bool:
        """Whether a result of the process can be read, or the process has ended."""
        if self.process is None or self.process.stdout is None:
            return True
        return bool(select.select([self.process.stdout], [], [], 0)[0])

    def result(self) -> ReadyBlock | None:
        """The next block that the process has read; raises :class:`EOFError` if the process has ended."""
        if self.process is None or self.process.stdout is None:
            raise EOFError
        try:
            found = _receive(self.process.stdout)
        except (OSError, EOFError):
            self.gone = True
            raise
        self.sent.popleft()
        return None if found is None else ReadyBlock(*found)

    def close(self) -> None:
        """End the process, whatever it is doing."""
        if self.process is None:
            return
        self.process.kill()
        for stream in (self.process.stdin, self.process.stdout):
            with contextlib.suppress(OSError):
                if stream is not None:
                    stream.close()
        self.process.wait()


def _send(stream: IO[bytes], message: bytes) -> None:
    stream.write(len(message).to_bytes(HEAD, "little") + message)
    stream.flush()


def _receive(stream: IO[bytes]) -> Any:
    """The next message; raises :class:`EOFError` if there is none, or half of one."""
    size = int.from_bytes(stream.read(HEAD), "little")
    message = stream.read(size)
    if not size or len(message) < size:
        raise EOFError
    return marshal.loads(message)


def serve() -> None:
    """Read blocks for the process that started this one, until it ends."""
    reader = BlockReader()
    with contextlib.suppress(OSError, EOFError):
        while asked := _receive(sys.stdin.buffer):
            found = reader.read(*asked)
            _send(sys.stdout.buffer, marshal.dumps(None if found is None else tuple(found)))


if __name__ == "__main__":
    serve()
