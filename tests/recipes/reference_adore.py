"""ADORE once more, one query and one pair at a time."""

import math

import numpy as np
import torch
from reference_tele import SlowEncoder

TIE = 1e-4  # scores of about 60 that differ by less come in another order when other instructions add them up


def settled(order, scores, seen):
    """The order that was seen, if it is this one up to passages whose scores rounding cannot tell apart.

    Parameters
    ----------
    order : all rows, best first.
    scores : the score of each row.
    seen : the first rows as they were seen; None: nothing was.
    """
    if seen is None or len(set(seen)) < len(seen):
        return order
    if any(abs(scores[a] - scores[b]) > TIE for a, b in zip(order, seen, strict=False)):
        return order
    return [*seen, *(row for row in order if row not in set(seen))]


class SlowAdore:
    """The query encoder trained on exact lists, one query and one pair at a time.

    ``seen`` and ``ranked_then`` tell how the tool ordered what the queries of a step retrieved, and what they were
    given, best first. Of passages that tie but for rounding its order is taken (:func:`settled`).
    """

    def __init__(self, world, train, *, measure="RR", weighted=True, depth=12, cut=10, encoders=None):
        self.query, fixed = encoders or (SlowEncoder(world.calm), SlowEncoder(world.calm))
        collection, everything = world.collection, np.arange(world.collection.n_passages)
        self.texts, titles = collection.texts.take(everything), collection.titles.take(everything)
        with torch.no_grad():
            parts = [(title, text) if title else (text,) for title, text in zip(titles, self.texts, strict=True)]
            self.passages = torch.stack([fixed.encode(*part) for part in parts])
        self.collection, self.train_set = collection, train
        self.measure, self.weighted, self.depth, self.cut = measure, weighted, depth, cut
        self.moments, self.made, self.lists = {}, 0, []
        self.seen, self.ranked_then = {}, {}

    def known(self, query):
        return self.train_set.of(int(np.flatnonzero(self.train_set.query_rows == query)[0])).tolist()

    def ranked(self, vector, rows=None, seen=None):
        """These passages, or all of them, best first."""
        rows = np.arange(len(self.passages)) if rows is None else np.array(rows)
        scores = (self.passages[rows].double() @ vector.detach().double()).float()
        order = rows[torch.argsort(-scores, stable=True).numpy()].tolist()
        return settled(order, dict(zip(rows.tolist(), scores.tolist(), strict=True)), seen)

    def negatives(self, query, seen=None):
        """What the query retrieves now, without its positives and their copies; of equal texts only the best."""
        texts = {self.texts[row] for row in self.known(query)}
        others = [row for row, text in enumerate(self.texts) if text not in texts]
        with torch.no_grad():
            vector = self.query.encode(self.collection.query_texts.take([query])[0])
        found = self.ranked(vector, others, seen)
        of = [self.texts[row] for row in found]
        return [row for i, row in enumerate(found) if of[i] not in of[:i]][: self.depth]

    def loss(self, query, given=None):
        """Of the list that the query retrieves, or of its positives and what is given, as it ranks them now."""
        known = self.known(query)
        vector = self.query.encode(self.collection.query_texts.take([query])[0])
        rows = self.ranked(vector, seen=self.seen.get(query))[: self.depth]
        self.lists.append(rows)
        ranks = list(range(1, self.depth + 1))
        texts = {self.texts[row] for row in known}
        if given is not None:
            rows = self.ranked(vector, known + given, self.ranked_then.get(query))
            ranks = list(range(1, len(rows) + 1))
        elif not set(rows) & set(known):
            ranks += [self.depth + j for j in range(1, len(known) + 1)]
            rows = rows + known
        pairs = []
        for p, rank_p in zip(rows, ranks, strict=True):
            for n, rank_n in zip(rows, ranks, strict=True):
                if p in known and n not in known and self.texts[n] not in texts:
                    loss = torch.log1p(torch.exp(vector @ self.passages[n] - vector @ self.passages[p]))
                    pairs.append(self.change(rank_p, rank_n, len(known)) * loss)
        return sum(pairs) / len(pairs)

    def given(self, query, negatives):
        """The loss of a given list, ranked by the scores that it has now."""
        known = self.train_set.of(int(np.flatnonzero(self.train_set.query_rows == query)[0])).tolist()
        vector = self.query.encode(self.collection.query_texts.take([query])[0]).detach()
        rows = known + negatives
        scores = [float(vector @ self.passages[row]) for row in rows]
        order = sorted(range(len(rows)), key=lambda i: -scores[i])  # stable: some texts stand there twice
        ranks = {rows[i]: place for place, i in enumerate(order, 1)}
        pairs = [
            self.change(ranks[p], ranks[n], len(known))
            * math.log1p(math.exp(float(vector @ self.passages[n] - vector @ self.passages[p])))
            for p in known
            for n in negatives
        ]
        return sum(pairs) / len(pairs)

    def change(self, p, n, relevant):
        if not self.weighted:
            return 1.0
        if self.measure == "RR":
            return abs((1 / p if p <= self.cut else 0) - (1 / n if n <= self.cut else 0))
        disc = [1 / math.log2(1 + r) if r <= self.cut else 0.0 for r in (p, n)]
        return abs(disc[0] - disc[1]) / sum(1 / math.log2(1 + r) for r in range(1, min(relevant, self.cut) + 1))

    def train(self, queries, rate, given=None):
        parameters = list(self.query.model.parameters())
        for p in parameters:
            p.grad = None
        given = given or [None] * len(queries)
        loss = sum(map(self.loss, queries, given)) / len(queries)
        loss.backward()
        norm = math.sqrt(sum(float(p.grad.double().square().sum()) for p in parameters if p.grad is not None))
        self.made += 1
        with torch.no_grad():
            for number, p in enumerate(parameters):
                if p.grad is not None:
                    g = p.grad * min(1.0, 1.0 / norm)
                    first, second = self.moments.get(number, (0.0, 0.0))
                    first, second = 0.9 * first + 0.1 * g, 0.999 * second + 0.001 * g * g
                    self.moments[number] = first, second
                    p -= rate * (first / (1 - 0.9**self.made)) / ((second / (1 - 0.999**self.made)).sqrt() + 1e-8)
        return loss.item(), norm
