"""Q-Neg against ANCE-Tele on open-domain questions: equal steps, other alpha and beta, and nothing else."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

from harness import Step, Study, arguments
from questions import forgetting_table, states_table, tell, tests_table

MEASURES = ("RR@10", "Success@1", "Success@5", "Success@20")
ARMS = {"qneg": "Q-Neg", "tele": "ANCE-Tele"}
STATES = {"episode-1": "episode 1", "episode-2": "episode 2", "final": "final"}


def options(parser: ArgumentParser) -> None:
    """Options of this study."""
    parser.add_argument("--steps", type=int, default=75, help="of the last episode, and of every schedule")
    parser.add_argument("--stop-step", type=int, default=25, help="steps of the episodes before the last")
    parser.add_argument("--queries-per-step", type=int, default=16)
    parser.add_argument("--passage-length", type=int, default=80)


def common_of(chosen: Namespace) -> dict[str, object]:
    """The settings that both arms share."""
    return {
        "query_length": 32,
        "passages_reference": [8],
        "learning_rate": 3e-5,
        "warmup": 0.1,
        "depth": 200,
        "count": 30,
        "positives": "rotate",
        "queries_per_step": chosen.queries_per_step,
        "passage_length": chosen.passage_length,
        "steps": chosen.steps,
        "stop_step": chosen.stop_step,
        "measures": " ".join(MEASURES),
        "seed": 42,
    }


def steps() -> list[Step]:
    """The two experiments."""
    shares = {"qneg": 0.0, "tele": 0.5}
    return [Step(name, "ance-tele", {"alpha": share, "beta": share}) for name, share in shares.items()]


def report(study: Study) -> str:
    """The part of the page that this program writes."""
    found = study.outcomes()
    if set(found) != set(ARMS):
        return "Not run: " + ", ".join(ARMS[name] for name in ARMS if name not in found)
    qneg, tele = (found[name] for name in ARMS)
    states = [("BM25", tele, "bm25"), ("untrained", tele, "untrained")]
    states += [(f"{ARMS[name]}, {title}", found[name], state) for name in ARMS for state, title in STATES.items()]
    pairs = [(f"{ARMS[name]} − untrained", (found[name], "final"), (found[name], "untrained")) for name in ARMS]
    pairs += [("ANCE-Tele − Q-Neg", (tele, "final"), (qneg, "final"))]
    parts = [
        "Test, one seed:\n",
        states_table(states, MEASURES),
        "\nDifferences, 95 % bootstrap interval over questions, p of the paired randomisation test (100,000\n"
        "permutations), Holm-corrected over this table:\n",
        tests_table(pairs, MEASURES),
        "\nShares of the training questions whose MRR@100 fell or rose (p is not corrected):\n",
        forgetting_table({ARMS[name]: found[name] for name in ARMS}),
    ]
    return "\n".join(parts)


def main(chosen: Namespace) -> None:
    """Run the study that the command line chooses."""
    tell(chosen, common_of(chosen), steps(), MEASURES, report, "first")


if __name__ == "__main__":
    main(arguments(__doc__ or "", options))
