"""What a model's card says: where it comes from, how it was trained, what it measured."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from hardneg.data.training_data import TrainingData
from hardneg.diagnostics.choice import sentence, warning
from hardneg.experiment.names import FINAL, shown


def model_card(about: str, data: TrainingData, results: Mapping[str, Any], settings: Mapping[str, Any]) -> str:
    """What a model card says of training data, results and settings, as Markdown."""
    collection = data.collection
    lines = [
        about,
        "",
        f"Training data: {len(data.train):,} queries over {collection.n_passages:,} passages (collection "
        f"`{collection.digest[:12]}`).",
    ]
    if index := results.get("index"):
        lines += ["", f"Trained to be searched through the `{index['kind']}` index `{index['digest'][:12]}`."]
    if kept := results.get("kept"):
        loud = warning(kept)
        lines += ["", f"{sentence(kept)}.", *(["", f"**{loud}.**"] if loud else [])]
    for split in splits_of(results):
        measures = list(results[split][FINAL])
        rows = [
            [shown(state), *(f"{found[name]:.4f}" for name in measures)] for state, found in results[split].items()
        ]
        table = [["", *measures], ["---"] * (1 + len(measures)), *rows]
        lines += ["", f"## Results on {split}", "", *(f"| {' | '.join(row)} |" for row in table)]
    named = [f"{name} = {json.dumps(value)}" for name, value in settings.items() if value is not None]
    return "\n".join([*lines, "", "## Training", "", "```toml", *named, "```"])


def card_metadata(
    data: TrainingData, results: Mapping[str, Any], base_model: str | None, *, task: str = "text-retrieval"
) -> dict[str, Any]:
    """The head of a model card: what hubs read of its origin, task and results."""
    from huggingface_hub import EvalResult, ModelCardData

    found = [
        EvalResult(
            task_type=task,
            task_name="Retrieval" if task == "text-retrieval" else "Ranking",
            dataset_type="hardneg",
            dataset_name=f"collection {data.collection.digest[:12]}",
            dataset_split=split,
            metric_type=name,
            metric_name=name,
            metric_value=value,
        )
        for split in splits_of(results)
        for name, value in results[split][FINAL].items()
    ]
    head = ModelCardData(base_model=base_model, model_name="model", eval_results=found or None)
    return {name: value for name, value in head.to_dict().items() if name != "model_name"}


def splits_of(results: Mapping[str, Any]) -> list[str]:
    """The splits that were measured; the first is the one that people look at."""
    return [split for split in ("test", "dev") if split in results]
