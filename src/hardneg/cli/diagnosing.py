"""The commands that show what training did: ``diagnose`` and ``show``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from hardneg.cli.options import CacheOption, MaybeData, begin, show


def diagnose(
    experiments: Annotated[list[Path], typer.Argument(help="An experiment's folder.", metavar="EXP...")],
    data: MaybeData = None,
    pictures: Annotated[bool, typer.Option(help="Also write each chart as PNG and SVG.")] = True,
    cache: CacheOption = None,
) -> None:
    """Make the report of an experiment: EXP/report.html and EXP/figures."""
    begin()
    from hardneg.api.diagnose import diagnose as execute

    for experiment in experiments:
        report = execute(experiment, data, pictures=pictures, cache=cache)
        show(f"{report.verdict.sentence}\n{report.path}")
