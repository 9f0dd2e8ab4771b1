"""Paired tests over queries between contenders on test."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from harness import paired

from hardneg.evaluation.significance import holm
from quality.cells import MEASURES, UNTRAINED, Outcome
from quality.groups import (
    OURS,
    PLAINEST,
    THEIRS,
    Group,
    Known,
    contenders_of,
    mean_values,
    of_contender,
    reference,
)
from quality.material import DEV

TRAINING = ("grid", "batch")
CONDITIONS = ("threads", "clock", "device", "precision", "length", "model", "dev", "dev_passages", *TRAINING)
NONE = {"batch": "the contender's own"}  # what a condition is called that is not given


@dataclass(frozen=True)
class Tested:
    """The test of one of our contenders against another one, on the seeds that both have."""

    group: Group
    contender: str
    against: str
    peer: bool  # whether the other is the best peer
    seeds: Sequence[int]
    test: Mapping[str, Any]
    holm: float = 1.0


def tests_of(known: Known, groups: Sequence[Group]) -> list[Tested]:
    """All tests of models alone, not corrected yet: the page corrects them together with those of fused runs."""
    return [one for group in groups for one in tests_of_group(known, group, MEASURES[0])]


def tests_of_group(known: Known, group: Group, measure: str) -> list[Tested]:
    """Tests of each of our contenders against the best peer, the plainest peer and the model before training."""
    names = contenders_of(known, group)
    peer = best_peer(known, group, measure)
    others = list(
        dict.fromkeys([*([peer] if peer else []), *([PLAINEST] if PLAINEST in names else []), UNTRAINED])
    )
    pairs = itertools.product([name for name in names if name.startswith(OURS)], others)
    tests = (tested(known, group, a, b, b == peer, measure) for a, b in pairs)
    return [one for one in tests if one is not None]


def best_peer(known: Known, group: Group, measure: str) -> str | None:
    """The peer with the highest mean on test."""
    peers = [name for name in contenders_of(known, group) if name.startswith(THEIRS)]
    means = {name: mean_values(of_contender(known, group, name), measure).mean() for name in peers}
    return max(means, key=lambda name: means[name], default=None)


def tested(known: Known, group: Group, a: str, b: str, peer: bool, measure: str) -> Tested | None:
    """Test one contender against another; None if they share no seed."""
    x = by_seed(of_contender(known, group, a))
    y = by_seed(of_contender(known, group, b))
    if b == UNTRAINED:
        y = for_each(x, reference(known, group, b))
    return on_shared_seeds(Tested(group, a, b, peer, (), {}), x, y, measure)


def by_seed(found: Iterable[Outcome]) -> dict[int, Outcome]:
    """The cells of a contender, by seed."""
    return {one.cell.seed: one for one in found}


def for_each(seeds: Iterable[int], found: Sequence[Outcome]) -> dict[int, Outcome]:
    """The one cell of a reference, for every seed."""
    return {seed: one for seed in seeds for one in found}


def on_shared_seeds(
    who: Tested, x: Mapping[int, Outcome], y: Mapping[int, Outcome], measure: str
) -> Tested | None:
    """Test cells of the seeds that both contenders have; None if there is no such seed."""
    seeds = sorted(set(x) & set(y))
    if not seeds:
        return None
    check_same([*(x[seed] for seed in seeds), *(y[seed] for seed in seeds)])
    values = [mean_values([cells[seed] for seed in seeds], measure) for cells in (x, y)]
    return replace(who, seeds=seeds, test=paired(*values))


def corrected(tests: Sequence[Tested]) -> list[Tested]:
    """The same tests with Holm's correction for all of them."""
    if not tests:
        return []
    return [
        replace(one, holm=float(p)) for one, p in zip(tests, holm([one.test["p"] for one in tests]), strict=True)
    ]


def told_fact(facts: Mapping[str, Any], name: str) -> str:
    """A condition of a cell, as the page says it. If an old cell lacks it, it was the only choice at that time."""
    value = facts.get(name, {"clock": "wall", "dev": DEV}.get(name))
    return NONE.get(name, "all") if value is None else str(value)


def unlike(one: Mapping[str, Any], another: Mapping[str, Any]) -> str | None:
    """The first condition in which the facts of two cells differ, or None.

    References have no grid and no batch, and old cells do not tell theirs: then these are not compared here.
    """
    both = (name for name in CONDITIONS if name not in TRAINING or (name in one and name in another))
    return next((name for name in both if told_fact(one, name) != told_fact(another, name)), None)


def check_same(found: Sequence[Outcome]) -> None:
    """Refuse to compare cells that were tested on different data, or made under different conditions."""
    if len({one.collection for one in found}) > 1:
        what = f"{found[0].cell.name}: the collection has changed since"
        raise SystemExit(f"{what}; run its cells anew (--anew and another --out)")
    for one, another in itertools.combinations(found, 2):
        if name := unlike(one.facts, another.facts):
            what = f"{one.cell.name} and {another.cell.name}: different {name}"
            raise SystemExit(f"{what}; run its cells anew (--anew and another --out)")
