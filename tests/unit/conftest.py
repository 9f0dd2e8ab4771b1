"""Tiny encoders of two families, and a library to compare with."""

import shutil

import pytest

from worlds.few_texts import QUERIES, TEXTS, TITLES
from worlds.tiny_models import tiny_bert, tiny_roberta


@pytest.fixture(scope="session", autouse=True)
def quick_maps():
    """A report has maps of two states, of few steps: each takes a third of a second of many reports."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("hardneg.report.facts_vectors.MAPPED_STATES", 2)
        patch.setattr("hardneg.report.facts_vectors.MAP_STEPS", 250)
        yield


@pytest.fixture(scope="module")
def bert(tmp_path_factory):
    return tiny_bert(tmp_path_factory.mktemp("bert"), TITLES + TEXTS + QUERIES)


@pytest.fixture(scope="module")
def roberta(tmp_path_factory):
    return tiny_roberta(tmp_path_factory.mktemp("roberta"), TITLES + TEXTS + QUERIES)


@pytest.fixture
def folders(bert, roberta):
    return {"bert": bert, "roberta": roberta}


@pytest.fixture
def copied(bert, tmp_path):
    return shutil.copytree(bert, tmp_path / "copy")


@pytest.fixture
def sentence_transformers():
    library = pytest.importorskip("sentence_transformers")
    from transformers.utils import logging

    logging.disable_progress_bar()
    return library
