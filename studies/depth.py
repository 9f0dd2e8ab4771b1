"""The depth of mining hard negatives: among 20 or 200 first hits, with and without a margin.

All arms start from one model that learnt from in-batch negatives, and read as many tokens. They are judged on the
whole dev split: presets are chosen by this study, so it does not look at test.
"""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Sequence

import numpy as np
from harness import Step, Study, arguments, begin, called, difference, insert, keep, paired, say, table
from outcomes import Outcome, Values

from hardneg.evaluation.significance import holm

MEASURES = ("RR@10", "nDCG@10", "R@100")
STATE = "final"
START = "start"
CONTROL = "in-batch"
OTHERS = "in-batch-others"  # with a seed of its own: CONTROL takes the queries of the start again
TITLES = {
    START: "in-batch, where all begin",
    CONTROL: "more training in the batch",
    OTHERS: "more training in the batch, queries in another order",
    "star-200": "STAR, first 200",
    "star-20": "STAR, first 20",
    "star-20-margin": "STAR, first 20, margin",
    "star-margin-20": "STAR, margin, then first 20",
    "tele-200": "ANCE-Tele, first 200",
    "tele-20-margin": "ANCE-Tele, first 20, margin",
}
MARGIN = 0.05

Done = dict[str, dict[int, Outcome]]  # arm -> seed -> outcome


def options(parser: ArgumentParser) -> None:
    """Options of this study."""
    parser.add_argument("--steps", type=int, default=150, help="in-batch steps of 32 queries")
    parser.add_argument(
        "--hard-steps", type=int, default=80, help="steps with hard negatives, of about as many tokens"
    )
    parser.add_argument(
        "--first-steps", type=int, default=160, help="steps of 32 queries that make the model where all begin"
    )
    parser.add_argument("--rate", type=float, default=3e-5)
    parser.add_argument(
        "--precision", type=lambda text: text.split(","), default=["float32"], help="of all seeds, or of each"
    )
    parser.add_argument("--seeds", type=lambda text: [int(one) for one in text.split(",")], default=[1])
    parser.add_argument(
        "--arms", type=lambda text: text.split(","), default=list(TITLES), help="names, separated by commas"
    )


def common_of(chosen: Namespace) -> dict[str, object]:
    """The settings that all arms share: the last state counts, and dev is searched among all passages."""
    return {
        "learning_rate": chosen.rate,
        "measure_every": None,
        "dev_queries": None,
        "dev_passages": None,
        "keep": "last",
        "measures": " ".join(MEASURES),
    }


def steps(chosen: Namespace) -> list[Step]:
    """The experiments of the chosen arms, for each seed."""
    asked = {START} | set(chosen.arms)
    return [step for seed in chosen.seeds for name, step in experiments(chosen, seed).items() if name in asked]


def precisions(chosen: Namespace) -> dict[int, str]:
    """The precision of each seed."""
    given = chosen.precision * len(chosen.seeds) if len(chosen.precision) == 1 else chosen.precision
    return dict(zip(chosen.seeds, given, strict=True))


def precisions_text(chosen: Namespace) -> str:
    """The precisions, with their seeds if there are several."""
    of_seeds: dict[str, list[str]] = {}
    for seed, precision in precisions(chosen).items():
        of_seeds.setdefault(precision, []).append(str(seed))
    if len(of_seeds) == 1:
        return next(iter(of_seeds))
    return ", ".join(f"{one} (seed{'s' * (len(seeds) > 1)} {', '.join(seeds)})" for one, seeds in of_seeds.items())


def experiments(chosen: Namespace, seed: int) -> dict[str, Step]:
    """All experiments of a seed, by arm."""
    start, precision = named(START, seed), precisions(chosen)[seed]
    deep, near = ({"depth": depth, "relative_margin": None} for depth in (200, 20))
    margin = near | {"relative_margin": MARGIN}

    def arm(name: str, recipe: str, **settings: object) -> Step:
        model = None if name == START else start
        return Step(
            named(name, seed),
            recipe,
            {"seed": seed, "precision": precision, **settings},
            model,
            "finetune",
            words=("--test", "none"),
        )

    more = {"min_steps": chosen.steps, "max_steps": chosen.steps}
    hard = {"min_steps": chosen.hard_steps, "max_steps": chosen.hard_steps}
    first = {"min_steps": chosen.first_steps, "max_steps": chosen.first_steps}
    tele = hard | {"episodes": 1, "first": "mined"}
    return {
        START: arm(START, "warmup", **first),
        CONTROL: arm(CONTROL, "warmup", **more),
        OTHERS: arm(OTHERS, "warmup", **more | {"seed": seed + 1000}),
        "star-200": arm("star-200", "star", **hard, **deep),
        "star-20": arm("star-20", "star", **hard, **near),
        "star-20-margin": arm("star-20-margin", "star", **hard, **margin),
        "star-margin-20": arm("star-margin-20", "star", **hard, **margin | {"depth": 200, "top": 20}),
        "tele-200": arm("tele-200", "ance-tele", **tele, **deep, count=30),
        "tele-20-margin": arm("tele-20-margin", "ance-tele", **tele, **margin, count=10),
    }


