"""Measures of a run against qrels, computed with arrays; the values equal trec_eval's for every query.

Hits rank by score (float32) descending, ties by passage id descending; the means run over the queries that
have a relevant passage in the qrels, and a query the run lacks scores 0.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from hardneg.data.training_data import Basis
from hardneg.errors import InputError, SettingsError, raise_all
from hardneg.evaluation.judged import JudgedHits, judged_hits
from hardneg.records import Int32, Int64, Positives, Qrels, Run, distinct, offsets_of, owners, spans

Float64 = NDArray[np.float64]

_SPELLINGS = {
    "RR": "rr mrr recip_rank",
    "R": "r recall",
    "nDCG": "ndcg ndcg_cut",
    "AP": "ap map map_cut",
    "P": "p precision",
    "Success": "success",
    "Judged": "judged",
    "Answer": "answer",
}
_ALIASES = {alias: name for name, aliases in _SPELLINGS.items() for alias in aliases.split()}
_FORM = re.compile(r"([A-Za-z]+(?:_[A-Za-z]+)*)(?:\((?:rel=(\d{1,9})|mode=(string|regex))\))?(?:[@_](\d{1,9}))?")
_NEEDS_CUTOFF = ("R", "P", "Success", "Judged", "Answer")
_WITHOUT_REL = ("nDCG", "Judged", "Answer")
_WHOLE_RUN = int(np.iinfo(np.int64).max)
ENOUGH = 1000  # hits of a query that a search brings for a measure without a cut-off
_ANY_GRADE = int(np.iinfo(np.int32).min)


@dataclass(frozen=True)
class Measure:
    """A measure with its parameters; its text form (``AP(rel=2)@100``) is ir_measures' and parses back."""

    name: str  # RR, R, nDCG, AP, P, Success, Judged or Answer
    cutoff: int | None = None  # k, the number of hits that count; None: all
    rel: int = 1  # the lowest grade that binary measures take as relevant
    mode: Literal["string", "regex"] = "string"  # for Answer: whether answers are strings or patterns

    def __str__(self) -> str:
        option = "" if self.rel == 1 else f"(rel={self.rel})"
        option += "" if self.mode == "string" else f"(mode={self.mode})"
        return f"{self.name}{option}" + ("" if self.cutoff is None else f"@{self.cutoff}")

    @property
    def by_answers(self) -> bool:
        """Whether the measure looks for answers in texts and not at judgements."""
        return self.name == "Answer"

    @property
    def depth(self) -> int:
        """The number of hits of each query that count."""
        return _WHOLE_RUN if self.cutoff is None else self.cutoff

    @property
    def searched(self) -> int:
        """The number of hits of each query that a search should bring for the measure."""
        return ENOUGH if self.cutoff is None else self.cutoff

    @classmethod
    def parse(cls, text: str) -> Measure:
        """Read ``nDCG@10``, ``AP(rel=2)@100``, or an alias such as ``MRR@10``, ``ndcg_cut_10`` and ``map``.

        Raises
        ------
        SettingsError : an unknown measure (the nearest is named), or a missing or impossible parameter.
        """
        match = _FORM.fullmatch(text)
        name = _ALIASES.get(match[1].lower()) if match else None
        if match is None or name is None:
            raise SettingsError("UNKNOWN_MEASURE", f"no measure is called '{text}'", _nearest(text))
        mode: Any = match[3] or "string"
        measure = cls(name, int(match[4]) if match[4] else None, int(match[2] or 1), mode)
        if measure.cutoff == 0 or measure.rel == 0:
            raise SettingsError(
                "BAD_MEASURE", f"'{text}' has a cut-off or a rel of 0", "cut-off and rel begin at 1"
            )
        if measure.cutoff is None and name in _NEEDS_CUTOFF:
            raise SettingsError("BAD_MEASURE", f"'{text}' has no cut-off", f"write {name}@10, for instance")
        if match[2] and name in _WITHOUT_REL:
            raise SettingsError("BAD_MEASURE", f"{name} takes no rel in '{text}'", f"write {name}@10")
        if match[3] and not measure.by_answers:
            raise SettingsError("BAD_MEASURE", f"{name} takes no mode in '{text}'", f"write {name}@10")
        return measure


