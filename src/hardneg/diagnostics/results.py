"""The end of every recipe: its states are measured, one is kept, and the results are published."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Literal

from hardneg.callers import in_callers_words
from hardneg.data.collection import Collection
from hardneg.data.formats.trec import write_run
from hardneg.data.training_data import TrainingData
from hardneg.diagnostics.best_vectors import BestVectors
from hardneg.diagnostics.cards import card_metadata, model_card
from hardneg.diagnostics.choice import Choice, choose, report
from hardneg.diagnostics.curves import draw_learning_curve, learning_curve
from hardneg.diagnostics.fused import fused_results
from hardneg.diagnostics.judge import Judge
from hardneg.diagnostics.measured import Measured, measure_state, with_figures, with_final
from hardneg.diagnostics.search_state import keep_bm25_lists, keep_bm25_runs
from hardneg.diagnostics.sharpness import kept_sharpness
from hardneg.diagnostics.summary import Seen, by_split, dev_values, summarize
from hardneg.errors import InputError
from hardneg.evaluation.measures import Measure
from hardneg.experiment.folder import Experiment
from hardneg.experiment.layout import Layout, run_of, trec_run
from hardneg.experiment.names import BM25, FINAL, LAST, RETRIEVED, STARTED, UNTRAINED, baseline_of, shown
from hardneg.experiment.snapshot import Snapshot, State
from hardneg.experiment.states import StateRecord
from hardneg.experiment.trials import rates_told
from hardneg.models.bi_encoder import BiEncoder
from hardneg.models.encoder_settings import EncoderSettings
from hardneg.models.lengths import lengths_of
from hardneg.models.loading import load_encoder
from hardneg.models.saving import save_encoder
from hardneg.process import stages
from hardneg.process.distributed import by_leader, is_leader
from hardneg.process.progress import say
from hardneg.records import Run
from hardneg.storage.artifacts import read_manifest
from hardneg.training.stage import RETRIEVER

log = logging.getLogger(__name__)

BESIDES = ("passing", "indexed", "reranked")  # kinds of states whose measurement is no stage of its own
MISSED = 0.2  # share of the dev queries for which BM25 finds nothing, from which on training warns
PUBLISHED = (BM25, RETRIEVED, UNTRAINED, FINAL)  # the states whose runs are written for people


@dataclass(frozen=True)
class EvaluationPlan:
    """The plan by which states are measured, one of them is kept, and its model card is written.

    Attributes
    ----------
    measures : the measures of dev and test; the first one decides which state is kept.
    depth : the number of hits of each training query.
    seed : the seed of the significance tests.
    dev_passages : see :class:`~hardneg.diagnostics.judge.Judge`.
    bm25_lists : the number of training queries whose lists of BM25 are kept for the report.
    first_episode : the number of the first episode.
    keep : which state is the result: the last one, or the best on dev.
    about, settings, base_model : description, settings and base model (its name on the hub) in the model card.
    trained_start : the name of the model that training starts from, if hardneg trained it before; else None.
    own : the settings of the model as it came, whose lengths are compared with those in force; None for a ranker.
    in_steps : tokens of a passage in training steps, if search reads more; None: both read the same.
    how : a text that says how the model that training starts from differs from the model as it came; "": it does
        not differ.
    """

    measures: Sequence[Measure]
    depth: int
    seed: int
    first_episode: int = 1
    keep: Literal["best", "last"] = "last"
    about: str = ""
    settings: Mapping[str, Any] = field(default_factory=dict)
    base_model: str | None = None
    trained_start: str | None = None
    own: EncoderSettings | None = None
    in_steps: int | None = None
    how: str = ""
    dev_passages: int | None = None
    bm25_lists: int = 0


@dataclass(frozen=True)
class Handling:
    """The functions and names that the end of a recipe needs for the kind of model that it trains.

    Attributes
    ----------
    kept : (chosen, last, layout, untrained) -> the state that is kept, to be measured on dev and test.
    save : publishes the model of a state, as :func:`~hardneg.models.saving.save_encoder` does.
    besides : (states that were measured, judge) -> further entries of the results.
    model : the model's name in the metrics.
    task : the name of the model's task on hubs.
    others : (results) -> publishes the other models that were trained, with the results in their cards.
    """

    kept: Callable[..., Any]
    save: Callable[..., None]
    besides: Callable[[Seen, Judge], Mapping[str, Any]] = lambda seen, judge: {}
    model: str = RETRIEVER
    task: str = "text-retrieval"
    others: Callable[[Mapping[str, Any]], None] = lambda results: None


def evaluate_states(
    states: Iterable[State],
    data: TrainingData,
    experiment: Experiment,
    plan: EvaluationPlan,
    *,
    bm25: Callable[[Judge], Mapping[str, Run]],
    untrained: Callable[[], Any],
    handling: Handling,
) -> None:
    """Let a recipe run, measure every state of the model as it comes, and finish the experiment.

    In a group all processes search together, and rank 0 does the rest.

    Leaves ``results.json`` (which names the index that was trained for, if there is one), ``runs/`` (TREC, for
    people and other tools), ``learning_curve.png``, and the results in the model's card.

    Parameters
    ----------
    states : the states that the recipe yields; to make the next one, the recipe trains. The last state is that of
        the last model.
    bm25 : judge -> BM25's runs of dev and test.
    untrained : makes the model as it came.
    handling : the handling of this kind of model.
    """
    judge = Judge(data, plan.measures, experiment.cache, plan.dev_passages)
    best = BestVectors(plan.measures[0]) if plan.keep == "best" else None
    seen, last = measure_all(states, judge, experiment, plan, bm25, best)
    choice = by_leader(choose_state, seen, last.name, plan)
    chosen = seen[last.name if choice.state == LAST else choice.state]
    kept = handling.kept(chosen, last, experiment.layout, untrained)
    incomplete = by_leader(lambda: set(data.judged) - set(chosen.runs))
    again = measure_state(kept, judge, experiment.layout, depth=plan.depth) if incomplete else None
    if best is not None:
        best.settle(kept, last)
    if last.name != FINAL:
        experiment.observers.tell_state(FINAL, lambda: {**told(again or chosen), "kind": "final"})
    if not is_leader():
        return
    seen = with_final(seen, last.name, choice.state, again, experiment.layout)
    records = {name: one.record for name, one in seen.items()}
    results = results_of(seen, choice, plan) | dict(handling.besides(seen, judge))
    results |= entropies(records, experiment.layout) | rates_told(experiment.layout)
    if handling.model == RETRIEVER:
        results |= fused_results(seen, judge, seed=plan.seed)
    results |= judge.few_of_dev
    if plan.own is not None:
        results["lengths"] = what_is_cut(last, plan.own, plan.in_steps)
    write_runs(experiment.layout.trec_runs, seen, data.collection)
    restarts = plan.settings.get("start") == "scratch"
    draw_curve(experiment, results, plan.measures[0], records, model=handling.model, restarts=restarts)
    handling.save(
        kept,
        experiment.layout.model,
        card=model_card(plan.about, data, results, plan.settings, plan.trained_start),
        metadata=card_metadata(data, results, plan.base_model, task=handling.task),
        inputs={"step": "0"} if chosen.place is None else read_manifest(chosen.place).inputs,
        replace=True,
    )
    handling.others(results)
    experiment.finish(results, [*records.values()])
    report(results)


# ---------------------------------------------------------------- measure every state


def measure_all(
    states: Iterable[State],
    judge: Judge,
    experiment: Experiment,
    plan: EvaluationPlan,
    bm25: Callable[[Judge], Mapping[str, Run]],
    best: BestVectors | None,
) -> tuple[dict[str, Measured], Any]:
    """Measure BM25 and every state as it comes, and log the values; returns them and the last state."""
    seen: dict[str, Measured] = {}
    stages.begin("bm25")
    if is_leader():
        baseline = Measured(StateRecord(BM25, "bm25", asked="judged"), bm25(judge))
        seen[BM25] = with_figures(baseline, judge)
        kept = experiment.layout.runs_of(BM25)  # from now on, so that a report can be made while training runs
        keep_bm25_runs(baseline.runs, judge, kept)
        keep_bm25_lists(judge, run_of(kept, "query"), queries=plan.bm25_lists, depth=plan.depth)
        note_among(judge)
        note_state(seen[BM25], plan.measures[0])
    for state in states:
        if state.kind not in BESIDES:
            stages.begin("measure", last=state.kind in ("last", "final"))
        seen[state.name] = measure_state(state, judge, experiment.layout, depth=plan.depth)
        if best is not None:
            best.look(state, seen)
        if is_leader():
            if state.name not in experiment.noted:
                note_state(seen[state.name], plan.measures[0])
            if state.name == STARTED:
                note_cost(seen, plan.measures[0], plan.how)
        experiment.observers.tell_state(state.name, partial(told, seen[state.name]))
    stages.begin("finish")
    return seen, state


def told(one: Measured) -> dict[str, Any]:
    """The facts of a state that the functions of the user get."""
    place = one.place if one.place is not None and one.place.is_dir() else None
    where = {"kind": one.record.kind, "episode": one.record.episode, "step": one.record.step, "path": place}
    return {**where, "measures": {split: dict(found.means) for split, found in one.evaluations.items()}}


def note_among(judge: Judge) -> None:
    """Say among which passages dev is judged, if not among all."""
    if (rows := judge.judged_among.get("dev")) is not None:
        say(
            f"dev is evaluated on {len(rows):,} of {judge.data.collection.n_passages:,} passages: the positives,"
            f" and BM25's first {judge.dev_passages:,} for each query; so its figures are higher than those of a"
            " full search"
        )
    dev = judge.data.dev
    if dev is not None and judge.without_hits > MISSED * len(dev):
        told = (
            "BM25 finds nothing for %s of %s dev queries, so dev is evaluated on little more than positives;"
            " name the language of the texts by hardneg import --language, or evaluate on all passages by"
            " --set dev_passages=none"
        )
        log.warning(in_callers_words(told), f"{judge.without_hits:,}", f"{len(dev):,}")


def note_state(one: Measured, measure: Measure) -> None:
    """Say how a state does by a measure."""
    found = [
        f"{split} {measure} {evaluation.means[str(measure)]:.4f}"
        for split, evaluation in reversed([*one.evaluations.items()])
    ]
    say(f"{shown(one.record.name)}: {', '.join(found) or 'done'}")


def note_cost(seen: Seen, measure: Measure, how: str) -> None:
    """Say what the settings that training starts with cost the model, before any training."""
    for split in [split for split in ("dev", "test") if split in seen[STARTED].evaluations][:1]:
        own, now = (seen[name].evaluations[split].means[str(measure)] for name in (UNTRAINED, STARTED))
        say(f"untrained: {split} {measure} {own:.4f} as you gave it, {now:.4f} {how}")


# ---------------------------------------------------------------- choose the one to keep


def choose_state(seen: Seen, last: str, plan: EvaluationPlan) -> Choice:
    """Choose the state to keep; ``last`` is the name of the state after the last step."""
    places = {LAST if name == last else name: one.place for name, one in seen.items()}
    return choose(plan.keep, plan.measures[0], dev_values(seen, last, plan.measures[0]), places)


def kept_state(
    chosen: Measured,
    last: Snapshot,
    layout: Layout,
    untrained: Callable[[], BiEncoder],
    *,
    started: Callable[[], BiEncoder],
) -> Snapshot:
    """The state that is kept, to be measured on dev and test.

    Parameters
    ----------
    untrained, started : make the model as it came, and as training starts with it.
    """
    if chosen.record.name == last.name:
        return last
    trained = partial(load_encoder, str(chosen.place), device=last.encoder.device)
    return Snapshot(
        {UNTRAINED: untrained, STARTED: started}.get(chosen.record.name, trained)(),
        last.collection,
        FINAL,
        layout.runs_of(FINAL),
        last.cache,
        encoding=last.encoding,
        timed=last.timed,
        asked="judged",
        sparing=last.sparing,
        kind="final",
    )


def save_state(state: Snapshot, path: Path, **facts: Any) -> None:
    """Publish the encoder of a state."""
    save_encoder(state.encoder, path, **facts)


# ---------------------------------------------------------------- publish


def results_of(seen: Seen, choice: Choice, plan: EvaluationPlan) -> dict[str, Any]:
    """The content of ``results.json``."""
    results = summarize(seen, seed=plan.seed, first_episode=plan.first_episode)
    index = next((one.record.index for one in seen.values() if one.record.index), None)
    return results | {"kept": choice.as_json()} | ({"index": index} if index else {})


def what_is_cut(state: Snapshot, own: EncoderSettings, in_steps: int | None) -> dict[str, Any]:
    """The entry of ``results.json`` about lengths to which texts are cut, with counts from the token stores."""
    cuts = [one.count_cut(state.collection, state.cache) for one in lengths_of(state.encoder, own, in_steps)]
    return {cut.name: cut.as_json() for cut in cuts}


def entropies(records: Mapping[str, StateRecord], layout: Layout) -> dict[str, Any]:
    """The entropy of the states for which a recipe kept it, by split and state; {} if there are none."""
    found = {
        name: kept_sharpness(layout / record.runs)
        for name, record in records.items()
        if record.runs is not None and record.of is None
    }
    found = {name: values for name, values in found.items() if values}
    return {"entropy": by_split(found)} if found else {}


def write_runs(folder: Path, seen: Seen, collection: Collection) -> None:
    """Write the runs of the split that judges as TREC files, one for each state worth comparing.

    Such files cannot hold ids with blanks. If there are any, no files are written, and a warning says so.
    """
    for split in list(seen[FINAL].evaluations)[:1]:
        for state in (state for state in PUBLISHED if state in seen):
            run, path = seen[state].runs[split], trec_run(folder, state, split)
            try:
                write_run(path, run, collection.query_ids, collection.passage_ids, tag=state)
            except InputError as fault:
                log.warning("no run files are written: %s", fault)
                return


def draw_curve(
    experiment: Experiment,
    results: Mapping[str, Any],
    measure: Measure,
    records: Mapping[str, StateRecord],
    *,
    model: str = RETRIEVER,
    restarts: bool = False,
) -> None:
    """Draw the loss of all steps and the measure of every state, on dev (on test where there is no dev).

    Parameters
    ----------
    records : state -> its record, with the episode and step that made it. A state from before training stands
        where the curve begins.
    model : the name of the model whose steps are drawn.
    restarts : whether every episode trains the starting model anew. If so, each has its own line, which begins at
        the starting model: no training led from the end of an episode to the next.
    """
    split = "dev" if "dev" in results else "test"
    values = {s: found[str(measure)] for s, found in results.get(split, {}).items() if records[s].of is None}
    baseline = baseline_of(values)
    for name in (RETRIEVED, BM25):
        values.pop(name, None)
    if STARTED in values:  # the steps begin from this state
        values.pop(UNTRAINED, None)
    if LAST in values:  # the final one is one of those before
        values.pop(FINAL, None)
    rows = [row for row in experiment.metrics.read() if row["model"] == model]
    episodes = sorted({row["episode"] for row in rows})
    models = {episode: experiment.layout.episode(episode).model for episode in episodes[:-1]}
    ends = {episode: int(read_manifest(model).inputs["step"]) for episode, model in models.items()}
    curve = learning_curve(rows, ends)
    begins = dict(zip(curve.episodes, curve.borders, strict=False))

    def placed(name: str, episode: int) -> tuple[int, float]:
        return begins.get(records[name].episode or episode, 0) + records[name].step, values[name]

    if restarts:
        own = {e: [s for s in values if records[s].episode in (None, e)] for e in curve.episodes}
        lines = [[placed(s, e) for s in names] for e, names in own.items()]
    else:
        lines = [[placed(s, 0) for s in values]]
    draw_learning_curve(experiment.layout.curve, curve, lines, label=f"{split} {measure}", baseline=baseline)


def is_measured(results: Mapping[str, Any] | None, measures: Sequence[Measure]) -> bool:
    """Whether an experiment is finished, and by these measures."""
    if results is None:
        return False
    by_state = [found for split in ("test", "dev") for found in results.get(split, {}).values()]
    return all(set(found) == set(map(str, measures)) for found in by_state)
