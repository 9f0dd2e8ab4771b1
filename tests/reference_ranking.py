"""Slow references for scores and LambdaRank, pair by pair."""

import math

import numpy as np


def slow_score(query, passage):
    """The score of one pair: float64 products, padded to a power of two and added in halves; then float32."""
    terms = np.zeros(1 << (len(query) - 1).bit_length())
    terms[: len(query)] = query.astype(np.float64) * passage.astype(np.float64)
    while len(terms) > 1:
        terms = terms[: len(terms) // 2] + terms[len(terms) // 2 :]
    return np.float32(terms[0])


def slow_lambda(scores, positive, ranks, valid, relevant, measure, cut, weighted):
    """LambdaRank of one query, one pair at a time."""
    total, count = 0.0, 0
    for p in range(len(scores)):
        for n in range(len(scores)):
            if positive[p] and valid[p] and valid[n] and not positive[n]:
                loss = math.log(1 + math.exp(scores[n] - scores[p]))
                if not weighted:
                    change = 1.0
                elif measure == "RR":
                    worth = [1 / r if r <= cut else 0.0 for r in (ranks[p], ranks[n])]
                    change = abs(worth[0] - worth[1])
                else:
                    disc = [1 / math.log2(1 + r) if r <= cut else 0.0 for r in (ranks[p], ranks[n])]
                    ideal = sum(1 / math.log2(1 + r) for r in range(1, min(relevant, cut) + 1))
                    change = abs(disc[0] - disc[1]) / ideal
                total, count = total + change * loss, count + 1
    return total / max(count, 1)
