"""How an experiment is trained, as far as those who read its folder must know it without its recipe.

Training stores this with the settings when it begins. Folders of earlier versions have no such entry; for these a
table by recipe answers. No other module of this floor or of the report decides anything by the name of a recipe.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any, Literal

COURSE = "course"  # of settings.json
IN_BATCH = "in_batch"  # as settings of recipes name it


@dataclass(frozen=True)
class Course:
    """What readers of an experiment's folder ask about its training.

    Attributes
    ----------
    mines : when the model mines, which says where the runs of its states lie: before each of the ``episodes``; in
        ``refreshes`` within one episode (ANCE); in ``iterations``, after each of which a ranker trains, too (AR2).
    trains : the kind of model that is trained; with ``iterations`` a ranker is trained besides.
    several_episodes : whether the name of a state between two steps says in which episode it is.
    restarts : whether every episode trains the starting model anew.
    in_batch : the numbers of the episodes after which the model has seen in-batch negatives alone.
    only_in_batch : whether these are all episodes.
    momentum_from : the first episode, counted from 0, that can take negatives of the pool before it; a pool that
        training begins with is the one before the first episode. None: none can.
    """

    mines: Literal["episodes", "refreshes", "iterations"] = "episodes"
    trains: Literal["retriever", "ranker"] = "retriever"
    several_episodes: bool = False
    restarts: bool = False
    in_batch: tuple[int, ...] = ()
    only_in_batch: bool = False
    momentum_from: int | None = None

    def as_record(self) -> dict[str, Any]:
        """The entry of ``settings.json`` that :func:`course_of` reads."""
        return {COURSE: asdict(self) | {"in_batch": [*self.in_batch]}}


def course_of(record: Mapping[str, Any]) -> Course:
    """The course of an experiment, from the content of its ``settings.json``, also of an earlier version."""
    stored = record.get(COURSE)
    if not isinstance(stored, Mapping):
        named = record.get("settings") or record.get("result_settings", {})
        return _of_earlier_versions(str(record.get("recipe")), named)
    known = {field.name: stored[field.name] for field in fields(Course) if field.name in stored}
    return Course(**known | {"in_batch": tuple(stored.get("in_batch", ()))})


def course_of_episodes(*, first: int, episodes: int, in_batch: bool, restarts: bool, carries_over: bool) -> Course:
    """The course of episodes that mine anew, of which the first may train on in-batch negatives alone (ANCE-Tele).

    Parameters
    ----------
    first, episodes : the numbers of the first episode and of the last one.
    in_batch : whether episode 1 trains on in-batch negatives alone; a later one has mined or given negatives.
    restarts : whether every episode trains the starting model anew.
    carries_over : whether a setting says how many negatives come from the pool before.
    """
    given = first > 1
    alone = (first,) if in_batch and not given else ()
    return Course(
        several_episodes=True,
        restarts=restarts,
        in_batch=alone,
        only_in_batch=0 < len(alone) == episodes,
        momentum_from=len(alone) + (0 if given else 1) if carries_over else None,
    )


def course_of_mixtures(mixtures: Sequence[str]) -> Course:
    """The course of training on one mixture of negatives after the other."""
    others = [number for number, mixture in enumerate(mixtures) if mixture != IN_BATCH]
    alone = others[0] if others else len(mixtures)
    return Course(
        several_episodes=len(mixtures) > 1,
        in_batch=tuple(range(1, alone + 1)),
        only_in_batch=bool(mixtures) and not others,
    )


def _of_earlier_versions(recipe: str, settings: Mapping[str, Any]) -> Course:
    """The course of the recipes that there were when it was not stored; newer recipes do not belong here."""
    if recipe == "ance-tele":
        return course_of_episodes(
            first=int(settings.get("start_episode", 1)),
            episodes=int(settings.get("episodes", 0)),
            in_batch=settings.get("first") == IN_BATCH,
            restarts=settings.get("start") == "scratch",
            carries_over=settings.get("momentum") != "accumulate",
        )
    if recipe == "warmup":
        return course_of_mixtures(settings.get("mixtures") or [])
    known = {
        "ance": Course(mines="refreshes"),
        "ar2": Course(mines="iterations"),
        "ranker": Course(trains="ranker"),
    }
    return known.get(recipe, Course())
