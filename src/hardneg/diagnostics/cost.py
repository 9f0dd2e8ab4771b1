"""The cost of training: seconds, tokens, steps and memory of each stage.

Table 6 of Sun et al. (ANCE-Tele, EMNLP 2022), Table 5 of Xiong et al. (ANCE, ICLR 2021) and Table 4 of Zhan et al.
(STAR and ADORE, SIGIR 2021).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from hardneg.experiment.names import BEGIN

Row = Mapping[str, Any]

REFRESH = ("index", "encode", "search", "mine")  # the stages that renew vectors, lists and negatives
PEAKS = ("peak_mib", "own_peak_mib")  # since the process's start, and within the row's own work
ROUNDED = 0.01  # seconds, more than the rounding of times changes


@dataclass(frozen=True)
class Cost:
    """The cost of the rows of one kind."""

    of: tuple[Any, ...]  # values that the rows share, such as ("encode", "passage"); None if a row lacks the field
    times: int  # rows
    cached: int  # of these, found ready and not made again
    seconds: float  # sum; stages of two processes may run at once, and one stage inside another
    tokens: int
    steps: int
    queries: int
    peak_mib: int | None  # largest peak of a process, which counts from the process's start; None if unknown
    own_peak_mib: int | None  # largest peak while such a row's work ran; None if no row knows it

    @property
    def tokens_per_second(self) -> float | None:
        """Tokens a second; None if no tokens or no seconds were counted."""
        return self.tokens / self.seconds if self.tokens and self.seconds else None

    @property
    def seconds_per_step(self) -> float | None:
        """Seconds that an optimiser step took; None if there were no steps."""
        return self.seconds / self.steps if self.steps else None

    def as_json(self) -> dict[str, Any]:
        """The cost as a row of a table, rates included."""
        rates = {"tokens_per_second": self.tokens_per_second, "seconds_per_step": self.seconds_per_step}
        return asdict(self) | {"of": list(self.of)} | rates


def costs(rows: Iterable[Row], by: Sequence[str] = ("stage",)) -> list[Cost]:
    """The cost of each kind of row, in the order in which kinds appear; waiting counts apart from training.

    Parameters
    ----------
    rows : lines of ``timing.jsonl``; those that describe the machine are left out.
    by : the fields that make a kind, such as ``("stage", "side")`` or ``("stage", "episode")``.
    """
    kinds: dict[tuple[Any, ...], list[Row]] = {}
    for row in without_waits(rows):
        if row["stage"] != BEGIN:
            kinds.setdefault(tuple(row.get(name) for name in by), []).append(row)
    return [_cost(kind, found) for kind, found in kinds.items()]


def without_waits(rows: Iterable[Row]) -> list[Row]:
    """The rows, where those of training lack the seconds in which a step waited for negatives (ANCE)."""
    found = list(rows)
    waits = [row for row in found if row["stage"] == "wait" and "begun" in row]
    return [
        {**row, "seconds": row["seconds"] - sum(wait["seconds"] for wait in waits if _is_within(wait, row))}
        if waits and row["stage"] == "train" and "begun" in row
        else row
        for row in found
    ]


def _is_within(row: Row, other: Row) -> bool:
    """Whether a row's time is a part of another one's; times were rounded."""
    begun = row["begun"] - other["begun"]
    return bool(begun >= -ROUNDED and begun + row["seconds"] <= other["seconds"] + ROUNDED)


def _cost(kind: tuple[Any, ...], rows: Sequence[Row]) -> Cost:
    peaks, own = ([row[name] for row in rows if row.get(name) is not None] for name in PEAKS)
    return Cost(
        of=kind,
        times=len(rows),
        cached=sum(bool(row.get("cached")) for row in rows),
        seconds=float(sum(row["seconds"] for row in rows)),
        tokens=_total(rows, "tokens"),
        steps=_total(rows, "steps"),
        queries=_total(rows, "queries"),
        peak_mib=max(peaks, default=None),
        own_peak_mib=max(own, default=None),
    )


def _total(rows: Sequence[Row], name: str) -> int:
    return sum(row.get(name) or 0 for row in rows)


@dataclass(frozen=True)
class Summary:
    """The cost of an experiment as the papers' tables give it; all times in seconds."""

    training: float  # stages of training, without waiting
    refreshing: float  # stages that renew vectors, lists and negatives before the last step, evaluation included
    measuring: float  # the same stages after the last step, which only measure the last state
    found: int  # encodings that were found ready, and so cost nothing
    refreshes: int  # how often negatives were mined
    waiting: float  # training that waited for negatives
    working: float  # from begin to end of all stages; what ran at once counts once, and pauses do not count
    steps: int
    tokens: int  # encoded for vectors
    trained_tokens: int | None  # of all training steps; None: an older hardneg did not count some of them
    peak_mib: int | None  # largest peak of a process

    def as_json(self) -> dict[str, Any]:
        """The summary as a row of a table."""
        return asdict(self)


def summary(rows: Iterable[Row]) -> Summary:
    """The cost of an experiment (ANCE-Tele, Table 6: training, index refresh, number of refreshes, overall).

    Parameters
    ----------
    rows : lines of ``timing.jsonl``; one without ``begun`` does not count in ``working``.
    """
    kept = [row for row in rows if row["stage"] != BEGIN]
    stages = {cost.of[0]: cost for cost in costs(kept)}
    all_ = _cost((), kept)
    none = _cost((), [])
    trained = [row for row in kept if row["stage"] == "train"]
    known = all("tokens" in row for row in trained if row.get("steps"))
    refresh = [(row["begun"], row["seconds"]) for row in kept if row["stage"] in REFRESH and "begun" in row]
    last = max((row["begun"] + row["seconds"] for row in trained if "begun" in row), default=float("inf"))
    return Summary(
        training=stages.get("train", none).seconds,
        refreshing=covered(one for one in refresh if one[0] < last),
        measuring=covered(one for one in refresh if one[0] >= last),
        found=stages.get("encode", none).cached,
        refreshes=sum(row.get("mined", 1) > 0 for row in kept if row["stage"] == "mine"),
        waiting=stages.get("wait", none).seconds,
        working=covered([(row["begun"], row["seconds"]) for row in kept if "begun" in row]),
        steps=all_.steps,
        tokens=all_.tokens - _total(trained, "tokens"),
        trained_tokens=_total(trained, "tokens") if known else None,
        peak_mib=all_.peak_mib,
    )


def covered(intervals: Iterable[tuple[float, float]]) -> float:
    """The seconds that intervals (begin, seconds) cover; where several overlap, time counts once."""
    total, reached = 0.0, float("-inf")
    for begin, seconds in sorted(intervals):
        end = begin + seconds
        total += max(end - max(begin, reached), 0.0)
        reached = max(reached, end)
    return total