def _nearest(text: str) -> str:
    name = re.match(r"[A-Za-z_]*", text)[0].strip("_")  # type: ignore[index]
    near = difflib.get_close_matches(name.lower(), _ALIASES, n=1, cutoff=0.5)
    cutoff = re.search(r"\d+$", text)
    names = "RR@k, R@k, nDCG@k, AP, P@k, Success@k, Judged@k, Answer@k"
    return f"did you mean {_ALIASES[near[0]]}@{cutoff[0] if cutoff else 10}?" if near else f"there are {names}"


def parse_measures(given: str | Sequence[Any]) -> tuple[Measure, ...]:
    """Distinct measures from a text, separated by blanks or commas, or from a list of texts or ir_measures' own.

    Raises
    ------
    SettingsError : a measure is wrong, or none is named (:class:`~hardneg.errors.Faults` if several are wrong).
    """
    text = given if isinstance(given, str) else " ".join(map(str, given))
    measures, faults = [], []
    for word in re.split(r"[\s,]+", text.strip()):
        try:
            measures.append(Measure.parse(word))
        except SettingsError as fault:
            faults.append(fault)
    raise_all(faults)
    return tuple(dict.fromkeys(measures))


def bases_of(measures: Sequence[Measure]) -> frozenset[Basis]:
    """What these measures need: judgements, answers or both."""
    return frozenset("answers" if measure.by_answers else "qrels" for measure in measures)


@dataclass(frozen=True)
class Evaluation:
    """The values of each measure for each query."""

    query_rows: Int32  # [Q] ascending; the queries with a relevant passage (or an answer, for Answer)
    values: Mapping[str, Float64]  # measure -> [Q]; NaN where the measure does not count the query
    missing: int  # number of ``query_rows`` that the run lacks (they score 0)
    unjudged: int  # number of the run's queries without a passage of grade 1 or more in the qrels (left out)

    def of(self, name: str) -> Float64:
        """The values of a measure for the queries that it counts, ascending by query."""
        return self.values[name][~np.isnan(self.values[name])]

    @property
    def means(self) -> dict[str, float]:
        """The mean of each measure over the queries that it counts."""
        return {name: float(self.of(name).mean()) for name in self.values}

    def as_json(self) -> dict[str, Any]:
        """Means and counts as JSON; ``counted`` is there only if the measures count different queries."""
        counted = {name: len(self.of(name)) for name in self.values}
        several = {"counted": counted} if len(set(counted.values())) > 1 else {}
        return {
            "measures": self.means,
            "queries": len(self.query_rows),
            "missing": self.missing,
            "unjudged": self.unjudged,
            **several,
        }


def joined(parts: Sequence[Evaluation], run: Run, names: Sequence[str]) -> Evaluation:
    """Join several evaluations of one run into one, with the measures in the order of ``names``."""
    rows = distinct(np.concatenate([part.query_rows for part in parts]))
    values = {}
    for part in parts:
        place = np.searchsorted(rows, part.query_rows)
        for name, scored in part.values.items():
            values[name] = np.full(len(rows), np.nan)
            values[name][place] = scored
    present = int(np.isin(run.query_rows, rows).sum())
    return Evaluation(rows, {name: values[name] for name in names}, len(rows) - present, len(run) - present)


def evaluate(run: Run, qrels: Qrels, measures: Sequence[Measure], *, id_rank: Int32 | None) -> Evaluation:
    """Score a run as trec_eval does.

    Parameters
    ----------
    id_rank : [passages] rank of each passage's id in ascending bytewise order, which decides ties. None takes
        the run's hits in the order they have; this is right for a run from a file, which is in that order.

    Notes
    -----
    Queries with a passage of grade 1 or higher are scored, by all measures alike: with ``rel=2`` a query
    whose best grade is 1 scores 0. nDCG has linear gains (negative grades count 0) and discount
    log2(rank + 1), over the ideal order of all judged passages. Judged@k divides by the hits returned when
    they are fewer than k.

    Raises
    ------
    InputError : the qrels have no relevant passage.
    """
    judged = qrels.select(np.flatnonzero(_relevant(qrels, 1)))
    if not len(judged):
        raise InputError("NO_RELEVANT", "the qrels name no relevant passage", "check the qrels and the split")
    hits = judged_hits(run, judged, id_rank=id_rank)
    present = int(np.isin(run.query_rows, judged.query_rows).sum())
    values = {str(measure): _FORMULAS[measure.name](hits, measure) for measure in measures}
    return Evaluation(judged.query_rows, values, len(judged) - present, len(run) - present)


