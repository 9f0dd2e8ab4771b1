"""The commands that show what training did: ``diagnose`` and ``show``."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from hardneg.cli.options import CacheOption, JsonOption, MaybeData, begin, option, show, show_result

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
    as_json: JsonOption = False,
) -> None:
    """Print the verdict and tables of an experiment.

    --json prints a list with the verdict and the whole tables of each. Of several experiments, the
    last entry is all of them side by side.
    """
    begin()
    from hardneg.api.diagnose import compare_opened, open_reports
    from hardneg.cli.tables import report_facts, report_text

    reports = open_reports(experiments, data, cache)
    named: list[tuple[Any, str]] = [(one, str(one.opened.path)) for one in reports]
    if len(reports) > 1:
        named.append((compare_opened(reports), "side by side"))
    tell: Callable[..., Any] = report_facts if as_json else report_text
    show_result([tell(*one) for one in named], as_json, "\n\n".join)
