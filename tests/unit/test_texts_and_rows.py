"""What an open retriever is asked: texts, not one text letter by letter; and rows that the collection has."""

import numpy as np
import pytest

import hardneg as hn
from hardneg.errors import SettingsError
from worlds.tiny_world import one_thread  # noqa: F401


@pytest.fixture(scope="module", params=["retriever", "reranker"])
def asked(request, world):
    with hn.open_retriever(world.collection, world.model) as retriever:
        if request.param == "retriever":
            yield retriever
        else:
            yield hn.open_reranker(world.collection, world.model, retriever=retriever, k=5)


def test_one_text_is_not_taken_for_several(asked):
    with pytest.raises(SettingsError, match="texts is 'bade', one text"):
        asked.search_texts("bade", 3)
    assert len(asked.search_texts(["bade"], 3)) == len(asked.search_texts(np.array(["bade"]), 3)) == 1


@pytest.mark.parametrize("row", [-1, 92, 10**6])
def test_rows_that_are_not_there_are_refused(asked, row):
    with pytest.raises(SettingsError, match=f"92 queries, but none at row {row}"):
        asked.search_queries(np.array([0, row]), 3)
    assert len(asked.search_queries([0, 91], 3)) == 2