def first_relevant_rank(run: Run, positives: Positives, depth: int, *, id_rank: Int32 | None = None) -> Int64:
    """Rank (from 1) of the best positive of each query [Q]; 0 if none is among the first ``depth`` hits.

    Ties are ranked as by :func:`relevant_hits`, whatever their order in the run.
    """
    return first_rank(relevant_hits(run, positives, id_rank=id_rank), depth)


def relevant_hits(run: Run, positives: Positives, *, id_rank: Int32 | None = None) -> JudgedHits:
    """The positives among the hits of each query.

    Ties are ranked by ``id_rank`` descending, as measures do; without it by ascending row, as search does.
    """
    rows = max(run.passage_rows.max(initial=0), positives.passage_rows.max(initial=0)) + 1
    grades = np.ones(len(positives.passage_rows), np.int32)
    qrels = Qrels(positives.query_rows, positives.offsets, positives.passage_rows, grades)
    return judged_hits(run, qrels, id_rank=-np.arange(rows, dtype=np.int32) if id_rank is None else id_rank)


def first_rank(hits: JudgedHits, depth: int) -> Int64:
    """Rank (from 1) of the best relevant hit of each query [Q]; 0 if none is among the first ``depth``."""
    query, rank = hits.top(1, depth)
    first = np.zeros(len(hits.qrels), np.int64)
    first[query[::-1]] = rank[::-1] + 1  # the last value written for a query is its best rank
    return first


# ---------------------------------------------------------------- formulas: [Q] float64


def _relevant(qrels: Qrels, rel: int) -> Int64:
    """Number of passages of grade ``rel`` or higher of each query [Q]."""
    return spans(qrels.positives(rel).offsets)


def _reciprocal_rank(hits: JudgedHits, measure: Measure) -> Float64:
    query, rank = hits.top(measure.rel, measure.depth)
    values = np.zeros(len(hits.qrels))
    values[query[::-1]] = 1.0 / (rank[::-1] + 1)  # the last value written for a query is its best
    return values


def _found(hits: JudgedHits, measure: Measure) -> Int64:
    query, _ = hits.top(measure.rel, measure.depth)
    return hits.count(query)


def _recall(hits: JudgedHits, measure: Measure) -> Float64:
    return _found(hits, measure) / np.maximum(_relevant(hits.qrels, measure.rel), 1)


def _precision(hits: JudgedHits, measure: Measure) -> Float64:
    return _found(hits, measure) / measure.depth


def success(hits: JudgedHits, measure: Measure) -> Float64:
    """Whether a relevant passage is among the first k hits of each query [Q], as 0 or 1."""
    return (_found(hits, measure) > 0).astype(np.float64)


def _average_precision(hits: JudgedHits, measure: Measure) -> Float64:
    query, rank = hits.top(measure.rel, measure.depth)
    before = np.arange(len(query)) - offsets_of(hits.count(query))[query]
    summed = hits.total(query, (before + 1) / (rank + 1))
    return summed / np.maximum(_relevant(hits.qrels, measure.rel), 1)


def _ndcg(hits: JudgedHits, measure: Measure) -> Float64:
    owner = owners(hits.qrels.offsets)
    gains = np.maximum(hits.qrels.grades, 0)
    ideal = gains[np.lexsort((-gains, owner))]
    ideal_rank = np.arange(len(owner)) - hits.qrels.offsets[owner]
    best = hits.total(owner, _discounted(ideal, ideal_rank, measure.depth))
    return hits.total(hits.query, _discounted(np.maximum(hits.grade, 0), hits.rank, measure.depth)) / best


def _discounted(gains: Int32, rank: Int64, cutoff: int) -> Float64:
    return np.where(rank < cutoff, gains / np.log2(rank + 2), 0.0)


def _judged(hits: JudgedHits, measure: Measure) -> Float64:
    query, _ = hits.top(_ANY_GRADE, measure.depth)
    return hits.count(query) / np.clip(hits.returned, 1, measure.depth)


_FORMULAS: dict[str, Callable[[JudgedHits, Measure], Float64]] = {
    "RR": _reciprocal_rank,
    "R": _recall,
    "nDCG": _ndcg,
    "AP": _average_precision,
    "P": _precision,
    "Success": success,
    "Judged": _judged,
    "Answer": success,
}
