"""Charts as PNG and SVG. A second process draws them if there is a second CPU.

Drawing holds Python's lock, so a thread would not help. If the second process fails, this one draws all that is
not drawn yet.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hardneg.process.threads import usable_threads
from hardneg.storage.artifacts import publish_file
from hardneg.surroundings import places_of_modules

SCALE = 2.0  # of PNG pictures
UNDRAWN = (RuntimeError, ValueError)  # what the package vl-convert raises for a chart that it cannot draw

Spec = dict[str, Any]  # a chart in the language of Vega-Lite


@dataclass
class Painter:
    """Draws charts as ``place``.png and ``place``.svg, while this process goes on where that helps.

    The pictures are there when :meth:`finish` has returned. Leaving the ``with`` block ends the other process.
    """

    charts: list[tuple[Path, Spec]] = field(default_factory=list)
    process: subprocess.Popen[bytes] | None = None
    sender: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(1))  # a full pipe makes it wait

    def add(self, place: Path, spec: Spec) -> None:
        """Draw a chart, now or later."""
        self.charts.append((place.resolve(), spec))
        if usable_threads() > 1:
            self.process = self.process or _start()
            self.sender.submit(_send, self.process, *self.charts[-1])

    def finish(self) -> dict[str, Exception]:
        """Wait until all charts are drawn, and draw those that the other process did not.

        Returns
        -------
        For the name of each chart that cannot be drawn, the fault.
        """
        self.sender.shutdown()
        if self.process is not None:
            self.process.communicate()
        undrawn: dict[str, Exception] = {}
        if self.process is None or self.process.returncode:
            for place, spec in self.charts:
                try:
                    draw(place, spec)
                except UNDRAWN as fault:  # the other charts and the page are there nevertheless
                    undrawn[place.name] = fault
        return undrawn

    def __enter__(self) -> Painter:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process is not None:
            self.process.kill()
        self.sender.shutdown(cancel_futures=True)
        if self.process is not None:
            with contextlib.suppress(OSError):
                self.process.communicate()


def draw(place: Path, spec: Spec) -> None:
    """Draw a chart as ``place``.png and ``place``.svg, on white."""
    import vl_convert

    spec = {**spec, "config": {**spec.get("config", {}), "background": "white"}}
    svg = vl_convert.vegalite_to_svg(spec)  # compiled once; the PNG is drawn from it
    with publish_file(place.with_name(f"{place.name}.svg")) as stream:
        stream.write(svg.encode())
    with publish_file(place.with_name(f"{place.name}.png")) as stream:
        stream.write(vl_convert.svg_to_png(svg, scale=SCALE))


def _start() -> subprocess.Popen[bytes]:
    """Start a process that draws until its pipe is closed; signals of the terminal do not reach it."""
    return subprocess.Popen(
        [sys.executable, "-P", "-m", __name__],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "PYTHONPATH": places_of_modules()},  # so that it finds this very package
        start_new_session=True,
    )


def _send(process: subprocess.Popen[bytes], place: Path, spec: Spec) -> None:
    """Tell the process what to draw; if it has ended, :meth:`Painter.finish` sees that by its exit status."""
    assert process.stdin is not None
    with contextlib.suppress(OSError):
        process.stdin.write(json.dumps([str(place), spec]).encode() + b"\n")
        process.stdin.flush()


def serve() -> None:
    """Draw the charts that the parent process sends, until it sends no more."""
    for line in sys.stdin.buffer:
        place, spec = json.loads(line)
        draw(Path(place), spec)


if __name__ == "__main__":
    serve()
