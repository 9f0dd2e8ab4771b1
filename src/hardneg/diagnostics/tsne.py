"""t-SNE of a few hundred vectors (van der Maaten and Hinton, "Visualizing Data using t-SNE", JMLR 2008), exact.

A report maps about 240 vectors of each state. For so few, importing a library costs several times what the map
costs. Sums run in numpy on one thread, so the same vectors give the same map on any number of threads.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from hardneg.diagnostics.geometry import Vectors, directions

Float64 = NDArray[np.float64]
Floats = NDArray[np.floating]

ROUNDS, EXAGGERATED, FACTOR = 500, 250, 12.0  # steps; the first of them pull clusters together, by this factor
MOMENTUM, LATER_MOMENTUM = 0.5, 0.8  # while exaggerated, and afterwards
SPREAD = 1e-4  # standard deviation of the first places
HALVINGS, CLOSE = 64, 1e-5  # of the search for a width; until the entropy is so near, in nats
LEAST = 1e-12  # of a probability


def tsne(vectors: Vectors, *, perplexity: float, seed: int, rounds: int = ROUNDS) -> Float64:
    """Places [n, 2] of vectors on a plane, such that near neighbours by direction stay near.

    Parameters
    ----------
    vectors : [n, dim], n at least 4; only their directions count.
    perplexity : about how many neighbours count for each; less than n.
    seed : of the first places.
    rounds : steps of the descent.
    """
    wanted = affinities(squared_distances(directions(vectors)), perplexity).astype(np.float32)
    n = len(vectors)
    places: Floats = np.random.default_rng(seed).normal(0.0, SPREAD, (n, 2)).astype(np.float32)
    pulled = wanted * np.float32(FACTOR)
    rate = max(n / FACTOR / 4, 50.0)  # Belkina et al., Nature Communications 10, 5415 (2019)
    moved: Floats = np.zeros_like(places)
    gains: Floats = np.ones_like(places)
    for step in range(rounds):
        early = step < EXAGGERATED
        if step == EXAGGERATED:  # another slope begins, on which the old speed says nothing
            moved, gains = np.zeros_like(places), np.ones_like(places)
        slope = gradient(pulled if early else wanted, places)
        turned = (slope > 0) == (moved > 0)  # the last move went against the slope of now
        gains = np.maximum(np.where(turned, gains * np.float32(0.8), gains + np.float32(0.2)), np.float32(0.01))
        moved = (MOMENTUM if early else LATER_MOMENTUM) * moved - rate * gains * slope
        places = places + moved
    return np.asarray(places - places.mean(axis=0), np.float64)


def squared_distances(points: Float64) -> Float64:
    """The squared distance [n, n] of every two points [n, dim]; 0 of a point to itself."""
    squares = np.einsum("nd,nd->n", points, points)
    found = np.maximum(squares[:, None] + squares[None, :] - 2 * np.einsum("nd,md->nm", points, points), 0)
    np.fill_diagonal(found, 0)
    return np.asarray(found)


def affinities(distances: Float64, perplexity: float) -> Float64:
    """How much every two points belong together [n, n]: symmetric, and 1 in sum (Section 2, Eq. 1).

    A point's Gaussian is as wide as its neighbours' distribution needs for this perplexity.

    Parameters
    ----------
    distances : [n, n] squared.
    """
    n, wanted = len(distances), np.log(perplexity)
    low, high, sharpness = np.zeros(n), np.full(n, np.inf), np.ones(n)
    others = ~np.eye(n, dtype=bool)
    farther = np.where(others, distances, np.inf)
    farther = farther - farther.min(axis=1, keepdims=True)  # than the nearest, so that no weight is too small
    for _ in range(HALVINGS):
        weights = np.exp(-farther * sharpness[:, None])
        shares = weights / weights.sum(axis=1, keepdims=True)
        entropy = -(shares * np.log(np.maximum(shares, LEAST))).sum(axis=1)
        if np.all(np.abs(entropy - wanted) < CLOSE):
            break
        wide = entropy > wanted
        low, high = np.where(wide, sharpness, low), np.where(wide, high, sharpness)
        sharpness = np.where(np.isinf(high), sharpness * 2, (low + np.minimum(high, 1e300)) / 2)
    return np.asarray((shares + shares.T) / (2 * n))


def gradient(wanted: Floats, places: Floats) -> Floats:
    """The slope [n, 2] of the divergence of the places' affinities from ``wanted`` [n, n] (Section 3, Eq. 5)."""
    near = np.zeros_like(wanted)
    for axis in (0, 1):
        apart = places[:, None, axis] - places[None, :, axis]
        near += np.square(apart, out=apart)
    near += 1
    np.reciprocal(near, out=near)  # Student's t, of one degree of freedom
    np.fill_diagonal(near, 0)
    pull = near * (-1 / near.sum(dtype=np.float64).astype(near.dtype))
    pull += wanted
    pull *= near
    return np.asarray(4 * (places * pull.sum(axis=1)[:, None] - np.einsum("nm,md->nd", pull, places)))


def divergence(wanted: Float64, places: Float64) -> float:
    """How far the affinities of places [n, 2] are from ``wanted`` [n, n]: Kullback and Leibler's, in nats."""
    near = 1 / (1 + squared_distances(places))
    np.fill_diagonal(near, 0)
    some = wanted > 0
    return float((wanted[some] * np.log(wanted[some] / np.maximum(near / near.sum(), LEAST)[some])).sum())
