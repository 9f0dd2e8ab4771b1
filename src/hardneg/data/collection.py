"""The canonical collection: passages, queries, judgements and answers as memory-mapped columns.

Passages keep their source order, and so do the positives of a query. Queries are sorted by the bytes of their
ids, so that the same collection has the same digest in whatever format it is read.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hardneg import keyed_random
from hardneg.arguments import at_home, check_fields, check_value, checked, named
from hardneg.data.building import (
    ANSWER_SPANS,
    ANSWERS,
    LANGUAGE,
    PASSAGE_IDS,
    PASSAGE_TABLE,
    QRELS,
    QRELS_PARTS,
    QUERY_IDS,
    QUERY_TABLE,
    QUERY_TEXTS,
    TEXT_KEYS,
    TEXTS,
    TITLES,
    build,
)
from hardneg.data.checks import OnDuplicate, Rules
from hardneg.data.formats.in_memory import source_from_pairs
from hardneg.data.languages import ENGLISH, language_named
from hardneg.data.record_source import (
    AnswersById,
    Judged,
    PassageLike,
    QueryLike,
    Source,
    TextById,
    source_from_lists,
)
from hardneg.data.text import IdColumn, TextColumn, copies_among, hash_strings, hash_texts, keys_of_passages
from hardneg.errors import ArtifactError, SettingsError
from hardneg.keyed_random import UInt64
from hardneg.records import Int32, Int64, Qrels
from hardneg.shown import Shown, counted
from hardneg.storage.artifacts import (
    FORMAT_VERSION,
    Manifest,
    SettingsClash,
    cache_root,
    digest_json,
    is_published,
    load_array,
    open_artifact,
    publish,
    read_json,
    read_manifest,
)

log = logging.getLogger(__name__)

KIND = "collection"
READING = 6  # raised when hardneg reads other content from the same source: older collections are not used for it
RARE = 100  # a text is held out as dev only if it is asked by no more than this part of the queries: 1 / RARE


@dataclass(frozen=True, eq=False, repr=False)
class Collection(Shown):
    """A published collection; opened by :meth:`open`, built by an import or :meth:`from_lists`.

    Attributes
    ----------
    digest : SHA-256 of ids, titles, texts, queries, qrels and answers, of the language if it is not English, and
        of nothing else.
    splits : names, ascending.
    passage_ids, titles, texts : columns by passage row, in source order.
    query_ids, query_texts : columns by query row, ascending by the bytes of the id.
    text_keys : uint64 [n_passages], equal for equal texts; where a text is blank, for equal titles.
    facts : counts of the import: records, splits, and what was dropped or ignored.
    language : of the passages; it decides how BM25 makes terms of them.
    """

    path: Path
    digest: str
    splits: tuple[str, ...]
    passage_ids: IdColumn
    titles: TextColumn
    texts: TextColumn
    text_keys: UInt64
    query_ids: IdColumn
    query_texts: TextColumn
    answer_texts: TextColumn
    answer_spans: Int64
    facts: Mapping[str, Any]
    language: str = ENGLISH

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickled, a collection is its folder, which another process opens again."""
        return reopened, (str(self.path), self.digest)

    @classmethod
    @checked
    def open(cls, path: str | Path) -> Collection:
        """Open a collection's folder, its files verified; raises :class:`hardneg.errors.ArtifactError`.

        :func:`hardneg.open_collection` opens other formats, too.
        """
        path = Path(path)
        if not path.is_dir():
            what, advice = (
                "this is not the folder of a collection",
                "open other formats with hardneg.open_collection",
            )
            raise ArtifactError("NO_MANIFEST", what, advice, path=path)
        manifest = open_artifact(path, KIND)
        titles, text_keys = TextColumn.open(path, TITLES), np.asarray(load_array(path / TEXT_KEYS))
        if manifest.facts.get("counts", {}).get("empty_passage_texts"):
            text_keys = keys_of_passages(text_keys, titles)
        return cls(
            path=path.absolute(),  # the caller may change its working directory while the collection is open
            digest=content_digest(manifest),
            splits=tuple(sorted(manifest.facts["splits"])),
            passage_ids=IdColumn.open(path, PASSAGE_IDS, PASSAGE_TABLE),
            titles=titles,
            texts=TextColumn.open(path, TEXTS),
            text_keys=text_keys,
            query_ids=IdColumn.open(path, QUERY_IDS, QUERY_TABLE),
            query_texts=TextColumn.open(path, QUERY_TEXTS),
            answer_texts=TextColumn.open(path, ANSWERS),
            answer_spans=np.asarray(load_array(path / ANSWER_SPANS)),
            facts=manifest.facts,
            language=read_json(path / LANGUAGE) if LANGUAGE in manifest.files else ENGLISH,
        )

    @classmethod
    @named
    def from_lists(
        cls,
        passages: TextById | Iterable[PassageLike],
        queries: TextById | Iterable[QueryLike] | None = None,
        qrels: Judged | None = None,
        *,
        answers: AnswersById | None = None,
        language: str = ENGLISH,
        to: str | Path | None = None,
        allow_empty: bool = False,
        allow_unjudged: bool = False,
        on_duplicate: OnDuplicate = "error",
    ) -> Collection:
        """Build a collection from lists in memory.

        Parameters
        ----------
        passages : (id, text), (id, title, text) or mappings with ``id`` (or ``_id``), ``text`` and maybe
            ``title``; or text by id.
        queries : text by id, or (id, text) or mappings with ``id`` and ``text``. Without queries the collection is
            a corpus alone, which can be encoded and searched.
        qrels : by split and query id, either {passage id: grade} or a list of passage ids (grade 1).
        answers : by query id. All ids may be integers, which are read as their digits.
        language : of the passages, by name or ISO code; it decides how BM25 makes terms of them.
        to : the folder to publish; by default a folder of the user's cache, named after the content.
        allow_empty, allow_unjudged, on_duplicate : as for an import.

        Raises
        ------
        InputError
            A list is of another shape, or a record is wrong; nothing is published.
        SettingsError
            BM25 has no analyser for the language.
        """
        source = source_from_lists(
            passages,
            {} if queries is None else queries,
            {} if qrels is None else qrels,
            {} if answers is None else answers,
        )
        rules = Rules(allow_empty, allow_unjudged, on_duplicate)
        return cls._made_of(replace(source, corpus_alone=queries is None), language, to, rules)

    @classmethod
    @named
    def from_pairs(
        cls,
        rows: Any,
        *,
        language: str = ENGLISH,
        to: str | Path | None = None,
        allow_empty: bool = False,
        on_duplicate: OnDuplicate = "error",
    ) -> Collection:
        """Build a collection from pairs or triplets in memory, as sentence-transformers trains on.

        The columns have the names of pairs in files: a query (``anchor``, ``query``, ``question``, ...), a
        ``positive``, and maybe a ``negative``. Negatives become passages;
        :func:`~hardneg.api.convert.import_negatives` keeps them as a pool too.

        Parameters
        ----------
        rows : a list of mappings from columns to texts, a ``Dataset``, or a table of pandas or polars, which are
            those of train; or these by split (``train``, ``dev`` or ``validation``, ``test``), such as a
            ``DatasetDict``. A positive that is None or NaN means that the query has none.
        language, to, allow_empty, on_duplicate : as of :meth:`from_lists`.

        Raises
        ------
        InputError
            The rows are of another shape, or a row is wrong; nothing is published.
        SettingsError
            BM25 has no analyser for the language.
        """
        return cls._made_of(source_from_pairs(rows), language, to, Rules(allow_empty, False, on_duplicate))

    @classmethod
    def _made_of(cls, source: Source, language: str, to: str | Path | None, rules: Rules) -> Collection:
        """Publish what is given in memory, unless the cache has it."""
        check_value("language", language, str)
        source = replace(source, language=language_named(language))
        check_fields(rules)
        check_value("to", to, str | Path | None)
        folder = Path(at_home(to, Path)) if to is not None else cached_place(source, rules)
        if to is None and is_published(folder, KIND):
            return cls.open(folder)
        return publish_source(source, folder, rules, replace=to is None)

    def line(self) -> str:
        """How many passages, queries and splits there are."""
        splits = ", ".join(self.splits) or "none"
        passages, queries = counted(self.n_passages, "passage"), counted(self.n_queries, "query")
        return f"Collection of {passages}, {queries} (splits: {splits})"

    def columns(self, most: int | None = None) -> dict[str, list[str]]:
        """The ids, titles and texts of the passages, in the order of rows."""
        rows = np.arange(self.n_passages)[:most]
        return {
            "passage_id": self.passage_ids.take(rows),
            "title": self.titles.take(rows),
            "text": self.texts.take(rows),
        }

    @property
    def n_passages(self) -> int:
        """The number of passages of the collection."""
        return len(self.passage_ids)

    @cached_property
    def copies(self) -> Int32 | None:
        """The row [n_passages] of the first passage with the same text, -1 where no other passage has the text.

        None: no two passages have one text. Where texts are blank, titles count.
        """
        return copies_among(self.text_keys)

    @property
    def n_queries(self) -> int:
        """The number of all queries, whether or not they are in a split."""
        return len(self.query_ids)

    @property
    def has_answers(self) -> bool:
        """Whether any query has an answer."""
        return len(self.answer_texts) > 0

    def answers(self, query_row: int) -> list[str]:
        """The answers of a query, in source order."""
        span = self.answer_spans[query_row : query_row + 2]
        return self.answer_texts.take(np.arange(*span))

    def qrels(self, split: str) -> Qrels:
        """The judgements of a split, with its queries that have no judgements too."""
        if split not in self.splits:
            there = f"there are {', '.join(self.splits)}" if self.splits else "import it with judgements"
            what = f"no split {split!r}{'' if self.n_queries else ': this is a corpus without queries'}"
            raise SettingsError("UNKNOWN_SPLIT", what, there)
        if content_digest(read_manifest(self.path)) != self.digest:
            raise replaced(self.path)
        parts = (load_array(self.path / QRELS.format(split=split, part=part)) for part in QRELS_PARTS)
        return Qrels(*(np.asarray(part) for part in parts))

    def grades(self, split: str) -> dict[str, dict[str, int]]:
        """The judgements of a split by ids, as pytrec_eval and ``evaluate(qrels=...)`` take them.

        Returns
        -------
        Query id -> passage id -> grade; a query without judgements has an empty mapping.
        """
        qrels = self.qrels(split)
        passages, grades = self.passage_ids.take(qrels.passage_rows), qrels.grades.tolist()
        pairs = [*zip(passages, grades, strict=True)]
        borders = qrels.offsets.tolist()
        queries = self.query_ids.take(qrels.query_rows)
        return {one: dict(pairs[a:b]) for one, a, b in zip(queries, borders, borders[1:], strict=False)}


