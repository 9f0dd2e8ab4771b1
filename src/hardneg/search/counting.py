"""How many passages beat a given one: counts over the whole corpus, exact as search, in one pass."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from hardneg.process.progress import Tick, silent
from hardneg.search.exact import ExactIndex
from hardneg.search.pairs import Pairs
from hardneg.search.proposals import FLOAT32

SPAN = 1024  # flags that are added as words of eight: each byte of the sum counts to 128, which fits
WORDS = 1 << 18  # words of eight flags whose doubtful passages are scored at a time


def count_above(
    index: ExactIndex,
    queries: Tensor,
    which: Tensor,
    rows: Tensor,
    *,
    scores: Tensor | None = None,
    progress: Tick = silent,
) -> tuple[Tensor, Tensor]:
    """How many passages score strictly higher than given ones, each for a query.

    Parameters
    ----------
    queries : [Q, dim], rounded to the passages' dtype first.
    which : [n] int64 ascending, the query of each given passage.
    rows : [n] int32, the passage rows.
    scores : [n] float32, the scores of the given passages. With them the passages need not be in the index, and
        their ``rows`` have no meaning. None: the index scores them.
    progress : called with the queries done and all of them, tile by tile.

    Returns
    -------
    scores [n] float32 and counts [n] int64 of the given passages. Both are those of a full sort of the scores of
    :meth:`ExactIndex.search`, whatever the tiles, shards and devices.

    Raises
    ------
    ArtifactError, NumericError
        As :meth:`ExactIndex.search`.
    """
    stored, which, rows = index.stored(queries), which.to(index.device), rows.to(index.device)
    given = None if scores is None else scores.to(index.device)
    scores = torch.empty(len(rows), device=index.device)
    counts = torch.zeros(len(rows), dtype=torch.int64, device=index.device)
    tile = index.given_tile or index.fitting_tile(min(index.tile, max(len(stored), 1)), 64, len(index))
    for start in range(0, len(stored), tile):
        bounds = torch.searchsorted(which, torch.tensor([start, start + tile], device=which.device)).tolist()
        part = slice(*bounds)
        if part.start < part.stop:
            scores[part], counts[part] = _count_tile(
                index,
                stored[start : start + tile],
                which[part] - start,
                rows[part],
                None if given is None else given[part],
            )
        progress(min(start + tile, len(stored)), len(stored))
    return scores, counts


def _count_tile(
    index: ExactIndex, queries: Tensor, which: Tensor, rows: Tensor, scores: Tensor | None
) -> tuple[Tensor, Tensor]:
    pairs = Pairs(index, queries)
    if scores is None:
        scores = pairs.scores(which, pairs.sums(which, rows)[:, None], rows[:, None])[:, 0]
    margin = FLOAT32.margin(queries, pairs.norms, index.max_norm, 0.0)[which]
    bands = Bands(which, scores, (scores - margin).float(), (scores + margin).float())
    counts = torch.zeros_like(which)
    layers = list(bands.layers())
    with FLOAT32.leave():
        for start, products in index.products(queries, FLOAT32):
            for given in layers:
                layer = bands.take(given)
                seen = products if len(given) == len(queries) else products[layer.which]
                counts[given] += _count_products(pairs, layer, seen, start)
    return scores, counts


def _count_products(pairs: Pairs, layer: Bands, products: Tensor, start: int) -> Tensor:
    """How many of the passages from ``start`` on beat each given passage [n].

    Row i of ``products`` [n, w] holds the approximate scores of the query of the i-th given passage.
    """
    certain = compare(torch.gt, products, layer.high)
    counts = certain.view(-1, SPAN // 8).sum(dim=1).view(torch.uint8).view(len(certain), -1).sum(dim=1)
    doubtful = compare(torch.ge, products, layer.low).bitwise_xor_(certain)
    for words in torch.nonzero(doubtful).split(WORDS):
        row, word = words.unbind(1)
        which, byte = torch.nonzero(doubtful[row, word].view(torch.uint8).view(-1, 8), as_tuple=True)
        given, passages = row[which], (start + 8 * word[which] + byte).int()
        ids = layer.which[given]
        exact = pairs.scores(ids, pairs.sums(ids, passages)[:, None], passages[:, None])[:, 0]
        counts.index_add_(0, given, (exact > layer.scores[given]).long())
    return counts


def compare(how: Callable[..., Tensor], products: Tensor, bounds: Tensor) -> Tensor:
    """Flags of the places where ``how`` holds between ``products`` [n, w] and the bound [n] of their row.

    Eight flags are the bytes of one int64 [n, words]. So flags are added and searched many times faster than one
    by one.
    """
    n, width = products.shape
    flags = torch.zeros(n, -(-width // SPAN) * SPAN, dtype=torch.bool, device=products.device)
    how(products, bounds[:, None], out=flags[:, :width])
    return flags.view(torch.int64)


@dataclass(frozen=True)
class Bands:
    """Given passages with their queries and exact scores, and the band of products that leave the order open.

    A passage beats the given one if its product is above ``high``, and does not if its product is below ``low``.
    In between, its exact score is needed.
    """

    which: Tensor  # [n] int64
    scores: Tensor  # [n] float32
    low: Tensor  # [n] float32
    high: Tensor  # [n] float32

    def take(self, given: Tensor) -> Bands:
        """The bands of the given passages at the positions ``given`` [m]."""
        return Bands(self.which[given], self.scores[given], self.low[given], self.high[given])

    def layers(self) -> Iterator[Tensor]:
        """Yield the positions of the first given passage of every query, then those of the second, and so on."""
        first = torch.searchsorted(self.which, self.which)
        nth = torch.arange(len(self.which), device=self.which.device) - first
        for i in range(int(nth.max()) + 1):
            yield torch.nonzero(nth == i).flatten()
