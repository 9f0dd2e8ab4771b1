"""What rows hold whose columns tell queries, positives and negatives by their names.

The conventions are those of sentence-transformers (``anchor, positive, negative_1, ...``, ``query, answer``,
``sentence1, sentence2, score``, and a list of texts with a list of ``labels``) and of FlagEmbedding (``query, pos,
neg``, maybe with ``pos_scores`` and ``neg_scores``), and a corpus of ``id``, ``title`` and ``text``. In CSV and
TSV a list is written as JSON in a cell. Passages have no ids: the id of a passage is a hash of its text, and so is
that of a query without a column ``query_id``.

A query may also name its positives by their ids, where a corpus with these ids stands beside it.
"""

from __future__ import annotations

import ast
import contextlib
import io
import json
import math
import re
import tokenize
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from hardneg.data.formats.column_names import (
    CorpusColumns,
    PairColumns,
    corpus_columns,
    in_cells,
    judged_columns,
    no_pair,
    pair_columns,
    unknown_columns,
)
from hardneg.data.formats.contexts import Place, text_id
from hardneg.data.formats.faults import Unread, refuse
from hardneg.data.formats.lines import Fields, described, fault_in, id_of, ids_of, text_of
from hardneg.data.record_source import GivenRecord, JudgementRecord, PassageRecord, QueryRecord, Source
from hardneg.errors import InputError
from hardneg.shown import counted
from hardneg.storage.safe_read import undisturbed

LIST = re.compile(r"\[\s*(?:[-+.\d]|\])")  # how a list of numbers begins
NEIGHBOURS = re.compile(r"""['"][\s\\]*[rRuU]?['"]""")  # quotes as where no comma parts two texts
SHORTENED = re.compile(
    r"""\[\s*(['"]).*\1,?\s+\.\.\.,?\s+(['"]).*\2\s*\]""", re.DOTALL
)  # numpy's way above 1,000 items
NUMPY = re.compile(r"np\.(?:\w+\(([^()]*)\)|(True|False)_)")  # its way to write a number alone
NAN = re.compile(r"\bnan\b")
UNPARTED = re.compile(r"""(?<=[\w.'"])\s+(?=[-+\w.'"])""")  # where numpy writes no comma between two items
TOO_LARGE = 2.0**128 - 2.0**103  # the least score that becomes infinite as float32, which pools keep scores as
RENAME = "or rename the column if it means something else"
LABEL_EACH = f"give each text one label (1: positive, 0: negative), {RENAME}"
# Words for the splits of pairs, and what these are called.
SPLITS = {name: name for name in ("train", "dev", "test")} | dict.fromkeys(("validation", "valid", "val"), "dev")

Rows = Iterable[tuple[int, Fields]]


class Pair(NamedTuple):
    """A row of pairs; ``ids`` are positives named by their ids.

    ``grades`` are those of the positives or ids: 1 unless a score or a label says otherwise. ``by_bound``: which
    of them the bound 0.5 made of a score between 0 and 1. ``listed``: the column ``labels`` or ``scores`` whose
    list is read.
    """

    query_id: str
    query: str
    positives: list[str]
    negatives: list[str]
    grades: Sequence[int]
    place: Place
    positive_scores: Sequence[float] = ()
    negative_scores: Sequence[float] = ()
    ids: Sequence[str] = ()
    by_bound: Sequence[bool] = ()
    listed: str | None = None


@dataclass(frozen=True)
class Table:
    """A file of rows, or a split of a dataset: ``rows`` begins to read it anew at each call.

    ``by_id``: pairs of it name positives by their ids; in a corpus beside such pairs, ``document_id`` is an id.
    ``named``: what the pairs or judgements beside a corpus call the ids of its passages.
    """

    split: str
    path: Path
    rows: Callable[[], Rows]
    by_id: bool = False
    named: tuple[str, ...] = ()


def columns_within(table: Table) -> CorpusColumns:
    """The columns of a table of a corpus, by its first row."""
    _, fields = next(iter(table.rows()), (1, {}))
    return passage_columns(table, fields) or CorpusColumns("", None, None)


def passage_columns(table: Table, fields: Fields) -> CorpusColumns | None:
    """The columns of a row of a corpus; None if it has no text."""
    return corpus_columns(tuple(fields), table.by_id, table.named)


