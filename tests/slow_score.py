"""One score as search defines it, pair by pair."""

import numpy as np


def slow_score(query, passage):
    """Float64 products, padded to a power of two and added in halves; then float32."""
    terms = np.zeros(1 << (len(query) - 1).bit_length())
    terms[: len(query)] = query.astype(np.float64) * passage.astype(np.float64)
    while len(terms) > 1:
        terms = terms[: len(terms) // 2] + terms[len(terms) // 2 :]
    return np.float32(terms[0])
