"""The experiments of the study of STAR and ADORE, and the rows that show them."""

from __future__ import annotations

from argparse import Namespace

from harness import Row, Step, Study, best_rate

MEASURE, MEASURES, SPLITS = "RR@10", ("RR@10", "nDCG@10"), ("dev", "test")
FIRST = {"in-batch": "In-Batch", "random": "Rand", "bm25": "BM25", "ance": "ANCE (sync)", "star": "STAR"}
ADORE = "-adore"
ROWS = (*FIRST, *(name + ADORE for name in FIRST))
GRID_FROM, CURVES_FROM = "star", "bm25"  # the models that these parts start from
PARTS: dict[str, tuple[str, ...]] = {
    "rows": (),
    "grid": (GRID_FROM, GRID_FROM + ADORE),
    "curves": (CURVES_FROM, CURVES_FROM + ADORE),
}  # each part with the rows that it needs
ARMS = {"dynamic": "dynamic", "refreshed": "static, refreshed", "static": "static", "random": "random"}


def wanted(chosen: Namespace) -> list[str]:
    """The rows that the user chose, and the rows that a part needs."""
    rows = set(chosen.rows if "rows" in chosen.parts else ())
    return [name for name in ROWS if name in rows.union(*(PARTS[part] for part in chosen.parts))]


def bases(chosen: Namespace) -> list[str]:
    """The models that ADORE is tried on."""
    return [name.removesuffix(ADORE) for name in wanted(chosen) if name.endswith(ADORE)]


def first_rows(chosen: Namespace) -> dict[str, Row]:
    """The models that ADORE starts from, all with equal steps; ANCE and STAR share their warm-up."""
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
    """An experiment of ADORE, which trains the query side of a model further."""
    shape = {"depth": chosen.depth, "cut": chosen.depth, "steps": chosen.adore_steps, "learning_rate": rate}
    return Step(name, "adore", shape | settings, model=base)


def tried(chosen: Namespace, base: str) -> list[Step]:
    """The experiments of ADORE on top of a model, one for every rate of the grid."""
    return [adore(chosen, f"{base}{ADORE}-{rate:g}", base, rate) for rate in chosen.adore_rates]


def rate_of(study: Study, chosen: Namespace, base: str) -> float | None:
    """The rate of ADORE that is best on dev on top of a model; None while an experiment is missing."""
    return best_rate(study, [step.name for step in tried(chosen, base)], chosen.adore_rates, MEASURE)


def result_of(study: Study, chosen: Namespace, row: str) -> str | None:
    """The experiment that a row shows; None while ADORE's rate is not chosen."""
    if not row.endswith(ADORE):
        return row
    rate = rate_of(study, chosen, row.removesuffix(ADORE))
    return None if rate is None else f"{row}-{rate:g}"


def compressed(chosen: Namespace, rate: float) -> dict[int, Step]:
    """The experiments of ADORE over compressed indexes, by the number of codes for each passage."""
    index: dict[str, object] = {"index": "pq", "bits": chosen.bits}
    return {n: adore(chosen, f"pq-{n}", GRID_FROM, rate, **index, subvectors=n) for n in chosen.codes}


def searched_name(trained: str, over: object) -> str:
    """The name of a model's search over an index that it was not trained over."""
    return f"{trained}-over-{over}"


def searches(chosen: Namespace, exact: str) -> dict[str, Step]:
    """The searches of each model over the compressed indexes of the others; ``exact`` was trained over none."""
    trained = {str(codes): f"pq-{codes}" for codes in chosen.codes} | {"exact": exact}
    return {
        searched_name(name, over): Step(searched_name(name, over), "search", {"over": over}, model=experiment)
        for name, experiment in trained.items()
        for over in chosen.codes
        if str(over) != name
    }


def arms(chosen: Namespace, rate: float) -> dict[str, Step]:
    """The arms of the figure, which differ only in their negatives; their loss gives all pairs equal weight."""
    shared = {"steps": chosen.curve_steps, "measure_every": chosen.measure_every, "weighted": False}
    settings: dict[str, dict[str, object]] = {
        "dynamic": {"negatives": "dynamic"},
        "refreshed": {"negatives": "static", "refresh_every": chosen.refresh_every},
        "static": {"negatives": "static"},
        "random": {"negatives": "random"},
    }
    return {arm: adore(chosen, f"curve-{arm}", CURVES_FROM, rate, **shared, **settings[arm]) for arm in ARMS}
