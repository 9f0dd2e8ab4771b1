"""The commands ``hardneg verify``, ``clean`` and ``doctor``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from hardneg.cli.options import (
    AllowBin,
    AllowCode,
    CacheOption,
    JsonOption,
    MaybeModel,
    begin,
    option,
    show_result,
)
from hardneg.errors import Faults


def verify(
    paths: Annotated[
        list[Path],
        typer.Argument(help="Artefacts, run files, experiments, or folders of them.", metavar="PLACE..."),
    ],
    as_json: JsonOption = False,
) -> None:
    """Verify the checksums of artefacts.

    Run files and experiments are checked, too.
    """
    begin()
    from hardneg.api.verify import verify_places
    from hardneg.cli.tables import verification_text

    report, faults = verify_places(paths)
    show_result(report, as_json, verification_text)
    if faults:
        raise Faults(faults)


def clean(
    experiment: Annotated[
        Path | None, typer.Argument(help="The folder of an experiment.", metavar="[EXP]", show_default=False)
    ] = None,
    cache: Annotated[bool, option("--cache", help="List your cache instead.")] = False,
    yes: Annotated[bool, option("--yes", help="Delete what is listed.")] = False,
    allow_code: AllowCode = None,
    as_json: JsonOption = False,
) -> None:
    """List what can be deleted; with --yes, delete it.

    EXP lists what a finished experiment no longer needs. --cache lists the whole cache. What is
    deleted there is made again when it is needed.
    """
    begin(code=allow_code)
    from hardneg.api.clean import clean as execute
    from hardneg.api.clean import clean_cache
    from hardneg.cli.tables import cleaning_text

    if cache == (experiment is not None):
        what = "give an experiment, or --cache alone, which lists the cache that HARDNEG_CACHE names"
        raise typer.BadParameter(what, param_hint="'EXP'")
    found = clean_cache(delete=yes) if experiment is None else execute(experiment, delete=yes)
    show_result(found, as_json, cleaning_text)


def doctor(
    data: Annotated[
        str | None,
        typer.Argument(help="Folder of a collection, or [FORMAT:]SOURCE.", metavar="[DATA]", show_default=False),
    ] = None,
    named: Annotated[str | None, option("--data", help="The same as DATA.", metavar="DATA")] = None,
    model: MaybeModel = None,
    allow_bin: AllowBin = False,
    allow_code: AllowCode = None,
    cache: CacheOption = None,
    as_json: JsonOption = False,
) -> None:
    """Look at DATA before training, with advice.

    Without DATA: show versions, devices, threads, memory, and the line that installs each missing package.
    """
    if data is not None and named is not None:
        raise typer.BadParameter("DATA is given twice, by itself and by --data", param_hint="'DATA'")
    data = named if data is None else data
    if data is not None:
        begin(code=allow_code)
        from hardneg.api.examine import examine
        from hardneg.cli.tables import examination_text

        show_result(examine(data, model, allow_bin=allow_bin, cache=cache), as_json, examination_text)
        return
    if model is not None:
        raise typer.BadParameter("a model's tokens are counted over data: give DATA too", param_hint="'--model'")
    from hardneg.api.doctor import doctor as execute
    from hardneg.cli.tables import doctor_text

    show_result(execute(), as_json, doctor_text)
