"""The cells of the study of AR2: one experiment for each row and seed, and the questions that they answer.

G⁰ (``g0``) and D⁰ (``d0``) of a seed are trained once. All other cells of the seed start from them, and train the
retriever for as many steps.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterable, Mapping

from harness import Step

FIRST_SEED = 42
DEEP = "RR@100"  # kept for every query: the first positive's rank, which gives RR@k and Success@k
JUDGED = ("Success@1", "Success@5", "Success@10", "Success@20", "Success@100")
ANSWERED = ("Answer@1", "Answer@5", "Answer@10", "Answer@20", "Answer@100")
START, FIRST_RANKER, MAIN = "g0", "d0", "ar2"
ADVERSARIAL = "adversarial"
TITLES = {
    START: "G⁰",
    FIRST_RANKER: "D⁰",
    "static": "static negatives of G⁰",
    "ance": "ANCE: the same, refreshed",
    "tele": "ANCE-Tele",
    MAIN: "AR2 (both losses)",
    "distil": "distillation alone",
    ADVERSARIAL: "adversarial alone",
    "irgan": "IRGAN's game",
}
QUESTIONS = {
    "1": (MAIN, "static", "ance", "tele"),
    "2": (MAIN, "distil", ADVERSARIAL),
    "3": (MAIN, ADVERSARIAL, "irgan"),  # and the numbers of negatives
    "4": (MAIN,),
}


def name_of(cell: str, seed: int) -> str:
    """The name of an experiment."""
    return f"{cell}-seed-{seed}"


def cell_of(name: str) -> tuple[str, int]:
    """The cell and the seed of an experiment's name."""
    cell, _, seed = name.rpartition("-seed-")
    return cell, int(seed)


def numbered(count: int) -> str:
    """The name of the cell with ``count`` negatives."""
    return f"n-{count}"


def size_of(cell: str) -> int:
    """The number of negatives in a cell's name."""
    return int(cell.removeprefix("n-"))


def cells_of(chosen: Namespace, question: str) -> list[str]:
    """The cells that a question needs, besides G⁰ and D⁰."""
    sizes = [numbered(count) for count in chosen.sizes if count != chosen.negatives] if question == "3" else []
    return [*QUESTIONS[question], *sizes]


def known_cells(chosen: Namespace) -> list[str]:
    """All cells but G⁰ and D⁰, the most informative first."""
    return list(dict.fromkeys(cell for question in QUESTIONS for cell in cells_of(chosen, question)))


def wanted(chosen: Namespace) -> list[str]:
    """The cells that ``--only`` names, by their name or by their question."""
    named = {cell for word in chosen.only for cell in (cells_of(chosen, word) if word in QUESTIONS else [word])}
    return [cell for cell in known_cells(chosen) if cell in named]


def rounds(chosen: Namespace) -> list[list[Step]]:
    """The experiments in rounds, the most informative first; each stands after those that it starts from.

    The first seed answers questions 1 and 2, then 3 and 4; the other seeds follow.
    """
    seeds = range(FIRST_SEED, FIRST_SEED + chosen.seeds)
    early = {cell for question in "12" for cell in cells_of(chosen, question)}
    cells = wanted(chosen)
    parts = [[cell for cell in cells if cell in early], [cell for cell in cells if cell not in early]]
    pairs = [(seeds[:1], part) for part in parts] + [(seeds[1:], part) for part in parts]
    return [
        [step for seed in some for step in with_start(chosen, seed, part)] for some, part in pairs if some and part
    ]


def with_start(chosen: Namespace, seed: int, cells: Iterable[str]) -> list[Step]:
    """The experiments of a seed, after its G⁰ and, if one of them needs it, its D⁰."""
    start, ranker = warm_up(chosen, seed), first_ranker(chosen, seed)
    steps = [step_of(chosen, cell, seed) for cell in cells]
    needed = any(ranker.name in step.needs for step in steps)
    return [start, *([ranker] if needed else []), *steps]


def levels(steps: Iterable[Step]) -> list[list[Step]]:
    """The steps in groups; a step needs only steps of earlier groups."""
    found: list[list[Step]] = []
    place: dict[str, int] = {}
    for step in steps:
        level = 1 + max((place[name] for name in step.needs if name in place), default=-1)
        place[step.name] = level
        found += [[]] * (level + 1 - len(found))
        found[level] = [*found[level], step]
    return found


