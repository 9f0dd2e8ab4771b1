"""The verdict on an experiment: whether training made the model better, how sure that is, and what to do next."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from hardneg.diagnostics.kept import (
    AS_KEPT,
    choice_sentence,
    cost_of_settings,
    of_trained_start,
    rate_sentence,
    since_start,
    trained_before,
)
from hardneg.experiment.names import BEFORE, BM25, FINAL, LAST, RETRIEVED, STARTED, UNTRAINED, before_training
from hardneg.shown import p_text, percent

SURE = 0.05  # the highest p of a sure difference
FEW_QUERIES = 200
MUCH_FORGOTTEN = 0.25

AUDIT = "Look through the negatives for passages that are relevant and not judged (hardneg audit)."
MINE_FIRST = (
    "Mine with the trained model (hardneg mine), and look through its negatives for passages that are relevant and"
    " not judged (hardneg audit)."
)
MINE = "Go on from this model with a recipe that mines, such as star with its preset finetune."

AS_TRAINED = "the untrained model at the lengths and other settings of training"
NAMES = {
    UNTRAINED: "the untrained model",
    STARTED: AS_TRAINED,
    BM25: "BM25",
    RETRIEVED: "the retriever that it re-ranks",
}


@dataclass(frozen=True)
class Verdict:
    """What the top of a report says."""

    kind: str  # better, worse, unsure, same (the untrained model was kept) or open
    sentence: str
    details: tuple[str, ...]  # the same against other baselines
    advice: tuple[str, ...]  # what to do next, the most useful first


@dataclass(frozen=True)
class Beside:
    """A paired test of the final model against a state that ``results.json`` need not compare it with.

    Attributes
    ----------
    name : what a person calls the state.
    row : the test, as a row of ``comparisons``; ``b`` is the state's name in the results.
    """

    name: str
    row: Mapping[str, Any]


def verdict(
    results: Mapping[str, Any],
    *,
    queries: int | None = None,
    running: str = "",
    at_work: bool = False,
    ended_by: str | None = None,
    dev_passages: int | None = None,
    in_batch: Beside | None = None,
    mined: bool | None = True,
    momentum_from: int | None = None,
) -> Verdict:
    """Judge results by the first measure of the split that people look at.

    Parameters
    ----------
    results : content of ``results.json``; empty if there is none.
    queries : the number of queries of that split; None if it is not known.
    running : what is known of an experiment without results; at_work: whether a process executes it now.
    ended_by : the fault that ended it and would end the same command again; None: there is none.
    in_batch : the test against a state that in-batch negatives alone trained; None: there is no such state.
    mined : whether a pool of the experiment has negatives, which an audit could look through; None: there is none.
    dev_passages : the number of BM25 passages of each query that dev was judged among; None: all passages.
    momentum_from : the first episode, counted from 0, that can take negatives of the pool before; None: none can.
    """
    if "seeds" in results:
        return _of_seeds(results, dev_passages)
    rows = results.get("comparisons", [])
    if not rows:
        if results:
            return Verdict("open", "Nothing was measured: the experiment has no dev and no test split.", (), ())
        if ended_by and not at_work:
            return Verdict("open", running, (f"ended by: {ended_by}",), ())  # the fault says what to do
        next_step = (
            "Ask again later, when it has measured more." if at_work else "Run the same command again to go on."
        )
        return Verdict("open", running, (), (next_step,))
    split = results["compared_on"]
    first = first_rows(results, dev_passages)
    first.sort(key=lambda row: row["b"] != reranked_by(results))  # a ranker's test against its input comes first
    who = name_of_final(results)
    beside = [] if in_batch is None else [in_batch.row]
    others = [row for row in first[1:] if in_batch is None or row["b"] != in_batch.row["b"]]
    kept = results.get("kept", {})
    named = {UNTRAINED: AS_KEPT[UNTRAINED]} if kept.get("state") == STARTED else {}
    named |= {} if in_batch is None else {in_batch.row["b"]: in_batch.name}
    rows = [first[0], *[row for row in beside if row["b"] != first[0]["b"]], *others]
    told = [
        of_untrained(kept, who)
        if is_same(row, kept)
        else _sentence(row, results[split], split_of(split, dev_passages), who, named)
        for row in rows
    ]
    told += [f"The {rate}." for rate in [rate_sentence(results)] if rate]
    advice = [*_of_in_batch(in_batch), *_advice(results, first, queries, dev_passages, momentum_from)]
    if mined is None:
        advice.append(MINE_FIRST)
    elif mined or not advice:
        advice.append(AUDIT if mined else MINE)
    kind = "same" if is_same(first[0], kept) else _kind(first[0])
    return Verdict(kind, told[0], tuple(told[1:]), tuple(advice))


def naming_start(judged: Verdict, name: str) -> Verdict:
    """The verdict with another name for the model that training started from, because it was trained before.

    Parameters
    ----------
    name : where that model lies.
    """
    details = (*map(of_trained_start, judged.details), trained_before(name, "tables and charts"))
    return Verdict(
        judged.kind, of_trained_start(judged.sentence), details, tuple(map(of_trained_start, judged.advice))
    )


def first_rows(results: Mapping[str, Any], dev_passages: int | None) -> list[Mapping[str, Any]]:
    """The tests of the final state by the measure that decides.

    Where the untrained model was kept, the row that says so comes first: what it was better than is no merit of
    training. Where dev was judged among BM25's first passages, BM25 is left out, because it chose the passages
    that the model ranked.
    """
    rows = results.get("comparisons", [])
    first = [row for row in rows if row["a"] == FINAL and row["measure"] == rows[0]["measure"]]
    first.sort(key=lambda row: not is_same(row, results.get("kept", {})))
    if dev_passages and results["compared_on"] == "dev":
        return [row for row in first if row["b"] != BM25] or first
    return first


def split_of(split: str, dev_passages: int | None) -> str:
    """The name of a split for people; that of dev says if it was judged among few passages."""
    return f"{split} (among BM25's first {dev_passages:,})" if split == "dev" and dev_passages else split


def reranked_by(results: Mapping[str, Any]) -> str:
    """The name of the state that a ranker re-ranks, if the results are of one; else ""."""
    return str(results.get("reranked", {}).get("first", ""))


def corrected(row: Mapping[str, Any]) -> float:
    """The p value of a test: corrected over the tests of its measure, if it stands in a table of them."""
    return float(row.get("p_holm", row["p"]))


def name_of_final(results: Mapping[str, Any]) -> str:
    """What a person calls the model that an experiment leaves."""
    return "the final ranker" if reranked_by(results) else "the final model"


def _kind(row: Mapping[str, Any]) -> str:
    if corrected(row) > SURE:
        return "unsure"
    return "better" if row["difference"] > 0 else "worse"


def _sentence(
    row: Mapping[str, Any], means: Mapping[str, Any], split: str, who: str, named: Mapping[str, str]
) -> str:
    measure, other = row["measure"], {**NAMES, **named}.get(row["b"], row["b"])
    word = {
        "better": "is better than",
        "worse": "is worse than",
        "unsure": "cannot be told apart from",
    }[_kind(row)]
    values = f"{measure} {means[row['a']][measure]:.3f} against {means[row['b']][measure]:.3f}"
    return f"On {split}, {who} {word} {other}: {values} ({difference_of(row)})."


def is_same(row: Mapping[str, Any], kept: Mapping[str, Any]) -> bool:
    """Whether a test compares the untrained model with itself, because no state of training was better on dev."""
    return bool(row["b"] in BEFORE and kept.get("state") == row["b"] and row["difference"] == 0)


def of_untrained(kept: Mapping[str, Any], who: str) -> str:
    """The sentence in place of a test of the untrained model against itself."""
    dev = dict(kept.get("of", {}))
    shown, before = "", before_training(dev)
    if {before, LAST} <= set(dev):
        shown = f" ({kept.get('measure', 'score')} {dev[before]:.3f}, the last state {dev[LAST]:.3f})"
    settings = " at the lengths and other settings of training" if kept.get("state") == STARTED else ""
    return (
        f"On dev, no state of training was better than the untrained one{shown}, so {who} is the untrained"
        f" one{settings}."
    )


def difference_of(row: Mapping[str, Any]) -> str:
    """The difference of a test with its interval and p.

    If p is small before the correction alone, both are told.
    """
    low, high = row["interval"]
    p = corrected(row)
    name = "p (Holm)" if "p_holm" in row else "p"  # a single test is corrected for nothing
    told = p_text(p)
    if row["p"] <= SURE < p:  # else the interval and the verdict seem to contradict each other
        told += f", {p_text(row['p'])} before it was corrected for all tests of this measure"
    return f"difference {row['difference']:+.3f}, 95 % interval {low:+.3f} to {high:+.3f}, {name} = {told}"


def _of_seeds(results: Mapping[str, Any], dev_passages: int | None) -> Verdict:
    split = "test" if "test" in results else "dev"
    states = results.get(split, {})
    if FINAL not in states:
        return Verdict("open", "Nothing was measured over these seeds.", (), ())
    measure = next(iter(states[FINAL]))
    parts = []
    chose = bool(dev_passages) and split == "dev"  # BM25 chose the passages that the model ranked
    final = "the final ranker" if RETRIEVED in states else "the final model"
    for name in (FINAL, *BEFORE) if chose else (FINAL, *BEFORE, RETRIEVED, BM25):
        if name in states:
            one = states[name][measure]
            parts.append(f"{NAMES.get(name, final)} {one['mean']:.3f} ± {one['std']:.3f}")
    said = f"Over {len(results['seeds'])} seeds, {split_of(split, dev_passages)} {measure}: {', '.join(parts)}."
    advice = (_too_high(dev_passages),) if dev_passages and chose else ()
    return Verdict("open", said, tuple(f"The {rate}." for rate in [rate_sentence(results)] if rate), advice)


def _too_high(dev_passages: int) -> str:
    return (
        "Give a test split, or train with dev_passages = none: dev was evaluated on the positives and the"
        f" first {dev_passages:,} passages that BM25 finds for each query alone, so its figures are too high."
    )


def _advice(
    results: Mapping[str, Any],
    rows: list[Any],
    queries: int | None,
    dev_passages: int | None,
    momentum_from: int | None,
) -> list[str]:
    """What to do next, the most useful first."""
    kept = results.get("kept", {})
    found = [
        *(_of_start(results, kept) or _of_training(rows, kept)),
        *_of_settings(rows, kept),
        *_of_baseline(results, rows),
        *_of_choice(results),
    ]
    unsure = _kind(rows[0]) == "unsure" and not is_same(rows[0], kept)
    if queries is not None and queries < FEW_QUERIES and unsure:
        many = queries > 0 and least_p(results, rows[0], queries) <= SURE
        which = "only large differences" if many else "no difference"
        found.append(f"Measure on more queries: with {queries:,}, {which} can be told from chance.")
    if dev_passages and results.get("compared_on") == "dev":
        found.append(_too_high(dev_passages))
    steps = results.get("forgetting") or []
    if steps and (worst := max(steps, key=lambda step: step["forgotten"]))["forgotten"] > MUCH_FORGOTTEN:
        momentum = momentum_from is not None and steps.index(worst) >= momentum_from
        remedy = "more momentum (alpha) or a lower learning rate" if momentum else "a lower learning rate"
        before = "the untrained model" if worst["before"] in (UNTRAINED, STARTED) else worst["before"]
        rose = f", and {percent(worst['learned'])} rose" if "learned" in worst else ""
        found.append(
            f"Look at forgetting: {percent(worst['forgotten'])} of the training queries fell from {before} to"
            f" {worst['after']}{rose}; {remedy} may keep more of them."
        )
    return found


def least_p(results: Mapping[str, Any], row: Mapping[str, Any], queries: int) -> float:
    """The lowest p that a test of so many queries can have, after the correction for all tests of its measure.

    The test counts the signs of the queries' differences, of which two patterns have the greatest sum.
    """
    tests = sum(one["measure"] == row["measure"] for one in results["comparisons"]) if "p_holm" in row else 1
    return float(tests * 2 / 2**queries)


def _of_in_batch(found: Beside | None) -> list[str]:
    """What to do if mined negatives gained nothing over those of the batch."""
    if found is None or _kind(found.row) == "better":
        return []
    return [
        "Try more negatives, filters on their scores, or more steps; or train longer with in-batch negatives"
        " before you mine: mined negatives were not shown to be better than in-batch negatives."
    ]


def _of_start(results: Mapping[str, Any], kept: Mapping[str, Any]) -> list[str]:
    """What to do if training helped, but not as much as the settings that it started with had cost."""
    if (cost := cost_of_settings(results)) is None:
        return []
    before, began, reached = cost
    return [
        "Start with settings nearer to the model's own, such as its lengths: on dev, these settings alone took"
        f" {kept['measure']} from {before:.3f} to {began:.3f}, and training then raised it to {reached:.3f} only."
    ]


def _of_settings(rows: list[Any], kept: Mapping[str, Any]) -> list[str]:
    """What to do if the model is better than it came, but not shown to be better than before its first step."""
    kinds = {row["b"]: _kind(row) for row in rows}
    against = kinds.get(STARTED, "better")
    if kept.get("state") in BEFORE or kinds.get(UNTRAINED) != "better" or against == "better":
        return []
    found = "was worse than" if against == "worse" else "was not shown to be better than"
    fix = "Try a lower learning rate, other negatives or more data" if against == "worse" else "Train longer"
    return [f"{fix}: the final model {found} {AS_TRAINED}."]


def _of_training(rows: list[Any], kept: Mapping[str, Any]) -> list[str]:
    dev = dict(kept.get("of", {}))
    row = next((row for row in rows if row["b"] == UNTRAINED), rows[0])
    worse = _kind(row) == "worse"
    if not worse and dev.get(kept.get("state", UNTRAINED), 0) >= 1:  # no state can be better
        return []
    values = since_start(dev)
    if len(values) > 1 and len(set(values.values())) == 1:
        return [f"Train longer: on dev, no state differs from {NAMES[STARTED if STARTED in dev else UNTRAINED]}."]
    if kept.get("state") in BEFORE or worse:
        return ["Try a lower learning rate, other negatives or more data: training did not help."]
    if len(values) < 3:
        return []
    best, last = max(dev, key=lambda name: dev[name]), list(dev)[-1]
    if best in BEFORE:
        told = f"{dev[best]:.3f}, the last state {dev[last]:.3f}"
        return [
            f"Try a lower learning rate or other negatives: on dev, nothing beat the untrained model ({told})."
        ]
    if best == last:
        return ["Train longer, or go on from this model: dev was best in the last state, so it may still rise."]
    if kept.get("state") == LAST and dev[best] > dev[last]:
        return [
            f"Set keep=best: on dev, {best} was better ({dev[best]:.3f}) than the last state ({dev[last]:.3f})."
        ]
    return []


def _of_choice(results: Mapping[str, Any]) -> list[str]:
    """What to do if the queries that measure the final model also chose it: its tests then say too much."""
    return [f"Give a test split: {said}." for said in [choice_sentence(results)] if said]


def _of_baseline(results: Mapping[str, Any], rows: list[Any]) -> list[str]:
    if reranked_by(results):
        return ["Do not re-rank with it: its order is worse than the one it is given."] * (
            _kind(rows[0]) == "worse"
        )
    behind = [row for row in rows if row["b"] == BM25 and _kind(row) == "worse"]
    fused = fused_row(results)
    helps, value = fused is not None and _kind(fused) == "better", ""
    if fused is not None:
        measure, split = fused["measure"], results["compared_on"]
        both = results["fused"][split][fused["a"]][measure]
        if both <= results[split].get(BM25, {}).get(measure, -1.0):
            return [
                f"BM25 alone is best here; fusing it with the model gives only {measure} {both:.3f}. Search with "
                "BM25, give it more weight (hardneg fuse --weights), or train longer or on more data."
            ] * bool(behind)
        value = f"{measure} {both:.3f}" if helps else ""
    if behind:
        value = value and f": {value}"
        return [
            f"BM25 is ahead here: fuse the model with it (hardneg fuse{value}), or train longer or on more data."
        ]
    together = f"together they are better than the model alone ({value})."
    return [f"Fuse the model with BM25 (hardneg fuse): {together}"] if helps else []


def fused_row(results: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The test of the final model fused with BM25 against that model alone; None if they were not fused."""
    rows = results.get("fused", {}).get("comparisons", [])
    return next((row for row in rows if row["b"] == FINAL), None)
