"""Alignment, uniformity, cosine, hubs and drift: by hand, and against loops."""

import numpy as np
import pytest

from hardneg.diagnostics import geometry
from hardneg.diagnostics.geometry import alignment, hubness, mean_cosine, norm_drift, uniformity
from worlds.tiny_records import run_of

AXES = np.array([[2, 0], [0, 3], [-1, 0]], np.float32)


@pytest.fixture(params=[3, 1024])
def _block(request, monkeypatch):
    monkeypatch.setattr(geometry, "_BLOCK", request.param)


def test_by_hand():
    assert alignment(AXES, AXES) == 0
    assert alignment(AXES[:1], AXES[1:2]) == pytest.approx(2)  # a right angle: the square of the root of 2
    assert alignment(AXES[:1], AXES[2:], power=1) == pytest.approx(2)
    assert uniformity(AXES) == pytest.approx(np.log((2 * np.exp(-4) + np.exp(-8)) / 3))
    assert uniformity(np.ones((3, 2))) == pytest.approx(0)
    assert mean_cosine(AXES) == pytest.approx(-1 / 3)


@pytest.mark.usefixtures("_block")
def test_equal_loops():
    rng = np.random.default_rng(4)
    a, b = (rng.normal(size=(10, 4)).astype(np.float16) for _ in range(2))
    x, y = ([row / np.linalg.norm(row) for row in one.astype(np.float64)] for one in (a, b))
    assert alignment(a, b) == pytest.approx(np.mean([((p - q) ** 2).sum() for p, q in zip(x, y, strict=True)]))
    pairs = [(i, j) for i in range(10) for j in range(i)]
    kernel = [np.exp(-2 * ((x[i] - x[j]) ** 2).sum()) for i, j in pairs]
    assert uniformity(a) == pytest.approx(np.log(np.mean(kernel)))
    assert mean_cosine(a) == pytest.approx(np.mean([x[i] @ x[j] for i, j in pairs]))


def test_hubs_by_hand():
    found = hubness(run_of([[1, 2, 5], [1, 3, 5], [1, 2, 5]]), 6, depth=2)
    assert found.passage_rows.tolist() == [1, 2, 3]
    assert found.counts.tolist() == [3, 2, 1]
    assert found.never == 0.5
    counts = np.array([3, 2, 1, 0, 0, 0])
    assert found.skewness == pytest.approx(((counts - 1) ** 3).mean() / counts.std() ** 3)
    assert found.as_json()["largest"] == 3


def test_hubs_equal_a_loop():
    rng = np.random.default_rng(5)
    lists = [rng.choice(30, 12, replace=False).tolist() for _ in range(40)]
    counts = [sum(row in one[:10] for one in lists) for row in range(50)]
    found = hubness(run_of(lists), 50)
    assert dict(zip(found.passage_rows.tolist(), found.counts.tolist(), strict=True)) == {
        row: count for row, count in enumerate(counts) if count
    }
    apart = np.array(counts) - np.mean(counts)
    assert found.skewness == pytest.approx((apart**3).mean() / (apart**2).mean() ** 1.5)
    assert hubness(run_of([[0, 1]]), 2).skewness == 0


def test_drift_by_hand():
    found = norm_drift(AXES, np.array([[0, 1], [0, 6], [0, 0]], np.float32))
    assert found.before.tolist() == [2, 3, 1]
    assert found.after.tolist() == [1, 6, 0]
    np.testing.assert_allclose(found.cosines, [0, 1, np.nan])
    facts = found.as_json()
    assert facts["ratio"] == pytest.approx(7 / 6)
    assert facts["ratio_50"] == pytest.approx(0.5)
    assert facts["cosine"] == pytest.approx(0.5)


@pytest.mark.usefixtures("_block")
def test_drift_equals_a_loop():
    rng = np.random.default_rng(6)
    a, b = rng.normal(size=(8, 3)), rng.normal(size=(8, 3))
    found = norm_drift(a, b)
    for i in range(8):
        assert found.before[i] == pytest.approx(np.sqrt((a[i] ** 2).sum()))
        assert found.cosines[i] == pytest.approx(a[i] @ b[i] / np.linalg.norm(a[i]) / np.linalg.norm(b[i]))
    assert np.isnan(norm_drift(a, b[:, :2]).cosines).all()
