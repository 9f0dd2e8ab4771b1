"""Which columns hold a query, a positive, a negative or a passage, by their names, and the faults of unknown ones.

Upper and lower case mean the same, and so do ``_``, ``-`` and a blank between the words of a name.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from hardneg.data.formats.contexts import IDS
from hardneg.data.formats.lines import empty_file
from hardneg.data.formats.tables import CSV, TSV, suffix_of
from hardneg.errors import InputError

QUERIES = ("anchor", "query", "question", "sentence1")
POSITIVES = (
    "positive",
    "positives",
    "pos",
    "answer",
    "document",
    "passage",
    "context",
    "response",
    "sentence2",
    "text",
)
POSITIVE_IDS = (
    "positive_id",
    "positive_ids",
    "document_id",
    "document_ids",
    "doc_id",
    "docid",
    "docno",
    "passage_id",
    "passage_ids",
    "psg_id",
    "pid",
    "corpus_id",
    "context_id",
    "answer_id",
    "text_id",
)
PASSAGE_IDS = ("docid", "passage_id", "psg_id", "doc_id", "pid")
CORPUS_IDS = ("id", "_id", *PASSAGE_IDS)  # of the passages in a corpus
DOCUMENT_IDS = ("docno", "document_id")  # of passages only where pairs or judgements name these by their ids
NAMES_IDS = re.compile(r".*(?:[_\- ]|\b|doc)ids?")  # of a column that holds ids, and no texts
HEADING = 4  # words of the longest name of a column that is no text
NEGATIVE = re.compile(r"(?:hard_?)?neg(?:ative)?s?[_-]?\d*")
SCORES = ("score", "label", "similarity_score")
LABELS, SCORES_OF_ALL = ("labels",), ("scores",)  # read only where they hold a list
QUERY_IDS = ("query_id", "qid", "anchor_id")
OF_OTHERS = ("positive_passages", "positive_document_ids", "positive_ctxs")
OF_JUDGEMENTS = {"query-id", "corpus-id"}  # BEIR's, with a score
TEXTS = ("text", "contents", "content", "document_text", "passage", "document", "body")
LISTS = ("pos_scores", "neg_scores")
LOOKED_FOR = (
    f"a query ({', '.join(QUERIES)}) with a positive ({', '.join(POSITIVES)}), "
    f"or a text ({', '.join(TEXTS)}) of a corpus"
)


class PairColumns(NamedTuple):
    """The columns of pairs by what they hold.

    ``taught`` are the lists of scores of positives and negatives; ``by_id``: ``positive`` holds ids, and no texts.
    ``labels`` may hold a list of the labels of texts, and ``scores`` one of their scores.
    """

    query: str
    positive: str
    negatives: tuple[str, ...]
    score: str | None
    query_id: str | None
    taught: tuple[str | None, str | None]
    by_id: bool = False
    labels: str | None = None
    scores: str | None = None

    @property
    def used(self) -> frozenset[str]:
        """The names of all columns that are read, but for those that are read only where they hold a list."""
        return frozenset(
            filter(None, (self.query, self.positive, *self.negatives, self.score, self.query_id, *self.taught))
        )


class CorpusColumns(NamedTuple):
    """The columns of a corpus by what they hold; without an id, passages are numbered from 0."""

    text: str
    id: str | None
    title: str | None


@lru_cache(maxsize=4096)
def pair_columns(names: tuple[str, ...]) -> PairColumns | None:
    """The columns of pairs among ``names``; None if there is no query or no positive."""
    by_name = _by_plain_name(names)
    if _are_of_others(names):
        return None
    query = _first(by_name, QUERIES)
    positive = _first(by_name, [name for name in POSITIVES if by_name.get(name) != query])
    if query is None or positive is None:
        return None
    negatives = tuple(by_name[name] for name in reversed(by_name) if NEGATIVE.fullmatch(name))
    taught = (_first(by_name, LISTS[:1]), _first(by_name, LISTS[1:]))
    columns = PairColumns(query, positive, negatives, _first(by_name, SCORES), _first(by_name, QUERY_IDS), taught)
    return _with_lists(columns, by_name)


@lru_cache(maxsize=4096)
def judged_columns(names: tuple[str, ...]) -> PairColumns | None:
    """The columns of pairs whose positives are named by their ids; None if there is no query or no such id."""
    by_name = _by_plain_name(names)
    query, ids = _first(by_name, QUERIES), _first(by_name, POSITIVE_IDS)
    if query is None or ids is None or _are_of_others(names):
        return None
    negatives = tuple(by_name[name] for name in reversed(by_name) if NEGATIVE.fullmatch(name))
    query_id = _first(by_name, QUERY_IDS)
    columns = PairColumns(query, ids, negatives, _first(by_name, SCORES), query_id, (None, None), by_id=True)
    return _with_lists(columns, by_name)


def _with_lists(columns: PairColumns, by_name: Mapping[str, str]) -> PairColumns:
    """The columns together with those that may hold a list of labels or scores."""
    return columns._replace(labels=_first(by_name, LABELS), scores=_first(by_name, SCORES_OF_ALL))


def any_pair_columns(names: tuple[str, ...]) -> PairColumns | None:
    """The columns of pairs, with the texts of positives or, without these, with their ids."""
    return pair_columns(names) or judged_columns(names)


@lru_cache(maxsize=4096)
def corpus_columns(
    names: tuple[str, ...], by_id: bool = False, named: tuple[str, ...] = ()
) -> CorpusColumns | None:
    """The columns of a corpus among ``names``; None if there is no text, or a query or judgement besides.

    Parameters
    ----------
    by_id : pairs beside it name passages by their ids, so that ``document_id`` is an id. Without such pairs it may
        be the id of a document that several passages are parts of.
    named : the plain names of the columns of ids in these pairs. A column of the same name goes before ``id``.
    """
    by_name = _by_plain_name(names)
    text = _first(by_name, TEXTS)
    if text is None or _are_of_others(names) or any(name in by_name for name in QUERIES):
        return None
    if not _written(names).isdisjoint(OF_JUDGEMENTS):  # a query's, or one of another convention
        return None
    same = [name for name in (*PASSAGE_IDS, "docno") if name in named]
    ids = _by_plain_name([name for name in names if by_id or not _may_be_of_documents(name)])
    return CorpusColumns(text, _first(ids, (*same, *CORPUS_IDS, *DOCUMENT_IDS)), _first(by_name, ("title",)))


def _may_be_of_documents(name: str) -> bool:
    """Whether a column may hold the ids of documents that several passages are parts of."""
    plain = plain_name(name)
    return plain in DOCUMENT_IDS or (plain == "doc_id" and name.strip().casefold() != plain)


def plain_name(column: str) -> str:
    """The name of a column in lower case, with _ in place of - and blanks."""
    return re.sub(r"[- ]", "_", column.strip().casefold())


def _by_plain_name(names: Sequence[str]) -> dict[str, str]:
    """The columns by their plain names; of several with one plain name the first counts."""
    return {plain_name(name): name for name in reversed(names)}


def _are_of_others(names: Sequence[str]) -> bool:
    """Whether the columns are those of other conventions, as these write them.

    BEIR's judgements have the ids of a query and of a passage, and no text of a query.
    """
    written = _written(names)
    is_judgement = written >= OF_JUDGEMENTS and not written & {*QUERIES}
    return is_judgement or not written.isdisjoint(OF_OTHERS)


def _written(names: Sequence[str]) -> set[str]:
    """The names of columns in lower case."""
    return {name.strip().casefold() for name in names}


def _first(by_name: Mapping[str, str], wanted: Sequence[str]) -> str | None:
    return next((by_name[name] for name in wanted if name in by_name), None)


def unknown_columns(path: Path, names: Sequence[str], line: int | None = None) -> InputError:
    """The fault of columns that no convention has; it says what was looked for and which names are near."""
    if not any(names):
        return empty_file(path)
    shown = f"the columns are {', '.join(names) or 'none'}"
    near = near_texts(names)
    named = ", ".join(f"{name!r} to {found!r}" for name, found in near.items() if found != plain_name(name))
    fix = f"rename {named}" if named else f"rename them: {_nearest(names)}"
    ids = [name for name in names if holds_ids(name) and plain_name(name) not in (*IDS, *QUERY_IDS)]
    if ids and not named:
        fix += f"; if {ids[-1]!r} holds ids of passages, call it 'document_id', and add a table of them"
    if not named and in_cells(path) and any(len(name.split()) > HEADING for name in names):
        fix = "put a first line with the names of the columns, such as anchor and positive"
    what = f"{shown:.300}; looked for {LOOKED_FOR}"
    return InputError("UNKNOWN_COLUMNS", what, fix, path=path, line=line)


def holds_ids(name: str) -> bool:
    """Whether the name of a column says that it holds ids."""
    return NAMES_IDS.fullmatch(name.strip().casefold()) is not None


def near_texts(names: Sequence[str]) -> dict[str, str]:
    """The known name of a text that a column's name is or is near to, by column; columns of ids have none."""
    known = [*QUERIES, *POSITIVES, *TEXTS, "negative"]
    texts = [name for name in names if not holds_ids(name)]
    near = {name: difflib.get_close_matches(plain_name(name), known, 1, 0.7) for name in texts}
    return {name: found[0] for name, found in near.items() if found}