def hashes_of_texts(collection: Collection) -> UInt64:
    """The hashes [n] of the texts alone, in which all blank ones are equal."""
    return np.asarray(load_array(collection.path / TEXT_KEYS))


def reopened(path: str, digest: str) -> Collection:
    """The collection that stood at ``path`` when it was pickled; raises :class:`ArtifactError` for another one."""
    found = Collection.open(path)
    if found.digest != digest:
        raise replaced(found.path)
    return found


def replaced(path: Path) -> ArtifactError:
    """The fault of a folder that holds another collection than before."""
    what, fix = "this folder holds another collection than when it was opened", "open it again"
    return ArtifactError("INPUT_CHANGED", what, fix, path=path)


def content_digest(manifest: Manifest) -> str:
    """Digest of the content files of a collection, by their names and bytes."""
    files = manifest.files.items()
    return digest_json({name: sha for name, (_, sha) in files if name.startswith("content/")})


def cached_place(source: Source, rules: Rules, cache: Path | None = None) -> Path:
    """The folder of a cache where this source's collection belongs."""
    language = [] if source.language == ENGLISH else [source.language]
    key = digest_json([FORMAT_VERSION, READING, source.format, dict(source.inputs), vars(rules), *language])
    return (cache or cache_root()) / "collections" / key[:32]


