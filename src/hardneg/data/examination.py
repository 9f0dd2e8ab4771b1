"""What stands out in a collection before anything is trained: sizes, copies, leaks between splits, the language.

Equal texts are counted over all passages, by their keys. Nearly equal passages are sought in a sample only,
because their signatures cost memory and time. All queries of a split (or, for copies, of the collection) are
compared if there are at most :data:`MOST_QUERIES`, else a sample of so many.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import Any

import numpy as np

from hardneg.data.checks import BY_BOUND, is_blank
from hardneg.data.collection import Collection, hashes_of_texts
from hardneg.data.languages import ENGLISH
from hardneg.data.near_copies import near, plain, signatures
from hardneg.data.text import NO_TEXT, TextColumn, hash_strings, hash_texts
from hardneg.keyed_random import UInt64, hash64, key
from hardneg.records import Int32, Int64, Qrels, distinct, spans

MOST_PASSAGES = 50_000  # passages whose signatures are compared: about 5 seconds
MOST_QUERIES = 100_000  # queries of a split, or of a collection, that are compared
LOOKED_AT = 2_000  # texts whose words and letters are counted
QUANTILES = {"median": 0.5, "p95": 0.95, "longest": 1.0}
# Blocks of letters by which a language shows, and the language that BM25 then wants.
SCRIPTS: Mapping[str, str] = {
    "japanese": r"[\u3040-\u30ff]",
    "korean": r"[\uac00-\ud7af]",
    "chinese": r"[\u4e00-\u9fff]",
    "thai": r"[\u0e00-\u0e7f]",
    "arabic": r"[\u0600-\u06ff]",
    "hindi": r"[\u0900-\u097f]",
    "greek": r"[\u0370-\u03ff]",
    "russian": r"[\u0400-\u04ff]",
}
UNSPACED = ("chinese", "japanese", "thai")  # languages without blanks between words
# Shares of the letters: most of them show a language. A few kana show that Chinese characters are Japanese.
MOST, FEW = 0.5, 0.2
MIXED = "a mixture of languages"
# Tags and entities that pages hold. An opening tag without attributes counts only where no word stands before it,
# for code has types such as List<p>.
TAGS = r"(?:p|div|span|li|ul|ol|table|tr|td|th|h[1-6]|strong|em|code|pre|blockquote|b|i|a)"
HTML = re.compile(
    rf"</{TAGS}>|<[bh]r\s?/?>|<(?:{TAGS}|img)\s[\w-]+=[^<>]{{0,300}}>|(?<![\w<:])<{TAGS}>"
    r"|&(?:lt|gt|amp|nbsp|quot|apos|mdash|ndash|hellip|#\d{2,5}|#[xX][0-9a-fA-F]{2,5});",
    re.IGNORECASE,
)


def examine_collection(collection: Collection) -> dict[str, Any]:
    """The facts by chapter: ``sizes``, ``splits``, ``blank``, ``copies``, ``leaks``, ``lengths``, ``markup``, and
    ``language``.
    """
    splits = {name: collection.qrels(name) for name in collection.splits}
    language = looks_like(collection)
    by_bound = collection.facts.get("counts", {}).get(BY_BOUND, 0)
    return {
        "sizes": {
            "passages": collection.n_passages,
            "queries": collection.n_queries,
            "answers": collection.has_answers,
            **({BY_BOUND: by_bound} if by_bound else {}),
        },
        "splits": {name: split_facts(qrels) for name, qrels in splits.items()},
        "blank": blank(collection, splits),
        "copies": copies(collection),
        "leaks": leaks(collection, splits),
        "lengths": lengths(collection, language),
        "markup": markup(collection),
        "language": {"of_the_collection": collection.language, "looks_like": language},
    }


def split_facts(qrels: Qrels) -> dict[str, Any]:
    """Counts of a split: its queries (all, without positives, by number of positives), judgements, positives."""
    positives = spans(qrels.positives().offsets)
    few = Counter(np.minimum(positives, 10).tolist())
    named = {("10 or more" if n == 10 else str(n)): count for n, count in sorted(few.items())}
    return {
        "queries": len(qrels),
        "judgements": len(qrels.grades),
        "positives": int(positives.sum()),
        "without_positives": int((positives == 0).sum()),
        "queries_by_positives": named,
    }


def blank(collection: Collection, splits: Mapping[str, Qrels]) -> dict[str, int]:
    """Counts of blank texts, which ``--allow-empty`` keeps: ``passages``, ``positives`` and ``queries``.

    A passage with a title is not blank. ``positives`` are the blank passages that are a positive in any split.
    """
    suspects = np.flatnonzero(hashes_of_texts(collection) == NO_TEXT)
    titles = collection.titles.take(suspects)
    rows = suspects[np.array([is_blank(title) for title in titles], bool)]
    positives = [np.intersect1d(rows, rows_of(qrels)) for qrels in splits.values()] if len(rows) else []
    return {
        "passages": len(rows),
        "positives": len(distinct(np.concatenate(positives))) if positives else 0,
        "queries": sum(map(is_blank, collection.query_texts.take(suspicious(collection.query_texts)))),
    }


def suspicious(column: TextColumn) -> Int64:
    """The rows of texts that may be blank: empty, or begun by a blank or by a byte beyond ASCII."""
    begins, empty = column.offsets[:-1], np.diff(column.offsets) == 0
    if not column.offsets[-1]:
        return np.flatnonzero(empty)
    data = np.frombuffer(column.blob, np.uint8)
    first = data[np.minimum(begins, len(data) - 1)]
    return np.flatnonzero(empty | (first <= 32) | (first >= 128))


# ---------------------------------------------------------------- copies


def copies(collection: Collection) -> dict[str, Any]:
    """Counts of copies: equal passages, texts under other titles, nearly equal texts of a sample, equal queries.

    White space and the Unicode form make no difference, and a blank text is no copy of another.
    """
    drawn = draw(collection.n_passages, MOST_PASSAGES)
    # Of passages with equal texts one is compared: a passage with a copy may also have a near copy.
    _, firsts, copied = np.unique(hashes_of_texts(collection)[drawn], return_index=True, return_inverse=True)
    found = near(marks := signatures(collection.texts.take(drawn[firsts])), marks, itself=True)
    equal, retitled = copied_passages(collection)
    asked = draw(collection.n_queries, MOST_QUERIES)
    queries = plain_hashes(collection.query_texts.take(asked))
    return {
        "passages_equal": equal,
        "passages_under_another_title": retitled,
        "passages_nearly_equal": int((found >= 0)[copied].sum()),
        "passages_compared": len(drawn),
        "queries_equal": repeated(queries),
        "queries_compared": len(asked),
    }


def copied_passages(collection: Collection) -> tuple[int, int]:
    """The numbers of passages that repeat a text with no title of their own, and under another title.

    Articles of which little but the author is known as text are no copies if their titles differ.
    """
    firsts = collection.copies
    if firsts is None:
        return 0, 0
    rows = np.flatnonzero(firsts >= 0)
    titles, texts = hash_texts(collection.titles.take(rows)), firsts[rows].astype(np.uint64)
    named = np.unique(np.stack([texts, titles], axis=1)[titles != NO_TEXT], axis=0)
    apart = np.unique(named[:, 0], return_counts=True)[1]  # different titles of each text that has any
    retitled = int((apart - 1).sum())
    return len(rows) - len(distinct(texts)) - retitled, retitled


def repeated(keys: UInt64) -> int:
    """The number of keys [n] that repeat an earlier key."""
    return len(keys) - len(distinct(keys))


def plain_hashes(texts: Sequence[str]) -> UInt64:
    """A hash of each text without case, punctuation and extra blanks."""
    return hash_strings([plain(text) for text in texts])


def draw(n: int, most: int) -> Int64:
    """At most ``most`` of the rows 0 to n - 1, ascending; every call draws the same ones."""
    rows = np.arange(n)
    if n <= most:
        return rows
    words = hash64(key(0, "examine"), rows)
    return np.sort(np.argpartition(words, most)[:most])


# ---------------------------------------------------------------- leaks


def leaks(collection: Collection, splits: Mapping[str, Qrels]) -> list[dict[str, Any]]:
    """Queries (equal or nearly equal) and texts of positives that two splits share, for each pair of splits.

    A pair that shares nothing is listed too. The counts are of the queries and positives of the second split of a
    pair, the one that measures.
    """
    order = sorted(splits, key=lambda name: (name != "train", name))
    asked = {name: splits[name].query_rows[draw(len(splits[name]), MOST_QUERIES)] for name in order}
    texts = {name: collection.query_texts.take(rows) for name, rows in asked.items()}
    hashes = {name: plain_hashes(some) for name, some in texts.items()}
    marks = {name: signatures(some) for name, some in texts.items()}
    found = []
    for one, other in combinations(order, 2):
        equal = np.isin(hashes[other], hashes[one])
        alike = (near(marks[other], marks[one]) >= 0) & ~equal
        example = np.flatnonzero(equal | alike)[:1]
        shared, of = shared_positives(collection, splits[one], splits[other])
        found.append(
            {
                "splits": [one, other],
                "queries": len(asked[other]),
                "compared_with": len(asked[one]),
                "of_all": len(asked[one]) == len(splits[one]),
                "queries_equal": int(equal.sum()),
                "queries_nearly_equal": int(alike.sum()),
                "example": texts[other][example[0]] if len(example) else None,
                "positives": of,
                "positives_equal": shared,
            }
        )
    return found


def shared_positives(collection: Collection, one: Qrels, other: Qrels) -> tuple[int, int]:
    """How many texts of positives of ``other`` are positives of ``one`` too, and how many such texts it has."""
    ours, theirs = (distinct(collection.text_keys[rows_of(qrels)]) for qrels in (one, other))
    return int(np.isin(theirs, ours).sum()), len(theirs)


def rows_of(qrels: Qrels) -> Int32:
    """The rows of all positives of a split."""
    return qrels.positives().passage_rows


# ---------------------------------------------------------------- lengths and language


def lengths(collection: Collection, language: str) -> dict[str, dict[str, int]]:
    """Numbers of words of passages and of queries in a sample: the median, the 95 % quantile, the longest.

    Where no blank divides the words of the language (:data:`UNSPACED`), characters are counted.
    """
    columns = {"passages": collection.texts, "queries": collection.query_texts}
    found = {}
    for name, column in columns.items():
        if len(column):
            parts = [text.split() for text in column.take(draw(len(column), LOOKED_AT))]
            found[name] = quantiles([len("".join(one) if language in UNSPACED else one) for one in parts])
    return found


def quantiles(values: Sequence[int]) -> dict[str, int]:
    """The median, the 95 % quantile and the largest of some values."""
    return {name: int(np.quantile(values, q, method="higher")) for name, q in QUANTILES.items()}


def markup(collection: Collection) -> dict[str, Any]:
    """The ``share`` of a sample of passages that hold tags or entities of HTML, and the commonest, ``such_as``."""
    texts = collection.texts.take(draw(collection.n_passages, LOOKED_AT))
    found = [{*map(tag_alone, HTML.findall(text))} for text in texts]
    common = Counter(mark for marks in found for mark in sorted(marks)).most_common(3)
    return {"share": sum(map(bool, found)) / len(found), "such_as": [mark for mark, _ in common]}


def tag_alone(mark: str) -> str:
    """A tag without its attributes; an entity as it is."""
    return mark if mark[0] == "&" else f"{mark.split()[0].rstrip('>')}>"


def looks_like(collection: Collection) -> str:
    """The language of a sample of the passages, told by letters or stop words; empty if it is not known.

    It is :data:`MIXED` if a script has a part of the letters, and not most of them.
    """
    text = " ".join(collection.texts.take(draw(collection.n_passages, LOOKED_AT)))[: 1 << 20]
    text = unicodedata.normalize("NFC", text)  # decomposed, Korean has none of its letters
    letters = max(sum(character.isalpha() for character in text), 1)
    shares = {language: len(re.findall(pattern, text)) / letters for language, pattern in SCRIPTS.items()}
    if shares["japanese"] > FEW:
        shares["japanese"] += shares.pop("chinese")
    found = max(shares, key=lambda language: shares[language])
    if shares[found] > FEW:
        return found if shares[found] > MOST else MIXED
    return by_stop_words(text.lower().split())


def by_stop_words(words: Sequence[str]) -> str:
    """The language with the most stop words in a text; empty if they are few, or another has nearly as many.

    Few is a tenth of the words or less; the best language must have more than 1.2 times the share of the next.
    """
    import bm25s.stopwords

    lists = {
        name: frozenset(getattr(bm25s.stopwords, f"STOPWORDS_{name.upper()}"))
        for name in (
            "german",
            "dutch",
            "french",
            "spanish",
            "portuguese",
            "italian",
            "swedish",
            "norwegian",
            "danish",
        )
    }
    lists |= {
        "turkish": frozenset(bm25s.stopwords.STOPWORDS_TURKISH),
        ENGLISH: frozenset(bm25s.stopwords.STOPWORDS_EN),
    }
    counts = Counter(words)
    shares = {name: sum(counts[word] for word in some) / max(len(words), 1) for name, some in lists.items()}
    first, second, *_ = sorted(shares, key=lambda name: -shares[name])
    return first if shares[first] > 0.1 and shares[first] > 1.2 * shares[second] else ""