def no_pair(path: Path, names: Sequence[str], line: int) -> InputError:
    """The fault of a record that is no pair, in a table of pairs: half of it is missing, or no name is known."""
    lowered = {*map(plain_name, names)}
    halves = {"query": lowered & {*QUERIES}, "positive": lowered & {*POSITIVES}}
    missing = [half for half, found in halves.items() if not found]
    if len(missing) != 1:
        return unknown_columns(path, names, line)
    what = f"the record has no {missing[0]} (found: {', '.join(names):.80})"
    add = "add it (null where the query has none)" if missing == ["positive"] else "add it"
    return InputError("MISSING_FIELD", what, f"{add}, or leave the record out", path=path, line=line)


def _nearest(names: Sequence[str]) -> str:
    """The convention that columns come nearest to, in words."""
    lowered = {*map(plain_name, names)}
    if lowered & {*QUERIES}:
        return "the nearest convention is sentence-transformers', whose positive is called 'positive'"
    if lowered & {*POSITIVES} or any(map(NEGATIVE.fullmatch, lowered)):
        return "the nearest convention is sentence-transformers', whose query is called 'anchor' or 'query'"
    return "the nearest convention is sentence-transformers': anchor, positive, negative"


def in_cells(path: Path) -> bool:
    """Whether a file is a table of texts, where a list can only be written as a text."""
    return suffix_of(path) in (*CSV, *TSV)
