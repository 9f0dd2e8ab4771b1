"""STAR's loss once more, one pair at a time."""

import torch
from reference_tele import SlowTele


class SlowStar(SlowTele):
    """Sums over pairs, written from the formula."""

    alpha = None

    def loss(self, parts):
        (queries, groups), sums, counts = parts[0], {True: 0.0, False: 0.0}, {True: 0, False: 0}
        vectors = {row: self.encode_passage(row) for group in groups for row in group}
        for i, query in enumerate(queries):
            vector = self.query.encode(self.collection.query_texts.take([query])[0])
            positive = self.score(vector, vectors[groups[i][0]])
            for j, group in enumerate(groups):
                for k, row in enumerate(group):
                    if (j, k) != (i, 0) and self.is_negative(query, row, same=i == j):
                        hard = i == j
                        sums[hard] = sums[hard] + torch.log1p(
                            torch.exp(self.score(vector, vectors[row]) - positive)
                        )
                        counts[hard] += 1
        if self.alpha is None:
            return (sums[True] + sums[False]) / (counts[True] + counts[False])
        return self.alpha * sums[False] / counts[False] + sums[True] / counts[True]
