"""The page of the study of AR2, made from the outcomes of its experiments alone."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from ar2_cells import ADVERSARIAL, DEEP, FIRST_RANKER, MAIN, START, TITLES, cell_of, name_of, size_of
from harness import difference, insert, paired, table
from outcomes import Outcome, Values
from seeds import over_seeds

from hardneg.evaluation.significance import holm

NOT_RUN = "not run"
TESTED = ("R@1", "R@5", "RR@10")
SHOWN = ("R@1", "R@5", "R@10", "R@20", "R@100", "RR@10")
CERTAIN = 0.05  # a sentence states a difference if p after Holm's correction is below this
ALIKE = ("model", "passage_length", "query_length", "depth", "precision", "measures", "labels", "learning_rate")
BEGIN_AT = "untrained"

State = tuple[str, str]  # a cell, and a state of it
Pair = tuple[str, State, State]  # a title, and two states: the first minus the second
STAGES = {
    "train": "training",
    "encode": "encoding",
    "search": "searching",
    "mine": "mining",
    "rerank": "re-ranking",
}
GRID: Mapping[tuple[str, str], State] = {
    ("G⁰", "none"): (MAIN, BEGIN_AT),
    ("G⁰", "D⁰"): (MAIN, f"{BEGIN_AT}/first-ranker"),
    ("G⁰", "D"): (MAIN, f"{BEGIN_AT}/ranker"),
    ("G", "none"): (MAIN, "final"),
    ("G", "D⁰"): (MAIN, "final/first-ranker"),
    ("G", "D"): (MAIN, "final/ranker"),
}


# ---------------------------------------------------------------- what was measured


def steps_of(settings: Mapping[str, Any]) -> int:
    """The retriever's steps in a cell, by the settings of its recipe."""
    if "iterations" in settings:
        return int(settings["iterations"] * settings["retriever_steps"])
    if "refresh_every" in settings:
        return int((settings["refreshes"] + 1) * settings["refresh_every"])
    return int(settings["steps"] + (settings["episodes"] - 1) * settings["stop_step"])


def check_alike(outcomes: Sequence[Outcome]) -> None:
    """Refuse a collection whose cells differ in lengths, rates or numbers of steps.

    Raises
    ------
    SystemExit : two experiments differ in a setting that all cells share, so one must be made anew.
    """
    cells = [one for one in outcomes if cell_of(one.experiment)[0] not in (START, FIRST_RANKER)]
    for one in cells:
        for name, ours, first in [
            *((key, one.settings.get(key), cells[0].settings.get(key)) for key in ALIKE),
            ("steps", steps_of(one.settings), steps_of(cells[0].settings)),
        ]:
            if ours != first:
                what = f"{one.experiment} has {name} = {ours}, {cells[0].experiment} {first}"
                raise SystemExit(f"{one.settings.get('data')}: {what}; make one anew, or give another --kept")


@dataclass(frozen=True)
class Told:
    """The outcomes of a collection, by the names of their experiments."""

    outcomes: Mapping[str, Outcome]

    def seeds(self, *cells: str) -> list[int]:
        """The seeds for which all of these cells are done."""
        found = [{seed for cell, seed in map(cell_of, self.outcomes) if cell == wanted} for wanted in cells]
        return sorted(set.intersection(*found)) if found else []

    def of(self, cell: str) -> list[Outcome]:
        """The outcomes of a cell, seed by seed."""
        return [self.outcomes[name_of(cell, seed)] for seed in self.seeds(cell)]

    @property
    def cells(self) -> list[str]:
        """The cells that any seed has, in the order of the questions."""
        found = {cell for cell, _ in map(cell_of, self.outcomes)}
        others = sorted(found - set(TITLES), key=size_of)
        return [cell for cell in TITLES if cell in found] + others

    @property
    def any(self) -> Outcome:
        """Any one outcome, to read what all of them share."""
        return next(iter(self.outcomes.values()))

    def setting(self, cell: str, name: str) -> Any:
        """A setting of a cell; None if the cell has not run."""
        return next((one.settings.get(name) for one in self.of(cell)), None)

    def mean_values(self, place: State, seeds: Sequence[int], measure: str) -> Values | None:
        """A measure of every test query, averaged over seeds; None if a seed does not have it."""
        cell, state = place
        found = [values_of(self.outcomes[name_of(cell, seed)], state, measure) for seed in seeds]
        known = [one for one in found if one is not None]
        return np.mean(known, axis=0) if known and len(known) == len(found) else None


