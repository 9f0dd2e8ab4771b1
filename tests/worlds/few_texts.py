"""A few texts, and the vectors that an encoder makes of them."""

from dataclasses import dataclass

import numpy as np
import torch

from hardneg.data.tokens import tokenize

TITLES = ["Retrievers", "", "A longer title", "Short"]
TEXTS = ["Dense vectors find passages", "no title here, only text", "many words " * 60, "x"]
QUERIES = ["what finds passages?", "short", "words " * 60]


class Column(list):
    def take(self, rows):
        return [self[row] for row in rows]


@dataclass
class Stub:
    titles: Column
    texts: Column
    query_texts: Column
    digest: str = "stub"


STUB = Stub(Column(TITLES), Column(TEXTS), Column(QUERIES))


def tokens_of(encoder, side, cache):
    store = tokenize(STUB, encoder.template(side), encoder.tokenizer(side), cache)
    return store.read(np.arange(len(store)))


def embed(encoder, side, cache):
    with torch.no_grad():
        return encoder.encode(tokens_of(encoder, side, cache), side).numpy()


def close(found, expected):
    found, expected = np.asarray(found), np.asarray(expected)
    np.testing.assert_allclose(found, expected, atol=1e-5, rtol=0)
    assert np.std(expected, axis=0).max() > 1e-3  # the vectors of the texts differ
