"""Shared parts of the commands: options, the setup before a command, and the output of results."""

from __future__ import annotations

import contextlib
import functools
import inspect
import json
import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

MODELS = "Folder, hub name, package:NAME, or an experiment."
DATA = "Folder of a collection, or [FORMAT:]SOURCE."


def option(*flags: str, help: str, metavar: str | None = None, panel: str | None = None, **more: Any) -> Any:
    """An option of a command: its help, what its value is called, and the group of the help that it stands in.

    A number that is bounded is called N.
    """
    metavar = "N" if metavar is None and "min" in more else metavar
    return typer.Option(*flags, help=help, metavar=metavar, rich_help_panel=panel, **more)


DataOption = Annotated[str, option("--data", help=DATA, metavar="DATA")]
MaybeData = Annotated[str | None, option("--data", help=DATA, metavar="DATA")]
OwnData = Annotated[
    str | None, option("--data", help="The collection (default: the experiment's own).", metavar="DATA")
]
ModelOption = Annotated[str, option("--model", help=MODELS, metavar="MODEL")]
MaybeModel = Annotated[str | None, option("--model", help=MODELS, metavar="MODEL")]
RankerOption = Annotated[
    str, option("--ranker", help="The model that scores pairs (same forms as --model).", metavar="MODEL")
]
PoolArgument = Annotated[Path, typer.Argument(help="A pool, or an experiment (its last pool).", metavar="POOL")]

PassageModel = Annotated[
    str | None, option("--passage-model", help="A second model, for the passages.", metavar="MODEL", panel="Model")
]
AllowBin = Annotated[
    bool, option("--allow-bin", help="Read .bin weights, by torch's restricted loader.", panel="Model")
]
AllowCode = Annotated[
    list[str] | None,
    option(
        "--allow-code",
        help="Run the Python code of a model at this commit or digest.",
        metavar="REVISION",
        panel="Model",
    ),
]
PromptsOption = Annotated[
    str | None,
    option(
        "--prompts",
        help="Use the prompts and lengths of a model family.",
        metavar="e5|bge|gte|nomic",
        panel="Model",
    ),
]
QueryPrompt = Annotated[
    str | None,
    option(
        "--query-prompt",
        help="Text before every query (default: the model's own).",
        metavar="TEXT",
        panel="Model",
    ),
]
PassagePrompt = Annotated[
    str | None,
    option(
        "--passage-prompt",
        help="Text before every passage (default: the model's own).",
        metavar="TEXT",
        panel="Model",
    ),
]
QueryLength = Annotated[
    int | None,
    option(
        "--query-length", help="Maximum query length in tokens (default: the model's own).", panel="Model", min=3
    ),
]
PassageLength = Annotated[
    int | None,
    option(
        "--passage-length",
        help="Maximum passage length in tokens (default: the model's own).",
        panel="Model",
        min=3,
    ),
]

CacheOption = Annotated[
    Path | None,
    option("--cache", help="The folder of token stores and other caches.", metavar="DIR", panel="Machine"),
]
DeviceOption = Annotated[
    str | None,
    option(
        "--device",
        help="cpu, cuda, cuda:1, ... (default: CUDA if there is one).",
        metavar="DEVICE",
        panel="Machine",
    ),
]
ThreadsOption = Annotated[
    int | None,
    option("--threads", help="CPU threads (default: OMP_NUM_THREADS, or all).", panel="Machine", min=1, max=4096),
]
MaxRam = Annotated[
    str | None, option("--max-ram", help="Maximum memory: 512M, 8G, ...", metavar="SIZE", panel="Machine")
]
MaxVram = Annotated[
    str | None, option("--max-vram", help="Maximum memory of a CUDA device.", metavar="SIZE", panel="Machine")
]

