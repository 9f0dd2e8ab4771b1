"""What a ranker's first hits and a given pool leave of sources and bounds, said before anything is made."""

import logging

import pytest

import hardneg as hn
from hardneg.errors import SettingsError
from worlds.small_trainings import train_small
from worlds.tiny_world import one_thread  # noqa: F401

LATE = [
    ({"sources": ["query"]}, "NO_MODEL", "no retriever is given"),
    ({"relative_margin": 0.1}, "NO_MARGIN", "relative_margin on negatives of BM25"),
    ({"sources": ["random"], "max_score": 1.0}, "NO_MARGIN", "max_score on random negatives"),
]


@pytest.mark.parametrize(("settings", "code", "found"), LATE)
def test_a_ranker_is_refused_before_anything_is_made(world, settings, code, found, tmp_path):
    with pytest.raises(SettingsError, match=found) as fault:
        train_small("ranker", world, tmp_path / "exp", **settings)
    assert fault.value.code == code
    assert not (tmp_path / "exp").exists()


def test_what_ranks_first_decides_which_bounds_fit():
    margin = hn.settings_of("ranker", relative_margin=0.1)
    margin.check_first(retriever=True, pool=False)
    margin.check_first(retriever=False, pool=True)
    hn.settings_of("ranker", max_score=9.0).check_first(retriever=False, pool=False)
    hn.settings_of("ranker", sources=["random"], top=7).check_first(retriever=True, pool=False)
    with pytest.raises(SettingsError, match="relative_margin"):
        hn.settings_of("ranker", sources=["bm25"], relative_margin=0.1).check_first(retriever=True, pool=False)


def test_bounds_that_leave_a_given_pool_alone_are_told(world, tmp_path, caplog):
    pool = tmp_path / "pool"
    mined = hn.mine(world.collection, world.model, pool, sources=["query"], depth=20, count=5)
    with caplog.at_level(logging.WARNING):
        train_small("star", world, tmp_path / "exp", negatives=pool, max_score=-1e9, steps=1, measure_every=None)
    assert "its negatives are all kept, since max_score would compare scores" in caplog.text
    kept = hn.load_pool(tmp_path / "exp/episodes/1/negatives")
    assert len(kept.passage_rows) == len(mined.passage_rows)
