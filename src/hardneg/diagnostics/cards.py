"""The content of a model card: where the model comes from, how it was trained, and its results."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from hardneg.data.training_data import TrainingData
from hardneg.diagnostics.kept import choice_sentence, rate_sentence, sentence, warning
from hardneg.experiment.names import FINAL, UNTRAINED, few_of_dev, shown
from hardneg.shown import counted


def model_card(about: str, data: TrainingData, results: Mapping[str, Any], settings: Mapping[str, Any]) -> str:
    """The part of a model card about training data, results and settings, as Markdown."""
    collection = data.collection
    untrained = results.get("kept", {}).get("state") == UNTRAINED
    said = "**These are the weights of the untrained model.** The training that was tried, and is not in them:"
    lines = [
        *([said, ""] if untrained else []),
        about,
        "",
        f"Training data: {counted(len(data.train), 'query')} over {counted(collection.n_passages, 'passage')}"
        f" (collection `{collection.digest[:12]}`).",
    ]
    if index := results.get("index"):
        lines += ["", f"Trained to be searched through the `{index['kind']}` index `{index['digest'][:12]}`."]
    if kept := results.get("kept"):
        loud = warning(results)
        rate, chosen = rate_sentence(results), choice_sentence(results)
        lines += [
            "",
            f"{sentence(kept)}.",
            *([f"The {rate}."] if rate else []),
            *([f"There is no test split: {chosen}."] if chosen else []),
            *(["", f"**{loud}.**"] if loud else []),
        ]
    if gained := gain_lines(results):
        lines += ["", *(f"- {line}" for line in gained)]
    for split in splits_of(results):
        measures = list(results[split][FINAL])
        rows = [
            [shown(state), *(f"{found[name]:.4f}" for name in measures)] for state, found in results[split].items()
        ]
        table = [["", *measures], ["---"] * (1 + len(measures)), *rows]
        lines += [
            "",
            f"## Results on {split}{among_of(split, results, settings)}",
            "",
            *(f"| {' | '.join(row)} |" for row in table),
        ]
    named = [f"{name} = {json.dumps(value)}" for name, value in settings.items() if value is not None]
    return "\n".join(
        [*lines, "", "## Training that was tried" if untrained else "## Training", "", "```toml", *named, "```"]
    )


def among_of(split: str, results: Mapping[str, Any], settings: Mapping[str, Any]) -> str:
    """The words of a heading for the passages among which a split was judged; "" if it was among all."""
    count = few_of_dev(results, settings.get("dev_passages")) if split == "dev" else None
    return "" if count is None else f" (among the first {count} BM25 passages of its queries, and the positives)"


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
    name = f"{'model' if base_model is None else base_model.rsplit('/', 1)[-1]} trained with hardneg"
    head = ModelCardData(base_model=base_model, model_name=name, eval_results=found or None)
    return {name: value for name, value in head.to_dict().items() if name != "model_name"}


def gain_lines(results: Mapping[str, Any]) -> list[str]:
    """The lines that say what re-ranking gained by the first measure, by split; empty without a trained ranker."""
    said = results.get("reranked", {})
    first = {"bm25": "BM25", "retriever": "the retriever"}.get(said.get("first", ""))
    lines = []
    for split in (split for split in ("dev", "test") if split in said):
        found, measure = said[split], next(iter(said[split]["as it is"]))
        was, now = found["as it is"][measure], found["reranked"][measure]
        best = f", {found['best'][measure]:.4f} at best" if measure in found.get("best", {}) else ""
        moved = f"{counted(found['gained'][measure], 'query')} gained, {found['lost'][measure]:,} lost"
        worse = "; lower than without re-ranking" if now < was else ""
        what = f"re-ranking the first {found['k']} of {first}: {split} {measure}"
        lines.append(f"{what} {was:.4f} -> {now:.4f} ({moved}{best}){worse}")
    return lines


def splits_of(results: Mapping[str, Any]) -> list[str]:
    """The splits that were measured; the first is the one that people look at."""
    return [split for split in ("test", "dev") if split in results]
