"""ANCE-Tele's negatives against the query's own nearest ones (Q-Neg), with episodes anew and continued.

All arms make equal steps from an encoder whose top layers begin with random weights. Dev is measured while they
train. Ways of training are compared by tests over seeds, the trained models by tests over queries.
"""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Mapping, Sequence

import numpy as np
from harness import Step, Study, arguments, begin, called, difference, insert, keep, paired, say, table
from outcomes import Outcome, Values
from scipy.stats import ttest_rel
from seeds import detectable, over_seeds

from hardneg.evaluation.significance import holm

MEASURES = ("RR@10", "nDCG@10", "R@100")
MEASURE = MEASURES[0]
EPISODES = (1, 2, 3)
MIXES: dict[str, tuple[str, dict[str, object]]] = {
    "q-neg": ("Q-Neg", {"alpha": 0.0, "beta": 0.0}),
    "momentum": ("Q-Neg + momentum", {"alpha": 0.5, "beta": 0.0}),
    "lookahead": ("Q-Neg + lookahead", {"alpha": 0.0, "beta": 0.5}),
    "tele": ("ANCE-Tele", {"alpha": 0.5, "beta": 0.5}),
}
STARTS = {"anew": "each episode anew", "continued": "continued"}
ARMS = [f"{mix}-{start}" for start in STARTS for mix in MIXES]
BASELINE = "q-neg"
BEGIN, END = "<!-- tables: written by studies/continued.py -->\n", "<!-- end of tables -->\n"

Done = Mapping[str, Mapping[int, Outcome]]  # arm -> seed -> outcome
Figure = Callable[[Outcome], float]  # one figure of an experiment


def titled(arm: str) -> str:
    """The name of an arm for people."""
    mix, _, start = arm.rpartition("-")
    return f"{MIXES[mix][0]}, {STARTS[start]}"


def options(parser: ArgumentParser) -> None:
    """Options of this study."""
    parser.add_argument("--steps", type=int, default=240, help="of the last episode, and of every schedule")
    parser.add_argument("--stop-step", type=int, default=120, help="steps of the episodes before the last")
    parser.add_argument("--every", type=int, default=80, help="steps between two measurements on dev")
    parser.add_argument("--rate", type=float, default=1e-4)
    parser.add_argument("--reinit-layers", type=int, default=3)
    parser.add_argument("--precision", default="float32")
    parser.add_argument("--seeds", type=lambda text: [int(one) for one in text.split(",")], default=[1])
    parser.add_argument(
        "--arms", type=lambda text: text.split(","), default=list(ARMS), help="names, separated by commas"
    )


def common_of(chosen: Namespace) -> dict[str, object]:
    """The settings that all arms share; test is searched among all passages, dev among fewer."""
    return {
        "queries_per_step": 8,
        "passages_reference": [8],
        "query_length": 32,
        "passage_length": 32,
        "learning_rate": chosen.rate,
        "steps": chosen.steps,
        "stop_step": chosen.stop_step,
        "reinit_layers": chosen.reinit_layers,
        "precision": chosen.precision,
        "measure_every": chosen.every,
        "dev_passages": 10,
        "measures": " ".join(MEASURES),
    }


def step_of(arm: str, seed: int) -> Step:
    """The experiment of an arm and a seed."""
    mix, _, start = arm.rpartition("-")
    more: dict[str, object] = {"start": "continue"} if start == "continued" else {}
    return Step(named(arm, seed), "ance-tele", MIXES[mix][1] | more | {"seed": seed})


def named(arm: str, seed: int) -> str:
    """The name of an experiment."""
    return f"{arm}-seed-{seed}"


def steps(chosen: Namespace) -> list[Step]:
    """All experiments, seed by seed, so that a part of them compares the arms already."""
    return [step_of(arm, seed) for seed in chosen.seeds for arm in ARMS if arm in chosen.arms]


# ---------------------------------------------------------------- figures of an experiment


def on_test(state: str, measure: str) -> Figure:
    """A measure of a state on test."""
    return lambda one: float(one.results["test"][state][measure])


def curve(one: Outcome) -> float:
    """The area under the dev curve: the mean of the measure over all measured states after the start."""
    return float(np.mean([one.results["dev"][state][MEASURE] for state in states_of(one)]))


def states_of(one: Outcome) -> list[str]:
    """The states on the dev curve, in the order of training."""
    return [state for state in one.results["dev"] if state.startswith("episode-") or state == "final"]


def forgotten(episode: int) -> Figure:
    """The share of the training queries whose MRR@100 fell in an episode."""
    return lambda one: float(one.results["forgetting"][episode - 1]["forgotten"])


# ---------------------------------------------------------------- tables


def states_table(done: Done) -> str:
    """What every arm came to: test after each episode, the dev curve, and what each episode forgot."""
    columns: dict[str, Figure] = {f"test, episode {i}": on_test(f"episode-{i}", MEASURE) for i in EPISODES[:-1]}
    columns |= {"test, final": on_test("final", MEASURE), "dev curve": curve}
    columns |= {f"forgotten, {i}": forgotten(i) for i in EPISODES}
    lines = [
        [
            titled(arm),
            str(len(seeds)),
            *(over_seeds([of(one) for one in seeds.values()]) for of in columns.values()),
        ]
        for arm, seeds in done.items()
    ]
    if first := next((one for seeds in done.values() for one in seeds.values()), None):
        for name, state in {"no training": "untrained-as-trained", "BM25": "bm25"}.items():
            lines.insert(0, [name, "", "", "", f"{on_test(state, MEASURE)(first):.4f}", *[""] * 4])
    return table(["", "seeds", *columns], lines)


