"""STAR and ADORE against the baselines, ADORE over compressed indexes, and static against dynamic negatives.

Part ``rows``: five models of equal optimiser steps, and ADORE on top of each; ADORE's learning rate is the one of
a small grid that does best on dev. Part ``grid``: ADORE trained over product-quantised indexes, searched over all
of them. Part ``curves``: the query side trained on static, refreshed, random and dynamic negatives of one frozen
index, measured on the way. What is finished is not executed again.
"""

from __future__ import annotations

import shutil
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Sequence

from harness import Row, Step, Study, arguments, best_rate, execute, say

import hardneg as hn

MEASURE, MEASURES, SPLITS = "RR@10", ("RR@10", "nDCG@10"), ("dev", "test")
FIRST = {"in-batch": "In-Batch", "random": "Rand", "bm25": "BM25", "ance": "ANCE (sync)", "star": "STAR"}
ADORE = "-adore"
ROWS = (*FIRST, *(name + ADORE for name in FIRST))
GRID_FROM, CURVES_FROM = "star", "bm25"  # the models that these parts start from
PARTS: dict[str, tuple[str, ...]] = {
    "rows": (),
    "grid": (GRID_FROM, GRID_FROM + ADORE),
    "curves": (CURVES_FROM, CURVES_FROM + ADORE),
}  # and the rows that they need
ARMS = {"dynamic": "dynamic", "refreshed": "static, refreshed", "static": "static", "random": "random"}
K = 100  # hits of a search of the grid


# ---------------------------------------------------------------- what is executed


def wanted(chosen: Namespace) -> list[str]:
    """The rows that are asked for, and those that a part needs."""
    rows = set(chosen.rows if "rows" in chosen.parts else ())
    return [name for name in ROWS if name in rows.union(*(PARTS[part] for part in chosen.parts))]


def bases(chosen: Namespace) -> list[str]:
    """The models that ADORE is tried on."""
    return [name.removesuffix(ADORE) for name in wanted(chosen) if name.endswith(ADORE)]


