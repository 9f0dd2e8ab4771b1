"""The preset nq on open-domain questions: ANCE-Tele with answers as labels, end to end."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

from harness import Step, Study, arguments
from questions import forgetting_table, states_table, tell, tests_table

MEASURES = ("Answer@1", "Answer@5", "Answer@20", "Answer@100", "RR@10", "Success@20")
NAME = "tele"


def options(parser: ArgumentParser) -> None:
    """Options of this study."""
    parser.add_argument("--steps", type=int, default=60, help="of the last episode, and of every schedule")
    parser.add_argument("--stop-step", type=int, default=20, help="steps of the episodes before the last")
    parser.add_argument("--queries-per-step", type=int, default=16)
    parser.add_argument("--passage-length", type=int, default=64)
    parser.add_argument("--preset", default="nq")


def common_of(chosen: Namespace) -> dict[str, object]:
    """Settings that differ from the preset: the encoder's own pooling and scale, fewer steps, shorter texts."""
    return {
        "pooling": "mean",
        "normalize": True,
        "scale": 20.0,
        "title_join": "space",
        "query_length": 32,
        "passage_length": chosen.passage_length,
        "queries_per_step": chosen.queries_per_step,
        "steps": chosen.steps,
        "stop_step": chosen.stop_step,
        "learning_rate": 3e-5,
        "checkpoint_every": 20,
        "measures": " ".join(MEASURES),
        "seed": 42,
    }


def report(study: Study) -> str:
    """The part of the page that this program writes."""
    if (one := study.outcome(NAME)) is None:
        return "Not run."
    states = {
        "bm25": "BM25",
        "untrained": "untrained",
        "episode-1": "after episode 1",
        "episode-2": "after episode 2",
        "final": "final",
    }
    pairs = [(f"final − {states[other]}", (one, "final"), (one, other)) for other in ("untrained", "bm25")]
    parts = [
        "Test, one seed:\n",
        states_table([(title, one, state) for state, title in states.items()], MEASURES),
        "\nDifferences, 95 % bootstrap interval over questions, p of the paired randomisation test (100,000\n"
        "permutations), Holm-corrected over this table:\n",
        tests_table(pairs, MEASURES),
        "\nShares of the training questions whose MRR@100 fell or rose:\n",
        forgetting_table({"ANCE-Tele": one}),
    ]
    return "\n".join(parts)


def main(chosen: Namespace) -> None:
    """Run the study that the command line chooses."""
    step = Step(NAME, "ance-tele", {}, preset=chosen.preset)
    tell(chosen, common_of(chosen), [step], MEASURES, report, "openqa")


if __name__ == "__main__":
    main(arguments(__doc__ or "", options))
