"""What an experiment measured: measures by state, comparisons, forgetting; and several seeds pooled."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

from hardneg.data.formats.trec import write_run
from hardneg.data.training_data import TrainingData
from hardneg.diagnostics.cards import card_metadata, model_card
from hardneg.diagnostics.choice import Choice, choose, report, with_final
from hardneg.diagnostics.curves import draw_learning_curve, learning_curve
from hardneg.diagnostics.forgetting import forgetting
from hardneg.diagnostics.informative import share_of_state
from hardneg.diagnostics.search_state import evaluation_depth, judged_splits, search_state
from hardneg.errors import InputError
from hardneg.evaluation.answers import check_answers, evaluate_with_answers
from hardneg.evaluation.measures import Evaluation, Measure
from hardneg.evaluation.significance import bootstrap_interval, holm, randomization_test
from hardneg.experiment.folder import Experiment
from hardneg.experiment.layout import Layout, trec_run
from hardneg.experiment.names import BM25, FINAL, LAST, STARTED, UNTRAINED, shown
from hardneg.experiment.snapshot import Snapshot, State, record_of, settled
from hardneg.experiment.states import StateRecord
from hardneg.models.bi_encoder import BiEncoder
from hardneg.models.loading import load_encoder
from hardneg.models.saving import save_encoder
from hardneg.negatives.candidates import Contains
from hardneg.negatives.labels import answers_of, relevant
from hardneg.process.distributed import by_leader, is_leader
from hardneg.process.progress import note, say
from hardneg.records import Qrels, Run
from hardneg.search.bm25 import bm25_run
from hardneg.storage.artifacts import read_manifest
from hardneg.training.stage import RETRIEVER

log = logging.getLogger(__name__)

PUBLISHED = (BM25, UNTRAINED, FINAL)  # the states whose runs are written for people
Runs = Mapping[str, Mapping[str, Run]]  # by state, and then by what was searched
NO_LENGTHS: Mapping[str, Any] = MappingProxyType({})


def evaluate_states(
    states: Iterable[State],
    data: TrainingData,
    experiment: Experiment,
    measures: Sequence[Measure],
    *,
    depth: int,
    seed: int,
    first_episode: int,
    about: str,
    settings: Mapping[str, Any],
    base_model: str | None = None,
    lengths: Mapping[str, Any] = NO_LENGTHS,
    how: str = "",
    keep: Literal["best", "last"] = "last",
    untrained: Callable[[], BiEncoder],
) -> None:
    """Let a recipe run, measure every state of the model as it comes, and finish the experiment.

    In a group all processes search together, and rank 0 does the rest.

    Leaves ``results.json`` (which names the index that was trained for, if there is one), ``runs/`` (TREC, for
    people and other tools), ``learning_curve.png``, and the results in the model's card.

    Parameters
    ----------
    states : what the recipe yields; making the next one trains. The last one is a snapshot of the last model.
    depth : how far down training queries are mined.
    about, settings, base_model : what the model card says of the model and how it was trained; the last is the
        name on the hub of the model it began with.
    lengths : what the lengths in force cut, by side.
    how : training starts from something else than the model as it came.
    keep : which state is the result: the last one, or the best on dev by the first measure.
    untrained : gives the model as it came.
    """
    check_answers(measures, data.collection)
    contains = answers_of(data, experiment.cache)
    seen = Seen()
    if is_leader():
        seen.runs[BM25] = bm25_judged(data, experiment.cache, evaluation_depth(measures))
        seen.records[BM25] = StateRecord(BM25, "bm25", asked="judged")
        note_state(BM25, seen.runs[BM25], data, measures, experiment.cache)
    for state in states:
        found, errors = search_state(state, data, measures, depth=depth, contains=contains)
        seen.note(state, record_of(state, experiment.layout), found, errors)
        if is_leader():
            if (share := informative_of(state, found, data, contains)) is not None:
                seen.informative[state.name] = share
            note_state(state.name, found, data, measures, experiment.cache)
            if state.name == STARTED:
                note_cost(seen.runs, how, data, measures, experiment.cache)
    assert isinstance(state, Snapshot)
    last, seen.places[LAST] = state.name, seen.places.pop(state.name)
    choice = by_leader(lambda: choose(keep, dev_values(seen, last, data, measures, experiment), seen.places))
    kept = kept_state(choice, state, experiment, seen.places, untrained)
    chosen = last if choice.state == LAST else choice.state
    missing = by_leader(lambda: set(judged_splits(data)) - set(seen.runs[chosen]))
    looked = search_state(kept, data, measures, depth=depth, contains=contains) if missing else None
    if not is_leader():
        return
    seen = seen.with_final(last, choice.state, looked, experiment.layout)
    results = summarize(
        data,
        seen.runs,
        measures,
        cache=experiment.cache,
        seed=seed,
        first_episode=first_episode,
        indexed=seen.indexed,
    )
    results |= {
        "pairwise_errors": by_split(seen.errors),
        "informative": seen.informative,
        "kept": choice.as_json(),
    }
    if all(record.asked != "all" for record in seen.records.values()):
        results = without_training_queries(results)
    results |= ({"lengths": lengths} if lengths else {}) | ({"index": seen.index} if seen.index else {})
    write_runs(experiment.layout.trec_runs, seen.runs, data)
    draw_curve(experiment, results, measures[0], seen.records)
    save_encoder(
        kept.encoder,
        experiment.layout.model,
        card=model_card(about, data, results, settings),
        metadata=card_metadata(data, results, base_model),
        inputs=read_manifest(seen.places[choice.state]).inputs if choice.state in seen.places else {"step": "0"},
        replace=True,
    )
    experiment.finish(results, [*seen.records.values()])
    report(results["kept"])


@dataclass
class Seen:
    """What was seen of the states of the model, by name.

    Attributes
    ----------
    runs, errors : the runs and the pairwise errors, by what was searched.
    records : what it was, in the order of training.
    places : where its weights stand, if they do.
    informative : its share of training negatives that are still near.
    """

    runs: dict[str, Mapping[str, Run]] = field(default_factory=dict)
    errors: dict[str, dict[str, Any]] = field(default_factory=dict)
    records: dict[str, StateRecord] = field(default_factory=dict)
    places: dict[str, Path] = field(default_factory=dict)
    informative: dict[str, float] = field(default_factory=dict)

    def note(self, state: State, record: StateRecord, runs: Mapping[str, Run], errors: dict[str, Any]) -> None:
        """Take in what one state was."""
        self.records[state.name] = record
        self.runs[state.name], self.errors[state.name] = runs, errors
        if state.kept_at is not None:
            self.places[state.name] = state.kept_at

    @property
    def index(self) -> Mapping[str, Any] | None:
        """The index that was trained for, if there is one."""
        return next((record.index for record in self.records.values() if record.index), None)

    @property
    def indexed(self) -> set[str]:
        """The states that are others, as an index retrieves them."""
        return {name for name, record in self.records.items() if record.of is not None}

    def with_final(
        self, last: str, chosen: str, looked: tuple[Mapping[str, Run], dict[str, Any]] | None, layout: Layout
    ) -> Seen:
        """What was seen, with the state that is kept as ``final``, and the records settled.

        Parameters
        ----------
        last : what the state after the last step is called.
        chosen : the state that is kept.
        looked : runs and errors of the kept state, if it was looked at again.
        """
        old = last if chosen == LAST else chosen
        ours = [record.name for record in self.records.values() if old in (record.name, record.of)]
        names = {name: FINAL + name.removeprefix(old) for name in ours}
        runs, errors = with_final(self.runs, names, chosen), with_final(self.errors, names, chosen)
        if looked:
            runs[FINAL], errors[FINAL] = looked
        informative = with_final(self.informative, names, chosen)
        records = with_final({name: settled(one, layout) for name, one in self.records.items()}, names, chosen)
        model = layout.relative(layout.model)
        for new in names.values():
            records[new] = replace(records[new], name=new, model=model)
            kind = "final" if new == FINAL else records[new].kind
            records[new] = replace(records[new], kind=kind, of=names.get(records[new].of or ""))
        if looked:
            runs_there = layout.relative(layout.runs_of(FINAL))
            records[FINAL] = replace(records[FINAL], runs=runs_there, asked="judged")
        return replace(self, runs=runs, errors=errors, records=records, informative=informative)


def dev_values(
    seen: Seen,
    last: str,
    data: TrainingData,
    measures: Sequence[Measure],
    experiment: Experiment,
) -> tuple[str, dict[str, float]]:
    """The first measure, and what every state that can be kept measures on dev by it, in the order of training.

    Where an index is trained for, a state is measured as that retrieves it.
    """
    if data.dev is None:
        return str(measures[0]), {}
    found: dict[str, float] = {}
    kept = (UNTRAINED, last, *seen.places)
    for name in (name for name, record in seen.records.items() if name in kept and record.of is None):
        through = next((other.name for other in seen.records.values() if other.of == name), name)
        means = score(seen.runs[through]["dev"], data.dev, data, measures[:1], experiment.cache).means
        found[LAST if name == last else name] = next(iter(means.values()))
    return str(measures[0]), found


def kept_state(
    choice: Choice,
    last: Snapshot,
    experiment: Experiment,
    places: Mapping[str, Path],
    untrained: Callable[[], BiEncoder],
) -> Snapshot:
    """The state that is kept, to be measured on dev and test."""
    if choice.state == LAST:
        return last
    device = last.encoder.device
    came = choice.state == UNTRAINED
    encoder = untrained() if came else load_encoder(str(places[choice.state]), device=device)
    return Snapshot(
        encoder,
        last.collection,
        FINAL,
        experiment.layout.runs_of(FINAL),
        last.cache,
        encoding=last.encoding,
        timed=last.timed,
        asked="judged",
        sparing=last.sparing,
        kind="final",
    )


def informative_of(
    state: State, runs: Mapping[str, Run], data: TrainingData, contains: Contains | None
) -> float | None:
    """The share of a state's training negatives that are still near; None without those or a run of them."""
    if "train" not in runs:
        return None
    return share_of_state(state, runs["train"], data, relevant(runs["train"], data, contains))