# ---------------------------------------------------------------- rows of pairs


def columns_in(table: Table, fields: Fields) -> PairColumns | None:
    """The columns of a row of pairs, which names its positives in the way of its table; None if it does not."""
    return (judged_columns if table.by_id else pair_columns)(tuple(fields))


def pairs_of(table: Table) -> Iterator[Pair]:
    """The rows of a table of pairs; a row that lacks a text or a score that is needed is a fault.

    Where labels divide the texts of some rows, other rows with several texts and no labels are faults, too, and
    so are rows whose only text is a negative.
    """
    divided, whole = "", None  # the column of labels that divide a row; a row with several texts and no labels
    for line, fields in table.rows():
        place = Place(table.path, line)
        columns = columns_in(table, fields)
        if columns is None:
            refuse(no_pair(table.path, list(fields), line))
            continue
        pair = _pair(columns, fields, place)
        if pair.listed is not None and pair.listed == columns.labels:
            divided = pair.listed if pair.negatives or min(pair.grades, default=1) < 1 else divided
        elif not pair.negatives and (texts := without_labels(pair, columns, fields)):
            whole = whole or (texts, columns.positive, place)
        if divided and whole is not None:
            refuse(unlabelled(divided, *whole))
            whole = None
        if not isinstance(pair.query, Unread) and not isinstance(pair.query_id, Unread):
            yield pair


def without_labels(pair: Pair, columns: PairColumns, fields: Fields) -> int:
    """How many texts a row has that none of its labels divide; 0 for one text, if no label makes it a negative."""
    texts = len(pair.positives) + len(pair.ids)
    return texts if texts > 1 or (numbers_in(fields, columns.labels, pair.place) or [1.0])[0] < 1 else 0


def unlabelled(labels: str, texts: int, column: str, place: Place) -> InputError:
    """The fault of several texts without labels, or of one that is a negative, where labels divide other rows."""
    what = f"the {texts} texts in {column!r} have no labels in {labels!r}, as those of other rows have"
    fix = LABEL_EACH
    if texts == 1:
        what = f"the only text in {column!r} is a negative by {labels!r}, which divides the texts of other rows"
        fix = f"leave the row out, {RENAME}"
    return InputError("WRONG_COLUMNS", what, fix, path=place.path, line=place.line)


def _pair(columns: PairColumns, fields: Fields, place: Place) -> Pair:
    query = text_of(fields, columns.query, *place)
    query_id = text_id(query) if columns.query_id is None else id_of(fields, columns.query_id, *place)
    negatives = [text for name in columns.negatives for text in texts_in(fields, name, place) if text]
    judged = (ids_in if columns.by_id else texts_in)(fields, columns.positive, place)
    labels = None if negatives else _labels(columns, fields, len(judged), place)
    grades, by_bound = _grades(columns, fields, labels, len(judged), place)
    if columns.by_id:
        listed = None if labels is None else columns.labels
        return Pair(query_id, query, [], negatives, grades, place, ids=judged, by_bound=by_bound, listed=listed)
    if labels is None:
        high, low, listed = _taught(columns, fields, len(judged), len(negatives), place)
        return Pair(query_id, query, judged, negatives, grades, place, high, low, (), by_bound, listed)
    negatives = [text for text, grade in zip(judged, grades, strict=True) if grade < 1 and text]
    positives = [text for text, grade in zip(judged, grades, strict=True) if grade > 0]
    by_bound = [one for one, grade in zip(by_bound, grades, strict=True) if grade > 0]
    grades = [grade for grade in grades if grade > 0]
    return Pair(query_id, query, positives, negatives, grades, place, by_bound=by_bound, listed=columns.labels)


def _grades(
    columns: PairColumns, fields: Fields, labels: list[float] | None, judged: int, place: Place
) -> tuple[list[int], list[bool]]:
    """The grades of all that a row judges, and which of them the bound 0.5 made."""
    if labels is not None:
        grades = [grade_in({"label": one}, "label", place, columns.labels) for one in labels]
        return grades, [*map(is_share, labels)]
    if columns.score is None or columns.negatives:
        return [1] * judged, [False] * judged
    return [grade_in(fields, columns.score, place)] * judged, [is_share(fields.get(columns.score))] * judged