def is_made_of(path: Path, source: Source, rules: Rules) -> bool:
    """Whether the collection that :func:`publish_source` would build stands at ``path``.

    Raises
    ------
    SettingsClash : it is of this source, but a hardneg that may read other content from it made it.
    """
    if not is_published(path):
        return False
    there, made = read_manifest(path), settings_of(source, rules)
    settings = {**there.settings, "reading": READING}
    same = there.kind == KIND and (settings, dict(there.inputs)) == (made, dict(source.inputs))
    if not same or Collection.open(path).language != source.language:
        return False
    if there.settings.get("reading") != READING:
        what = "another version of hardneg made this collection, which may read the source otherwise"
        raise SettingsClash(path, what, "give a new --to, or remove it")
    return True


def settings_of(source: Source, rules: Rules) -> dict[str, Any]:
    """What the manifest of a source's collection says of how it was made."""
    return {"format": source.format, "reading": READING, **vars(rules)}


def publish_source(source: Source, to: Path, rules: Rules, *, replace: bool = False) -> Collection:
    """Build the collection of a source and publish it at ``to``."""
    with publish(to, KIND, settings=settings_of(source, rules), inputs=source.inputs, replace=replace) as draft:
        build(source, draft, rules)
    found = Collection.open(to)
    for kind, ids in (("passage", found.passage_ids), ("query", found.query_ids)):
        if (row := ids.first_blank()) is not None:
            log.warning("the %s id %r holds a blank, which a TREC run cannot hold", kind, ids[row])
    return found