def is_measured(results: Mapping[str, Any] | None, measures: Sequence[Measure]) -> bool:
    """Whether an experiment is finished, and by these measures."""
    if results is None:
        return False
    by_state = [found for split in ("test", "dev") for found in results.get(split, {}).values()]
    return all(set(found) == set(map(str, measures)) for found in by_state)


def bm25_judged(data: TrainingData, cache: Path, depth: int) -> dict[str, Run]:
    """BM25's runs of the dev and test queries, to measure against."""
    return {
        name: bm25_run(data.collection, qrels.query_rows, depth, cache)
        for name, qrels in judged_splits(data).items()
    }


def score(run: Run, qrels: Qrels, data: TrainingData, measures: Sequence[Measure], cache: Path) -> Evaluation:
    """How a run of a split does."""
    collection = data.collection
    id_rank = collection.passage_ids.id_rank
    return evaluate_with_answers(run, qrels, measures, collection=collection, cache=cache, id_rank=id_rank)


def note_state(
    name: str, runs: Mapping[str, Run], data: TrainingData, measures: Sequence[Measure], cache: Path
) -> None:
    """Say how a state does by the first measure; judgements that judge nothing are found here, not at the end."""
    found = [
        f"{split} {measure} {mean:.4f}"
        for split, qrels in reversed(judged_splits(data).items())
        if split in runs
        for measure, mean in score(runs[split], qrels, data, measures[:1], cache).means.items()
    ]
    note(f"{shown(name)}: {', '.join(found) or 'done'}")


