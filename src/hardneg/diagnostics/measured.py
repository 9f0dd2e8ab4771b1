"""What was measured of every state of the model, and the state that is kept as the final one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from hardneg.diagnostics.forgetting import Float64, reciprocal_ranks
from hardneg.diagnostics.informative import share_of_state
from hardneg.diagnostics.judge import Judge
from hardneg.diagnostics.search_state import search_state
from hardneg.evaluation.measures import Evaluation
from hardneg.experiment.layout import Layout
from hardneg.experiment.names import FINAL, LAST
from hardneg.experiment.snapshot import State, record_of, settled
from hardneg.experiment.states import StateRecord
from hardneg.process.distributed import is_leader
from hardneg.records import Run


@dataclass(frozen=True)
class Measured:
    """A state of the model, or BM25, and what was found in its runs. Only rank 0 has the figures.

    Attributes
    ----------
    record : its name, kind and place, as ``states.jsonl`` has them.
    runs : its runs by name: ``train``, ``lookahead``, ``test`` and ``dev``, as far as they were made.
    place : the folder of its weights, if they are kept.
    errors : its pairwise errors, by split.
    evaluations : the evaluation of its run, by split.
    ranks : the reciprocal rank of the best positive of every training query [Q].
    informative : the share of its training negatives that are still near their query.
    """

    record: StateRecord
    runs: Mapping[str, Run]
    place: Path | None = None
    errors: Mapping[str, Any] = field(default_factory=dict)
    evaluations: Mapping[str, Evaluation] = field(default_factory=dict)
    ranks: Float64 | None = None
    informative: float | None = None


def measure_state(state: State, judge: Judge, layout: Layout, *, depth: int) -> Measured:
    """Search a state, together with all processes; rank 0 adds the figures.

    Parameters
    ----------
    layout : the paths of the experiment.
    depth : the number of hits of each training query.
    """
    runs, errors = search_state(state, judge, depth=depth)
    found = Measured(record_of(state, layout), runs, state.weights, errors)
    return with_figures(found, judge, state) if is_leader() else found


def with_figures(found: Measured, judge: Judge, state: State | None = None) -> Measured:
    """Add the figures of a state: evaluations of its runs, ranks of training queries, and the informative share.

    Parameters
    ----------
    state : has the negatives that it was trained on; None: the informative share is left out.
    """
    found = replace(found, evaluations=judge.evaluate(found.runs))
    if (run := found.runs.get("train")) is None:
        return found
    positives = judge.relevant(run)
    share = None if state is None else share_of_state(state, run, positives, judge.data)
    return replace(found, ranks=reciprocal_ranks(judge.hits(run), positives), informative=share)


def with_final(
    seen: Mapping[str, Measured], last: str, chosen: str, again: Measured | None, layout: Layout
) -> dict[str, Measured]:
    """All that was measured, with the state that is kept as ``final`` at the end, and the records settled.

    If the state after the last step is kept, it is renamed, and so are its indexed and re-ranked forms. If another
    state is kept, it appears twice: as ``final``, and under its own name. So do its forms, except those that a
    ranker re-ranked which is not kept, such as the one after an iteration: nobody can use these beside the model.

    Parameters
    ----------
    seen : what was measured, by name of the state, in the order of training.
    last : the name of the state after the last step.
    chosen : the state that is kept; ``last`` is the one after the last step.
    again : the kept state, if it was measured once more, on dev and test.
    """
    seen = {name: replace(one, record=settled(one.record, layout)) for name, one in seen.items()}
    old = last if chosen == LAST else chosen
    names = {name: FINAL + name.removeprefix(old) for name, one in seen.items() if old in (name, one.record.of)}
    model = layout.relative(layout.model)
    if chosen != LAST:
        gone = {name for name in names if seen[name].record.kind == "reranked" and not seen[name].record.ranker}
        names = {name: new for name, new in names.items() if name not in gone}
    found = {name: one for name, one in seen.items() if chosen != LAST or name not in names}
    for name, new in names.items():
        record = seen[name].record
        kind = "final" if new == FINAL else record.kind
        of = names.get(record.of or "")
        found[new] = replace(seen[name], record=replace(record, name=new, kind=kind, of=of, model=model))
    if again:
        runs_path = layout.relative(layout.runs_of(FINAL))
        record = replace(found[FINAL].record, runs=runs_path, asked="judged")
        found[FINAL] = replace(again, record=record, informative=found[FINAL].informative)
    return found