def hold_out(
    qrels: Qrels,
    ids: IdColumn,
    *,
    seed: int,
    most: int = 500,
    share: float = 0.1,
    usable: NDArray[np.bool_] | None = None,
    texts: TextColumn | None = None,
) -> tuple[Qrels, Qrels]:
    """Split the queries of ``qrels`` into (train, dev), for a collection without a dev split.

    Dev gets the share ``share`` of the ``usable`` queries, by default of all: at least one if there are two or
    more, and at most ``most``. It gets those with the smallest hashes of seed and query id, so that the order of
    the source does not matter. With ``texts`` [n_queries], queries with the same text stay together, so that no
    text is both trained on and measured on.
    """
    able = np.arange(len(qrels)) if usable is None else np.flatnonzero(usable)
    n = len(able)
    count = min(most, max(int(n * share), min(1, n // 2)))
    names = ids.take(qrels.query_rows[able])
    words = keyed_random.hash64(keyed_random.key(seed, "hold-out"), hash_strings(names))
    order = np.argsort(words, kind="stable")
    first = order[:count] if texts is None else whole_texts(order, texts.take(qrels.query_rows[able]), count, most)
    drawn = np.sort(able[first])
    return qrels.select(np.delete(np.arange(len(qrels)), drawn)), qrels.select(drawn)


def whole_texts(order: Int64, texts: Sequence[str], count: int, most: int) -> Int64:
    """At most ``count`` of the queries of ``order`` [n], such that those with the same text stay together.

    Texts come in the order of their first query, and end before the first that would make the queries too many.
    So a smaller draw is a part of a larger one. Texts of many queries (:data:`RARE`) are drawn only if all are so.
    If the first text alone is too much, it is taken if it is no more than ``most``, and parted otherwise.
    """
    group = np.unique(hash_texts(texts), return_inverse=True)[1]
    sizes = np.bincount(group, minlength=1)
    small = sizes[group[order]] <= max(len(order) // RARE, 1)
    ordered = order[small] if small.any() else order
    in_order = group[ordered]
    found = in_order[np.sort(np.unique(in_order, return_index=True)[1])]
    drawn = found[np.cumsum(sizes[found]) <= count]
    if count and not len(drawn):
        if len(sizes) == 1 or sizes[found[0]] > most:
            return ordered[in_order == found[0]][:count]
        drawn = found[:1]
    return ordered[np.isin(in_order, drawn)]
