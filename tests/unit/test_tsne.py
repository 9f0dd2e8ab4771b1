"""The map of vectors: its affinities and slope by hand, and how good it is beside scikit-learn's."""

import numpy as np
import pytest

from hardneg.diagnostics.geometry import directions
from hardneg.diagnostics.tsne import affinities, divergence, gradient, squared_distances, tsne


def clouds(count=4, each=25, dim=16, apart=6.0):
    """Clouds of vectors around different directions, one after the other."""
    draw = np.random.default_rng(3)
    centres = draw.normal(0, apart, (count, dim))
    return np.concatenate([centre + draw.normal(0, 1, (each, dim)) for centre in centres])


def test_affinities_by_hand():
    # Three points at equal distances: every pair has the same share, whatever the width.
    found = affinities(np.ones((3, 3)) - np.eye(3), perplexity=2.0)
    np.testing.assert_allclose(found, (np.ones((3, 3)) - np.eye(3)) / 6, atol=1e-9)
    # Two near pairs far from one another: with one neighbour each, all belongs to that one.
    points = np.array([[0.0], [1.0], [100.0], [101.0]])
    found = affinities(squared_distances(points), perplexity=1.001)
    expected = np.zeros((4, 4))
    expected[[0, 1, 2, 3], [1, 0, 3, 2]] = 0.25
    np.testing.assert_allclose(found, expected, atol=1e-3)


def test_each_point_has_as_many_neighbours_as_asked():
    distances = squared_distances(directions(clouds()))
    # For a point's own distribution the entropy is the logarithm of the perplexity; the symmetric one mixes two.
    n = len(distances)
    wide, narrow = (affinities(distances, perplexity) for perplexity in (30.0, 3.0))
    for found in (wide, narrow):
        assert found.sum() == pytest.approx(1)
        np.testing.assert_array_equal(found, found.T)
        assert (np.diag(found) == 0).all()
    effective = [np.exp(-(one[one > 0] * np.log(one[one > 0])).sum()) / n for one in (wide, narrow)]
    assert effective[0] > 25
    assert effective[1] < 6


def test_distances_by_hand():
    assert squared_distances(np.array([[0.0, 0], [3, 4], [0, 1]])).tolist() == [
        [0, 25, 1],
        [25, 0, 18],
        [1, 18, 0],
    ]


def test_the_slope_is_that_of_the_divergence():
    draw = np.random.default_rng(1)
    wanted = affinities(squared_distances(draw.normal(size=(9, 4))), perplexity=2.5)
    places, tiny = draw.normal(size=(9, 2)), 1e-6
    found = gradient(wanted, places)
    for i, axis in np.ndindex(9, 2):
        step = np.zeros_like(places)
        step[i, axis] = tiny
        rise = (divergence(wanted, places + step) - divergence(wanted, places - step)) / (2 * tiny)
        assert found[i, axis] == pytest.approx(rise, abs=1e-6)


def test_clouds_stay_together_and_the_same_map_comes_again():
    vectors = clouds()
    places = tsne(vectors, perplexity=15.0, seed=0)
    assert places.shape == (100, 2)
    distances = squared_distances(places)
    np.fill_diagonal(distances, np.inf)
    cloud = np.arange(100) // 25
    nearest = np.argsort(distances, axis=1)[:, :10]
    assert (cloud[nearest] == cloud[:, None]).mean() > 0.99
    np.testing.assert_array_equal(places, tsne(vectors, perplexity=15.0, seed=0))
    np.testing.assert_array_equal(places, tsne(3 * vectors, perplexity=15.0, seed=0))  # lengths do not count
    assert np.abs(places - tsne(vectors, perplexity=15.0, seed=1)).max() > 0.1


def test_far_and_near_neighbours_together_overflow_nothing():
    points = np.array([[0.0], [1e-9], [2e-9], [3e-9], [1e3], [1e3 + 1], [5e3], [9e3]])
    found = affinities(squared_distances(points), perplexity=2.0)
    assert np.isfinite(found).all()
    assert found.sum() == pytest.approx(1)


def test_equal_vectors_have_a_map_of_finite_places():
    assert np.isfinite(tsne(np.ones((12, 3)), perplexity=3.0, seed=0)).all()


def test_the_map_is_as_good_as_that_of_scikit_learn():
    manifold = pytest.importorskip("sklearn.manifold", reason="scikit-learn is the measure here")
    vectors = directions(np.random.default_rng(0).normal(size=(200, 6)))
    wanted = affinities(squared_distances(vectors), perplexity=15.0)
    options = {"perplexity": 15.0, "init": "random", "max_iter": 500, "method": "exact"}
    theirs = [manifold.TSNE(random_state=seed, **options).fit(vectors) for seed in range(3)]
    for one in theirs:  # the affinities are the same, so the divergences can be compared
        assert one.kl_divergence_ == pytest.approx(divergence(wanted, one.embedding_.astype(float)), rel=0.01)
    ours = [divergence(wanted, tsne(vectors, perplexity=15.0, seed=seed)) for seed in range(3)]
    assert np.mean(ours) < 1.05 * np.mean([one.kl_divergence_ for one in theirs])
