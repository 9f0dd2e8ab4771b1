"""What one state of the model retrieves: embeddings, and the runs that mining and evaluation read."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from hardneg.data.collection import Collection
from hardneg.data.tokens import TokenStore, token_batch
from hardneg.errors import ArtifactError
from hardneg.models.bi_encoder import BiEncoder
from hardneg.models.tokenizing import texts_digest, token_store
from hardneg.process.distributed import barrier, by_leader, member
from hardneg.process.hardware import Precision
from hardneg.process.memory import require
from hardneg.process.progress import track
from hardneg.records import Float32, Int32, Int64, Run, Side, owners, take_spans
from hardneg.search.ann import PassageIndex, index_run, traits
from hardneg.search.embedding_store import VERSION
from hardneg.search.embeddings import Dtype, Embeddings, discard, encode_store, encoding_memory
from hardneg.search.retrieve import dot_products, search_run
from hardneg.search.runs import KIND, load_run, save_run
from hardneg.search.vectors import as_tensor
from hardneg.storage.artifacts import digest_json, is_current, is_published, publish, read_manifest

GEOMETRY = "geometry"
AT_ONCE = 256  # queries that are encoded together where not all are
Timed = Callable[..., contextlib.AbstractContextManager[Any]]
Asked = Literal["all", "judged", "dev"]  # judged: dev and test, no training queries; dev: that alone


def untimed(stage: str, **facts: Any) -> contextlib.AbstractContextManager[Any]:
    """Measure nothing."""
    return contextlib.nullcontext({})


@dataclasses.dataclass(frozen=True)
class Encoding:
    """How a state's embeddings are made; all of it decides their bits."""

    token_budget: int = 16384
    dtype: Dtype = "float16"
    precision: Precision = "float32"