# ---------------------------------------------------------------- one experiment


def warm_up(chosen: Namespace, seed: int) -> Step:
    """G⁰: a warm-up on BM25 and in-batch negatives, as DPR's (AR2, Section 4.2)."""
    settings = {"mixtures": ["bm25+in_batch"], "negatives": [1], "steps": [chosen.warm_steps]}
    rate = {
        "learning_rate": chosen.warm_rate or chosen.rate,
        "queries_per_step": chosen.warm_queries,
        "seed": seed,
    }
    return Step(name_of(START, seed), "warmup", settings | rate | anew(chosen))


def anew(chosen: Namespace) -> dict[str, object]:
    """The layers of the encoder that G⁰ and D⁰ draw anew: the same weights for both, and for all seeds."""
    return {"reinit_layers": chosen.reinit_layers} if chosen.reinit_layers else {}


def first_ranker(chosen: Namespace, seed: int) -> Step:
    """D⁰: the encoder with a new head, trained on G⁰'s candidates and measured by re-ranking G⁰'s hits."""
    depth = chosen.first_ranker_depth or chosen.depth
    settings = {
        "negatives_per_query": chosen.first_ranker_negatives or chosen.negatives,
        "count": depth,
        "steps": chosen.first_ranker_steps,
        "queries_per_step": chosen.first_ranker_queries or chosen.ranker_queries,
        "learning_rate": chosen.first_ranker_rate,
        "max_length": 32 + chosen.passage_length,
        "rerank": chosen.rerank_depth,
        "seed": seed,
        **anew(chosen),
    }
    return Step(
        name_of(FIRST_RANKER, seed),
        "ranker",
        settings,
        given=(("--retriever", f"{name_of(START, seed)}/model"),),
    )


def step_of(chosen: Namespace, cell: str, seed: int) -> Step:
    """The experiment of a cell, which starts from G⁰, and also from D⁰ if it is a game."""
    start, rate = name_of(START, seed), {"learning_rate": chosen.rate, "seed": seed}
    total = chosen.iterations * chosen.retriever_steps
    group = {"mode": "sync", "negatives_per_query": chosen.negatives, "loss": "contrastive"}
    stop = max(total // 6, 1)
    plain: Mapping[str, tuple[str, dict[str, object]]] = {
        "static": ("ance", group | {"refreshes": 0, "refresh_every": total}),
        "ance": ("ance", group | {"refreshes": chosen.iterations - 1, "refresh_every": chosen.retriever_steps}),
        "tele": (
            "ance-tele",
            {
                "episodes": 3,
                "steps": total - 2 * stop,
                "stop_step": stop,
                "passages_reference": [1 + chosen.negatives],
                "count": min(30, chosen.depth // 3),
            },
        ),
    }
    if cell in plain:
        recipe, settings = plain[cell]
        return Step(name_of(cell, seed), recipe, settings | rate, model=start)
    given = (("--ranker", f"{name_of(FIRST_RANKER, seed)}/model"),)
    return Step(name_of(cell, seed), "ar2", game(chosen, cell) | rate, model=start, given=given)


def game(chosen: Namespace, cell: str) -> dict[str, object]:
    """The settings of a cell of AR2. Only the main cell is re-ranked, because that takes long."""
    kinds: dict[str, dict[str, object]] = {
        MAIN: {"balance": 0.5, "rerank_depth": chosen.rerank_depth},
        "distil": {"balance": 0.0},
        ADVERSARIAL: {"balance": 1.0},
        "irgan": {"balance": 1.0, "game": "irgan"},
    }
    sized = {"balance": 1.0, "negatives_per_query": 0 if cell in kinds else size_of(cell)}
    return {
        "iterations": chosen.iterations,
        "retriever_steps": chosen.retriever_steps,
        "ranker_steps": chosen.ranker_steps,
        "ranker_queries_per_step": chosen.ranker_queries,
        "ranker_learning_rate": chosen.ranker_rate,
        "negatives_per_query": chosen.negatives,
        "rerank_depth": 0,
    } | kinds.get(cell, sized)
