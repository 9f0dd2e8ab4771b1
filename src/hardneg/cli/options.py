"""Shared parts of the commands: options, the setup before a command, and the output of results."""

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
        "--allow-code", metavar="REVISION", help="Run the Python code of a model at this commit or digest."
    ),
]
PromptsOption = Annotated[
    str | None, typer.Option("--prompts", help="Use the prompts and lengths of a model family: e5, bge, gte.")
]
QueryLength = Annotated[
    int | None, typer.Option("--query-length", min=3, help="Most tokens of a query (default: the model's own).")
]
PassageLength = Annotated[
    int | None,
    typer.Option("--passage-length", min=3, help="Most tokens of a passage (default: the model's own)."),
]
SplitOption = Annotated[str, typer.Option(help="Split of the judgements.")]
QrelsOption = Annotated[Path | None, typer.Option(help="A qrels file, instead of --data.")]
JudgementsOption = Annotated[
    Path | None, typer.Option(help="What people judged: TSV of query-id, passage-id, label, as audit saves it.")
]
PerQueryOption = Annotated[Path | None, typer.Option(help="Write each query's values to this file (JSONL).")]
MeasuresOption = Annotated[str, typer.Option(help="Measures, in ir_measures notation.")]
CacheOption = Annotated[Path | None, typer.Option(help="The folder of token stores and other caches.")]
DeviceOption = Annotated[str | None, typer.Option(help="cpu, cuda, cuda:1, ... (default: CUDA if there is one).")]
ThreadsOption = Annotated[int | None, typer.Option(min=1, help="CPU threads (default: OMP_NUM_THREADS, or all).")]
MaxRam = Annotated[str | None, typer.Option("--max-ram", help="Most memory to use: 512M, 8G, ...")]
MaxVram = Annotated[str | None, typer.Option("--max-vram", help="Most memory of a CUDA device to use.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON for machines.")]
SeedOption = Annotated[int, typer.Option(min=0, help="Seed of all random draws.")]

MaxScore = Annotated[float | None, typer.Option(help="Highest score of a negative.")]
AbsoluteMargin = Annotated[float | None, typer.Option(help="Least distance below the positive's score.")]
RelativeMargin = Annotated[
    float | None, typer.Option(help="Keep a negative only if it scores this share below the positive.")
]
TopOption = Annotated[int | None, typer.Option("--top", min=1, help="Keep the k highest that pass the bounds.")]

LabelsOption = Annotated[str, typer.Option(help="qrels, or answers: no passage with an answer is a negative.")]

ExperimentOption = Annotated[Path, typer.Option("--out", help="The experiment's folder.")]
PresetOption = Annotated[str | None, typer.Option(help="Name of a preset: settings that come with the recipe.")]
ConfigOption = Annotated[Path | None, typer.Option(help="A TOML file of settings.")]
Assignments = Annotated[
    list[str] | None,
    typer.Option("--set", help="key=value: a setting; may be repeated, wins over --preset and --config."),
]
SeedsOption = Annotated[int, typer.Option(min=1, help="Train this many times, each with another seed.")]
TrainSplit = Annotated[str, typer.Option(help="Split to train on.")]
DevSplit = Annotated[str, typer.Option(help="Dev split, or none; auto finds one or holds queries out.")]
TestSplit = Annotated[str, typer.Option(help="Test split, or none.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Check everything, print the settings, and stop.")]
Estimate = Annotated[bool, typer.Option("--estimate", help="Print time, disk and memory, and stop.")]


Reading = dict[str, Any]  # the values of the model options, by name


def model_options(
    passage_model: PassageModel = None,
    allow_bin: AllowBin = False,
    allow_code: AllowCode = None,
    prompts: PromptsOption = None,
    query_length: QueryLength = None,
    passage_length: PassageLength = None,
) -> None:
    """Declare the options that say how a model is loaded, in the order of the help."""


def reads_model(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the :func:`model_options` in place of its parameter ``reading``, which gets their values."""
    options = parameters_of(model_options)

    @functools.wraps(command)
    def call(**given: Any) -> None:
        command(reading={option.name: given.pop(option.name) for option in options}, **given)

    own = [[one] if one.name != "reading" else options for one in parameters_of(command)]
    return with_parameters(call, [one for several in own for one in several])


def parameters_of(command: Callable[..., None]) -> list[inspect.Parameter]:
    """The parameters of a command as keyword parameters, with evaluated annotations."""
    found = inspect.signature(command, eval_str=True).parameters.values()
    return [one.replace(kind=inspect.Parameter.KEYWORD_ONLY) for one in found]


def with_parameters(command: Callable[..., None], parameters: Sequence[inspect.Parameter]) -> Callable[..., None]:
    """Give a command of ``**given`` the signature with these parameters, so that typer reads them."""
    command.__dict__["__signature__"] = inspect.Signature(parameters)
    command.__annotations__ = {one.name: one.annotation for one in parameters}
    return command


def begin(*, resumable: bool = False, code: list[str] | None = None) -> None:
    """Turn progress on, and prepare for signals: a resumable command stops where nothing is lost, others at once.

    ``code``: revisions at which models may run their own code.
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
    """Print a result to stdout."""
    sys.stdout.write(text + "\n")


def show_result(result: Any, as_json: bool, table: Callable[[Any], str]) -> None:
    """Print a result as JSON, or as the text that ``table`` makes of it."""
    show(json.dumps(result, ensure_ascii=False) if as_json else table(result))


def example(*lines: str) -> str:
    """The example that ends a command's help: one command, written over these lines without wrapping."""
    return "\b\nExample:\n  " + " \\\n      ".join(lines)
