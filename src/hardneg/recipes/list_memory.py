"""The memory of what grows with the number of queries: their vectors, their ranked lists and their negatives."""

from __future__ import annotations

from typing import NamedTuple

from hardneg.negatives.mining import training_depth
from hardneg.recipes.cost_model import CostModel

ENTRY = 21  # bytes of an entry of a pool
BYTES = {"float16": 2, "float32": 4}


class Held(NamedTuple):
    """The bytes of memory that a search takes at its peak."""

    hit: int  # for each hit
    number: int  # for each number of a query's vector, besides the number as it is stored


EXACT = Held(9, 0)  # a hit's row and score, and whether there is one
ON_CUDA = Held(8, 0)  # on the device
FAISS = Held(33, 4)  # the lists in faiss's types and in their new order; float32 vectors
DRAWN, MIXED = 2.0, 4.5  # times the bytes of a pool while it is drawn from one list of a query, or from several


def list_bytes(work: CostModel, dim: int, *, chunks: float = 1.0, device: str = "cpu") -> float:
    """The bytes at the peak of the largest search, or of mining where it takes more; embeddings stay on the disk.

    Parameters
    ----------
    dim : that of the vectors; 0: BM25 searches.
    chunks : mean number of vectors of a passage; above 1, lists are of chunks, and twice as deep.
    device : whose memory counts: pools, and what faiss and BM25 search, take none of a GPU's.
    """
    data, on_device = work.data, device == "cuda"
    if on_device and (work.faiss or not dim):
        return 0.0
    kind = FAISS if work.faiss else ON_CUDA if on_device else EXACT
    train = len(data.train) if work.examined or work.mined else 0
    queries = max(train, *(len(qrels) for qrels in data.judged.values()), 0)
    depth = training_depth(data.collection, data.train, work.depth)
    of_hits = depth * kind.hit * (1 if chunks == 1 else 3)  # the documents' lists beside the chunks'
    searched = queries * (dim * (BYTES[work.store_dtype] + kind.number) + of_hits)
    drawn = ENTRY * work.entries * len(data.train) * (DRAWN if work.lists <= 1 else MIXED)
    return max(searched, 0.0 if on_device else drawn)
