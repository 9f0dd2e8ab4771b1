"""The commands that show what training did: ``diagnose`` and ``show``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from hardneg.cli.options import CacheOption, MaybeData, begin, option, show

ExperimentsArgument = Annotated[list[Path], typer.Argument(help="Folders of experiments.", metavar="EXP...")]


def diagnose(
    experiments: ExperimentsArgument,
    data: MaybeData = None,
    out: Annotated[
        Path | None, option(help="The page of several experiments (default: side-by-side.html).", metavar="FILE")
    ] = None,
    pictures: Annotated[bool, option(help="Also write each chart as PNG and SVG.")] = True,
    cache: CacheOption = None,
) -> None:
    """Make the report of experiments, one or several."""
    begin()
    from hardneg.api.diagnose import compare_experiments
    from hardneg.api.diagnose import diagnose as execute
    from hardneg.experiment.layout import Layout

    if len(experiments) == 1:
        report = execute(experiments[0], data, out=out, pictures=pictures, cache=cache)
        show(f"{report.verdict.sentence}\n{Layout(experiments[0]).report if out is None else out}")
        return
    page = Path("side-by-side.html") if out is None else out
    several = compare_experiments(experiments, data, out=page, cache=cache)
    show(f"{several.verdict.sentence}\n{page}")


def show_command(
    experiments: ExperimentsArgument,
    data: MaybeData = None,
    cache: CacheOption = None,
) -> None:
    """Print the verdict and tables of an experiment."""
    begin()
    from hardneg.api.diagnose import compare_opened, open_reports
    from hardneg.cli.tables import report_text

    reports = open_reports(experiments, data, cache)
    texts = [report_text(one, str(one.opened.path)) for one in reports]
    if len(reports) > 1:
        texts.append(report_text(compare_opened(reports), "side by side"))
    show("\n\n".join(texts))