SplitOption = Annotated[str, option(help="Split of the judgements.", metavar="SPLIT")]
QrelsOption = Annotated[Path | None, option(help="A qrels file, instead of --data.", metavar="FILE")]
JudgementsOption = Annotated[
    Path | None,
    option(help="What people judged: TSV of query-id, passage-id, label, as audit saves it.", metavar="FILE"),
]
LeaveOutOwnOption = Annotated[
    bool, option("--leave-out-own", help="Leave out hits that have the id of their query, as BEIR does.")
]
PerQueryOption = Annotated[
    Path | None, option(help="Write each query's values to this file (JSONL).", metavar="FILE")
]
MeasuresOption = Annotated[str, option(help="Measures, in ir_measures notation.", metavar="MEASURES")]
EmbeddingsOption = Annotated[Path | None, option(help="Passage embeddings that encode made.", metavar="EMB")]
RunOut = Annotated[
    Path, option("--out", help="The new run file (TREC; gzip if its name ends in .gz).", metavar="RUN")
]
JsonOption = Annotated[bool, option("--json", help="Print JSON for machines.", panel="Output")]
SeedOption = Annotated[int, option(min=0, help="Seed of all random draws.")]

MaxScore = Annotated[float | None, option(help="Maximum score of a negative.", metavar="SCORE", panel="Bounds")]
AbsoluteMargin = Annotated[
    float | None, option(help="Minimum distance below the positive's score.", metavar="SCORE", panel="Bounds")
]
RelativeMargin = Annotated[
    float | None,
    option(
        help="Keep a negative only if it scores this share below the positive.", metavar="SHARE", panel="Bounds"
    ),
]
TopOption = Annotated[
    int | None, option("--top", min=1, help="Keep the highest N that pass the bounds.", panel="Bounds")
]
LabelsOption = Annotated[
    str,
    option(help="answers: a passage that holds an answer is no negative, judged or not.", metavar="qrels|answers"),
]

IN_CONFIG = " [required, or in --config]"
TrainData = Annotated[str, option("--data", help=DATA + IN_CONFIG, metavar="DATA")]
TrainModel = Annotated[str, option("--model", help=MODELS + IN_CONFIG, metavar="MODEL")]
ExperimentOption = Annotated[Path, option("--out", help="The experiment's folder." + IN_CONFIG, metavar="EXP")]
ConfigOption = Annotated[
    Path | None, option(help="A TOML file of settings, and of data, model and out.", metavar="FILE")
]


def presets_beginning(context: typer.Context, incomplete: str) -> list[str]:
    """The names of the recipe's presets that a shell may complete a word to."""
    from hardneg.config import read_presets

    return [name for name in read_presets(str(context.info_name)) if name.startswith(incomplete)]


PresetOption = Annotated[
    str | None,
    option(
        help="Settings that come with the recipe, by name; see `hardneg presets`.",
        metavar="NAME",
        autocompletion=presets_beginning,
    ),
]
Assignments = Annotated[
    list[str] | None,
    option(
        "--set",
        help="Any other setting; may be repeated, and wins over --preset and --config.",
        metavar="KEY=VALUE",
        panel="Settings",
    ),
]
SeedsOption = Annotated[int, option(min=1, help="Train N times, each time with another seed.", panel="Run")]
MinutesOption = Annotated[
    float | None,
    option(
        help="Train as many epochs as fit into M minutes here, by an estimate; measuring included.",
        metavar="M",
        panel="Run",
    ),
]
TrainSplit = Annotated[str, option(help="Split to train on (default: train).", metavar="SPLIT", panel="Data")]
DevSplit = Annotated[
    str,
    option(
        help="Dev split, or none (default: auto, which finds one or holds queries out).",
        metavar="SPLIT",
        panel="Data",
    ),
]
TestSplit = Annotated[str, option(help="Test split, or none (default: test).", metavar="SPLIT", panel="Data")]
PeopleOption = Annotated[
    Path | None,
    option(help="What people judged: a file that `hardneg audit` saved.", metavar="FILE", panel="Data"),
]
DryRun = Annotated[bool, option("--dry-run", help="Check everything, print the settings, and stop.", panel="Run")]
Estimate = Annotated[bool, option("--estimate", help="Print time, disk and memory, and stop.", panel="Run")]
DevicesOption = Annotated[
    str,
    option(
        help="Estimate for N devices like this one: 8; 2x8 on two machines; 6+2: six train, two mine; 8@25 "
        "where they exchange 25 GB/s.",
        metavar="N",
        panel="Run",
    ),
]


