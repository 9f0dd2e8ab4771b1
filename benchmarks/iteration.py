"""One iteration of AR2 against the sum of its forward and backward passes, to show the cost of everything else.

An iteration encodes the corpus and the training queries, mines candidates, trains the ranker and the retriever,
and publishes pools, checkpoints and models. Both figures are seconds of the processor from one run, so other
programs disturb them little. The paper's iteration has a hundred times as many steps, so costs that do not
depend on the number of steps, such as checkpoints, weigh less there.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import wraps
from pathlib import Path
from typing import Any
from unittest.mock import patch

from contest import machine, tell
from material import MODEL
from mine import task

SIZE = {"queries": 64, "passages": 400, "length": 48, "steps": 8, "queries_per_step": 8, "negatives": 7}
GOAL = 1.25


class Passes:
    """Counts the seconds of the processor that forward and backward passes take."""

    def __init__(self) -> None:
        self.seconds = {"forward": 0.0, "backward": 0.0}

    @contextmanager
    def counted(self) -> Iterator[None]:
        """Count all passes of all models while the block runs."""
        import torch

        from hardneg.models.tower import Tower

        with (
            patch.object(Tower, "pooled", self.timed("forward", Tower.pooled)),
            patch.object(torch.Tensor, "backward", self.timed("backward", torch.Tensor.backward)),
        ):
            yield

    def timed(self, name: str, function: Any) -> Any:
        @wraps(function)
        def call(*arguments: Any, **named: Any) -> Any:
            begin = time.process_time()
            try:
                return function(*arguments, **named)
            finally:
                self.seconds[name] += time.process_time() - begin

        return call


def iteration(size: dict[str, int]) -> dict[str, float]:
    """Seconds of the processor of an iteration, and of its passes."""
    from hardneg import Collection
    from hardneg.data.training_data import choose_splits
    from hardneg.experiment.folder import Experiment
    from hardneg.models.loading import load_encoder
    from hardneg.models.rankers import new_ranker
    from hardneg.models.source import ModelSource
    from hardneg.recipes.ar2.recipe import ar2
    from hardneg.recipes.ar2.settings import Ar2
    from hardneg.recipes.starting_ranker import StartingRanker
    from hardneg.recipes.training_run import TrainingRun

    asked, texts, positives = task(size)
    with tempfile.TemporaryDirectory() as made:
        collection = Collection.from_lists(
            [(f"{i:06}", text) for i, text in enumerate(texts)],
            {f"{i:06}": text for i, text in enumerate(asked)},
            {"train": {f"{i:06}": [f"{p:06}"] for i, p in enumerate(positives)}},
            to=Path(made) / "collection",
        )
        settings = Ar2(
            iterations=1,
            ranker_steps=size["steps"],
            retriever_steps=size["steps"],
            queries_per_step=size["queries_per_step"],
            ranker_queries_per_step=size["queries_per_step"],
            negatives_per_query=size["negatives"],
            precision="float32",
        )
        place = Path(made) / "experiment"
        place.mkdir()
        training = TrainingRun(
            settings,
            choose_splits(collection, dev="none", test="none"),
            Experiment(place, Path(made) / "cache"),
        )
        ranker = new_ranker(ModelSource(MODEL, device="cpu"), seed=0, max_length=size["length"])
        encoder = load_encoder(MODEL, passage_length=size["length"])
        passes, states = Passes(), ar2(training, lambda: encoder, ranker=StartingRanker(ranker, is_new=False))
        next(states).discard()
        begin = time.process_time()
        with passes.counted():
            next(states).discard()
        return {"iteration": time.process_time() - begin, **passes.seconds}


def outcome(size: dict[str, int], repeats: int, threads: int) -> dict[str, Any]:
    """The figures as a contest reports them; the ratio is seconds of the iteration by seconds of its passes."""
    found = []
    for repeat in range(repeats):
        tell(f"ar2-iteration: round {repeat + 1} of {repeats}")
        found.append(iteration(size))
    passes = [one["forward"] + one["backward"] for one in found]
    ratios = [one["iteration"] / alone for one, alone in zip(found, passes, strict=True)]
    median = statistics.median(ratios)
    row = {
        "name": "iteration by its passes",
        "seconds": {name: round(statistics.median(one[name] for one in found), 3) for name in found[0]},
        "ratio": round(median, 3),
        "ratio_spread": [round(min(ratios), 3), round(max(ratios), 3)],
        "best_ratio": round(min(one["iteration"] for one in found) / min(passes), 3),
        "goal": GOAL,
        "reached": median <= GOAL,
    }
    return {"path": "ar2-iteration", "threads": threads, "size": size, "contenders": [row]}


def main() -> int:
    import torch

    from hardneg.process.cpu import tune

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--steps", type=int, default=SIZE["steps"], help="of each model")
    arguments = parser.parse_args()
    tune(arguments.threads)
    torch.set_num_threads(arguments.threads)
    print(json.dumps({"machine": machine()}), flush=True)
    found = outcome({**SIZE, "steps": arguments.steps}, arguments.repeats, arguments.threads)
    print(json.dumps(found), flush=True)
    (row,) = found["contenders"]
    verdict = "reached" if row["reached"] else "MISSED"
    print(f"\nar2-iteration  {row['seconds']}  {row['ratio']:.2f}x its passes, goal at most {GOAL}x {verdict}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
