"""Two processes that mine with one cache at the same time: each pool is the same as without the other process."""

import json
import os
import subprocess
import sys

import numpy as np
import pytest

import loaded
from hardneg.negatives.pool import DTYPES, load_pool

POOLS = {
    "deep": {"sources": "query,lookahead,bm25", "depth": 40, "count": 6, "seed": 1},
    "shallow": {"sources": "lookahead,query", "depth": 15, "count": 4, "seed": 2},
}
MINE = """
import json, sys, time
from pathlib import Path
import hardneg as hn
from hardneg.api.mine import mine
from hardneg.process.threads import set_threads
import torch, transformers.models.bert.modeling_bert, bm25s

place, collection, model, cache, out, options = sys.argv[1:]
set_threads(1)
(Path(place) / f"ready-{Path(out).name}").touch()
while not (Path(place) / "go").exists():
    time.sleep(0.001)
values = json.loads(options)
values["sources"] = values["sources"].split(",")
mine(collection, model, out, cache=cache, device="cpu", **values)
"""


def start(world, place, cache, name):
    words = [place, world.collection.path, world.calm, cache, place / name, json.dumps(POOLS[name])]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "HARDNEG_CACHE": str(place / "user")}
    return loaded.Popen(
        [sys.executable, "-c", MINE, *map(str, words)], stderr=subprocess.PIPE, text=True, env=environment
    )


def finish(process):
    _, said = process.communicate(timeout=300)
    assert process.returncode == 0, said[-2000:]


def arrays_of(world, folder):
    pool = load_pool(folder, n_passages=world.collection.n_passages, collection=world.collection.digest)
    return {name: np.asarray(getattr(pool, name)) for name in DTYPES}


@pytest.mark.slow
def test_two_processes_mine_different_pools_into_one_cache(world, tmp_path):
    together, alone = tmp_path / "together", tmp_path / "alone"
    for place in (together, alone):
        place.mkdir()
    started = [start(world, together, together / "cache", name) for name in POOLS]
    while not all((together / f"ready-{name}").exists() for name in POOLS):
        assert all(process.poll() is None for process in started), [process.communicate() for process in started]
    (together / "go").touch()
    for process in started:
        finish(process)
    (alone / "go").touch()
    for name in POOLS:
        finish(start(world, alone, alone / "cache", name))
        found, expected = arrays_of(world, together / name), arrays_of(world, alone / name)
        for array, values in expected.items():
            assert found[array].tobytes() == values.tobytes(), (name, array)
    assert not list(together.rglob(".tmp-*"))
    stores = []
    for place in (together, alone):
        names = sorted(path.relative_to(place).as_posix() for path in (place / "cache").glob("*/*"))
        stores.append([name for name in names if not name.startswith("cache/leases/")])  # named by their places
    assert stores[0] == stores[1] != []  # nothing was made twice
