"""Every recipe on a CUDA device, from start to results: it learns the same as on the CPU."""

import json

import numpy as np
import pytest
import torch

from worlds.small_trainings import RECIPES, train_small
from worlds.tiny_world import one_thread  # noqa: F401

DEVICE = "cuda"

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device"),
]


def losses_of(path):
    return [json.loads(line)["loss"] for line in (path / "metrics.jsonl").read_text().splitlines()]


@pytest.mark.parametrize("recipe", RECIPES)
def test_its_losses_are_those_of_the_cpu(world, tmp_path, recipe):
    found = {}
    for device in ("cpu", DEVICE):
        results = train_small(recipe, world, tmp_path / device, model=world.calm, device=device)
        assert results["test"]["final"]["RR@10"] > 0
        found[device] = losses_of(tmp_path / device)
    assert len(found["cpu"]) >= 3
    np.testing.assert_allclose(found[DEVICE], found["cpu"], rtol=1e-3)


@pytest.mark.parametrize("recipe", RECIPES)
def test_it_trains_in_bfloat16_and_goes_on_where_it_was(world, tmp_path, recipe):
    half = {"model": world.calm, "device": DEVICE, "precision": "bfloat16"}
    first = train_small(recipe, world, tmp_path / "exp", **half)
    assert np.isfinite(losses_of(tmp_path / "exp")).all()
    assert train_small(recipe, world, tmp_path / "exp", **half)["test"] == first["test"]
