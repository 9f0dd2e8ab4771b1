"""Warnings of splits that share queries or their texts, so that the figures measured on them are too good."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Mapping

import numpy as np

from hardneg.callers import in_callers_words
from hardneg.data.collection import Collection
from hardneg.data.text import hash_texts
from hardneg.records import Qrels
from hardneg.shown import counted

log = logging.getLogger(__name__)


def warn_of_same(train: str, dev: str | None, test: str | None) -> None:
    """Warn where a split has two uses, which makes the figures measured on it too good."""
    if dev == train:
        told = "dev is the split '%s' that is trained on, so its figures are too good; leave --dev out"
        log.warning(in_callers_words(told), train)
    if test == train:
        log.warning("test is the split '%s' that is trained on, so its figures are too good", train)
    elif test is not None and test == dev:
        log.warning("test is '%s', which dev chooses the best state on: its figures may be too good", dev)


def warn_of_shared(used: Mapping[str, tuple[str, Qrels]], collection: Collection) -> None:
    """Warn where two different splits share queries or their texts; ``used``: name and judgements by use."""
    texts = {use: hash_texts(collection.query_texts.take(one.query_rows)) for use, (_, one) in used.items()}
    for (use, (name, one)), (other_use, (other, two)) in itertools.combinations(used.items(), 2):
        if name == other:
            continue
        same = np.isin(two.query_rows, one.query_rows)
        alike = np.isin(texts[other_use], texts[use]) & ~same
        if shared := int(same.sum()):
            what = "%s '%s' and %s '%s' share %s, so the figures measured on them are too good"
            log.warning(what, use, name, other_use, other, counted(shared, "query"))
        if n := int(alike.sum()):
            what = "%s of %s '%s' %s the text of one of %s '%s', so the figures measured on '%s' may be too good"
            log.warning(what, counted(n, "query"), other_use, other, "has" if n == 1 else "have", use, name, other)
