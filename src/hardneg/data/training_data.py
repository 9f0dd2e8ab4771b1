"""What a recipe trains and is judged on: training queries with positives, dev and test judgements."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from hardneg.arguments import check_fields
from hardneg.config import nearest
from hardneg.data.collection import Collection, hold_out
from hardneg.errors import InputError, SettingsError
from hardneg.records import Positives, Qrels, spans
from hardneg.storage.artifacts import digest_json

NONE = "none"
AUTO = "auto"
DEV_NAMES = ("dev", "dev.small", "validation", "valid", "val")  # what is a dev split by its name, in this order
Basis = Literal["qrels", "answers"]  # what a measure goes by
BY_JUDGEMENTS: frozenset[Basis] = frozenset({"qrels"})
NO_ROWS = np.zeros(0, np.int32)


@dataclass(frozen=True)
class Labels:
    """What makes a passage a positive of a training query.

    Attributes
    ----------
    labels : ``qrels``: its judgement. ``answers`` (open-domain question answering): its judgement too, but no
        passage that contains an answer is a negative, and a query without a judged positive has the best passage
        with an answer that a model finds, which may be another one for every model.
    use_positive_ctxs : False: judgements are not looked at, only answers.
    require_gold : leave queries without a judged positive out.
    answer_mode : whether answers are strings or patterns.
    """

    labels: Literal["qrels", "answers"] = "qrels"
    use_positive_ctxs: bool = True
    require_gold: bool = False
    answer_mode: Literal["string", "regex"] = "string"

    def check(self) -> None:
        """Refuse settings that contradict each other."""
        if self.require_gold and not self.use_positive_ctxs:
            what = "require_gold asks for judged positives, use_positive_ctxs = false ignores them"
            raise SettingsError("BAD_SETTING", what, "leave one of them out")
        if self != BY_QRELS and self.labels == "qrels":
            what = "use_positive_ctxs, require_gold and answer_mode say nothing to labels = qrels"
            raise SettingsError("BAD_SETTING", what, "leave them out, or set labels = answers")


BY_QRELS = Labels()


@dataclass(frozen=True)
class ChosenSplits:
    """Which splits were chosen, so that the same are opened again.

    Attributes
    ----------
    train, dev, test : names; None: there is none, or dev is held out.
    held_out : training queries that are dev's instead; 0: none.
    seed : of the draw of these.
    """

    train: str
    dev: str | None
    test: str | None
    held_out: int = 0
    seed: int = 0


@dataclass(frozen=True)
class TrainingData:
    """A collection seen by a recipe."""

    collection: Collection
    all_train: Positives  # all training queries, with their judged positives if they have any
    dev: Qrels | None
    test: Qrels | None
    held_out: int = 0  # training queries moved to dev because there was no dev split
    labels: Labels = BY_QRELS
    chosen: str = ""  # one line for people: which splits these are
    names: ChosenSplits | None = None  # None: they were not chosen by name

    @cached_property
    def train(self) -> Positives:
        """The queries that can be trained on, with their judged positives.

        By judgements, these have one or more; by answers they may have none, if they have an answer.

        Raises
        ------
        InputError : there is no such query.
        """
        labels, positives = self.labels, self.all_train
        if not labels.use_positive_ctxs:
            positives = replace(positives, offsets=np.zeros_like(positives.offsets), passage_rows=NO_ROWS)
        found = spans(positives.offsets) > 0
        if labels.labels == "answers" and not labels.require_gold:
            found |= has_answer(self.collection, positives)
        if not found.any():
            kind = "positive" if labels.labels == "qrels" else "positive or an answer"
            raise InputError("NO_POSITIVES", f"no training query has a {kind}", "check the qrels and the answers")
        return positives.select(np.flatnonzero(found))

    @property
    def digest(self) -> str:
        """Which queries train and judge, by which judgements."""
        parts = {"train": self.all_train, "dev": self.dev, "test": self.test}
        return digest_json(
            {
                name: None if part is None else [part.query_rows.tolist(), part.passage_rows.tolist()]
                for name, part in parts.items()
            }
        )


@dataclass(frozen=True)
class Splits:
    """Which splits train, steer and judge.

    Attributes
    ----------
    dev : a name; ``auto``: the split "dev" or, without one that has judgements, "dev.small" or "validation", else
        min(500, 10 %) of the training queries, held out; ``none``.
    test : a name, or ``none``; the default is passed over where it is absent or has nothing to measure by.
    """

    train: str = "train"
    dev: str = AUTO
    test: str = "test"

    def __post_init__(self) -> None:
        check_fields(self)


DEFAULT_SPLITS = Splits()


def choose_splits(
    collection: Collection,
    *,
    train: str = "train",
    dev: str = AUTO,
    test: str = "test",
    seed: int = 0,
    basis: frozenset[Basis] = BY_JUDGEMENTS,
) -> TrainingData:
    """The splits by name; none is taken that has nothing to measure by.

    Parameters
    ----------
    dev : a split's name; ``auto``: the first of ``DEV_NAMES`` that can be measured on and does not train or test,
        else min(500, 10 %) of the training queries, held out by a seeded hash of their id; ``none``: no dev.
    test : a split's name, or ``none``; the default is skipped where it is absent or cannot be measured on.
    basis : what the measures go by: dev and test have queries with all of it.

    Raises
    ------
    SettingsError : a named split does not exist.
    InputError : no training query has a positive or an answer; a named split cannot be measured on.
    """
    training = named_split(collection, train)
    whole = training.positives()
    if not len(whole.passage_rows) and not has_answer(collection, whole).any():
        raise InputError(
            "NO_POSITIVES", f"no query of split '{train}' has a positive", others(collection, "train")
        )
    testing, test_said = choose_test(collection, test, basis)
    held_out, dev_name = 0, None
    if dev == NONE:
        developing, dev_said = None, NONE
    elif dev != AUTO:
        developing, dev_name = measurable_split(collection, dev, "dev", basis), dev
        dev_said = f"'{dev}' ({len(developing):,})"
    else:
        dev_name, dev_said = find_dev(collection, {train, test}, basis)
        if dev_name is None:
            training, developing = hold_out(training, collection.query_ids, seed=seed)
            held_out = len(developing)
            dev_said = f"{held_out:,} training queries are held out{dev_said} (--dev none to keep them)"
        else:
            developing = collection.qrels(dev_name)
    names = ChosenSplits(train, dev_name, None if testing is None else test, held_out, seed)
    chosen = f"splits: train '{train}' ({len(training):,} queries); dev {dev_said}; test {test_said}"
    positives = training.positives()
    return TrainingData(collection, positives, developing, testing, held_out, chosen=chosen, names=names)


def open_splits(collection: Collection, names: ChosenSplits) -> TrainingData:
    """The splits that :func:`choose_splits` chose before, opened again by their names.

    Raises
    ------
    SettingsError : one does not exist.
    """
    training = named_split(collection, names.train)
    dev, test = (None if name is None else named_split(collection, name) for name in (names.dev, names.test))
    if names.held_out:
        training, dev = hold_out(training, collection.query_ids, seed=names.seed)
    return TrainingData(collection, training.positives(), dev, test, names.held_out, names=names)


def choose_test(collection: Collection, name: str, basis: frozenset[Basis]) -> tuple[Qrels | None, str]:
    """The split that judges, if there is one, and what to say of it."""
    if name == NONE:
        return None, NONE
    if name == "test" and name not in collection.splits:
        return None, "none, for there is no split 'test'"
    if name == "test" and (missing := missing_in(collection, collection.qrels(name), basis)):
        return None, f"none, for 'test' has no {missing}"
    qrels = measurable_split(collection, name, "test", basis)
    return qrels, f"'{name}' ({len(qrels):,})"


def find_dev(collection: Collection, taken: set[str], basis: frozenset[Basis]) -> tuple[str | None, str]:
    """The name of the first split that is one for dev by it, and what to say of it, or why there is none."""
    passed = ""
    for name in DEV_NAMES:
        if name not in collection.splits:
            continue
        qrels = collection.qrels(name)
        missing = missing_in(collection, qrels, basis)
        if name not in taken and not missing:
            return name, f"'{name}' ({len(qrels):,}){passed}"
        passed += f", for '{name}' has no {missing}" if missing else f", for '{name}' is used already"
    return None, passed


def measurable_split(collection: Collection, name: str, use: str, basis: frozenset[Basis]) -> Qrels:
    """The judgements of a split that the user named, which has what the measures go by."""
    qrels = named_split(collection, name)
    missing = missing_in(collection, qrels, basis)
    what = f"split '{name}' has {len(qrels):,} queries and no {missing} to measure by"
    if missing == "judgements":
        raise InputError("NO_RELEVANT", what, others(collection, use, basis))
    if missing == "answers":
        raise InputError("NO_ANSWERS", what, others(collection, use, basis))
    return qrels


def missing_in(collection: Collection, qrels: Qrels, basis: frozenset[Basis]) -> str:
    """What a split lacks of what measures go by: "judgements", "answers" or nothing."""
    if "qrels" in basis and not (qrels.grades > 0).any():
        return "judgements"
    if "answers" in basis and not has_answer(collection, qrels).any():
        return "answers"
    return ""


def others(collection: Collection, use: str, basis: frozenset[Basis] = BY_JUDGEMENTS) -> str:
    """Advice that names the splits which have what is missing."""
    able = [name for name in collection.splits if not missing_in(collection, collection.qrels(name), basis)]
    none = "" if use == "train" else f", or --{use} none"
    return (
        f"give --{use} one that has: {', '.join(able)}{none}" if able else f"check the qrels and the answers{none}"
    )


def labelled(data: TrainingData, settings: Mapping[str, Any]) -> TrainingData:
    """The data with the labels that a recipe's settings name; those of a recipe that names none stay."""
    named = {field.name: settings[field.name] for field in fields(Labels) if field.name in settings}
    labels = replace(data.labels, **named)
    labels.check()
    if labels.labels == "answers" and not data.collection.has_answers:
        what = "labels = answers, and no query of the collection has an answer"
        raise InputError("NO_ANSWERS", what, "set labels = qrels, or import a collection with answers")
    return replace(data, labels=labels)


def has_answer(collection: Collection, positives: Positives | Qrels) -> NDArray[np.bool_]:
    """Whether each query [Q] has an answer."""
    return np.asarray(spans(collection.answer_spans)[positives.query_rows] > 0)


def named_split(collection: Collection, name: str) -> Qrels:
    """The judgements of a split."""
    if name not in collection.splits and collection.splits:
        what = f"there is no split '{name:.80}'"
        raise SettingsError("UNKNOWN_SPLIT", what, nearest(name, collection.splits))
    return collection.qrels(name)