def pairs_of(done: Done) -> list[tuple[str, str]]:
    """The arms that are compared: each mix with Q-Neg of the same start, and each start of the same mix."""
    mixes = [(arm, f"{BASELINE}-{arm.rpartition('-')[2]}") for arm in done if not arm.startswith(BASELINE)]
    starts = [(arm, f"{arm.rpartition('-')[0]}-anew") for arm in done if arm.endswith("continued")]
    return [(a, b) for a, b in mixes + starts if a in done and b in done and set(done[a]) & set(done[b])]


def both(done: Done, a: str, b: str) -> tuple[list[Outcome], list[Outcome]]:
    """The outcomes of two arms on the seeds that both have."""
    shared = sorted(set(done[a]) & set(done[b]))
    return [done[a][seed] for seed in shared], [done[b][seed] for seed in shared]


def training_table(done: Done) -> str:
    """Differences of arms with a paired t-test over seeds: what they say of a way of training."""
    figures: dict[str, Figure] = {
        f"test {MEASURE}, episode {i}": on_test(f"episode-{i}", MEASURE) for i in EPISODES[:-1]
    }
    figures |= {f"test {measure}, final": on_test("final", measure) for measure in MEASURES[:2]}
    figures |= {"dev curve": curve} | {f"forgotten, {i}": forgotten(i) for i in EPISODES}
    lines: list[list[str]] = []
    found: list[float] = []
    for a, b in pairs_of(done):
        for name, of in figures.items():
            x, y = (np.array([of(one) for one in side]) for side in both(done, a, b))
            gains = x - y
            line = [f"{titled(a)} − {titled(b)}", name, ", ".join(f"{gain:+.4f}" for gain in gains)]
            if len(gains) > 1 and np.std(gains) > 0:
                found.append(float(ttest_rel(x, y).pvalue))
                shown = f"{detectable(gains, len(gains)):.4f}"
                line += [f"{gains.mean():+.4f}", f"{np.std(gains, ddof=1):.4f}", f"{found[-1]:.2g}", shown]
            else:
                line += [f"{gains.mean():+.4f}", "", "not tested", ""]
            lines.append(line)
    corrected = iter(holm(found))
    rows = [[*line[:-1], f"{next(corrected):.2g}" if line[-1] else "", line[-1]] for line in lines]
    heads = ["", "", "by seed", "mean", "sd", "p", "p, Holm", "these seeds show"]
    return table(heads, rows)


def models_table(done: Done) -> str:
    """Differences of the final models with tests over queries, values of a query averaged over seeds."""
    lines: list[list[str]] = []
    found: list[float] = []
    for a, b in pairs_of(done):
        cells = []
        for measure in MEASURES[:2]:
            x, y = (averaged(side, measure) for side in both(done, a, b))
            one = paired(x, y)
            cells.append(f"{difference(one)}, p {{{len(found)}:.2g}}")
            found.append(one["p"])
        seeds = ", ".join(map(str, sorted(set(done[a]) & set(done[b]))))
        lines.append([f"{titled(a)} − {titled(b)}", seeds, *cells])
    corrected = holm(found)
    rows = [[title, seeds, *(cell.format(*corrected) for cell in cells)] for title, seeds, *cells in lines]
    return table(["test, final", "seeds", *MEASURES[:2]], rows)


def averaged(seeds: Sequence[Outcome], measure: str) -> Values:
    """A measure of every test query with the final models, the mean over seeds."""
    values = [one.values("test", "final", measure) for one in seeds]
    return np.mean([one for one in values if one is not None], axis=0)


def curves_table(done: Done) -> str:
    """The measure on dev at every state, means over seeds; it may still rise when an episode ends."""
    heads: dict[str, None] = {}
    for seeds in done.values():
        for one in seeds.values():
            heads |= dict.fromkeys(states_of(one))
    lines = []
    for arm, seeds in done.items():
        means = [[one.results["dev"][state][MEASURE] for one in seeds.values()] for state in heads]
        lines.append([titled(arm), *(f"{np.mean(values):.4f}" for values in means)])
    return table(["dev", *heads], lines)


# ---------------------------------------------------------------- the command


def report(study: Study, chosen: Namespace) -> str:
    """The part of the page that this program writes."""
    found = study.outcomes()
    of_arms = {
        arm: {seed: found[name] for seed in chosen.seeds if (name := named(arm, seed)) in found} for arm in ARMS
    }
    done = {arm: seeds for arm, seeds in of_arms.items() if seeds}
    seconds = [one.seconds for seeds in done.values() for one in seeds.values()]
    train, encode = (np.mean([one.get(stage, 0.0) for one in seconds]) for stage in ("train", "encode"))
    took = f"{train:.0f} s of training and {encode:.0f} s of encoding each, on {chosen.threads} CPU threads"
    budget = f"{len(seconds)} experiments took {took}."
    parts = [f"{called(study.model)} on {called(study.data)}, {chosen.precision}. {budget}", states_table(done)]
    parts += [training_table(done), models_table(done), curves_table(done)]
    return "\n\n".join(parts)


def main(chosen: Namespace) -> None:
    """Run the missing experiments, keep their outcomes, write the tables."""
    study = begin(chosen, common_of(chosen), *MEASURES).planning(steps(chosen))
    if not chosen.only_report:
        for step in steps(chosen):
            study.execute(step)
    keep(study, chosen)
    text = report(study, chosen)
    if chosen.report:
        insert(chosen.report, text, BEGIN, END)
    say(text)


if __name__ == "__main__":
    main(arguments(__doc__ or "", options))
