"""Answers instead of judgements: which passages contain an answer (cached on disk), and the measure Answer@k."""

from __future__ import annotations

import hashlib
import logging
import os
import subprocess
import sys
import unicodedata
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import regex

from hardneg.data.collection import Collection
from hardneg.data.own_passages import without_own
from hardneg.errors import InputError, ResourceError, SettingsError
from hardneg.evaluation.judged import judged_hits
from hardneg.evaluation.matching import Bool, Mode, match_pairs, read_answer, request
from hardneg.evaluation.measures import Evaluation, Measure, evaluate, joined, success
from hardneg.process.progress import track
from hardneg.process.threads import usable_threads
from hardneg.records import Int32, Int64, Qrels, Run, distinct, offsets_of, owners, pair_keys, spans
from hardneg.storage.artifacts import digest_json, is_published, load_array, open_artifact, publish
from hardneg.surroundings import places_of_modules

log = logging.getLogger(__name__)

KIND = "answers"
RULES = {"rule": "1", "regex": regex.__version__, "unicode": unicodedata.unidata_version}  # these decide a match
CHUNK = 1 << 20  # pairs that a process is given at a time
ALONE = 1 << 17  # up to so many pairs are matched before another process could start
ROW = (1 << 32) - 1
READ = 1000  # queries whose answers are looked at for patterns that are none