def named(arm: str, seed: int) -> str:
    """The name of an experiment."""
    return f"{arm}-seed-{seed}"


def report(study: Study, chosen: Namespace) -> str:
    """The part of the page that this program writes."""
    found = study.outcomes()
    arms = [arm for arm in TITLES if arm == START or arm in chosen.arms]
    done = {
        arm: {seed: found[name] for seed in chosen.seeds if (name := named(arm, seed)) in found} for arm in arms
    }
    return "\n".join([states(done), "", tests(done)])


def states(done: Done) -> str:
    """The table of arms: dev measures (means over seeds), and seconds of training."""
    lines = []
    for arm, of_seeds in done.items():
        seeds = [*of_seeds.values()]
        values = [[one.mean("dev", STATE, measure) or 0.0 for one in seeds] for measure in MEASURES]
        cells = [f"{sum(of) / len(of):.4f}" if of else "not run" for of in values]
        seconds = [one.seconds.get("train", 0.0) for one in seeds]
        lines.append([TITLES[arm], str(len(seeds)), *cells, f"{sum(seconds) / max(1, len(seconds)):.0f}"])
    if start := [*done[START].values()]:
        cells = [f"{start[0].mean('dev', 'untrained', measure) or 0:.4f}" for measure in MEASURES]
        lines.insert(0, ["untrained", "", *cells, ""])
    return table(["dev", "seeds", *MEASURES, "seconds of training"], lines)


def tests(done: Done) -> str:
    """Tests of each arm against both ways to train more in the batch, and against the start, Holm-corrected.

    Both sides have the same seeds.
    """
    lines: list[list[str]] = []
    found: list[float] = []
    for other in (CONTROL, OTHERS, START):
        for arm in (arm for arm in done if arm not in (CONTROL, START, other)):
            shared = [seed for seed in done[arm] if seed in done.get(other, {})]
            if not shared:
                continue
            pairs = [(done[arm][seed], done[other][seed]) for seed in shared]
            cells = [", ".join(f"{gain(*pair):+.4f}" for pair in pairs)]
            for measure in MEASURES[:2]:
                one = paired(*(averaged(side, measure) for side in zip(*pairs, strict=True)))
                cells.append(f"{difference(one)}, p {{{len(found)}:.2g}}")
                found.append(one["p"])
            lines.append([f"{TITLES[arm]} − {TITLES[other]}", ", ".join(map(str, shared)), *cells])
    corrected = holm(found)
    rows = [[title, seeds, *(cell.format(*corrected) for cell in cells)] for title, seeds, *cells in lines]
    names = ["dev, values of a query averaged over seeds", "seeds", f"{MEASURES[0]} by seed", *MEASURES[:2]]
    return table(names, rows)


def gain(one: Outcome, other: Outcome) -> float:
    """The difference of the first measure on dev."""
    a, b = (each.mean("dev", STATE, MEASURES[0]) or 0.0 for each in (one, other))
    return a - b


def averaged(seeds: Sequence[Outcome], measure: str) -> Values:
    """A measure of every dev query, the mean over seeds."""
    values = [one.values("dev", STATE, measure) for one in seeds]
    return np.mean([one for one in values if one is not None], axis=0)


def main(chosen: Namespace) -> None:
    """Run the missing experiments, keep their outcomes, write the tables of this collection."""
    planned = steps(chosen)
    study = begin(chosen, common_of(chosen), *MEASURES).planning(planned)
    if not chosen.only_report:
        for step in planned:
            study.execute(step)
    keep(study, chosen)
    name = called(study.data)
    text = f"{called(study.model)} on {name}, {precisions_text(chosen)}.\n\n{report(study, chosen)}"
    if chosen.report:
        marks = f"<!-- tables of {name}: written by studies/depth.py -->\n", f"<!-- end of tables of {name} -->\n"
        insert(chosen.report, text, *marks)
    say(text)


if __name__ == "__main__":
    main(arguments(__doc__ or "", options))
