"""Flip one bit, or cut a file short, in every kind of artefact: `verify` must find it, and so must its use.

    python -m faults.flips --flips 1000 --truncations 500 --seed 1      (make flips)
    python -m faults.flips --only pool                                  one kind alone

Cases are dealt out evenly to the kinds and, within a kind, to its files; place and bit are drawn. `verify` meets a
file whose size and times are as they were, so that no remembered digest can help it; the use meets one that was
changed since its digest was remembered. Each must name the file in one line, with exit status 4.
"""

import argparse
import collections
import logging
import os
import random
import sys
import tempfile
import time
import warnings
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

import hardneg as hn
from faults.injected import TELEMETRY, fault_of
from hardneg.api.inputs import collection_of
from hardneg.data.formats.trec import read_run, sidecar_of
from hardneg.data.tokens import TokenStore
from hardneg.errors import ArtifactError
from hardneg.evaluation.answers import AnswerCache
from hardneg.models.loading import load_encoder
from hardneg.search.ann import FaissIndex
from hardneg.search.bm25 import open_bm25
from hardneg.search.embedding_store import Embeddings
from hardneg.search.runs import load_run
from hardneg.storage.artifacts import CARD, read_manifest
from hardneg.training.checkpoint import checkpoints, latest_checkpoint, restore
from worlds.tiny_world import COMMON, SETTINGS, tiny_collection, tiny_model

SMALL = SETTINGS | {"episodes": 2, "steps": 4, "checkpoint_every": 2, "queries_per_step": 4}
TELLING = (*TELEMETRY, "timeline.png")  # files without a recorded digest
STATUS = 4


@dataclass(frozen=True)
class Kind:
    """A kind of artefact: the path of one, its files that may be damaged, and a function that uses it."""

    name: str
    path: Path
    files: list
    use: object


# ---------------------------------------------------------------- one of each kind


def train(recipe, collection, model, out, **settings):
    """Run the command that made an experiment; if the experiment is finished, this shows its results."""
    return hn.train(recipe, collection, model, out, device="cpu", **settings)


def make(root):
    """Make an artefact of each kind; returns the kinds."""
    collection = tiny_collection(root / "collection")
    model = tiny_model(root / "model", collection)
    cache = root / "cache"
    tele = partial(train, "ance-tele", collection, model, root / "tele", **SMALL)
    ance = partial(train, "ance", collection, model, root / "ance", **ANCE)
    tele()
    ance()
    hn.encode(collection, model, root / "embeddings", cache=cache, device="cpu")
    hn.index(root / "embeddings", root / "index", kind="ivf")
    for name, options in {"run.trec": {"bm25": True}, "run.trec.gz": {"model": model, "device": "cpu"}}.items():
        hn.search_split(collection, root / name, cache=cache, k=20, **options)
    answered = answered_collection(root / "answered")
    answer(answered, cache)
    tokens, bm25, page = (sorted(cache.glob(place))[0] for place in ("tokens/*", "bm25/*", "answers/*/*"))
    checkpoint = checkpoints(root / "tele/episodes/2/checkpoint")[-1]
    opened = partial(read_run, queries=collection.query_ids, passages=collection.passage_ids)
    return [
        whole("collection", root / "collection", collection_of),
        whole("token store", tokens, TokenStore.open),
        whole("embeddings", root / "embeddings", Embeddings.open),
        whole("index", root / "index", FaissIndex),
        whole("bm25", bm25, lambda path: open_bm25(collection, cache)),
        whole("answers", page, lambda path: answer(answered, cache)),
        whole("checkpoint", checkpoint, resume),
        whole("pool", root / "tele/episodes/2/negatives", lambda path: hn.inspect(path, collection)),
        whole("version", root / "ance/versions/v0001", hn.load_pool),
        whole("run", root / "tele/final/runs/query", load_run),
        whole("model", root / "tele/model", lambda path: load_encoder(str(path))),
        Kind("run file", root / "run.trec", with_sidecar(root / "run.trec"), opened),
        Kind("run file, packed", root / "run.trec.gz", with_sidecar(root / "run.trec.gz"), opened),
        Kind("experiment", root / "tele", plain_files(root / "tele"), lambda path: tele()),
        Kind("journal", root / "ance", [root / "ance/versions.jsonl"], lambda path: ance()),
    ]


def whole(name, path, use):
    """A kind in which every file may be damaged that is not empty and no model's card, which people may edit."""
    files = (file for file in path.rglob("*") if file.is_file() and file.name != CARD)
    return Kind(name, path, sorted(file for file in files if file.stat().st_size), use)


def with_sidecar(path):
    return [path, sidecar_of(path)]


def plain_files(path):
    """The files of an experiment outside of its artefacts, except telemetry."""
    return sorted(file for file in path.iterdir() if file.is_file() and file.name not in TELLING)


ANCE = COMMON | {"refresh_every": 2, "refreshes": 1, "warmup": 1, "mode": "sync", "measures": "RR@10"}


