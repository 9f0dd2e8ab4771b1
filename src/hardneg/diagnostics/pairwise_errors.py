"""Counts pairwise errors: irrelevant passages that score higher than a relevant one.

Table 1 and Figure 3 of Zhan et al., "Optimizing Dense Retrieval Model Training with Hard Negatives", SIGIR 2021:
training on random negatives lowers the number of all errors; training on hard negatives lowers it if at most 200
errors of each positive count.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from hardneg.data.judgements import with_more
from hardneg.data.own_passages import NONE, own_hits
from hardneg.diagnostics.counted_errors import KIND, PairwiseErrors, load_errors, save_errors
from hardneg.errors import ArtifactError, InputError
from hardneg.experiment.layout import errors_of, sample_of
from hardneg.experiment.names import reads_as_trained
from hardneg.experiment.snapshot import RESTORE, Snapshot, State
from hardneg.process.distributed import has_others
from hardneg.process.progress import Tick, silent, track
from hardneg.records import Float32, Int32, Int64, Positives, Qrels, changes, owners, spans
from hardneg.search.counting import count_above
from hardneg.search.exact import ExactIndex
from hardneg.search.parts import SharedIndex
from hardneg.storage.artifacts import is_current, is_published


def pairwise_errors(
    index: ExactIndex | SharedIndex,
    queries: NDArray[Any],
    positives: Positives,
    *,
    own: tuple[Int32, Int32] = NONE,
    progress: Tick = silent,
) -> PairwiseErrors:
    """Count the pairwise errors of every positive over the whole corpus, as exactly as search scores.

    Parameters
    ----------
    queries : [Q, dim] vectors of the queries of ``positives``, rounded to the passages' dtype first.
    positives : D+(q), all of it: no passage of it counts as an error.
    own : the queries that are passages themselves, ascending, and these passages, which are no errors either.
    progress : called with the number of queries done, and of all queries.

    Raises
    ------
    InputError
        No query has a positive.
    """
    if not len(positives.passage_rows):
        raise InputError("NO_POSITIVES", "no query has a relevant passage", "check the qrels")
    spared = with_more(positives, *own)
    owner = owners(spared.offsets)
    vectors = torch.as_tensor(np.asarray(queries))
    which, rows = torch.from_numpy(owner), torch.from_numpy(np.asarray(spared.passage_rows, np.int32))
    count = index.count_above if isinstance(index, SharedIndex) else partial(count_above, index)
    scores, above = (found.cpu().numpy() for found in count(vectors, which, rows, progress=progress))
    errors = above - relevant_above(owner, scores)
    judged = np.arange(len(owner)) - spared.offsets[owner] < spans(positives.offsets)[owner]  # they come first
    return PairwiseErrors(positives.query_rows, positives.offsets, scores[judged], errors[judged])


def relevant_above(owner: Int64, scores: Float32) -> Int64:
    """For each positive [n], how many positives of its query score strictly higher; ``owner`` [n] ascending."""
    order = np.lexsort((-scores, owner))
    begins = changes(owner[order])
    ahead = begins | changes(scores[order])
    place = np.arange(len(order))
    above = np.empty(len(order), np.int64)
    above[order] = np.maximum.accumulate(np.where(ahead, place, 0)) - np.maximum.accumulate(
        np.where(begins, place, 0)
    )
    return above


# ---------------------------------------------------------------- of a state of the model


def errors_of_state(state: State, splits: Mapping[str, Qrels]) -> dict[str, dict[str, Any]]:
    """The pairwise errors of a state on every split that it can be counted on, as :meth:`PairwiseErrors.as_json`.

    They are counted once and kept beside the state's runs, query by query. A split without positives has no
    errors. Errors are not counted for a state that an index retrieves, nor for documents of several vectors: in
    both cases, counting over single vectors would not tell the ranks.
    """
    found = {name: kept_errors(state, name, qrels.positives()) for name, qrels in splits.items()}
    return {name: errors.as_json() for name, errors in found.items() if errors is not None}


def kept_errors(state: State, name: str, positives: Positives) -> PairwiseErrors | None:
    """The errors that stand beside a state's run ``name``; counted now if it still has embeddings.

    Raises
    ------
    ArtifactError
        They were counted before, are gone, and the state's embeddings are gone, too.
    """
    path = errors_of(state.folder, name)
    if not isinstance(state, Snapshot):
        if is_published(path, KIND):
            return load_errors(path)
        if is_published(sample_of(state.folder)) and len(positives.passage_rows):  # such states are counted
            what = "these pairwise errors are gone, and the model that made them is gone, too"
            raise ArtifactError("NO_MANIFEST", what, RESTORE, path=path)
        return None
    if state.index is not None or state.chunks is not None or not len(positives.passage_rows):
        return None
    asked = [positives.query_rows.tolist(), positives.offsets.tolist(), positives.passage_rows.tolist()]
    own = own_hits(positives, state.collection)
    asked += [rows.tolist() for rows in own if len(rows)]  # without any, what was counted before stays current
    inputs = state.inputs_of(asked, as_trained=reads_as_trained(name))
    if not is_current(path, KIND, inputs):
        save_errors(count_errors(state, name, positives, own), path, inputs)
    return load_errors(path)


def count_errors(
    state: Snapshot, name: str, positives: Positives, own: tuple[Int32, Int32] = NONE
) -> PairwiseErrors:
    """Count over the stored embeddings of a state; ``own`` as for :func:`pairwise_errors`."""
    passages = state.passages
    queries = state.queries_as(reads_as_trained(name)).rows(positives.query_rows)
    index: ExactIndex | SharedIndex
    if has_others():
        index = SharedIndex(passages, state.encoder.device)
    else:
        index = ExactIndex(passages.shards, max_norm=passages.max_norm, device=state.encoder.device)
    with state.timed("count", run=name, queries=len(positives)), track("counting errors", "queries") as tick:
        return pairwise_errors(index, queries, positives, own=own, progress=tick)