def first_rows(chosen: Namespace) -> dict[str, Row]:
    """The models that ADORE starts from, of equal steps; ANCE and STAR share their warm-up."""
    steps, half, rate = chosen.steps, chosen.steps // 2, {"learning_rate": chosen.rate}

    def warm(name: str, mixture: str, steps: int) -> Step:
        return Step(name, "warmup", {"mixtures": [mixture], "steps": [steps], "depth": 100, **rate})

    start, refreshes = warm("warm", "bm25", half), {"refresh_every": max(half // 3, 1), "refreshes": 2}
    made = {
        "in-batch": (warm("in-batch", "in_batch", steps),),
        "random": (warm("random", "random", steps),),
        "bm25": (warm("bm25", "bm25", steps),),
        "ance": (start, Step("ance", "ance", {"mode": "sync", **refreshes, **rate}, model=start.name)),
        "star": (start, Step("star", "star", {"steps": half, "depth": chosen.depth, **rate}, model=start.name)),
    }
    needed = {name.removesuffix(ADORE) for name in wanted(chosen)}
    return {name: Row(FIRST[name], made[name]) for name in FIRST if name in needed}


def adore(chosen: Namespace, name: str, base: str, rate: float, **settings: object) -> Step:
    """The query side of a model trained further."""
    shape = {"depth": chosen.depth, "cut": chosen.depth, "steps": chosen.adore_steps, "learning_rate": rate}
    return Step(name, "adore", shape | settings, model=base)


def tried(chosen: Namespace, base: str) -> list[Step]:
    """ADORE on top of a model at every rate of the grid."""
    return [adore(chosen, f"{base}{ADORE}-{rate:g}", base, rate) for rate in chosen.adore_rates]


def rate_of(study: Study, chosen: Namespace, base: str) -> float | None:
    """The rate that does best on dev on top of a model; None while one is missing."""
    return best_rate(study, [step.name for step in tried(chosen, base)], chosen.adore_rates, MEASURE)


def result_of(study: Study, chosen: Namespace, row: str) -> str | None:
    """The experiment that a row shows; None while ADORE's rate is not chosen."""
    if not row.endswith(ADORE):
        return row
    rate = rate_of(study, chosen, row.removesuffix(ADORE))
    return None if rate is None else f"{row}-{rate:g}"


def compressed(chosen: Namespace, rate: float) -> dict[int, Step]:
    """ADORE over an index of so many codes a passage."""
    index: dict[str, object] = {"index": "pq", "bits": chosen.bits}
    return {n: adore(chosen, f"pq-{n}", GRID_FROM, rate, **index, subvectors=n) for n in chosen.codes}


def arms(chosen: Namespace, rate: float) -> dict[str, Step]:
    """The arms of the figure: they differ in their negatives alone, and their loss weighs no pairs."""
    shared = {"steps": chosen.curve_steps, "measure_every": chosen.measure_every, "weighted": False}
    settings: dict[str, dict[str, object]] = {
        "dynamic": {"negatives": "dynamic"},
        "refreshed": {"negatives": "static", "refresh_every": chosen.refresh_every},
        "static": {"negatives": "static"},
        "random": {"negatives": "random"},
    }
    return {arm: adore(chosen, f"curve-{arm}", CURVES_FROM, rate, **shared, **settings[arm]) for arm in ARMS}


def search_grid(study: Study, codes: Sequence[int], trained: dict[str, str]) -> None:
    """Search every model over every compressed index that it was not trained over."""
    for name, experiment in trained.items():
        for other in (other for other in codes if str(other) != name):
            for split in SPLITS:
                out = study.folder / "grid" / f"{name}-over-{other}.{split}.trec.gz"
                if out.is_file():
                    continue
                out.parent.mkdir(exist_ok=True)
                hn.search_split(
                    study.data,
                    out,
                    model=str(study.folder / experiment / "model"),
                    index=study.folder / f"pq-{other}/index",
                    split=split,
                    k=K,
                    cache=study.cache(),
                )


def tidy(study: Study) -> None:
    """Delete what a finished experiment needs no more and its figures do not come from."""
    for results in study.folder.glob("*/results.json"):
        for spent in (*results.parent.glob("episodes/*/checkpoint"), *results.parent.glob("states/*/model")):
            shutil.rmtree(spent)


def execute_all(study: Study, chosen: Namespace) -> None:
    """Everything that is asked for, part by part."""

    def run(steps: Sequence[Step], title: str) -> None:
        say(title)
        execute(study, [Row(step.name, (step,)) for step in steps], chosen.jobs)
        tidy(study)

    rows = list(first_rows(chosen).values())
    run([rows[0].steps[0]], "the first experiment fills the shared cache")
    execute(study, rows, chosen.jobs)
    run([step for base in bases(chosen) for step in tried(chosen, base)], "ADORE on top")
    rates = {base: rate_of(study, chosen, base) for base in bases(chosen)}
    say(", ".join(f"{base}{ADORE} at {rate:g}" for base, rate in rates.items()))
    if "grid" in chosen.parts:
        over = compressed(chosen, rates[GRID_FROM])
        run(list(over.values()), "over compressed indexes")
        models = {str(codes): step.name for codes, step in over.items()}
        search_grid(study, chosen.codes, models | {"exact": result_of(study, chosen, GRID_FROM + ADORE)})
    if "curves" in chosen.parts:
        run(list(arms(chosen, rates[CURVES_FROM]).values()), "static, random and dynamic negatives")


# ---------------------------------------------------------------- the command


def some(known: Sequence[str]) -> Callable[[str], list[str]]:
    """A reader of names with commas."""

    def read(text: str) -> list[str]:
        names = text.split(",")
        if wrong := set(names) - set(known):
            raise ValueError(wrong)
        return [name for name in known if name in names]

    read.__name__ = f"names out of {','.join(known)}:"
    return read


def numbers(kind: type) -> Callable[[str], list]:
    """A reader of numbers with commas."""
    return lambda text: [kind(word) for word in text.split(",")]


def options(parser: ArgumentParser) -> None:
    """Options of this study."""
    parser.add_argument("--parts", type=some(list(PARTS)), default=list(PARTS), help="rows,grid,curves")
    parser.add_argument("--rows", type=some(ROWS), default=list(ROWS), help="with commas")
    parser.add_argument("--steps", type=int, default=96, help="optimiser steps of a row, without ADORE's")
    parser.add_argument("--rate", type=float, default=1e-4, help="learning rate of all but ADORE")
    parser.add_argument("--adore-steps", type=int, default=200)
    parser.add_argument("--adore-rates", type=numbers(float), default=[1e-5, 3e-5, 1e-4], help="tried on dev")
    parser.add_argument("--depth", type=int, default=200, help="of ADORE's lists")
    parser.add_argument("--codes", type=numbers(int), default=[12, 24, 48], help="of a passage, with commas")
    parser.add_argument("--bits", type=int, default=8, help="of a code")
    parser.add_argument("--curve-steps", type=int, default=160)
    parser.add_argument("--measure-every", type=int, default=32, help="steps between two points of a curve")
    parser.add_argument("--refresh-every", type=int, default=64, help="steps between two minings of an arm")
    parser.add_argument("--queries-per-step", type=int, default=32)
    parser.add_argument("--passage-length", type=int, default=64)


def common_of(chosen: Namespace) -> dict[str, object]:
    """The settings that all experiments share."""
    return {
        "queries_per_step": chosen.queries_per_step,
        "query_length": 32,
        "passage_length": chosen.passage_length,
        "warmup": 0.1,
        "measures": " ".join([*MEASURES, "R@100"]),
    }


def main() -> None:
    """Execute what is missing, write the tables and the figure."""
    from star_adore_report import report, write

    chosen = arguments(__doc__ or "", options)
    study = Study(chosen.out, chosen.data, chosen.model, common_of(chosen), chosen.threads)
    if not chosen.only_report:
        execute_all(study, chosen)
    if chosen.report:
        write(study, chosen)
    say(report(study, chosen))


if __name__ == "__main__":
    main()
