"""The content of a model card: where the model comes from, how it was trained, and its results."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from hardneg.data.training_data import TrainingData
from hardneg.diagnostics.kept import (
    choice_sentence,
    of_trained_start,
    rate_sentence,
    sentence,
    trained_before,
    warning,
)
from hardneg.experiment.names import BEFORE, FINAL, few_of_dev, shown
from hardneg.shown import counted


def model_card(
    about: str,
    data: TrainingData,
    results: Mapping[str, Any],
    settings: Mapping[str, Any],
    trained_start: str | None = None,
) -> str:
    """The part of a model card about training data, results and settings, as Markdown.

    Parameters
    ----------
    trained_start : the name of the model that training starts from, if it was trained before.
    """
    untrained = results.get("kept", {}).get("state") in BEFORE
    said = "**These are the weights of the untrained model.** The training that was tried, and is not in them:"
    lines = [
        *([said, ""] if untrained else []),
        about,
        *([trained_before(trained_start, "the tables")] if trained_start else []),
        "",
        data_line(data),
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
        lines += results_lines(split, [*results[split]], results, settings)
    if trained_start:
        lines = [of_trained_start(line) for line in lines]
    return "\n".join([*lines, *settings_lines(settings, "Training that was tried" if untrained else "Training")])


def data_line(data: TrainingData) -> str:
    """The sentence of a card about the training data."""
    queries, passages = counted(len(data.train), "query"), counted(data.collection.n_passages, "passage")
    return f"Training data: {queries} over {passages} (collection `{data.collection.digest[:12]}`)."


def results_lines(
    split: str, states: Sequence[str], results: Mapping[str, Any], settings: Mapping[str, Any]
) -> list[str]:
    """The heading and the table of a card with the measures of ``states`` on a split."""
    measures = list(results[split][FINAL])
    rows = [[shown(state), *(f"{results[split][state][name]:.4f}" for name in measures)] for state in states]
    table = [["", *measures], ["---"] * (1 + len(measures)), *rows]
    heading = f"## Results on {split}{among_of(split, results, settings)}"
    return ["", heading, "", *(f"| {' | '.join(row)} |" for row in table)]


def settings_lines(settings: Mapping[str, Any], heading: str = "Training") -> list[str]:
    """The heading and the block of a card with the settings of training."""
    named = [f"{name} = {json.dumps(value)}" for name, value in settings.items() if value is not None]
    return ["", f"## {heading}", "", "```toml", *named, "```"]


def among_of(split: str, results: Mapping[str, Any], settings: Mapping[str, Any]) -> str:
    """The words of a heading for the passages among which a split was judged; "" if it was among all."""
    count = few_of_dev(results, settings.get("dev_passages")) if split == "dev" else None
    return "" if count is None else f" (among the first {count} BM25 passages of its queries, and the positives)"


def card_metadata(
    data: TrainingData,
    results: Mapping[str, Any],
    base_model: str | None,
    *,
    task: str = "text-retrieval",
    state: str = FINAL,
) -> dict[str, Any]:
    """The head of a model card: what hubs read of its origin, task and results, which are those of ``state``."""
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
        for name, value in results[split].get(state, {}).items()
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