def values_of(one: Outcome, state: str, measure: str, split: str = "test") -> Values | None:
    """A measure of a state for every query; None if it is not kept.

    R@k is the share of queries with a positive among the first k (Success@k), or with an answer if answers are the
    labels, as in the paper. If only the rank of the first positive is kept, the measure is computed from it.
    """
    state = state_in(one, state, split)
    kind, _, count = measure.partition("@")
    if kind == "R" and (found := one.values(split, state, f"Answer@{count}")) is not None:
        return found
    if (deep := one.values(split, state, DEEP)) is None:
        return None
    near = deep >= 1 / int(count)
    return near.astype(np.float64) if kind == "R" else np.where(near, deep, 0.0)


def state_in(one: Outcome, state: str, split: str = "test") -> str:
    """The name of a state in an outcome; the state that training starts from may have another name there."""
    started = state.replace(BEGIN_AT, "untrained-as-trained", 1)
    return started if started in one.results.get(split, {}) else state


def counted(seeds: Sequence[int]) -> str:
    """How many seeds, in words."""
    words = {0: "no seed", 1: "one seed", 2: "two seeds", 3: "three seeds"}
    return words.get(len(seeds), f"{len(seeds)} seeds")


# ---------------------------------------------------------------- tables of means and of tests


def means_table(told: Told, rows: Iterable[tuple[str, State]], measures: Sequence[str] = SHOWN) -> str:
    """Every measure of states on test, mean and standard deviation over seeds."""
    lines = []
    for title, (cell, state) in rows:
        seeds = told.seeds(cell)
        found = [[values_of(one, state, measure) for one in told.of(cell)] for measure in measures]
        means = [[float(np.nanmean(one)) for one in of if one is not None] for of in found]
        lines.append([title, len(seeds), *map(over_seeds, means)])
    return table(["", "seeds", *measures], lines)


def tests_table(told: Told, pairs: Sequence[Pair]) -> str:
    """Paired differences on test, averaged over the seeds that both have; p corrected over the whole table."""
    lines: list[list[Any]] = []
    found: list[float] = []
    sentences: list[tuple[str, Sequence[int], dict, int]] = []
    for title, a, b in pairs:
        seeds = told.seeds(a[0], b[0])
        cells = []
        for measure in TESTED:
            tested = compared(told, a, b, seeds, measure)
            if tested is None:
                cells.append(NOT_RUN)
                continue
            cells.append(f"{difference(tested)}, p {tested['p']:.2g} → {{{len(found)}:.2g}}")
            if measure == TESTED[-1]:
                sentences.append((title, seeds, tested, len(found)))
            found.append(tested["p"])
        lines.append([title, len(seeds), *cells])
    corrected = holm(found)
    shown = [[title, n, *(cell.format(*corrected) for cell in cells)] for title, n, *cells in lines]
    made = [verdict(title, seeds, tested, corrected[at]) for title, seeds, tested, at in sentences]
    return "\n".join([table(["", "seeds", *TESTED], shown), "", *made])


def compared(told: Told, a: State, b: State, seeds: Sequence[int], measure: str) -> dict | None:
    """The paired test of two states; None if one of them is missing."""
    if not seeds:
        return None
    x, y = (told.mean_values(place, seeds, measure) for place in (a, b))
    if x is None or y is None:
        return None
    both = ~np.isnan(x) & ~np.isnan(y)
    return paired(x[both], y[both])


def verdict(title: str, seeds: Sequence[int], tested: Mapping[str, Any], p: float) -> str:
    """A sentence that states exactly what a line of the table shows."""
    if p >= CERTAIN:
        words = "no difference is shown"
    else:
        words = "the first is higher" if tested["difference"] > 0 else "the first is lower"
    return f"- {title}, RR@10 ({counted(seeds)}): {words} ({difference(tested)}, p {p:.2g} after Holm)."


# ---------------------------------------------------------------- the four questions


