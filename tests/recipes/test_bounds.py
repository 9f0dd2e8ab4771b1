"""Bounds on mined passages in the recipes: positive-aware margins in the pools of training."""

import numpy as np
import pytest

from hardneg.api.recipes import settings_of
from hardneg.data.training_data import choose_splits
from hardneg.errors import HardnegError
from hardneg.experiment.snapshot import Snapshot
from hardneg.models.loading import load_encoder
from hardneg.negatives.mining import QueryScores
from hardneg.negatives.pool import SOURCES, load_pool
from hardneg.recipes import ance_tele, star
from hardneg.recipes.ance import recipe as ance
from hardneg.records import owners
from hardneg.search.encoding import Encoding
from hardneg.storage.artifacts import read_manifest
from worlds.tiny_world import one_thread  # noqa: F401

MARGIN = 0.01
RUNS = {
    "ance-tele": (
        ance_tele.RECIPE,
        {"episodes": 1, "steps": 2, "passages_reference": [3], "count": 6},
        "episodes/1/negatives",
    ),
    "star": (star.RECIPE, {"steps": 2}, "episodes/1/negatives"),
    "ance": (ance.RECIPE, {"refresh_every": 1, "refreshes": 0}, "versions/v0000"),
}


@pytest.mark.parametrize("name", RUNS)
def test_what_a_recipe_mines_keeps_the_margin(run_states, world, tmp_path, name):
    recipe, settings, place = RUNS[name]
    path = run_states(recipe, relative_margin=MARGIN, **settings).path / place
    manifest, pool = read_manifest(path), load_pool(path)
    assert manifest.settings["relative_margin"] == MARGIN
    assert manifest.facts["filtered"] == pool.filtered
    assert all(count > 0 for count in pool.filtered.values())
    assert set(pool.filtered) == {SOURCES[source] for source in np.unique(pool.sources)}
    encoder, cache = load_encoder(world.calm), tmp_path / "cache"
    encoding = Encoding(512, "float32")
    state = Snapshot(encoder, world.collection, "s", tmp_path / "runs", cache, encoding=encoding)
    train = choose_splits(world.collection, dev="none", test="none").train
    assert pool.query_rows.tolist() == train.query_rows.tolist()
    known = QueryScores.of(state, train, "query")
    lowest = known.positives_lowest()[owners(pool.offsets)]
    scores = known(owners(pool.offsets), pool.passage_rows)
    assert (scores <= lowest - MARGIN * np.abs(lowest) + 1e-4).all()
    plain = load_pool(run_states(recipe, **settings).path / place)
    assert plain.filtered == {}
    assert len(plain.passage_rows) > len(pool.passage_rows)


def test_bm25_has_no_scores_of_the_model_that_mines():
    settings_of("ance-tele", extra=["bm25"])
    settings_of("ance-tele", extra=["random"], relative_margin=0.05)
    for bound in ("relative_margin", "absolute_margin", "max_score"):
        with pytest.raises(HardnegError, match="NO_MARGIN"):
            settings_of("ance-tele", extra=["bm25"], **{bound: 0.05})
        settings_of("ance-tele", extra=["bm25"], filter_by="start", **{bound: 0.05})