def _labels(columns: PairColumns, fields: Fields, judged: int, place: Place) -> list[float] | None:
    """The labels of several texts or ids in the place of the positives; None: the row has none.

    A list without numbers is another column, and so is one of another length that names no negative. A list of
    scores in place of the labels is refused, as it does not tell the positives from the negatives.
    """
    if judged < 2:
        return None
    labels = numbers_in(fields, columns.labels, place)
    known = [label for label in labels if math.isfinite(label)]
    if known and len(known) == len(labels) == judged:
        return labels
    if known and (len(labels) == judged or min(known) < 1):
        what = f"{counted(len(known), 'label')} in {columns.labels!r} of {judged} texts in {columns.positive!r}"
        refuse(InputError("WRONG_COLUMNS", what, LABEL_EACH, path=place.path, line=place.line))
        return [1.0] * judged
    scores = [] if columns.negatives else numbers_in(fields, columns.scores, place)
    if len(scores) == judged and all(map(math.isfinite, scores)):
        what = f"{columns.positive!r} is a list, but the list {columns.scores!r} does not say which are positives"
        fix = f"add a list 'labels' (1: positive, 0: negative), give negatives a column of their own, {RENAME}"
        refuse(InputError("AMBIGUOUS", what, fix, path=place.path, line=place.line))
    return None


def texts_in(fields: Fields, name: str, place: Place) -> list[str]:
    """The texts in a field: one text or a list of them, in CSV and TSV written as JSON; none if it is null."""
    value = fields.get(name)
    if isinstance(value, str):
        if not (value.startswith("[") and value.endswith("]")) or not in_cells(place.path):
            return [value]
        listed = _listed(value, str, name, place)
        return [value] if listed is None else listed
    if value is None:
        return []
    if isinstance(value, list) and all(isinstance(item, str) for item in value):
        return value
    found = json.dumps(value) if isinstance(value, int | float) else described(value)
    what = f"the field {name!r} is {found:.60}, neither a text nor a list of texts"
    refuse(fault_in(value, InputError("WRONG_TYPE", what, "correct it", path=place.path, line=place.line)))
    return []


def ids_in(fields: Fields, name: str, place: Place) -> list[str]:
    """The ids in a field: one or a list of them, in CSV and TSV written as JSON; none if it is null or empty."""
    value = fields.get(name)
    if isinstance(value, str) and in_cells(place.path):
        if not value.strip():
            return []
        listed = _listed(value, str | int, name, place) if value.startswith("[") and value.endswith("]") else None
        value = value if listed is None else listed
    if isinstance(value, list):
        return ids_of({name: value}, name, *place)
    if value is None:
        return []
    found = id_of(fields, name, *place)
    return [] if isinstance(found, Unread) else [found]


def _listed(text: str, kind: Any, name: str, place: Place) -> list[Any] | None:
    """The list in a field, as JSON or in Python's notation; None: there is none, or other items are in it."""
    for parse in (json.loads, ast.literal_eval):
        try:
            value = undisturbed(lambda parse=parse: parse(text))  # type: ignore[misc]
        except (ValueError, SyntaxError, RecursionError, MemoryError):
            continue
        if isinstance(value, list) and all(isinstance(item, kind) for item in value):
            if parse is json.loads or not are_glued(text, value):
                return value
            what = f"the field {name!r} is {text[:60]!r}, where no comma parts the texts, as numpy writes arrays"
            refuse(InputError("WRONG_TYPE", what, "write lists as JSON", path=place.path, line=place.line))
            return []
    if SHORTENED.fullmatch(text):
        what = f"the field {name!r} is {text[:60]!r}, a list that was shortened with '...' when it was written"
        refuse(InputError("WRONG_TYPE", what, "write whole lists, as JSON", path=place.path, line=place.line))
        return []
    return None


def are_glued(text: str, items: Sequence[Any]) -> bool:
    """Whether Python made one item of several texts in its notation of a list, as no comma stands between them."""
    if NEIGHBOURS.search(text) is None:
        return False
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    return sum(token.type == tokenize.STRING for token in tokens) > sum(isinstance(item, str) for item in items)


