"""What the commands share: options, what runs before them, and how results are shown."""

from __future__ import annotations

import functools
import inspect
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

DataOption = Annotated[str, typer.Option("--data", help="Collection folder or [format:]SOURCE.")]
MaybeData = Annotated[str | None, typer.Option("--data", help="Collection folder or [format:]SOURCE.")]
ModelOption = Annotated[str, typer.Option("--model", help="Folder, hub name or package:NAME.")]
MaybeModel = Annotated[str | None, typer.Option("--model", help="Folder, hub name or package:NAME.")]
PassageModel = Annotated[str | None, typer.Option(help="A second model, for the passages.")]
AllowBin = Annotated[bool, typer.Option("--allow-bin", help="Read .bin weights, by torch's restricted loader.")]
AllowCode = Annotated[
    list[str] | None,
    typer.Option(
        "--allow-code", metavar="REVISION", help="Run the code that a model brings, at this commit or digest."
    ),
]
PromptsOption = Annotated[
    str | None, typer.Option("--prompts", help="Take prompts and lengths of a family of models: e5, bge, gte.")
]
QueryLength = Annotated[
    int | None, typer.Option("--query-length", min=3, help="Tokens to cut queries at (default: the model's own).")
]
PassageLength = Annotated[
    int | None,
    typer.Option("--passage-length", min=3, help="Tokens to cut passages at (default: the model's own)."),
]
SplitOption = Annotated[str, typer.Option(help="Split of the judgements.")]
QrelsOption = Annotated[Path | None, typer.Option(help="A qrels file, instead of --data.")]
PerQueryOption = Annotated[Path | None, typer.Option(help="Write values by query here (JSONL).")]
MeasuresOption = Annotated[str, typer.Option(help="In ir_measures notation.")]
CacheOption = Annotated[Path | None, typer.Option(help="Where derived stores live.")]
DeviceOption = Annotated[str | None, typer.Option(help="cpu, cuda, cuda:1, ... (default: CUDA if there is one).")]
ThreadsOption = Annotated[int | None, typer.Option(min=1, help="CPU threads (default: OMP_NUM_THREADS, or all).")]
MaxRam = Annotated[str | None, typer.Option("--max-ram", help="Memory to keep under: 512M, 8G, ...")]
MaxVram = Annotated[str | None, typer.Option("--max-vram", help="The same of a CUDA device.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON for machines.")]
SeedOption = Annotated[int, typer.Option(min=0, help="Of every random draw.")]

LabelsOption = Annotated[str, typer.Option(help="qrels, or answers: what contains one is no negative.")]

ExperimentOption = Annotated[Path, typer.Option("--out", help="The experiment's folder.")]
PresetOption = Annotated[str | None, typer.Option(help="Settings that come with the recipe, by name.")]
ConfigOption = Annotated[Path | None, typer.Option(help="A TOML file of settings.")]
Assignments = Annotated[
    list[str] | None, typer.Option("--set", help="key=value; may be repeated, wins over the others.")
]
SeedsOption = Annotated[int, typer.Option(min=1, help="Execute with this many seeds.")]
TrainSplit = Annotated[str, typer.Option(help="Split to train on.")]
DevSplit = Annotated[str, typer.Option(help="Dev split; auto holds queries out if there is none; none.")]
TestSplit = Annotated[str, typer.Option(help="Test split, or none.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Check everything, print the settings, stop.")]
Estimate = Annotated[bool, typer.Option("--estimate", help="Print time, disk and memory, and stop.")]


Reading = dict[str, Any]  # what the model options say, by name


def model_options(
    passage_model: PassageModel = None,
    allow_bin: AllowBin = False,
    allow_code: AllowCode = None,
    prompts: PromptsOption = None,
    query_length: QueryLength = None,
    passage_length: PassageLength = None,
) -> None:
    """The options that say how a model is read, in the order of help."""


def reads_model(command: Callable[..., None]) -> Callable[..., None]:
    """A command with the :func:`model_options` where its parameter ``reading`` stands, which gets them by name."""
    options = parameters_of(model_options)

    @functools.wraps(command)
    def call(**given: Any) -> None:
        command(reading={option.name: given.pop(option.name) for option in options}, **given)

    own = [[one] if one.name != "reading" else options for one in parameters_of(command)]
    return with_parameters(call, [one for several in own for one in several])


def parameters_of(command: Callable[..., None]) -> list[inspect.Parameter]:
    """The parameters of a command, by keyword, with annotations that are read."""
    found = inspect.signature(command, eval_str=True).parameters.values()
    return [one.replace(kind=inspect.Parameter.KEYWORD_ONLY) for one in found]


def with_parameters(command: Callable[..., None], parameters: Sequence[inspect.Parameter]) -> Callable[..., None]:
    """A command of ``**given``, which typer is to take for one of these parameters."""
    command.__dict__["__signature__"] = inspect.Signature(parameters)
    command.__annotations__ = {one.name: one.annotation for one in parameters}
    return command


def begin(*, resumable: bool = False, code: list[str] | None = None) -> None:
    """Report progress from now on; what is resumable stops at a signal where nothing is lost, the rest at once.

    ``code``: revisions at which models may run code of their own.
    """
    from hardneg.process import progress
    from hardneg.process.cpu import wait_asleep_if_crowded
    from hardneg.process.distributed import rank
    from hardneg.process.signals import stop_flag

    wait_asleep_if_crowded()
    if rank() == 0:
        progress.turn_on()
    if resumable:
        stop_flag.install()
    if code:
        from hardneg.models.code import allow_code

        allow_code(*code)


def tune(threads: int | None, max_ram: str | None, max_vram: str | None = None) -> None:
    """What a command that computes does before: threads, what makes the CPU fast, and the limits of memory."""
    from hardneg.process import cpu
    from hardneg.process.memory import limit_memory

    cpu.tune(threads)
    limit_memory(max_ram, max_vram)


def show(text: str) -> None:
    """Results go to stdout."""
    sys.stdout.write(text + "\n")


def show_result(result: Any, as_json: bool, table: Callable[[Any], str]) -> None:
    """A result, for machines or for people."""
    show(json.dumps(result, ensure_ascii=False) if as_json else table(result))


def example(*lines: str) -> str:
    """The end of a command's help: one command over some lines, which are not wrapped."""
    return "\b\nExample:\n  " + " \\\n      ".join(lines)
