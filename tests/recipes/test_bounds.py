"""Bounds on mined passages in the recipes: margins, the highest score and ``top`` in the pools of training."""

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

MARGIN, TOP = 0.01, 3
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
def test_what_a_recipe_mines_keeps_the_bounds(run_states, world, tmp_path, name):
    recipe, settings, place = RUNS[name]
    encoder, cache = load_encoder(world.calm), tmp_path / "cache"
    encoding = Encoding(512, "float32")
    state = Snapshot(encoder, world.collection, "s", tmp_path / "runs", cache, encoding=encoding)
    train = choose_splits(world.collection, dev="none", test="none").train
    known = QueryScores.of(state, train, "query")
    lowest = known.positives_lowest()

    def keeps_margin(pool):
        assert pool.query_rows.tolist() == train.query_rows.tolist()
        owner = owners(pool.offsets)
        return known(owner, pool.passage_rows) <= (lowest - MARGIN * np.abs(lowest) + 1e-4)[owner]

    def most_of_a_source(pool):
        return np.unique(owners(pool.offsets) * len(SOURCES) + pool.sources, return_counts=True)[1].max()

    plain = load_pool(run_states(recipe, **settings).path / place)
    fine = keeps_margin(plain)
    most = float(np.quantile(plain.scores[fine], 0.8))
    assert (plain.scores[~fine] <= most).any()  # or the highest score could keep out what the margin should
    assert most_of_a_source(plain) > TOP
    assert plain.filtered == {}
    bounds = {"relative_margin": MARGIN, "top": TOP, "max_score": most}
    path = run_states(recipe, **bounds, **settings).path / place
    manifest, pool = read_manifest(path), load_pool(path)
    assert bounds.items() <= manifest.settings.items()
    assert manifest.facts["filtered"] == pool.filtered
    assert all(count > 0 for count in pool.filtered.values())
    assert set(pool.filtered) == {SOURCES[source] for source in np.unique(pool.sources)}
    assert keeps_margin(pool).all()
    assert pool.scores.max() <= most
    assert most_of_a_source(pool) == TOP


def test_bm25_has_no_scores_of_the_model_that_mines():
    settings_of("ance-tele", extra=["bm25"])
    settings_of("ance-tele", extra=["random"], relative_margin=0.05)
    for bound in ("relative_margin", "absolute_margin", "max_score"):
        with pytest.raises(HardnegError, match="NO_MARGIN"):
            settings_of("ance-tele", extra=["bm25"], **{bound: 0.05})
        settings_of("ance-tele", extra=["bm25"], filter_by="start", **{bound: 0.05})