def _taught(
    columns: PairColumns, fields: Fields, positives: int, negatives: int, place: Place
) -> tuple[list[float], list[float], str | None]:
    """A teacher's scores of the positives and of the negatives, and the column of a list of both; empty: none."""
    if all(columns.taught):
        of_positives, of_negatives = (
            _numbers(fields.get(name or ""), name or "", place) for name in columns.taught
        )
    elif is_list_in(fields, columns.score, place):
        scores = _numbers(fields[columns.score or ""], columns.score or "", place)
        of_positives, of_negatives = (None, None) if scores is None else (scores[:positives], scores[positives:])
    else:
        found = numbers_in(fields, columns.scores, place) if negatives else []
        whole = negatives and len(found) == positives + negatives and all(map(_is_kept, found))
        return (found[:positives], found[positives:], columns.scores) if whole else ([], [], None)
    if of_positives is None or of_negatives is None:
        return [], [], None
    if not of_positives and not of_negatives:
        return [], [], None
    if (len(of_positives), len(of_negatives)) != (positives, negatives):
        names = " and ".join(map(repr, columns.taught if all(columns.taught) else (columns.score,)))
        what = f"{len(of_positives) + len(of_negatives)} scores of {positives} positives and {negatives} negatives"
        fix = f"give each text one score, {RENAME}"
        refuse(InputError("WRONG_COLUMNS", f"{what} stand in {names}", fix, path=place.path, line=place.line))
        return [], [], None
    return of_positives, of_negatives, None


def numbers_in(fields: Fields, name: str | None, place: Place) -> list[float]:
    """The items of a list of numbers in a field, NaN for what is none; no items where the field is no list.

    In CSV and TSV the list is a text, as JSON, Python or numpy write it.
    """
    value = None if name is None else fields.get(name)
    text = value.strip() if isinstance(value, str) and in_cells(place.path) else ""
    if text.startswith("[") and text.endswith("]"):
        text = UNPARTED.sub(", ", NUMPY.sub(r"\1\2", text))
        value = _listed(NAN.sub("None", text), object, name or "", place)
    return [*map(number_of, value)] if isinstance(value, list) else []


def is_list_in(fields: Fields, name: str | None, place: Place) -> bool:
    """Whether a field is a list, in CSV and TSV one of numbers that is written as a text."""
    value = None if name is None else fields.get(name)
    if isinstance(value, str):
        return in_cells(place.path) and LIST.match(value) is not None
    return isinstance(value, list)


def _numbers(value: Any, name: str, place: Place) -> list[float] | None:
    """The numbers of a list, which may stand in a text; none where there are none, None where they are refused."""
    if isinstance(value, str) and value.startswith("["):
        with contextlib.suppress(ValueError, RecursionError):  # else the text itself is refused
            value = json.loads(value)
    if value in (None, ""):
        return []
    if isinstance(value, list) and all(isinstance(item, int | float) and _is_kept(item) for item in value):
        return [float(item) for item in value]
    what = f"the scores in {name!r} are {value!r:.60}, no list of numbers within ±3.4e38"
    refuse(fault_in(value, InputError("WRONG_TYPE", what, "correct them", path=place.path, line=place.line)))
    return None


def _is_kept(score: float) -> bool:
    """Whether a pool can keep a score: it is a number, and not too large."""
    return abs(score) < TOO_LARGE


def grade_in(fields: Fields, name: str, place: Place, listed: str | None = None) -> int:
    """The grade that a score means: a whole number is the grade; a share from 0 to 1 is relevant from 0.5 on.

    A pair whose row lacks the field is relevant; a null is a fault, like an empty cell. ``listed``: the column of
    the list that the score stands in.
    """
    value = fields.get(name, 1)
    score = number_of(value)
    if score == score // 1 and abs(score) < 2**31:
        return int(score)
    if is_share(value):
        return int(score >= 0.5)
    shown = "is empty, which is" if value is None else f"{value!r:.40} is"
    fix = "give whole grades (0: not relevant), or scale scores to 0 … 1 (relevant from 0.5 on)"
    if listed is not None:
        shown, fix = f"{value!r:.40} in {listed!r} is", f"{fix}, {RENAME}"
    what = f"the {name} {shown} neither a whole grade nor a share from 0 to 1"
    refuse(fault_in(value, InputError("BAD_GRADE", what, fix, path=place.path, line=place.line)))
    return 0


def is_share(score: Any) -> bool:
    """Whether a score is between 0 and 1, so that a bound makes a grade of it."""
    return 0 < number_of(score) < 1


