"""How sharp a retriever is: the entropy of its probabilities over the positive and first hits (AR2, Table 6)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from hardneg.adversarial import entropy
from hardneg.data.own_passages import without_pairs
from hardneg.data.training_data import TrainingData
from hardneg.errors import ArtifactError
from hardneg.experiment.layout import sharpness_of
from hardneg.experiment.names import reads_as_trained
from hardneg.experiment.snapshot import RESTORE, ArchivedState, Snapshot
from hardneg.negatives.candidates import Contains
from hardneg.negatives.labels import answers_of, no_hits, with_answers
from hardneg.process.distributed import by_leader
from hardneg.records import Float32, Int64, Positives, Qrels, Run, owners, pair_keys, spans
from hardneg.storage.artifacts import is_published, publish, read_manifest

Bool = NDArray[np.bool_]

KIND = "sharpness"
HITS = 15  # beside the positive


def keep_sharpness(
    state: Snapshot, data: TrainingData, cache: Path, search: Callable[[], Mapping[str, Run]]
) -> None:
    """Publish the entropy on dev and test while the state has its embeddings, unless it is published already.

    Parameters
    ----------
    data : has the splits and the labels; with labels by answers, hits that contain an answer are positives too.
    cache : the folder of the cache of answers.
    search : makes or reads the runs of these splits.
    """
    path, splits = sharpness_of(state.folder), data.judged
    if by_leader(is_published, path):
        return
    runs = search()
    _ = state.passages  # encoded by all processes together, even if runs were published before

    def keep() -> None:
        contains = answers_of(data, cache)
        found = {
            name: sharpness(state, run, qrels, as_trained=reads_as_trained(name), contains=contains)
            for name, qrels in splits.items()
            for run in (without_pairs(runs[name], *no_hits(data, name)),)
        }
        with publish(path, KIND, inputs={"model": state.digest}) as draft:
            draft.facts |= {name: value for name, value in found.items() if value is not None}

    by_leader(keep)


def check_sharpness(state: ArchivedState) -> None:
    """Refuse a state that was measured and whose entropy is gone: its model cannot compute it again."""
    if not is_published(path := sharpness_of(state.folder), KIND):
        what = "the sharpness of this state is gone, and its model is gone, too"
        raise ArtifactError("NO_MANIFEST", what, RESTORE, path=path)


def kept_sharpness(runs: Path) -> dict[str, float]:
    """The entropy of a state by split, in nats; empty where none was published."""
    path = sharpness_of(runs)
    return dict(read_manifest(path).facts) if is_published(path, KIND) else {}


def sharpness(
    state: Snapshot, run: Run, qrels: Qrels, *, as_trained: bool, contains: Contains | None = None
) -> float | None:
    """The mean entropy over the queries of a run that have a positive, in nats; None if there are none.

    A query's list has its positive of the highest score, and the first 15 hits that are no positive of it. The
    paper reports 2.10 with distillation and 1.70 without it; 16 equal scores have 2.77.

    A run whose depth is less than 15 plus the number of the query's positives may have fewer such hits. Then the
    list is shorter, without a warning, and its entropy may be lower.

    Parameters
    ----------
    as_trained : queries are read as training reads them, as those of the run were.
    contains : given if labels are by answers. As in training, the positive of a query without a judged one is then
        its first hit that contains an answer, and no hit that contains one is among the 15. A query with neither
        is left out.
    """
    positives, others = labelled(run, qrels.positives(), contains)
    some = np.flatnonzero(spans(positives.offsets) > 0)
    if not len(some):
        return None
    vectors = state.queries_as(as_trained).rows(qrels.query_rows)
    scores = state.pair_scores(vectors[owners(positives.offsets)], positives.passage_rows)
    best = np.maximum.reduceat(scores, positives.offsets[:-1][some])
    hits, there = first_of(run, others, HITS)
    lists = np.concatenate([best[:, None], hits[some]], axis=1)
    masked = np.concatenate([np.zeros((len(some), 1), bool), ~there[some]], axis=1)
    found = entropy(torch.from_numpy(lists), torch.from_numpy(masked), scale=state.encoder.settings.scale)
    return float(found.double().mean())


def labelled(run: Run, judged: Positives, contains: Contains | None) -> tuple[Positives, Bool]:
    """The positives of each query of a run, and whether each hit [n] is no positive, as training labels them."""
    owner, known = owners(run.offsets), owners(judged.offsets)
    others = ~np.isin(pair_keys(owner, run.passage_rows), pair_keys(known, judged.passage_rows))
    if contains is None:
        return judged, others
    others &= ~contains(run.query_rows[owner], run.passage_rows)
    return with_answers(run, judged, contains, int(spans(run.offsets).max(initial=0))), others


def first_of(run: Run, chosen: Bool, count: int) -> tuple[Float32, Bool]:
    """The scores [Q, count] of each query's first hits that are ``chosen`` [n], and which of these exist."""
    owner = owners(run.offsets)
    place: Int64 = np.cumsum(chosen) - 1
    before = np.concatenate([[0], np.cumsum(chosen)])[run.offsets[:-1]]
    place = place - before[owner]
    keep = np.flatnonzero(chosen & (place < count))
    scores, there = np.zeros((len(run), count), np.float32), np.zeros((len(run), count), bool)
    scores[owner[keep], place[keep]] = run.scores[keep]
    there[owner[keep], place[keep]] = True
    return scores, there