# ---------------------------------------------------------------- options that several commands share

Reading = dict[str, Any]  # the values of the model options, by name


@dataclass(frozen=True)
class Machine:
    """The values of the options about the machine."""

    cache: Path | None
    device: str | None
    threads: int | None
    max_ram: str | None
    max_vram: str | None

    @property
    def places(self) -> dict[str, Any]:
        """The cache and the device, as functions take them."""
        return {"cache": self.cache, "device": self.device}

    def limit(self) -> None:
        """Set the limits of memory."""
        from hardneg.process.launch import local_size
        from hardneg.process.memory import limit_memory
        from hardneg.process.threads import device_sharers

        sharers = device_sharers() if self.max_vram else 1  # counting devices loads torch
        limit_memory(self.max_ram, self.max_vram, processes=local_size(), vram_processes=sharers)

    def tune(self) -> None:
        """Prepare for computing: set threads, what makes the CPU fast, and the limits of memory."""
        from hardneg.process import cpu

        cpu.tune(self.threads)
        self.limit()


def model_options(
    passage_model: PassageModel = None,
    allow_bin: AllowBin = False,
    allow_code: AllowCode = None,
    prompts: PromptsOption = None,
    query_prompt: QueryPrompt = None,
    passage_prompt: PassagePrompt = None,
    query_length: QueryLength = None,
    passage_length: PassageLength = None,
) -> None:
    """Declare the options that say how a model is read, in the order of the help."""


def machine_options(
    cache: CacheOption = None,
    device: DeviceOption = None,
    threads: ThreadsOption = None,
    max_ram: MaxRam = None,
    max_vram: MaxVram = None,
) -> None:
    """Declare the options about the machine, in the order of the help."""


SHARED: dict[str, tuple[Callable[..., None], Callable[..., Any]]] = {  # by the parameter that gets their values
    "reading": (model_options, dict),
    "machine": (machine_options, Machine),
}


def with_shared(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the options of :data:`SHARED` in place of the parameters that get their values."""
    wanted = {
        one.name: (parameters_of(SHARED[one.name][0]), SHARED[one.name][1])
        for one in parameters_of(command)
        if one.name in SHARED
    }

    @functools.wraps(command)
    def call(*args: Any, **given: Any) -> None:
        for name, (options, made) in wanted.items():
            given[name] = made(**{option.name: given.pop(option.name) for option in options})
        command(*args, **given)

    own = [wanted[one.name][0] if one.name in wanted else [one] for one in parameters_of(command)]
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
    from hardneg.process.cpu import spin_briefly
    from hardneg.process.distributed import rank
    from hardneg.process.signals import stop_flag

    spin_briefly()
    if rank() == 0:
        progress.turn_on()
    if resumable:
        stop_flag.install()
    if code:
        from hardneg.models.code import allow_code

        allow_code(*code)


def show(text: str) -> None:
    """Print a result to stdout; a program that reads only its beginning, as ``head`` does, ends nothing."""
    with contextlib.suppress(BrokenPipeError):
        sys.stdout.write(text + "\n")


def show_result(result: Any, as_json: bool, table: Callable[[Any], str]) -> None:
    """Print a result as JSON, or as the text that ``table`` makes of it."""
    show(json_text(result) if as_json else table(result))


def json_text(result: Any) -> str:
    """A result as JSON, which has no infinite numbers and no NaN: they are null."""
    try:
        return json.dumps(result, ensure_ascii=False, allow_nan=False)
    except ValueError:
        return json.dumps(finite(result), ensure_ascii=False, allow_nan=False)


def finite(value: Any) -> Any:
    """A value with None in place of each number that is not finite."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {name: finite(one) for name, one in value.items()}
    return [finite(one) for one in value] if isinstance(value, list | tuple) else value


def example(*lines: str) -> str:
    """The example that ends a command's help: one command, written over these lines without wrapping."""
    return "\b\nExample:\n  " + " \\\n      ".join(lines)
