"""Scores of many pairs of a query and a passage by a ranker: in bounded memory, nothing padded, in order."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray

from hardneg.data.token_pairs import PairStore
from hardneg.data.tokens import TokenStore
from hardneg.errors import NumericError
from hardneg.models.cross_encoder import CrossEncoder
from hardneg.models.packing import WINDOW, plan_batches, upload
from hardneg.process.hardware import Precision
from hardneg.process.memory import require
from hardneg.process.progress import Tick, silent
from hardneg.records import Float32, Int64, TokenBatch, owners, take_spans

Rows = NDArray[np.integer]
Named = Callable[[int, int], str]

BYTES = 64  # of a sequence while its window is planned: rows, length, place and score


def score_pairs(
    ranker: CrossEncoder,
    queries: TokenStore | TokenBatch,
    passages: TokenStore | TokenBatch,
    query_rows: Rows,
    passage_rows: Rows,
    *,
    budget: int,
    precision: Precision | None = None,
    progress: Tick = silent,
    named: Named | None = None,
) -> Float32:
    """The ranker's score of query ``query_rows[i]`` and passage ``passage_rows[i]`` [n], in that order.

    Scores have no activation. A document that the store holds as several sequences has the highest score of these
    (MaxP; Dai and Callan, SIGIR 2019). Windows of consecutive pairs are sorted by length and cut into batches of
    equal tokens: the same call gives the same bits.

    Parameters
    ----------
    queries, passages : token stores made by the ranker's template, or its tokens of a few texts.
    budget : tokens of one batch; a longer pair is alone.
    precision : the precision that the transformer computes in; None: its present one.
    progress : called with the pairs done and those in all.
    named : the name, in a message, of the query and the passage at two rows.

    Raises
    ------
    NumericError : a score is NaN or infinite.
    ResourceError : a batch does not fit the memory that this process may take.
    """
    pairs = PairStore(queries, passages, ranker.form, ranker.settings.max_length)
    query_rows, passage_rows = np.asarray(query_rows), np.asarray(passage_rows)
    scores = np.empty(len(query_rows), np.float32)
    needed = ranker.working_memory(max(budget, ranker.settings.max_length)) + _bytes(ranker, len(scores))
    require(needed, "scoring pairs", ranker.device.type)
    with ranker.inference(precision or ranker.precision):
        for start in range(0, len(scores), WINDOW):
            part = slice(start, start + WINDOW)
            tick = _within(progress, start, len(scores[part]), len(scores))
            scores[part] = _score_window(ranker, pairs, query_rows[part], passage_rows[part], budget, tick)
            _check(scores[part], query_rows[part], passage_rows[part], named)
    return scores


def _bytes(ranker: CrossEncoder, n: int) -> int:
    """Bytes that scoring takes outside of the model: the scores, and the plan of a window."""
    return 4 * n + min(n, WINDOW) * ranker.settings.chunks * BYTES


def _score_window(
    ranker: CrossEncoder, pairs: PairStore, query_rows: Rows, passage_rows: Rows, budget: int, tick: Tick
) -> Float32:
    offsets: Int64 | None = None
    first = getattr(pairs.passages, "first", None)
    if first is not None:
        passage_rows, offsets = take_spans(first, passage_rows)
        query_rows = query_rows[owners(offsets)]
    found, done = torch.empty(len(query_rows), device=ranker.device), 0
    for batch in plan_batches(pairs.lengths(query_rows, passage_rows), budget):
        scores = ranker.score(pairs.read(query_rows[batch], passage_rows[batch]))
        found[upload(batch, found.device)] = scores
        tick(done := done + len(batch), len(found))
    scored = found.cpu().numpy()
    return scored if offsets is None else np.maximum.reduceat(scored, offsets[:-1])


def _within(progress: Tick, start: int, n: int, total: int) -> Tick:
    """Progress over the sequences of a window, reported as pairs; it has ``n`` of all pairs, from ``start`` on."""
    return lambda done, sequences: progress(start + done * n // sequences, total)


def _check(scores: Float32, query_rows: Rows, passage_rows: Rows, named: Named | None) -> None:
    bad = np.flatnonzero(~np.isfinite(scores))
    if not len(bad):
        return
    query, passage = int(query_rows[bad[0]]), int(passage_rows[bad[0]])
    which = f"query row {query}, passage row {passage}" if named is None else named(query, passage)
    what = f"the ranker's score of {which} is {scores[bad[0]]}"
    raise NumericError("BAD_SCORE", what, "check the model and these texts, or take float32")
