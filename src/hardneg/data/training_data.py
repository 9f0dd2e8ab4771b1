"""The data of a recipe: training queries with their positives, and the judgements of dev and test."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from hardneg.arguments import check_fields
from hardneg.config import nearest
from hardneg.data.collection import Collection, hold_out
from hardneg.data.equal_queries import EqualQueries, equal_queries
from hardneg.data.judgements import Judgements, with_more
from hardneg.data.own_passages import are_own, own_passages
from hardneg.data.shared_splits import warn_of_same, warn_of_shared
from hardneg.data.text import hash_strings
from hardneg.errors import InputError, SettingsError
from hardneg.keyed_random import hash64, key
from hardneg.records import Int32, Positives, Qrels, spans
from hardneg.shown import counted
from hardneg.storage.artifacts import digest_json

log = logging.getLogger(__name__)

NONE = "none"
AUTO = "auto"
HELD_OUT = 500  # training queries that are held out as dev, at most
DEV_NAMES = ("dev", "dev.small", "validation", "valid", "val")  # names of dev splits, looked for in this order
Basis = Literal["qrels", "answers"]  # what decides whether a hit is relevant
BY_JUDGEMENTS: frozenset[Basis] = frozenset({"qrels"})
NO_ROWS = np.zeros(0, np.int32)


@dataclass(frozen=True)
class Labels:
    """How a passage becomes a positive of a training query.

    Attributes
    ----------
    labels : ``qrels``: judged passages are positives. ``answers`` (open-domain question answering): judged
        passages are positives, and no passage that contains an answer is a negative. A query without a judged
        positive gets the highest-ranked passage with an answer, which may be another one for each model.
    use_positive_ctxs : False ignores the judgements of the data, but not what people called positive, and uses
        answers.
    require_gold : leave out queries without a judged positive.
    answer_mode : whether answers are strings or patterns.
    """

    labels: Literal["qrels", "answers"] = "qrels"
    use_positive_ctxs: bool = True
    require_gold: bool = False
    answer_mode: Literal["string", "regex"] = "string"

    def __post_init__(self) -> None:
        check_fields(self)

    def check(self) -> None:
        """Refuse settings that contradict each other."""
        if self.require_gold and not self.use_positive_ctxs:
            what = "require_gold asks for judged positives, use_positive_ctxs = false ignores them"
            raise SettingsError("BAD_SETTING", what, "leave one of them out")
        if self != BY_QRELS and self.labels == "qrels":
            what = "use_positive_ctxs, require_gold and answer_mode have no effect with labels = qrels"
            raise SettingsError("BAD_SETTING", what, "leave them out, or set labels = answers")


BY_QRELS = Labels()


@dataclass(frozen=True)
class DevDraw:
    """The way in which training queries are held out as dev, where there is no dev split.

    An experiment that was begun by an earlier version goes on with the way of that version.

    Attributes
    ----------
    seed : the seed of the draw.
    measurable : only queries that can be measured are held out.
    whole_texts : queries with the same text are held out together.
    """

    seed: int = 0
    measurable: bool = True
    whole_texts: bool = True


@dataclass(frozen=True)
class ChosenSplits:
    """The names and the draw of the chosen splits, from which the same splits can be opened again.

    Attributes
    ----------
    train, dev, test : names; None: there is none, or dev is held out.
    held_out : training queries that are dev's instead; 0: none.
    seed, measurable, whole_texts : how these were drawn, see :class:`DevDraw`; older records lack the last two.
    dev_queries : dev has at most so many queries; None: all.
    """

    train: str
    dev: str | None
    test: str | None
    held_out: int = 0
    seed: int = 0
    dev_queries: int | None = None
    measurable: bool = False
    whole_texts: bool = False

    @property
    def draw(self) -> DevDraw:
        """The way in which dev was held out."""
        return DevDraw(self.seed, self.measurable, self.whole_texts)


@dataclass(frozen=True)
class TrainingData:
    """A collection with the splits and the labels that a recipe uses."""

    collection: Collection
    all_train: Positives  # all training queries, with their judged positives if they have any
    dev: Qrels | None
    test: Qrels | None
    held_out: int = 0  # training queries moved to dev because there was no dev split
    labels: Labels = BY_QRELS
    chosen: str = ""  # one line for the log: which splits were chosen, and why
    names: ChosenSplits | None = None  # None: they were not chosen by name
    judgements: Judgements | None = None  # of people, with which the training queries were amended
    before: TrainingData | None = None  # the same, with all training queries, before a pool gave other positives

    @cached_property
    def train(self) -> Positives:
        """The queries that can be trained on, with their judged positives.

        With ``labels = qrels`` each query has one positive or more. With ``labels = answers`` a query that has an
        answer may have no judged positive.

        Raises
        ------
        InputError : no query can be trained on.
        """
        labels, positives = self.labels, self.all_train
        if not labels.use_positive_ctxs:
            positives = replace(positives, offsets=np.zeros_like(positives.offsets), passage_rows=NO_ROWS)
            if self.judgements is not None:  # what people called positive is no record of the data
                positives = self.judgements.amend(positives)
        found = spans(positives.offsets) > 0
        if labels.labels == "answers" and not labels.require_gold:
            found |= has_answer(self.collection, positives)
        if not found.any():
            kind = "positive" if labels.labels == "qrels" else "positive or an answer"
            given = "the qrels and the answers" if self.judgements is None else "the qrels, answers and judgements"
            raise InputError("NO_POSITIVES", f"no training query has a {kind}", f"check {given}")
        return positives.select(np.flatnonzero(found))

    @property
    def by_answers(self) -> bool:
        """Whether a passage that contains an answer is relevant; a query may then have no positive."""
        return self.labels.labels == "answers"

    @property
    def known(self) -> Positives:
        """The queries of ``train`` with all passages that are never their negatives.

        These are the positives and :meth:`spared`; :meth:`of_equal_query` has more.
        """
        return self.spared(self.train)

    def spared(self, positives: Positives) -> Positives:
        """Append to a query's passages those that people judged relevant, and the one that it is itself, if any.

        What people judged negative for the query is not appended.
        """
        if self.judgements is None:
            return with_more(positives, *self.own)
        queries, passages = self.own
        left = ~self.judgements.are(queries, passages, "negative")
        return with_more(self.judgements.with_relevant(positives), queries[left], passages[left])

    @cached_property
    def own(self) -> tuple[Int32, Int32]:
        """The training queries that are passages themselves, ascending, and the rows of these passages."""
        return own_passages(self.collection, (self.before or self).train.query_rows)

    @cached_property
    def equal_queries(self) -> EqualQueries | None:
        """The training queries that have the text of others with other relevant passages; None: there are none."""
        before = (self.before or self).train
        known = before if self.judgements is None else self.judgements.with_relevant(before)
        texts = self.collection.query_texts.take(known.query_rows)
        return equal_queries(known, texts, self.collection.text_keys)

    def of_equal_query(self, query_rows: Int32, passage_rows: Int32) -> NDArray[np.bool_]:
        """Whether each passage [n] is relevant to another training query that has the text of its query [n].

        Positives are, and what people judged relevant; what they judged negative for the query itself is not.
        """
        if self.equal_queries is None:
            return np.zeros(len(query_rows), bool)
        found = self.equal_queries(query_rows, passage_rows)
        if self.judgements is not None:
            found &= ~self.judgements.are(query_rows, passage_rows, "negative")
        return found

    def no_negative(self, query_rows: Int32, passage_rows: Int32) -> NDArray[np.bool_]:
        """Whether each passage [n] is one of :meth:`of_equal_query`, or is its query [n] itself, or has its text.

        What people judged negative for the query is none.
        """
        found = are_own(query_rows, passage_rows, self.own, self.collection.text_keys)
        if self.judgements is not None and found.any():
            found &= ~self.judgements.are(query_rows, passage_rows, "negative")
        return found | self.of_equal_query(query_rows, passage_rows)

    @property
    def judged(self) -> dict[str, Qrels]:
        """The splits that are measured on, by name; test comes first, as it is the one that people look at."""
        both = {"test": self.test, "dev": self.dev}
        return {name: qrels for name, qrels in both.items() if qrels is not None}

    @property
    def digest(self) -> str:
        """Digest of the queries and judgements of train, dev and test, and of what people judged besides."""
        parts = {"train": self.all_train, "dev": self.dev, "test": self.test}
        content: dict[str, Any] = {
            name: None if part is None else [part.query_rows.tolist(), part.passage_rows.tolist()]
            for name, part in parts.items()
        }
        return digest_json(content | ({} if self.judgements is None else {"judgements": self.judgements.digest}))


@dataclass(frozen=True)
class Splits:
    """Which split is trained on, which one chooses the state that is kept, and which one measures this state.

    Attributes
    ----------
    dev : a split's name. ``auto``: the first of ``DEV_NAMES`` that has judgements; if there is none, a tenth of
        the training queries is held out: at most 500, or fewer if the setting ``dev_queries`` is smaller.
        ``none``: no dev split.
    test : a name, or ``none``; the default is left out where it is absent or has no relevant passage.
    """

    train: str = "train"
    dev: str = AUTO
    test: str = "test"

    def __post_init__(self) -> None:
        check_fields(self)


DEFAULT_SPLITS = Splits()
NOW = DevDraw()  # with seed 0


def choose_splits(
    collection: Collection,
    *,
    train: str = "train",
    dev: str = AUTO,
    test: str = "test",
    draw: DevDraw = NOW,
    basis: frozenset[Basis] = BY_JUDGEMENTS,
    dev_queries: int | None = None,
) -> TrainingData:
    """Choose the splits for train, dev and test by name; dev and test must have something to measure by.

    Parameters
    ----------
    dev : a split's name. ``auto``: the first of ``DEV_NAMES`` that can be measured on and is not used already; if
        there is none, a tenth of the training queries, at most 500 or ``dev_queries``, held out by a hash of seed
        and ids, as ``draw`` says. ``none``: no dev split.
    test : a split's name, or ``none``; the default ``test`` is skipped if it is absent or cannot be measured on.
    basis : what the measures need: judgements, answers or both. Dev and test must have queries with all of it.
    dev_queries : the most queries of dev (:func:`draw_dev`); None: all.

    Raises
    ------
    SettingsError : a named split does not exist.
    InputError : no training query has a positive or an answer; a named split cannot be measured on.
    """
    training = named_split(collection, train, "train")
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
            training, developing = held_out_of(training, collection, draw, dev_queries)
            held_out = len(developing)
            kept_back = f"{counted(held_out, 'training query')} {'is' if held_out == 1 else 'are'} held out"
            dev_said = f"{kept_back}{dev_said} (--dev none to keep them)"
            if not held_out:
                developing, dev_said = None, "none: there is only one training query, and none can be held out"
        else:
            developing = collection.qrels(dev_name)
    if dev_name is not None and developing is not None and dev_queries is not None:
        every, developing = len(developing), draw_dev(developing, collection, dev_queries)
        if len(developing) < every:
            dev_said = dev_said.replace(f"({every:,})", f"({len(developing):,} of {every:,}, drawn)")
    used = {"train": (train, training), "dev": (dev_name, developing), "test": (test, testing)}
    warn_of_same(train, dev_name, None if testing is None else test)
    given = {use: (name, one) for use, (name, one) in used.items() if name is not None and one is not None}
    warn_of_shared(given, collection)
    names = ChosenSplits(
        train,
        dev_name,
        None if testing is None else test,
        held_out,
        draw.seed,
        dev_queries,
        measurable=held_out > 0 and draw.measurable,
        whole_texts=held_out > 0 and draw.whole_texts,
    )
    positives = training.positives()
    usable = int(np.count_nonzero(spans(positives.offsets)))
    if has_answer(collection, training).any():  # the labels decide whether an answer is enough
        usable = len(training)
    told = counted(usable, "query")
    if usable < len(training):
        told += f", {len(training) - usable:,} without a positive left out"
    chosen = f"splits: train '{train}' ({told}); dev {dev_said}; test {test_said}"
    return TrainingData(collection, positives, developing, testing, held_out, chosen=chosen, names=names)


def open_splits(collection: Collection, names: ChosenSplits) -> TrainingData:
    """The splits that :func:`choose_splits` chose before, opened again by their names.

    Raises
    ------
    SettingsError : one does not exist.
    """

    def opened(use: str, name: str) -> Qrels:
        return named_split(collection, name, f"the experiment's {use}")

    training = opened("train", names.train)
    dev = None if names.dev is None else opened("dev", names.dev)
    test = None if names.test is None else opened("test", names.test)
    if names.held_out:
        training, dev = held_out_of(training, collection, names.draw, names.dev_queries)
    elif dev is not None and names.dev_queries is not None:
        dev = draw_dev(dev, collection, names.dev_queries)
    return TrainingData(collection, training.positives(), dev, test, names.held_out, names=names)


def held_out_of(
    training: Qrels, collection: Collection, draw: DevDraw, dev_queries: int | None
) -> tuple[Qrels, Qrels]:
    """Training queries and those held out of them as dev, of which there are at most ``dev_queries``.

    A query can be measured if it has a relevant passage or an answer.
    """
    most = HELD_OUT if dev_queries is None else min(dev_queries, HELD_OUT)
    usable, texts = None, collection.query_texts if draw.whole_texts else None
    if draw.measurable:
        usable = (spans(training.positives().offsets) > 0) | has_answer(collection, training)
    return hold_out(training, collection.query_ids, seed=draw.seed, most=most, usable=usable, texts=texts)


def draw_dev(dev: Qrels, collection: Collection, most: int) -> Qrels:
    """At most ``most`` queries of dev: first those with a relevant passage and an answer, then those with either.

    Among queries of the same kind, those with the smallest hashes of their ids are drawn. So the draw depends
    neither on a seed nor on the order of the source. A smaller draw is a part of a larger one, so experiments can
    be compared on the smallest.
    """
    judged, answered = spans(dev.positives().offsets) > 0, has_answer(collection, dev)
    words = hash64(key(0, "dev-queries"), hash_strings(collection.query_ids.take(dev.query_rows)))
    order = np.lexsort((words, ~answered, ~judged))
    drawn = order[: min(most, int(np.count_nonzero(judged | answered)) or len(dev))]
    return dev.select(np.sort(drawn))


def amended(data: TrainingData, judgements: Judgements | None) -> TrainingData:
    """The data with what people judged of the training queries; dev and test measure as before.

    Passages labelled positive join the positives, passages labelled negative leave them, and ``known`` has all
    passages that are relevant.
    """
    if judgements is None:
        return data
    return replace(data, all_train=judgements.amend(data.all_train), judgements=judgements)


def choose_test(collection: Collection, name: str, basis: frozenset[Basis]) -> tuple[Qrels | None, str]:
    """The judgements of the test split (None: there is none), and a phrase for the log."""
    if name == NONE:
        return None, NONE
    if name == "test" and name not in collection.splits:
        return None, "none, for there is no split 'test'"
    if name == "test" and (missing := missing_in(collection, collection.qrels(name), basis)):
        return None, f"none, for 'test' has no {missing}"
    qrels = measurable_split(collection, name, "test", basis)
    return qrels, f"'{name}' ({len(qrels):,})"


def share_queries(collection: Collection, qrels: Qrels, other: str) -> bool:
    """Whether queries of these judgements are also in the split ``other``."""
    rows = collection.qrels(other).query_rows if other in collection.splits else ()
    return bool(np.isin(qrels.query_rows, rows).any())


def find_dev(collection: Collection, taken: set[str], basis: frozenset[Basis]) -> tuple[str | None, str]:
    """The name of the first usable split of ``DEV_NAMES`` (None: there is none), and a phrase for the log.

    The phrase also says why splits with such a name were passed over.
    """
    passed = ""
    for name in DEV_NAMES:
        if name not in collection.splits:
            continue
        qrels = collection.qrels(name)
        missing = missing_in(collection, qrels, basis)
        shares = name not in taken and next(
            (other for other in sorted(taken) if share_queries(collection, qrels, other)), None
        )
        if name not in taken and not missing and not shares:
            return name, f"'{name}' ({len(qrels):,}){passed}"
        why = (
            f"has no {missing}" if missing else f"shares queries with '{shares}'" if shares else "is used already"
        )
        passed += f", for '{name}' {why}"
    return None, passed


def measurable_split(collection: Collection, name: str, use: str, basis: frozenset[Basis]) -> Qrels:
    """The judgements of a split that the user named; raises :class:`InputError` if it cannot be measured on."""
    qrels = named_split(collection, name, use)
    missing = missing_in(collection, qrels, basis)
    what = f"split '{name}' has {len(qrels):,} queries and no {missing} to measure by"
    if missing == "answers":
        raise InputError("NO_ANSWERS", what, others(collection, use, basis))
    if missing:
        raise InputError("NO_RELEVANT", what, others(collection, use, basis))
    return qrels


def missing_in(collection: Collection, qrels: Qrels, basis: frozenset[Basis]) -> str:
    """What a split lacks of ``basis``: "judgements", "grade above 0", "answers" or nothing ("")."""
    if "qrels" in basis and not (qrels.grades > 0).any():
        return "grade above 0" if len(qrels.grades) else "judgements"
    if "answers" in basis and not has_answer(collection, qrels).any():
        return "answers"
    return ""


def others(collection: Collection, use: str, basis: frozenset[Basis] = BY_JUDGEMENTS) -> str:
    """Advice for a split that cannot be used: the names of splits that can."""
    able = [name for name in collection.splits if not missing_in(collection, collection.qrels(name), basis)]
    none = "" if use == "train" else f", or --{use} none"
    there = f"name another one by --{use}: {', '.join(able)}"
    return f"{there if able else 'check the qrels and the answers'}{none}"


def labelled(data: TrainingData, settings: Mapping[str, Any]) -> TrainingData:
    """Set the labels that a recipe's settings name; a label setting that the recipe lacks keeps its value."""
    named = {field.name: settings[field.name] for field in fields(Labels) if field.name in settings}
    labels = replace(data.labels, **named)
    labels.check()
    if labels.labels == "answers" and not data.collection.has_answers:
        what = "labels = answers, but no query of the collection has an answer"
        raise InputError("NO_ANSWERS", what, "set labels = qrels, or import a collection with answers")
    return replace(data, labels=labels)


def has_answer(collection: Collection, positives: Positives | Qrels) -> NDArray[np.bool_]:
    """Whether each query [Q] has an answer."""
    return np.asarray(spans(collection.answer_spans)[positives.query_rows] > 0)


def named_split(collection: Collection, name: str, option: str) -> Qrels:
    """The judgements of the split ``name``, which this ``option`` or argument names.

    Raises
    ------
    SettingsError : there is no such split.
    """
    if name not in collection.splits:
        without = (
            "the collection has no such split" if collection.n_queries else "this is a corpus without queries"
        )
        fix = nearest(name, collection.splits) if collection.splits else "import it with judgements"
        raise SettingsError("UNKNOWN_SPLIT", f"{option} = {name!r:.80}, but {without}", fix)
    return collection.qrels(name)