def note_cost(runs: Runs, how: str, data: TrainingData, measures: Sequence[Measure], cache: Path) -> None:
    """Say what the settings that training starts with cost the model, before any training."""
    splits = [split for split in ("dev", "test") if split in judged_splits(data)]
    for split in splits[:1]:
        qrels = judged_splits(data)[split]
        own, now = (score(runs[state][split], qrels, data, measures[:1], cache) for state in (UNTRAINED, STARTED))
        for measure, mean in own.means.items():
            say(f"untrained: {split} {measure} {mean:.4f} as it came, {now.means[measure]:.4f} {how}")


def summarize(
    data: TrainingData,
    runs: Runs,
    measures: Sequence[Measure],
    *,
    cache: Path,
    seed: int,
    first_episode: int = 1,
    indexed: Collection[str] = (),
) -> dict[str, Any]:
    """The results of an experiment: the content of ``results.json``.

    Parameters
    ----------
    runs : by state (``bm25``, ``untrained``, ``episode-1``, ..., ``final``), the runs by name.
    indexed : the states that are others, as an index retrieves them.
    """
    results: dict[str, Any] = {}
    for split, qrels in judged_splits(data).items():
        present = {state: found[split] for state, found in runs.items() if split in found}
        evaluations = {state: score(run, qrels, data, measures, cache) for state, run in present.items()}
        results[split] = {state: evaluation.means for state, evaluation in evaluations.items()}
        if "comparisons" not in results:
            pairs = [(FINAL, other) for other in (UNTRAINED, BM25)]
            results["compared_on"] = split
            results["comparisons"] = compare_states(evaluations, pairs, seed=seed)
    trained = {s: found["train"] for s, found in runs.items() if "train" in found and s not in indexed}
    if LAST in trained:  # the final one is one of those before
        trained.pop(FINAL, None)
    return {**results, "forgetting": forgetting(data, trained, answers_of(data, cache), first=first_episode)}