def answered_collection(folder):
    """A collection of questions with answers."""
    passages = [(f"p{i}", f"the answer is {i}") for i in range(8)]
    queries = {f"q{i}": f"what is {i}" for i in range(8)}
    answers = {f"q{i}": [str(i)] for i in range(8)}
    return hn.Collection.from_lists(passages, queries, {"test": {"q0": ["p0"]}}, answers=answers, to=folder)


def answer(collection, cache):
    """Ask which passages hold an answer."""
    rows = np.arange(8, dtype=np.int32)
    assert AnswerCache(collection, cache).contains(rows, rows).all()


def resume(path):
    """Resume from a damaged checkpoint: training must pass over it with a warning, and never load it."""
    manifest = fault_of(lambda: read_manifest(path)) or read_manifest(path)
    if not isinstance(manifest, ArtifactError):
        heard = Listener()
        with heard:
            found = latest_checkpoint(path.parent, manifest.inputs)
        assert found != path, "a damaged checkpoint is the latest"
        assert any("a damaged checkpoint is passed over" in line for line in heard.lines), heard.lines
    restore(path, {}, {})


class Listener(logging.Handler):
    """A log handler that keeps the package's warnings."""

    def __init__(self):
        super().__init__(logging.WARNING)
        self.lines = []

    def emit(self, record):
        self.lines.append(record.getMessage())

    def __enter__(self):
        logging.getLogger("hardneg").addHandler(self)

    def __exit__(self, *_):
        logging.getLogger("hardneg").removeHandler(self)


# ---------------------------------------------------------------- damage


def flip(data, draw):
    """The bytes of ``data`` with one bit flipped."""
    at = draw.randrange(len(data))
    return data[:at] + bytes([data[at] ^ 1 << draw.randrange(8)]) + data[at + 1 :]


def cut(data, draw):
    """The beginning of ``data``: often all but the last byte, or nothing."""
    return data[: draw.choice([draw.randrange(len(data)), len(data) - 1, 0])]


HOWS = {"flip": flip, "truncation": cut}


def wrong_with(kind, file, damage):
    """List the faults of a case; an empty list if `verify` and the use find the damage."""
    data, status = file.read_bytes(), file.stat()
    try:
        file.write_bytes(damage(data))
        os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))
        report = hn.verify(kind.path)
        named = {fault["path"] for fault in report["faults"]}
        found = [] if str(file) in named and not report["whole"] else [f"verify finds {named or 'nothing'}"]
        os.utime(file)
        return found + wrong_with_use(kind, file)
    finally:
        file.write_bytes(data)
        os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))


def wrong_with_use(kind, file):
    """List what is wrong with the fault that the use ends in."""
    fault = fault_of(lambda: kind.use(kind.path))
    if fault is None:
        return ["used without a word"]
    said = fault.lines
    sound = fault.status == STATUS and len(said) == 1 and said[0].startswith(f"{file}")
    return [] if sound else [f"exit {fault.status}: {said}"]


# ---------------------------------------------------------------- all of them


def cases(kinds, counts, seed):
    """Yield cases (kind, file, how, number), ``counts[how]`` of each, in turns over kinds and files."""
    for how, count in counts.items():
        for number in range(count):
            kind, turn = kinds[number % len(kinds)], number // len(kinds)
            files = random.Random(f"{seed} {kind.name}").sample(kind.files, len(kind.files))
            yield kind, files[turn % len(files)], how, number


def check(kinds, counts, seed):
    """Run the cases; returns the number of each kind and damage, and the faults."""
    done, faults = collections.Counter(), {}
    for kind, file, how, number in cases(kinds, counts, seed):
        draw = random.Random(f"{seed} {how} {number}")
        done[kind.name, how] += 1
        if wrong := wrong_with(kind, file, lambda data, how=how, draw=draw: HOWS[how](data, draw)):
            faults[f"{how} {number} of {file.name} ({kind.name})"] = wrong
    return done, faults


def sound(kinds):
    """Check that `verify` and the use find no fault in undamaged artefacts."""
    for kind in kinds:
        assert hn.verify(kind.path)["whole"], kind
        if kind.name != "checkpoint":  # loading a checkpoint needs a model
            kind.use(kind.path)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--flips", type=int, default=1000)
    parser.add_argument("--truncations", type=int, default=500)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", help="one kind")
    chosen = parser.parse_args()
    logging.getLogger("hardneg").propagate = False
    warnings.simplefilter("ignore")
    begun = time.monotonic()
    with tempfile.TemporaryDirectory() as root:
        os.environ["HARDNEG_CACHE"] = f"{root}/user"
        kinds = [kind for kind in make(Path(root)) if chosen.only in (None, kind.name)]
        sound(kinds)
        done, faults = check(kinds, {"flip": chosen.flips, "truncation": chosen.truncations}, chosen.seed)
        sound(kinds)
    for kind in kinds:
        print(f"{kind.name:16} {len(kind.files):3} files", *(f"{done[kind.name, how]:5} {how}s" for how in HOWS))
    for case, wrong in faults.items():
        print(f"{case}: {'; '.join(wrong)}")
    print(f"{sum(done.values())} cases, {len(faults)} not found, {time.monotonic() - begun:.0f} s")
    return bool(faults)


if __name__ == "__main__":
    sys.exit(main())
