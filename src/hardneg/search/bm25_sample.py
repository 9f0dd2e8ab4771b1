"""An index of BM25 in memory over a few passages, to time how fast this machine indexes and searches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from hardneg.records import offsets_of, owners
from hardneg.search.analysers import tokenizer_of
from hardneg.search.bm25 import Bm25Index
from hardneg.search.bm25_building import K1, B


def index_of(texts: Sequence[str], language: str) -> Bm25Index:
    """The index that :func:`~hardneg.search.bm25.open_bm25` builds of so few passages, but in memory.

    Parameters
    ----------
    texts : [n] the title and the text of each passage, joined by a space.
    """
    tokenizer = tokenizer_of(language)
    ids = [*tokenizer.streaming_tokenize(texts, update_vocab=True, allow_empty=False)]
    terms = {term: number for number, term in enumerate(tokenizer.get_vocab_dict())}
    lengths = np.array([len(one) for one in ids], np.int64)
    tokens = np.concatenate([np.zeros(0, np.int64), *(np.asarray(one, np.int64) for one in ids)])
    keys, counts = np.unique((tokens << 32) + owners(offsets_of(lengths)), return_counts=True)
    term, rows = keys >> 32, (keys & 0xFFFFFFFF).astype(np.int32)
    passages = np.bincount(term, minlength=len(terms))  # that have a term
    idf = np.log(1 + (len(texts) - passages + 0.5) / (passages + 0.5)).astype(np.float32)
    norm = K1 * (1 - B + B * lengths / max(lengths.mean(), 1.0))
    scores = (idf[term] * (counts / (norm[rows] + counts))).astype(np.float32)
    return Bm25Index(terms, offsets_of(passages), rows, scores, len(texts), "", language)


def repeated(index: Bm25Index, times: int) -> Bm25Index:
    """The index of so many times the passages, as if each stood there so often; scores are those of one."""
    rows = index.rows + np.int32(index.n) * np.arange(times, dtype=np.int32)[:, None]
    order = np.argsort(np.tile(owners(index.offsets), times), kind="stable")
    return replace(
        index,
        offsets=index.offsets * times,
        rows=rows.ravel()[order],
        scores=np.tile(index.scores, times)[order],
        n=index.n * times,
    )