def first_question(told: Told) -> list[str]:
    """G against more training on static, refreshed and teleportation negatives (Table 2, Fig. 4)."""
    rows = [("BM25", (START, "bm25")), ("G⁰", (START, "final"))] + [
        (TITLES[cell], (cell, "final")) for cell in ("static", "ance", "tele", MAIN)
    ]
    pairs: list[Pair] = [("AR2 − G⁰", (MAIN, "final"), (MAIN, BEGIN_AT))]
    pairs += [(f"AR2 − {short}", (MAIN, "final"), (cell, "final")) for cell, short in SHORT.items()]
    return [
        "#### 1. AR2 against training on negatives alone (Table 2, Fig. 4)\n",
        means_table(told, rows),
        tests_table(told, pairs),
        "After each iteration, on test:\n",
        refreshes_table(told),
    ]


SHORT = {"static": "static negatives", "ance": "ANCE", "tele": "ANCE-Tele"}


def refreshes_table(told: Told) -> str:
    """R@5 and R@10 of ANCE and AR2 after each of their equal parts of training."""
    last = told.setting(MAIN, "iterations") or 0
    lines = []
    for number in range(last + 1):
        states = {MAIN: iteration(number, last, "iteration"), "ance": iteration(number, last, "refresh")}
        figures = [state_mean(told, (cell, state), f"R@{k}") for cell, state in states.items() for k in (5, 10)]
        lines.append([number, *figures])
    heads = [f"{title}, R@{k}" for title in ("AR2", "ANCE") for k in (5, 10)]
    return table(["iteration", *heads], lines)


def iteration(number: int, last: int, word: str) -> str:
    """The state after so many iterations."""
    return {0: BEGIN_AT, last: "final"}.get(number, f"{word}-{number}")


def state_mean(told: Told, place: State, measure: str) -> str:
    """A measure of a state, over seeds."""
    found = [values_of(one, place[1], measure) for one in told.of(place[0])]
    return over_seeds([float(np.nanmean(one)) for one in found if one is not None])


def second_question(told: Told) -> list[str]:
    """Distillation, the adversarial loss, both (Table 6)."""
    cells = (MAIN, "distil", ADVERSARIAL)
    both = (MAIN, "final")
    pairs: list[Pair] = [
        ("both − distillation", both, ("distil", "final")),
        ("both − adversarial", both, (ADVERSARIAL, "final")),
        ("distillation − G⁰", ("distil", "final"), ("distil", BEGIN_AT)),
        ("adversarial − G⁰", (ADVERSARIAL, "final"), (ADVERSARIAL, BEGIN_AT)),
    ]
    return [
        "#### 2. Distillation and the adversarial loss (Table 6)\n",
        means_table(told, [(TITLES[cell], (cell, "final")) for cell in cells]),
        tests_table(told, pairs),
        "Entropy of p over the positive and the first 15 other hits, in nats (the paper: 2.10 with distillation,\n"
        "1.70 without it; 16 equal scores have 2.77):\n",
        entropy_table(told, cells),
    ]


def entropy_table(told: Told, cells: Sequence[str]) -> str:
    """The entropy before and after the game, on test."""
    lines = []
    for cell in cells:
        known = [one.results.get("entropy", {}).get("test", {}) for one in told.of(cell)]
        before, after = (
            [
                found[name]
                for one, found in zip(told.of(cell), known, strict=True)
                if (name := state_in(one, state)) in found
            ]
            for state in (BEGIN_AT, "final")
        )
        lines.append([TITLES[cell], over_seeds(before, ".2f"), over_seeds(after, ".2f")])
    return table(["", "G⁰", "after the game"], lines)


def third_question(told: Told) -> list[str]:
    """Numbers of negatives, iterations, IRGAN's game (Table 4, Fig. 3, Table 5)."""
    sizes = sized(told)
    rows = [(f"n = {count}", (cell, "final")) for count, cell in sizes.items()]
    pairs: list[Pair] = [
        (f"n = {count} − n = {min(sizes)}", (cell, "final"), (sizes[min(sizes)], "final"))
        for count, cell in sizes.items()
        if count != min(sizes)
    ]
    against: list[Pair] = [
        ("AR2 − IRGAN", (MAIN, "final"), ("irgan", "final")),
        ("adversarial alone − IRGAN", (ADVERSARIAL, "final"), ("irgan", "final")),
    ]
    return [
        "#### 3. Negatives, iterations, IRGAN's game (Tables 4 and 5, Fig. 3)\n",
        "The adversarial loss alone, with n negatives:\n",
        means_table(told, rows),
        table(
            ["", "ms a step of the retriever", "ms a step of the ranker"],
            [step_cells(told, *one) for one in sizes.items()],
        ),
        tests_table(told, pairs) if pairs else "",
        "AR2 with both losses, iteration by iteration: the retriever over all passages, and the ranker over the\n"
        "first hits of G⁰:\n",
        iterations_table(told),
        means_table(told, [(TITLES[cell], (cell, "final")) for cell in (MAIN, ADVERSARIAL, "irgan")]),
        tests_table(told, against),
    ]