def without_training_queries(results: Mapping[str, Any]) -> dict[str, Any]:
    """The results of states that were searched for dev and test alone: ``examined`` says so.

    What compares runs of the training queries is left out.
    """
    left = {name: found for name, found in results.items() if name not in ("forgetting", "informative")}
    return left | {"examined": "judged"}


def by_split(states: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """What was found by state and split, by split and state."""
    splits = list(dict.fromkeys(split for found in states.values() for split in found))
    return {split: {s: found[split] for s, found in states.items() if split in found} for split in splits}


def compare_states(
    evaluations: Mapping[str, Evaluation],
    pairs: Sequence[tuple[str, str]],
    *,
    seed: int,
    permutations: int = 100_000,
) -> list[dict[str, Any]]:
    """Paired tests of state pairs (a, b) for every measure; ``difference`` is a - b.

    ``p`` is that of the two-sided randomisation test, ``p_holm`` corrected over all rows, and ``interval`` the
    95 % bootstrap interval of the difference over queries.
    """
    rows: list[dict[str, Any]] = []
    for a, b in pairs:
        for measure in evaluations[a].values:
            x, y = evaluations[a].of(measure), evaluations[b].of(measure)
            low, high = bootstrap_interval(x - y, seed=seed)
            rows.append(
                {
                    "a": a,
                    "b": b,
                    "measure": measure,
                    "difference": float((x - y).mean()),
                    "interval": [low, high],
                    "p": randomization_test(x, y, permutations=permutations, seed=seed),
                }
            )
    for row, corrected in zip(rows, holm([row["p"] for row in rows]), strict=True):
        row["p_holm"] = float(corrected)
    return rows


# ---------------------------------------------------------------- for people


def write_runs(folder: Path, runs: Runs, data: TrainingData) -> None:
    """Write the runs of the split that judges as TREC files, one for each state worth comparing.

    Ids with blanks cannot stand in such files; then there are none, and a warning says so.
    """
    queries, passages = data.collection.query_ids, data.collection.passage_ids
    for split in list(judged_splits(data))[:1]:
        for state in PUBLISHED:
            try:
                write_run(trec_run(folder, state, split), runs[state][split], queries, passages, tag=state)
            except InputError as fault:
                log.warning("no run files are written: %s", fault)
                return


def draw_curve(
    experiment: Experiment,
    results: Mapping[str, Any],
    measure: Measure,
    records: Mapping[str, StateRecord],
) -> None:
    """Draw the loss of all steps and the measure of every state, on dev (on test where there is no dev).

    Parameters
    ----------
    records : by state, which step of which episode made it; before any, it stands where the curve begins.
    """
    split = "dev" if "dev" in results else "test"
    values = {s: found[str(measure)] for s, found in results.get(split, {}).items() if records[s].of is None}
    baseline = values.pop(BM25, None)
    if STARTED in values:  # from which the steps begin
        values.pop(UNTRAINED, None)
    if LAST in values:  # the final one is one of those before
        values.pop(FINAL, None)
    rows = [row for row in experiment.metrics.read() if row["model"] == RETRIEVER]
    episodes = sorted({row["episode"] for row in rows})
    models = {episode: experiment.layout.episode(episode).model for episode in episodes[:-1]}
    ends = {episode: int(read_manifest(model).inputs["step"]) for episode, model in models.items()}
    curve = learning_curve(rows, ends)
    begins = dict(zip(curve.episodes, curve.borders, strict=False))
    places = [begins.get(records[s].episode or 0, 0) + records[s].step for s in values]
    draw_learning_curve(
        experiment.layout.curve,
        curve,
        places,
        list(values.values()),
        label=f"{split} {measure}",
        baseline=baseline,
    )