class Snapshot:
    """One state of the model over a collection. Everything is computed on demand and published once.

    Parameters
    ----------
    name : of the state, for people.
    folder : where this state's runs are published.
    cache : where token stores and embeddings live.
    timed : context manager that measures a stage, such as ``Experiment.timed``.
    passages_at : embeddings of the corpus made by this model before, instead of those in the cache.
    step : optimiser steps that made it, where training is one long run.
    keeps : never discard the embeddings, for others may want them.
    trained_on : the pool that the model was trained on last.
    asked : which queries the state is searched for when it is examined.
    kept_at : where its weights stand; None: nowhere, or not yet.
    """

    def __init__(
        self,
        encoder: BiEncoder,
        collection: Collection,
        name: str,
        folder: Path,
        cache: Path,
        *,
        encoding: Encoding,
        timed: Timed = untimed,
        passages_at: Path | None = None,
        step: int | None = None,
        keeps: bool = False,
        trained_on: Path | None = None,
        asked: Asked = "all",
        kept_at: Path | None = None,
    ) -> None:
        self.kept_at = kept_at
        self.encoder, self.collection, self.name = encoder, collection, name
        self.folder, self.cache, self.trained_on, self.asked = folder, cache, trained_on, asked
        self.encoding, self.timed, self.passages_at = encoding, timed, passages_at
        self.digest, self.step, self.keeps = encoder.digest(), step, keeps
        self.index: PassageIndex | None = None
        passage = encoder.digest("passage")  # now: the weights may change while this state is looked at
        self.sides = {"passage": passage, "query": passage if encoder.tied else encoder.digest("query")}

    def search(self, name: str, query_rows: Int32, k: int, *, as_trained: bool = False) -> Run:
        """The run of these queries, ``k`` deep, published as ``name``; a deeper one that is there serves too.

        Parameters
        ----------
        as_trained : queries are as long as training steps read them, not as long as search does.
        """
        return self._run(name, query_rows, k, None, as_trained=as_trained)

    def neighbours(self, name: str, owners: Int32, anchors: Int32, k: int) -> Run:
        """The neighbours of passages, published as ``name``: list i is that of ``anchors[i]``, for ``owners[i]``.

        A positive encoded as a passage is its own row of the corpus embeddings, so nothing is encoded again.
        """
        return self._run(name, owners, k, anchors)

    def ranked(self, query_rows: Int32, k: int) -> Run:
        """The run of these queries, ``k`` deep, which is published nowhere."""
        passages = self._searched()  # first: they may be given, and wrong
        return self._search(self.queries.rows(query_rows), query_rows, passages, k)

    @property
    def texts_digest(self) -> str:
        """Identity of the passages' token sequences."""
        return texts_digest(self.encoder, self.collection, self.cache)

    def _searched(self) -> Embeddings | None:
        """The embeddings to search; None where an index is searched instead."""
        return self.passages if self.index is None else None

    def with_index(self, index: PassageIndex, name: str, folder: Path) -> Snapshot:
        """The state called ``name`` of this model, as ``index`` retrieves it; ``folder`` is for its runs."""
        other = copy.copy(self)
        other.name, other.folder, other.index = name, folder, index
        return other

    def search_texts(self, texts: list[str], k: int) -> Run:
        """The run of texts that are no queries of the collection; its query rows count from 0."""
        tokens = token_batch(texts, [], self.encoder.search_template("query"), self.encoder.tokenizer("query"))
        with self.encoder.inference(self.encoding.precision):
            vectors = self.encoder.encode(tokens, "query").cpu().numpy()
        return self._search(vectors, np.arange(len(texts), dtype=np.int32), self._searched(), k)

    def _run(
        self, name: str, query_rows: Int32, k: int, anchors: Int32 | None, *, as_trained: bool = False
    ) -> Run:
        asked = [query_rows.tolist(), None if anchors is None else anchors.tolist()]
        inputs = {
            "collection": self.collection.digest,
            "model": self.digest,
            "encoding": digest_json(dataclasses.asdict(self.encoding)),
            "asked": digest_json(asked),
            **self.shortened(as_trained),
        }
        path = self.folder / name
        if by_leader(lambda: not is_current(path, KIND, inputs) or read_manifest(path).settings["k"] < k):
            queries = self.queries_as(as_trained) if anchors is None else self.passages
            passages = self._searched()

            def search() -> None:  # all have encoded, one searches
                vectors = queries.rows(query_rows) if anchors is None else self.passage_vectors(anchors)
                with self.timed("search", run=path.name, queries=len(query_rows), k=k):
                    run = self._search(vectors, query_rows, passages, k)
                save_run(run, path, inputs=inputs, settings={"k": k})

            by_leader(search)
        return load_run(path).cut(k)

    def _search(self, vectors: NDArray[Any], query_rows: Int32, passages: Embeddings | None, k: int) -> Run:
        if passages is None:
            assert self.index is not None
            wanted = as_tensor(vectors), query_rows, k, self.collection.digest
            return index_run(self.index, *wanted, documents=self.chunks)
        with track("searching", "queries") as tick:
            return search_run(
                vectors,
                query_rows,
                passages,
                k,
                collection_digest=self.collection.digest,
                documents=self.chunks,
                device=self.encoder.device,
                progress=tick,
            )

    @cached_property
    def chunks(self) -> Int64 | None:
        """[n + 1] where the vectors of each passage begin; None: it has one."""
        return None if self.encoder.settings.chunks == 1 else self._embeddings("passage")[0].first

    def passage_vectors(self, passages: Int32) -> NDArray[Any]:
        """The vector that stands for each passage as a query: of a document that of its first chunk."""
        return self.passages.rows(passages if self.chunks is None else self.chunks[passages])

    def pair_scores(self, vectors: NDArray[Any], passages: Int32) -> Float32:
        """The score of each vector and its passage [n], as a search gives it: that of a document's best chunk."""
        if self.chunks is None:
            return dot_products(vectors, self.passages.rows(passages))
        rows, offsets = take_spans(self.chunks, passages)
        each = dot_products(vectors[owners(offsets)], self.passages.rows(rows))
        return np.maximum.reduceat(each, offsets[:-1])

    def save_corpus_stats(self) -> None:
        """Publish the corpus mean vector and how alike the passages are, which outlive the embeddings."""
        inputs, path = {"collection": self.collection.digest, "model": self.digest}, self.folder / GEOMETRY
        if not by_leader(is_current, path, GEOMETRY, inputs):
            passages = self.passages

            def keep() -> None:
                with publish(path, GEOMETRY, inputs=inputs, replace=True) as draft:
                    draft.array("mean.npy", passages.mean)
                    draft.facts["mean_pairwise_cosine"] = passages.mean_pairwise_cosine
                    draft.facts["step"] = self.step

            by_leader(keep)

    @cached_property
    def passages(self) -> Embeddings:
        """The corpus, embedded."""
        if self.passages_at is None:
            return self._embed("passage")
        given = Embeddings.open(self.passages_at)
        if (found := given.manifest.inputs["encoder"]) != self.sides["passage"]:
            what = f"embeddings of model {found[:12]}…, searched with model {self.sides['passage'][:12]}…"
            raise ArtifactError("OTHER_MODEL", what, "encode with this model", path=self.passages_at)
        if (found := given.manifest.inputs["tokens"]) != (ours := self._embeddings("passage")[0].digest):
            what = f"embeddings of the texts {found[:12]}…, searched for those of {ours[:12]}…"
            raise ArtifactError("OTHER_TEXTS", what, "encode them at this length", path=self.passages_at)
        return given

    @cached_property
    def queries(self) -> Embeddings | AskedQueries:
        """All queries of the collection, embedded as search reads them; of a state asked for dev, only those."""
        return self._queries(searching=True)

    @cached_property
    def training_queries(self) -> Embeddings | AskedQueries:
        """The queries of :attr:`queries`, embedded as training steps read them."""
        return self._queries(searching=False) if self.shortened(True) else self.queries

    def _queries(self, *, searching: bool) -> Embeddings | AskedQueries:
        if self.asked == "dev":
            return AskedQueries(self, searching=searching)
        return self._embed("query", searching=searching)

    def queries_as(self, trained: bool) -> Embeddings | AskedQueries:
        """:attr:`training_queries` or :attr:`queries`."""
        return self.training_queries if trained else self.queries

    def shortened(self, as_trained: bool) -> dict[str, str]:
        """What tells runs of queries as training reads them from others; nothing where search reads the same."""
        length = self.encoder.template("query").max_length
        same = not as_trained or length == self.encoder.search_template("query").max_length
        return {} if same else {"query_length": str(length)}

    def _embed(self, side: Side, *, searching: bool = True) -> Embeddings:
        store, path = self._embeddings(side, searching=searching)
        ids = self.collection.query_ids if side == "query" else self.collection.passage_ids
        require(
            encoding_memory(self.encoder, self.encoding.token_budget, len(store)),
            "encoding",
            self.encoder.device.type,
        )
        with (
            self.timed("encode", side=side, tokens=0, cached=is_published(path)) as facts,
            self.encoder.inference(self.encoding.precision),
            track(f"encoding {'queries' if side == 'query' else 'passages'}", "tokens") as tick,
        ):

            def progress(done: int, total: int) -> None:
                facts["tokens"] = done  # not those of the store: it may be cached, whole or in part
                tick(done, total)

            embeddings = encode_store(
                self.encoder,
                store,
                path,
                side=side,
                budget=self.encoding.token_budget,
                dtype=self.encoding.dtype,
                shard=member(),
                name=lambda row: ids[store.document(row)],
                facts=traits(self.encoder, side),
                progress=progress,
            )
            barrier()  # other processes may have shards to make
        return embeddings or Embeddings.open(path)

    def _embeddings(self, side: Side, *, searching: bool = True) -> tuple[TokenStore, Path]:
        """The token store of a side, and where its embeddings live: keyed by digests, never by a name."""
        store = token_store(self.encoder, self.collection, self.cache, side, searching=searching)
        key = digest_json([VERSION, self.sides[side], store.digest, dataclasses.asdict(self.encoding)])
        return store, self.cache / "embeddings" / key[:32]

    def discard(self, *sides: Side) -> None:
        """Delete this state's embeddings (of ``sides``): its runs are kept, and a later state supersedes it."""
        if self.keeps:
            return
        for side in sides or ("passage", "query"):
            for searching in (True, False) if side == "query" and self.shortened(True) else (True,):
                by_leader(discard, self._embeddings(side, searching=searching)[1])
            for name in ("passages",) if side == "passage" else ("queries", "training_queries"):
                self.__dict__.pop(name, None)