def number_of(value: Any) -> float:
    """The number that a field holds, maybe written as a text; NaN where there is none."""
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):
        return float("nan")


# ---------------------------------------------------------------- streams of pairs


def pair_passages(
    tables: Iterable[Table], known: Mapping[str, str], ignored: Counter[str]
) -> Iterator[PassageRecord]:
    """Each text of a positive or negative once, in order of appearance; those that are ``known`` are left out."""
    seen: set[str] = set(known)
    for table in tables:
        listed: set[str | None] = set()
        for pair in pairs_of(table):
            listed.add(pair.listed)
            for text in (*pair.positives, *pair.negatives):
                if (passage_id := text_id(text)) not in seen:
                    seen.add(passage_id)
                    yield PassageRecord(passage_id, "", text, *pair.place)
        count_ignored(table, ignored, listed)


def count_ignored(table: Table, ignored: Counter[str], listed: Set[str | None]) -> None:
    """Count the columns of a table's first row that are not read, once a table.

    ``listed`` are those that are read where they hold a list of numbers, as they do in some row.
    """
    _, fields = next(iter(table.rows()), (1, {}))
    columns = columns_in(table, fields)
    if columns is not None:
        ignored.update(fields.keys() - columns.used - listed)


def pair_queries(tables: Iterable[Table]) -> Iterator[QueryRecord]:
    """Each query once for each of its splits; an id that comes with another text is yielded again."""
    seen: dict[tuple[str, str], str] = {}
    for table in tables:
        for pair in pairs_of(table):
            key, text = (table.split, pair.query_id), text_id(pair.query)
            if seen.get(key) != text:
                seen.setdefault(key, text)
                yield QueryRecord(pair.query_id, pair.query, table.split, (), *pair.place)


def pair_judgements(
    tables: Iterable[Table], known: Mapping[str, str], judged_by: Counter[str]
) -> Iterator[JudgementRecord]:
    """The grade of each positive; a row that says the same as one before is left out.

    ``judged_by`` then has the number of these judgements, and how many of them come from the bound of a score.
    """
    judged_by.clear()
    seen: set[tuple[str, str, str, int]] = set()
    for table in tables:
        for pair in pairs_of(table):
            texts = map(text_id, pair.positives)
            judged = (*(known.get(one, one) for one in texts), *pair.ids)
            for passage_id, grade, by_bound in zip(judged, pair.grades, pair.by_bound, strict=True):
                key = (table.split, pair.query_id, passage_id, grade)
                if key not in seen:
                    seen.add(key)
                    judged_by["all"] += 1
                    judged_by["bound"] += by_bound
                    yield JudgementRecord(*key, *pair.place)


def pair_negatives(tables: Iterable[Table]) -> Iterator[GivenRecord]:
    """The negatives that the rows give, as texts."""
    for table in tables:
        for pair in pairs_of(table):
            if pair.negatives:
                texts = (pair.positives, pair.negatives, pair.positive_scores, pair.negative_scores)
                yield GivenRecord(table.split, pair.query_id, pair.query, *texts, *pair.place)


# ---------------------------------------------------------------- rows of a corpus


def corpus_passages(tables: Iterable[Table], ignored: Counter[str] | None = None) -> Iterator[PassageRecord]:
    """The passages of a corpus; those without an id are numbered from 0. Columns that are not read are counted."""
    number = 0
    for table in tables:
        if ignored is not None:
            _, first = next(iter(table.rows()), (1, {}))
            ignored.update(first.keys() - set(passage_columns(table, first) or ()))
        for line, fields in table.rows():
            columns = passage_columns(table, fields)
            if columns is None:
                refuse(unknown_columns(table.path, list(fields), line))
                continue
            place = Place(table.path, line)
            passage_id = str(number) if columns.id is None else id_of(fields, columns.id, *place)
            title = "" if columns.title is None else text_of(fields, columns.title, *place, "")
            yield PassageRecord(passage_id, title, text_of(fields, columns.text, *place), *place)
            number += 1


def corpus_source(format: str, tables: Sequence[Table], inputs: Mapping[str, str]) -> Source:
    """The source of a corpus without queries."""
    ignored: Counter[str] = Counter()
    return Source(
        format,
        lambda: corpus_passages(tables, ignored),
        lambda: iter(()),
        lambda: iter(()),
        inputs,
        ignored,
        corpus_alone=True,
    )
