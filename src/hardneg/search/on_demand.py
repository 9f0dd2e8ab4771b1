"""The vectors of some queries of a collection, embedded when they are asked for, without embedding the others."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from hardneg.models.tokenizing import token_store
from hardneg.process.memory import spare
from hardneg.process.progress import track
from hardneg.records import offsets_of
from hardneg.search.retriever import Retriever

AT_ONCE = 256  # queries that are encoded together
BESIDE = 1 << 27  # the most bytes of vectors that are held beside others


class QueriesOnDemand:
    """Queries of a retriever's collection that are embedded at each call of :meth:`rows`, and kept on no disk.

    Parameters
    ----------
    whole_from : if so many are asked for at once, all queries are embedded and kept, as a retriever does it; None:
        never. Only the number asked for decides, so a resumed run gets the same vectors.
    """

    def __init__(self, retriever: Retriever, *, searching: bool, whole_from: int | None = None) -> None:
        self.retriever, self.searching, self.whole_from = retriever, searching, whole_from
        self._last: dict[bytes, NDArray[Any]] = {}  # the last vectors: a state is asked for dev, test, dev, test

    def rows(self, rows: NDArray[np.integer]) -> NDArray[Any]:
        """Vectors [len(rows), dim] of these rows, in that order."""
        if self.whole_from is None:
            return self._encoded(rows)
        with self.retriever.lock:
            if len(rows) >= self.whole_from:
                return self.retriever._embed("query", searching=self.searching).rows(rows)
            key = rows.tobytes()
            if key not in self._last:
                ours, most = self.retriever, min(BESIDE, spare())
                needed = len(rows) * ours.encoder.dim * np.dtype(ours.encoding.dtype).itemsize
                beside = [one for one in self._last.items() if min(one[1].nbytes, needed) <= most]
                self._last = dict(beside[-1:])  # before the next are made: never are many held twice
                self._last[key] = self._encoded(rows)
            return self._last[key]

    def _encoded(self, rows: NDArray[np.integer]) -> NDArray[Any]:
        ours, encoder = self.retriever, self.retriever.encoder
        store = token_store(encoder, ours.collection, ours.cache, "query", searching=self.searching)
        ends = offsets_of(store.lengths[rows])
        vectors = np.empty((len(rows), encoder.dim), ours.encoding.dtype)
        timed = ours.timed("encode", side="query", tokens=int(ends[-1]), cached=False)
        tracked = track("encoding queries", "tokens", kind="encode")
        with ours.lock, timed, encoder.inference(ours.encoding.precision), tracked as tick:
            for start in range(0, len(rows), AT_ONCE):
                some = rows[start : start + AT_ONCE]
                encoded = encoder.encode(store.read(some), "query")
                vectors[start : start + len(some)] = encoded.cpu().numpy()
                tick(int(ends[start + len(some)]), int(ends[-1]))
        return vectors