def sized(told: Told) -> dict[int, str]:
    """The cells of the adversarial loss alone by their number of negatives."""
    count = told.setting(ADVERSARIAL, "negatives_per_query")
    found = {size_of(cell): cell for cell in told.cells if cell not in TITLES}
    return dict(sorted((found | ({int(count): ADVERSARIAL} if count else {})).items()))


def step_cells(told: Told, count: int, cell: str) -> list[str]:
    """Milliseconds that a step of either model takes."""
    both = (milliseconds(told.of(cell), model) for model in ("retriever", "ranker"))
    return [f"n = {count}", *both]


def milliseconds(outcomes: Sequence[Outcome], model: str) -> str:
    """The time of a step of a model, over seeds."""
    found = []
    for one in outcomes:
        own = "ranker" if cell_of(one.experiment)[0] == FIRST_RANKER else "retriever"
        rows = [row for row in one.timing if row["stage"] == "train" and row.get("model", own) == model]
        if steps := sum(row.get("steps", 0) for row in rows):
            found.append(1000 * sum(row["seconds"] for row in rows) / steps)
    return over_seeds(found, ".0f") if found else ""


def iterations_table(told: Told) -> str:
    """Retriever and ranker after every iteration (Fig. 3)."""
    last = told.setting(MAIN, "iterations") or 0
    lines = []
    for number in range(last + 1):
        ranker = {0: "first-ranker", last: "ranker"}.get(number, f"ranker-{number}")
        places = [iteration(number, last, "iteration"), f"{BEGIN_AT}/{ranker}"]
        lines.append([number, *(state_mean(told, (MAIN, state), m) for state in places for m in ("R@5", "RR@10"))])
    return table(["iteration", "retriever, R@5", "RR@10", "ranker on G⁰'s hits, R@5", "RR@10"], lines)


def fourth_question(told: Told) -> list[str]:
    """The grid of the pipeline and the cost of each part (Tables 3, 7, 8)."""
    none, first, last = (GRID["G", by] for by in ("none", "D⁰", "D"))
    pairs: list[Pair] = [
        ("G⁰: D⁰ − none", GRID["G⁰", "D⁰"], GRID["G⁰", "none"]),
        ("G⁰: D − D⁰", GRID["G⁰", "D"], GRID["G⁰", "D⁰"]),
        ("G: D − none", last, none),
        ("G: D − D⁰", last, first),
        ("G with D − G⁰ with D⁰", last, GRID["G⁰", "D⁰"]),
    ]
    depth = told.setting(MAIN, "rerank_depth")
    return [
        "#### 4. The pipeline and its cost (Tables 3, 7 and 8)\n",
        f"The ranker re-orders the first {depth or '?'} hits:\n",
        means_table(told, [(f"{retriever}, {ranker}", place) for (retriever, ranker), place in GRID.items()]),
        tests_table(told, pairs),
        "Seconds of each part, mean over seeds. Re-ranking of dev and test is for measuring alone:\n",
        cost_table(told),
    ]


def cost_table(told: Told) -> str:
    """Seconds of every cell, part by part."""
    lines = []
    for cell in told.cells:
        found = told.of(cell)
        title = TITLES.get(cell) or f"adversarial alone, n = {size_of(cell)}"
        models = [milliseconds(found, model) for model in ("retriever", "ranker")]
        parts = [np.mean([seconds(one, stage) for one in found]) for stage in STAGES]
        lines.append([title, len(found), *(f"{part:.0f}" for part in parts), *models])
    heads = [*STAGES.values(), "ms a step of the retriever", "of the ranker"]
    return table(["", "seeds", *heads], lines)


