"""The model card of the ranker that AR2 trains, with what its re-ranking gave in the results."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hardneg.data.training_data import TrainingData
from hardneg.diagnostics.cards import card_metadata, data_line, results_lines, settings_lines, splits_of
from hardneg.experiment.layout import Layout
from hardneg.experiment.names import BY_FIRST, FINAL, LAST, RANKER, STARTED, UNTRAINED
from hardneg.models.rankers import load_ranker, save_ranker
from hardneg.models.source import ModelSource
from hardneg.storage.artifacts import read_manifest

ABOUT = "AR2 (Zhang et al., 2022)"


def publish_ranker(
    layout: Layout,
    data: TrainingData,
    source: ModelSource,
    settings: Mapping[str, Any],
    results: Mapping[str, Any],
) -> None:
    """Publish the trained ranker again, with a card that has the results: they are known only after training."""
    place, last = layout.ranker, last_state(results)
    save_ranker(
        load_ranker(place),
        place,
        card=ranker_card(data, source, settings, results),
        metadata=card_metadata(
            data, results, source.of_ranker.hub_name, task="text-ranking", state=f"{last}/{RANKER}"
        ),
        inputs=read_manifest(place).inputs,
        replace=True,
    )


def ranker_card(
    data: TrainingData, source: ModelSource, settings: Mapping[str, Any], results: Mapping[str, Any]
) -> str:
    """The part of the card about training data, results and settings, as Markdown."""
    began = source.of_ranker.name + (" with a new head" if source.ranker is None else "")
    lines = [
        f"A ranker (cross-encoder) trained with hardneg by {ABOUT} from {began}, in turns with a retriever that"
        f" began as {source.name}.",
        "",
        data_line(data),
    ]
    for number, split in enumerate(splits_of(results)):
        if not (states := states_of(results, split)):
            continue
        lines += results_lines(split, states, results, settings)
        if not number:
            lines += [
                "",
                f"`/{RANKER}`: this ranker re-ranks the first {settings['rerank_depth']} hits of the retriever in"
                f" that state. `/{BY_FIRST}`: the ranker that training began with does. `{UNTRAINED}` is the"
                " retriever before training.",
            ]
    return "\n".join([*lines, *settings_lines(settings)])


def last_state(results: Mapping[str, Any]) -> str:
    """The name in the results of the retriever after its last step."""
    return LAST if any(LAST in results[split] for split in splits_of(results)) else FINAL


def states_of(results: Mapping[str, Any], split: str) -> list[str]:
    """The states of the retriever whose hits the last ranker re-ranks, each followed by its re-ranked forms."""
    found = results[split]
    starts = [state for state in (UNTRAINED, STARTED, last_state(results)) if f"{state}/{RANKER}" in found]
    forms = [name for state in starts for name in (state, f"{state}/{BY_FIRST}", f"{state}/{RANKER}")]
    return [name for name in forms if name in found]