class AskedQueries:
    """Queries of a state that are embedded when they are asked for, and kept nowhere."""

    def __init__(self, state: Snapshot, *, searching: bool) -> None:
        self.state, self.searching = state, searching

    def rows(self, rows: NDArray[np.integer[Any]]) -> NDArray[Any]:
        """Vectors [len(rows), dim] of these rows, in that order."""
        state, encoder = self.state, self.state.encoder
        store = token_store(encoder, state.collection, state.cache, "query", searching=self.searching)
        parts = [store.read(rows[i : i + AT_ONCE]) for i in range(0, len(rows), AT_ONCE)]
        with encoder.inference(state.encoding.precision):
            vectors = [encoder.encode(part, "query").cpu().numpy() for part in parts]
        return np.concatenate(vectors).astype(state.encoding.dtype)


class ArchivedState:
    """A state of the model whose runs are kept, though its weights and embeddings may be gone.

    Parameters
    ----------
    name, folder, step, trained_on, asked, kept_at : as of the :class:`Snapshot` that it was.
    within : (episode, step of it) that made it, where ``step`` is None.
    """

    def __init__(
        self,
        name: str,
        folder: Path,
        *,
        step: int | None = None,
        trained_on: Path | None = None,
        asked: Asked = "all",
        kept_at: Path | None = None,
        within: tuple[int, int] | None = None,
    ) -> None:
        self.kept_at, self.within = kept_at, within
        self.name, self.folder, self.step = name, folder, step
        self.trained_on, self.asked = trained_on, asked

    def search(self, name: str, query_rows: Int32, k: int, *, as_trained: bool = False) -> Run:
        """The run that was published as ``name``, whatever its queries' length was."""
        run, deep = load_run(self.folder / name), read_manifest(self.folder / name).settings["k"]
        if deep < k or not np.array_equal(run.query_rows, query_rows):
            what = (
                f"this run is of {len(run):,} queries, {deep} deep; {len(query_rows):,}, {k} deep, are asked for"
            )
            fix = "its model is gone: ask for no more, or train in a new folder"
            raise ArtifactError("OTHER_RUN", what, fix, path=self.folder / name)
        return run.cut(k)

    def neighbours(self, name: str, owners: Int32, anchors: Int32, k: int) -> Run:
        """The neighbours of passages that were published as ``name``."""
        return self.search(name, owners, k)

    def save_corpus_stats(self) -> None:
        """Nothing to do: the statistics were published while the embeddings were there."""


State = Snapshot | ArchivedState