def seconds(one: Outcome, stage: str) -> float:
    """Seconds of a stage."""
    return one.seconds.get(stage, 0.0)


# ---------------------------------------------------------------- the page


def report(outcomes: Sequence[Outcome]) -> str:
    """The part of the page about one collection."""
    told = Told({one.experiment: one for one in outcomes})
    parts = [set_up(told), *first_question(told), *second_question(told)]
    parts += [*third_question(told), *fourth_question(told)]
    return "\n\n".join(part.rstrip("\n") for part in parts if part) + "\n"


def set_up(told: Told) -> str:
    """What was run, in words."""
    shared, seeds = told.any.settings, told.seeds(START)
    found = (values_of(one, "final", "RR@10") for one in told.outcomes.values())
    queries = next((len(one) for one in found if one is not None), 0)
    where = f"{shared['precision']}, on {told.any.threads} CPU thread(s)"
    return "\n".join(
        [
            f"### {shared['data']}\n",
            f"{shared['model']}, {where}: {len(told.outcomes)} experiments,",
            f"G⁰ and D⁰ of {counted(seeds)} ({', '.join(map(str, seeds))}), {queries} test queries.",
            *game_in_words(told),
            *(f"\n{line}" for line in readiness(told)),
        ]
    )


def readiness(told: Told) -> list[str]:
    """A sentence on whether D⁰ is ahead of the retriever that it should teach; empty before D⁰ is trained."""
    found = [[values_of(one, state, "RR@10") for state in ("retriever", "final")] for one in told.of(FIRST_RANKER)]
    means = [(float(a.mean()), float(b.mean())) for a, b in found if a is not None and b is not None]
    if not means:
        return []
    before, after = (over_seeds([pair[i] for pair in means]) for i in (0, 1))
    ahead = sum(b > a for a, b in means)
    return [
        f"D⁰ orders the same hits better than G⁰ with {ahead} of {len(means)} seeds: test RR@10 is {before} by G⁰"
        f" and {after} by D⁰."
        + ("" if ahead == len(means) else " With the other seeds the retriever learns from a worse ranker.")
    ]


def game_in_words(told: Told) -> list[str]:
    """The numbers of steps, queries and negatives, in words; empty before the game has run."""
    if not (games := told.of(MAIN)):
        return []
    of = games[0].settings
    return [
        f"Every row makes {steps_of(of)} steps from G⁰, of {of['queries_per_step']} queries with"
        f" {of['negatives_per_query']} negatives each (question 3: with n).",
        f"AR2 makes them in {of['iterations']} iterations, each with {of['ranker_steps']} steps of the ranker"
        f" ({of['ranker_queries_per_step']} queries) besides.",
        f"Learning rates: {of['learning_rate']:g} of the rows' retrievers,"
        f" {of['ranker_learning_rate']:g} of the ranker.",
        *beginnings_in_words(told),
        f"Passages are cut at {of['passage_length']} tokens.",
    ]


def beginnings_in_words(told: Told) -> list[str]:
    """A description of the starts of G⁰ and D⁰ and of their training."""
    lines = []
    for name, cell in (("G⁰", START), ("D⁰", FIRST_RANKER)):
        if not (found := told.of(cell)):
            continue
        of = found[0].settings
        steps = of["steps"][0] if isinstance(of["steps"], list) else of["steps"]
        anew = of.get("reinit_layers", 0)
        begun = f" It began with its {anew} top layers drawn anew." if anew else ""
        lines.append(
            f"{name} made {steps} steps of {of['queries_per_step']} queries at {of['learning_rate']:g}.{begun}"
        )
    return lines


def write(outcomes: Sequence[Outcome], page: Path | None) -> str:
    """Make the section of every collection, and put each between its marks on the page; returns all of them."""
    names = list(dict.fromkeys(str(one.settings["data"]) for one in outcomes))
    texts = []
    for name in names:
        of_name = [one for one in outcomes if one.settings["data"] == name]
        check_alike(of_name)
        text = report(of_name)
        texts.append(text)
        if page is not None:
            begin, end = f"<!-- {name}: written by studies/ar2.py -->\n", f"<!-- end of {name} -->\n"
            insert(page, text, begin, end)
    return "\n".join(texts)