class AnswerCache:
    """A cache on disk of which passages of a collection contain an answer to which of its queries.

    Each (query, passage) pair is matched only once; all processes share the cache.

    Parameters
    ----------
    mode : whether answers are strings or patterns.
    """

    def __init__(self, collection: Collection, cache: Path, mode: Mode = "string") -> None:
        self.collection, self.mode = collection, mode
        self.inputs = {"collection": collection.digest, "mode": mode, **RULES}
        self.folder = cache / KIND / digest_json(self.inputs)[:32]
        self.answered = spans(collection.answer_spans) > 0
        self.pages: set[str] = set()
        self.warned = False
        self.pairs, self.found = np.zeros(0, np.int64), np.zeros(0, bool)

    def contains(self, query_rows: Int32, passage_rows: Int32) -> Bool:
        """Whether each passage [n] contains an answer of its query [n]; False for rows outside the collection."""
        asked = (query_rows < self.collection.n_queries) & (passage_rows < self.collection.n_passages)
        asked[asked] = self.answered[query_rows[asked]]
        pairs = pair_keys(query_rows[asked], passage_rows[asked])
        if not self._knows(pairs).all():
            self._read()
            missing = distinct(pairs[~self._knows(pairs)])
            if len(missing):
                self._write(missing, self._match(missing))
                self._read()
        found = np.zeros(len(query_rows), bool)
        found[asked] = self.found[np.searchsorted(self.pairs, pairs)]
        return found

    def _knows(self, pairs: Int64) -> Bool:
        if not len(self.pairs):
            return np.zeros(len(pairs), bool)
        at = np.minimum(np.searchsorted(self.pairs, pairs), len(self.pairs) - 1)
        return np.asarray(self.pairs[at] == pairs)

    def _read(self) -> None:
        """Read the pages of the cache that were written since the last read, by any process."""
        names = {path.name for path in self.folder.glob("*") if path.name[0] != "." and is_published(path, KIND)}
        pairs, found = [self.pairs], [self.found]
        for name in sorted(names - self.pages):
            open_artifact(self.folder / name, KIND)
            pairs.append(load_array(self.folder / name / "pairs.npy"))
            found.append(load_array(self.folder / name / "found.npy"))
        self.pages |= names
        self.pairs, first = np.unique(np.concatenate(pairs), return_index=True)
        self.found = np.concatenate(found)[first]

    def _write(self, pairs: Int64, found: Bool) -> None:
        """Write a page of the cache: ascending pairs [n] and whether each was found to match [n]."""
        name = hashlib.sha256(pairs.tobytes()).hexdigest()[:32]
        with publish(self.folder / name, KIND, inputs=self.inputs, replace=True) as draft:
            draft.array("pairs.npy", pairs)
            draft.array("found.npy", found)

    def _match(self, pairs: Int64) -> Bool:
        """Match pairs [n], in several processes where that is faster; returns whether each matches [n]."""
        pairs = pairs[np.argsort(pairs & ROW, kind="stable")]  # by passage, so that each is read once
        rows = (pairs >> 32).astype(np.int32), (pairs & ROW).astype(np.int32)
        self._warn_of_broken(rows[0])
        found = np.concatenate([*self._match_chunks(*rows)])
        return np.asarray(found[np.argsort(pairs)])

    def _warn_of_broken(self, query_rows: Int32) -> None:
        """Warn once of answers that are no patterns: they match no passage. Some of the queries are read."""
        if self.mode != "regex" or self.warned:
            return
        self.warned = True
        read = [text for row in np.unique(query_rows)[:READ].tolist() for text in self.collection.answers(row)]
        broken = [text for text in read if read_answer(text, self.mode) is None]
        if broken:
            told = (
                f"{len(broken):,} of {len(read):,} answers that were looked at are no patterns and match nothing"
            )
            log.warning("%s; the first is %.60r", told, broken[0])

    def _match_chunks(self, query_rows: Int32, passage_rows: Int32) -> Iterator[Bool]:
        n, workers = len(query_rows), usable_threads()
        if n <= ALONE or workers == 1:
            yield match_pairs(self.collection, query_rows, passage_rows, self.mode)
            return
        size = min(CHUNK, -(-n // workers))
        parts = [slice(start, start + size) for start in range(0, n, size)]
        with ThreadPoolExecutor(workers) as pool, track("looking for answers", "pairs") as tick:
            results = [pool.submit(self._match_apart, query_rows[part], passage_rows[part]) for part in parts]
            try:
                for part, result in zip(parts, results, strict=True):
                    yield result.result()
                    tick(min(part.stop, n), n)
            finally:
                pool.shutdown(cancel_futures=True)

    def _match_apart(self, query_rows: Int32, passage_rows: Int32) -> Bool:
        """Match pairs in another process, because threads would wait for each other.

        Not by loky: two processes answer after 3.5 s, not 2.5, and a killed parent's lived on for over 30 s.
        """
        command = [sys.executable, "-P", "-m", "hardneg.evaluation.matching"]
        environment = os.environ | {"PYTHONPATH": places_of_modules()}
        job = request(self.collection.path, query_rows, passage_rows, self.mode)
        done = subprocess.run(command, input=job, capture_output=True, env=environment, check=False)
        if done.returncode < 0:  # a signal ended it
            what = f"signal {-done.returncode} ended a process that looked for answers"
            fix = "run the same command again where more memory is free"
            raise ResourceError("OUT_OF_MEMORY", what, fix)
        if done.returncode:
            raise RuntimeError(f"looking for answers failed: {done.stderr.decode(errors='replace')[-500:]}")
        return np.frombuffer(done.stdout, bool)


def judge_by_answers(
    book: AnswerCache, run: Run, query_rows: Int32, depth: int, *, id_rank: Int32 | None = None
) -> Qrels:
    """Judgements made from answers: of the first ``depth`` hits of each query [Q], those that contain an answer.

    ``query_rows`` [Q] ascend. With ``id_rank`` ties may rank in another order than the run has. So hits that tie
    with the last of the first ``depth`` are judged too.
    """
    index = np.flatnonzero(_may_count(run, depth, ties=id_rank is not None))
    owner = run.query_rows[owners(run.offsets)[index]]
    asked = np.isin(owner, query_rows)
    owner, passages = owner[asked], run.passage_rows[index[asked]]
    found = book.contains(owner, passages)
    owner, passages = owner[found], passages[found]
    order = np.argsort(owner, kind="stable")
    lengths = np.bincount(np.searchsorted(query_rows, owner), minlength=len(query_rows))
    return Qrels(query_rows, offsets_of(lengths), passages[order], np.ones(len(passages), np.int32))


def _may_count(run: Run, depth: int, *, ties: bool) -> Bool:
    """Whether each hit [n] may be among the first ``depth`` of its list, in some order of ties."""
    owner = owners(run.offsets)
    rank = np.arange(len(owner)) - run.offsets[owner]
    inside = rank < depth
    if not ties or inside.all():
        return inside
    rising = np.flatnonzero((run.scores[1:] > run.scores[:-1]) & (rank[1:] > 0)) + 1
    disordered = np.zeros(len(run), bool)
    disordered[owner[rising]] = True
    last = np.minimum(run.offsets[:-1] + depth, run.offsets[1:]) - 1
    return np.asarray(inside | disordered[owner] | (run.scores >= run.scores[last][owner]))


def check_answers(measures: Sequence[Measure], collection: Collection | None) -> None:
    """Refuse measures that look for answers if there are no answers.

    Raises
    ------
    SettingsError : no collection is given.
    InputError : the collection has no answers.
    """
    wanted = [measure for measure in measures if measure.by_answers]
    if wanted and collection is None:
        what = f"{wanted[0]} looks for answers in texts, but a qrels file has no texts and no answers"
        raise SettingsError("NO_COLLECTION", what, "give --data, a collection with answers")
    if wanted and collection is not None and not collection.has_answers:
        what = f"{wanted[0]} looks for answers, but no query of the collection has one"
        raise InputError("NO_ANSWERS", what, "leave it out, or import a collection with answers")


def evaluate_with_answers(
    run: Run,
    qrels: Qrels,
    measures: Sequence[Measure],
    *,
    collection: Collection | None,
    cache: Path,
    id_rank: Int32 | None,
) -> Evaluation:
    """Score a run as :func:`evaluate` does, and by Answer@k: whether one of the first k hits contains an answer.

    A passage of the collection that is the query itself is no hit, unless it is judged relevant.

    Parameters
    ----------
    qrels : the queries to score. Measures by judgements count queries with a relevant passage; measures by
        answers count queries with an answer.
    cache : the folder of the answer cache (:class:`AnswerCache`).

    Raises
    ------
    SettingsError, InputError : where :func:`check_answers` or :func:`evaluate` raise them.
    """
    check_answers(measures, collection)
    if collection is not None:
        run = without_own(run, qrels.positives(), collection)
    judged = [measure for measure in measures if not measure.by_answers]
    parts = [evaluate(run, qrels, judged, id_rank=id_rank)] if judged else []
    for mode in dict.fromkeys(measure.mode for measure in measures if measure.by_answers):
        assert collection is not None
        wanted = [measure for measure in measures if measure.by_answers and measure.mode == mode]
        parts.append(_by_answers(run, qrels, wanted, AnswerCache(collection, cache, mode), id_rank))
    return joined(parts, run, [str(measure) for measure in measures])


def _by_answers(
    run: Run, qrels: Qrels, measures: Sequence[Measure], book: AnswerCache, id_rank: Int32 | None
) -> Evaluation:
    """The evaluation of Answer measures that share a mode (strings or patterns)."""
    rows = qrels.query_rows[book.answered[qrels.query_rows]]
    if not len(rows):
        what = f"{measures[0]} looks for answers, but no query of the split has one"
        raise InputError("NO_ANSWERS", what, "leave it out, or choose a split with answers")
    deepest = max(measure.depth for measure in measures)
    contained = judge_by_answers(book, run, rows, deepest, id_rank=id_rank)
    hits = judged_hits(run, contained, id_rank=id_rank)
    return Evaluation(rows, {str(measure): success(hits, measure) for measure in measures}, 0, 0)
