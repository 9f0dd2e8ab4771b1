"""What a recipe trains and is judged on: training queries with positives, dev and test judgements."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hardneg.artifacts import digest_json
from hardneg.config import nearest
from hardneg.data.collection import Collection, hold_out
from hardneg.errors import InputError, SettingsError
from hardneg.records import Positives, Qrels, spans

NONE = "none"
AUTO = "auto"


@dataclass(frozen=True)
class TrainingData:
    """A collection seen by a recipe."""

    collection: Collection
    train: Positives  # only queries that have a positive
    dev: Qrels | None
    test: Qrels | None
    held_out: int = 0  # training queries moved to dev because there was no dev split

    @property
    def digest(self) -> str:
        """Which queries train and judge, by which judgements."""
        parts = {"train": self.train, "dev": self.dev, "test": self.test}
        return digest_json(
            {
                name: None if part is None else [part.query_rows.tolist(), part.passage_rows.tolist()]
                for name, part in parts.items()
            }
        )


def choose_splits(
    collection: Collection, *, train: str = "train", dev: str = AUTO, test: str = "test", seed: int = 0
) -> TrainingData:
    """The splits by name.

    Parameters
    ----------
    dev : a split's name; ``auto``: the split "dev", else min(500, 10 %) of the training queries, held out by a
        seeded hash of their id; ``none``: no dev.
    test : a split's name, or ``none``; the default is skipped where it is absent.

    Raises
    ------
    SettingsError : a named split does not exist.
    InputError : no training query has a positive.
    """
    training = named_split(collection, train)
    testing = (
        None
        if test == NONE or (test == "test" and test not in collection.splits)
        else named_split(collection, test)
    )
    held_out = 0
    if dev == NONE:
        developing = None
    elif dev != AUTO or "dev" in collection.splits:
        developing = named_split(collection, "dev" if dev == AUTO else dev)
    else:
        training, developing = hold_out(training, collection.query_ids, seed=seed)
        held_out = len(developing)
    positives = training.positives()
    positives = positives.select(np.flatnonzero(spans(positives.offsets) > 0))
    if not len(positives):
        raise InputError("NO_POSITIVES", f"no query of split '{train}' has a positive", "check the qrels")
    return TrainingData(collection, positives, developing, testing, held_out)


def named_split(collection: Collection, name: str) -> Qrels:
    """The judgements of a split."""
    if name not in collection.splits and collection.splits:
        what = f"there is no split '{name:.80}'"
        raise SettingsError("UNKNOWN_SPLIT", what, nearest(name, collection.splits), path=collection.path)
    return collection.qrels(name)
