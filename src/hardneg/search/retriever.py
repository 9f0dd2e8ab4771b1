"""A model over a collection: what it retrieves for queries, passages and texts, from embeddings or an index."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from hardneg.data.collection import Collection
from hardneg.data.tokens import SomeTokens, TokenStore, token_batch
from hardneg.errors import ArtifactError
from hardneg.models.bi_encoder import BiEncoder
from hardneg.models.packing import plan_batches
from hardneg.models.tokenizing import texts_digest, token_store
from hardneg.process.distributed import apart, by_leader, has_others, member, sum_over_all
from hardneg.process.progress import track
from hardneg.records import Float32, Int32, Int64, Run, Side, VectorsByRow, distinct, owners, take_spans
from hardneg.search.embedding_store import VERSION
from hardneg.search.embeddings import Embeddings, discard
from hardneg.search.encoding import Encoding, encode_side, opened_soon
from hardneg.search.locked import Guarded, one_at_a_time, opened_once
from hardneg.search.parts import SharedIndex
from hardneg.search.retrieve import Index, StoredIndex, dot_products, index_run
from hardneg.search.runs import KIND, check_rows, check_texts, is_of, limited_run, loaded, part_of, save_run
from hardneg.search.vectors import as_tensor
from hardneg.storage.artifacts import digest_json, is_current, is_published, place_in, read_manifest
from hardneg.storage.lease import LEASES, sharing

EMBEDDINGS = "embeddings"  # the folder of embeddings in a cache
SIDES: tuple[Side, ...] = ("passage", "query")
Timed = Callable[..., contextlib.AbstractContextManager[Any]]


def untimed(stage: str, **facts: Any) -> contextlib.AbstractContextManager[Any]:
    """Run a block without measuring its time."""
    return contextlib.nullcontext({})


# ---------------------------------------------------------------- a model over a collection


class Retriever(Guarded):
    """A model over a collection that answers any number of searches; embeddings and indexes are opened once.

    Several threads may ask it: a lock lets one of them compute at a time, so each gets, bit for bit, what it would
    get alone. :meth:`hold` opens everything now and keeps it, for a process that answers for days.

    Parameters
    ----------
    encoder : the model. Its weights may change only if the retriever is not asked again, or if all answers are
        published already (:class:`CachedRetriever`).
    cache : where token stores and embeddings live, by digests.
    encoding : how embeddings are made.
    index : is searched in place of embeddings; see :func:`~hardneg.search.ann.open_index`.
    passages_at : embeddings of the corpus made by this model before, instead of those in the cache.
    beside : a second cache, read only: its stores of passages are used if the first has none.
    timed : context manager that measures a stage.

    Attributes
    ----------
    digest : identity of the model when the retriever was made; sides : the identity of each of its sides.
    among : rows of the passages that are searched; None: all (:meth:`limited`).
    alone : whether only these passages are encoded.
    """

    def __init__(
        self,
        encoder: BiEncoder,
        collection: Collection,
        cache: Path,
        *,
        encoding: Encoding,
        index: Index | None = None,
        passages_at: Path | None = None,
        beside: Path | None = None,
        timed: Timed = untimed,
    ) -> None:
        super().__init__()
        self.encoder, self.collection, self.cache = encoder, collection, cache
        self.encoding, self.index, self.timed = encoding, index, timed
        self.passages_at, self.beside = passages_at, beside
        self.among: Int32 | None = None
        self.part = ""  # digest of these rows
        self.alone = False
        self.digest = encoder.digest()  # now: the weights may change while the retriever is looked at
        passage = encoder.digest("passage")
        self.sides = {"passage": passage, "query": passage if encoder.tied else encoder.digest("query")}
        self._held: contextlib.ExitStack | None = None
        self._exact: StoredIndex | None = None  # kept while held

    def __repr__(self) -> str:
        return f"{type(self).__name__} of model {self.digest[:12]} over {self.collection.n_passages:,} passages"

    # ------------------------------------------------------------ resident

    @one_at_a_time
    def hold(self, *, searching: bool = True) -> Self:
        """Open all that is needed to answer texts (the vectors, the weights), and keep it until :meth:`close`.

        Until then the encoder belongs to the retriever: it is in inference mode, and must not be trained. If there
        are no embeddings, the corpus is encoded now.

        Parameters
        ----------
        searching : whether it will search; one that only scores pairs keeps no vectors on a device.
        """
        if self._held is None:
            with contextlib.ExitStack() as stack:
                stack.enter_context(self.encoder.prepared(self.encoding.precision))
                stack.callback(setattr, self, "_exact", None)
                if self.index is None and searching:
                    self._exact = StoredIndex(self.passages, self.encoder.device, resident=True)
                _ = self.chunks
                self._held = stack.pop_all()
        return self

    @one_at_a_time
    def close(self) -> None:
        """Let go of what :meth:`hold` keeps; the encoder is as it was before."""
        if self._held is not None:
            held, self._held = self._held, None
            held.close()

    def __enter__(self) -> Self:
        return self.hold()

    def __exit__(self, *fault: object) -> None:
        self.close()

    def through(self, index: Index) -> Self:
        """A retriever of this model and collection that searches ``index`` instead."""
        assert self.among is None, "an index holds the whole corpus"
        other = copy.copy(self)
        other.index = index
        return other

    def __copy__(self) -> Self:
        """A copy that holds nothing: what :meth:`hold` opened stays with the retriever that it was asked of."""
        other = super().__copy__()
        other._held = other._exact = None
        return other

    @one_at_a_time
    def limited(self, passages: Int32, *, alone: bool) -> Self:
        """A retriever of this model that searches these passages of the collection, and no others.

        Its runs name the collection's rows. It answers queries only: neighbours of passages need the whole corpus.

        Parameters
        ----------
        passages : rows, in any order. Each text must be one sequence: no MaxP.
        alone : encode no other passages; otherwise the embeddings of the corpus are searched.
        """
        assert self.index is None, "an index holds what it holds"
        assert self.encoder.settings.chunks == 1, "each text is one sequence"
        other = copy.copy(self)
        other.among, other.alone = distinct(passages).astype(np.int32), alone
        other.part = part_of(other.among)
        if alone or self.alone:
            other.__dict__.pop("passages", None)
        return other

    # ------------------------------------------------------------ runs

    @one_at_a_time
    def search_queries(self, query_rows: Int32, k: int, *, as_trained: bool = False) -> Run:
        """The run of these queries of the collection, ``k`` deep, published nowhere.

        Parameters
        ----------
        as_trained : queries are as long as training steps read them, not as long as search does.
        """
        check_rows(query_rows, self.collection.n_queries)
        index = self._searched()  # first, to refuse wrong embeddings before queries are encoded
        return self._search(index, self.queries_as(as_trained).rows(query_rows), query_rows, k)

    @one_at_a_time
    def search_passages(self, owners: Int32, anchors: Int32, k: int) -> Run:
        """The neighbours of passages, not published: list i has those of ``anchors[i]``, for query ``owners[i]``.

        The vector of a passage is its row of the corpus embeddings, so nothing is encoded again.
        """
        index = self._searched()
        return self._search(index, self.passage_vectors(anchors), owners, k)

    @one_at_a_time
    def search_texts(self, texts: Sequence[str], k: int) -> Run:
        """The run of texts that are no queries of the collection; its query rows count from 0."""
        check_texts(texts)
        vectors = self.text_vectors(texts)
        return self._search(self._searched(), vectors, np.arange(len(texts), dtype=np.int32), k)

    @one_at_a_time
    def text_vectors(self, texts: Sequence[str]) -> NDArray[Any]:
        """The vectors [n, dim] of texts as queries, as search reads them."""
        tokens = token_batch(
            list(texts), [], self.encoder.search_template("query"), self.encoder.tokenizer("query")
        )
        few = len(tokens.ids) <= self.encoding.token_budget
        batches = [np.arange(len(tokens))] if few else plan_batches(tokens.lengths, self.encoding.token_budget)
        vectors = np.empty((len(tokens), self.encoder.dim), np.float32)
        with self.encoder.inference(self.encoding.precision):
            for batch in batches:
                vectors[batch] = self.encoder.encode(tokens.take(batch), "query").cpu().numpy()
        return vectors

    def _searched(self) -> Index:
        """The index that is searched: the one that was given, or the exact one over the corpus embeddings.

        While the other processes of a group wait for this one, all of them search it, each in its part.
        """
        if self.index is not None:
            return self.index
        if apart():
            return SharedIndex(self.passages, self.encoder.device, rows=None if self.alone else self.among)
        if self.among is not None and not self.alone:
            return StoredIndex(self.passages, self.encoder.device, rows=self.among)
        return (
            self._exact
            if self._exact is not None
            else StoredIndex(self.passages, self.encoder.device, resident=True)
        )

    def _search(self, index: Index, vectors: NDArray[Any], query_rows: Int32, k: int) -> Run:
        asked = as_tensor(vectors), query_rows, k, self.collection.digest
        with track("searching", "queries", kind="search") as tick:
            run = index_run(index, *asked, documents=self.chunks, progress=tick)
        return run if self.among is None else limited_run(run, self.among, self.part)

    # ------------------------------------------------------------ vectors and scores

    @opened_once
    def chunks(self) -> Int64 | None:
        """The offsets [n + 1] of passages' vectors, of which the best one counts (MaxP); None: one vector each."""
        return None if self.encoder.settings.chunks == 1 else self._embeddings("passage")[0].first

    @one_at_a_time
    def passage_vectors(self, passages: Int32) -> NDArray[Any]:
        """The vector of each passage when it serves as a query; a document has that of its first chunk."""
        return self.passages.rows(self._stored(passages) if self.chunks is None else self.chunks[passages])

    @one_at_a_time
    def pair_scores(self, vectors: NDArray[Any], passages: Int32) -> Float32:
        """The score of each vector and its passage [n], as a search gives it: that of a document's best chunk."""
        if self.chunks is None:
            return dot_products(vectors, self.passages.rows(self._stored(passages)))
        rows, offsets = take_spans(self.chunks, passages)
        each = dot_products(vectors[owners(offsets)], self.passages.rows(rows))
        return np.maximum.reduceat(each, offsets[:-1])

    def _stored(self, passages: Int32) -> Int32:
        """The rows of passages among those that are embedded."""
        return np.searchsorted(self.among, passages).astype(np.int32) if self.alone else passages  # type: ignore[arg-type]

    @opened_once
    def passages(self) -> Embeddings:
        """The embeddings of the corpus, made now if they are not there."""
        if self.passages_at is None:
            return self._embed("passage")
        given = Embeddings.open(self.passages_at)
        if (found := given.manifest.inputs["encoder"]) != self.sides["passage"]:
            what = f"embeddings of model {found[:12]}…, searched with model {self.sides['passage'][:12]}…"
            raise ArtifactError("OTHER_MODEL", what, "encode with this model", path=self.passages_at)
        if (found := given.manifest.inputs["tokens"]) != (ours := self._embeddings("passage")[0].digest):
            what = f"embeddings of other texts ({found[:12]}…, not {ours[:12]}…), or with other lengths or prompts"
            fix = "encode the passages of this collection, with the lengths and prompts that you search with"
            raise ArtifactError("OTHER_TEXTS", what, fix, path=self.passages_at)
        return given

    @opened_once
    def queries(self) -> VectorsByRow:
        """All queries of the collection, embedded as search reads them."""
        return self._queries(searching=True)

    @opened_once
    def training_queries(self) -> VectorsByRow:
        """The queries of :attr:`queries`, embedded as training steps read them."""
        return self._queries(searching=False) if self.shortened(True) else self.queries

    def queries_as(self, trained: bool) -> VectorsByRow:
        """The vectors of the queries as training reads them if ``trained``, else as search does."""
        return self.training_queries if trained else self.queries

    def _queries(self, *, searching: bool) -> VectorsByRow:
        return self._embed("query", searching=searching)

    @one_at_a_time
    def open_together(self, *, as_trained: bool = False) -> None:
        """Encode what is missing, on all processes of a group together, before one of them searches for all.

        Parameters
        ----------
        as_trained : queries are as long as training steps read them.
        """
        if has_others():
            _ = self.queries_as(as_trained)
            if self.index is None:
                _ = self.passages

    # ------------------------------------------------------------ embeddings in the cache

    @property
    def texts_digest(self) -> str:
        """The identity of the passages' token sequences, which are made if they are not there."""
        return texts_digest(self.encoder, self.collection, self.cache, self.beside)

    def shortened(self, as_trained: bool) -> dict[str, str]:
        """The training length of queries as an input of manifests, if ``as_trained`` and search has another one.

        Otherwise there is no such input, since the runs are the same.
        """
        length = self.encoder.template("query").max_length
        same = not as_trained or length == self.encoder.search_template("query").max_length
        return {} if same else {"query_length": str(length)}

    def _embed(self, side: Side, *, searching: bool = True) -> Embeddings:
        try:
            return self._embedded(side, searching)
        except ArtifactError as fault:
            if fault.code != "NO_MANIFEST":
                raise
            if has_others():
                fix = "all processes must see the same files: give a --cache (and --out) that all of them share"
                raise ArtifactError("NO_MANIFEST", fault.what, fix, path=fault.path) from fault
            # An experiment that shares the cache and trains the same may have deleted them meanwhile.
            return self._embedded(side, searching)

    def _embedded(self, side: Side, searching: bool) -> Embeddings:
        store, path = self._embeddings(side, searching=searching)
        if path.parent != self.cache / EMBEDDINGS:  # nothing is made there
            sum_over_all(0)  # the very call below, should another process not see them
            return Embeddings.open(path)
        ready = is_published(path)
        held = contextlib.nullcontext() if ready else sharing(self.cache / LEASES / path.name)
        encoded = 0  # tokens; not those of the store: it may be cached, whole or in part
        with self.timed("encode", side=side, tokens=0, cached=ready) as facts:

            def counted(done: int, total: int) -> None:
                nonlocal encoded
                encoded = done

            with held:  # nothing deletes what is being made
                made = encode_side(
                    self.encoder,
                    self.collection,
                    store,
                    path,
                    side=side,
                    encoding=self.encoding,
                    shard=member(),
                    counted=counted,
                )
            facts["tokens"] = sum_over_all(encoded)  # which waits: others may have shards to make
        return made or opened_soon(path)

    def _embeddings(self, side: Side, *, searching: bool = True) -> tuple[TokenStore | SomeTokens, Path]:
        """The token store of a side, and where its embeddings live: keyed by digests, never by a name."""
        beside = self.beside if side == "passage" else None
        store: TokenStore | SomeTokens = token_store(
            self.encoder, self.collection, self.cache, side, searching=searching, beside=beside
        )
        if side == "passage" and self.alone:
            store = SomeTokens(store, self.among)  # type: ignore[arg-type]  # it was none before
        key = digest_json([VERSION, self.sides[side], store.digest, dataclasses.asdict(self.encoding)])
        return store, place_in(self.cache, beside, Path(EMBEDDINGS, key[:32]), Embeddings.open)

    @one_at_a_time
    def release(self, *sides: Side) -> None:
        """Let go of the embeddings (of ``sides``) that are open; they are opened again when they are needed."""
        for side in sides or SIDES:
            for name in ("passages",) if side == "passage" else ("queries", "training_queries"):
                self.__dict__.pop(name, None)

    @one_at_a_time
    def discard(self, *sides: Side) -> None:
        """Delete the embeddings (of ``sides``) in the cache."""
        self.release(*sides)  # first: NFS keeps what is mapped
        for place in sorted(self.stores(*sides)):
            by_leader(discard, place)

    def stores(self, *sides: Side) -> set[Path]:
        """The folders of the embeddings (of ``sides``) in the cache, whether or not they are there.

        Those of the cache ``beside`` are not among them: they belong to another experiment.
        """
        places = {
            self._embeddings(side, searching=searching)[1]
            for side in sides or SIDES
            for searching in ((True, False) if side == "query" and self.shortened(True) else (True,))
        }
        return {place for place in places if place.parent == self.cache / EMBEDDINGS}


# ---------------------------------------------------------------- with a store of runs


class CachedRetriever(Retriever):
    """A retriever whose runs are published in a folder, each under a name, and made once.

    Parameters
    ----------
    folder : where the runs are published.
    options : the options of :class:`Retriever`.
    """

    def __init__(
        self, encoder: BiEncoder, collection: Collection, folder: Path, cache: Path, **options: Any
    ) -> None:
        super().__init__(encoder, collection, cache, **options)
        self.folder = folder

    def search(self, name: str, query_rows: Int32, k: int, *, as_trained: bool = False) -> Run:
        """The run of these queries, ``k`` deep, published as ``name``; a deeper run that is there is cut to ``k``.

        Parameters
        ----------
        as_trained : queries are as long as training steps read them, not as long as search does.
        """
        return self._run(name, query_rows, k, None, as_trained=as_trained)

    def neighbours(self, name: str, owners: Int32, anchors: Int32, k: int) -> Run:
        """The neighbours of passages, published as ``name``: list i is of ``anchors[i]``, for query ``owners[i]``.

        See :meth:`Retriever.search_passages`.
        """
        return self._run(name, owners, k, anchors)

    def inputs_of(self, asked: list[Any], *, as_trained: bool) -> dict[str, str]:
        """The inputs that decide the answer to a question, by name; ``asked`` is the question as JSON."""
        return {
            "collection": self.collection.digest,
            "model": self.digest,
            "encoding": digest_json(dataclasses.asdict(self.encoding)),
            "asked": digest_json(asked),
            **self.shortened(as_trained),
            **({} if self.among is None else {"passages": self.part}),
        }

    @one_at_a_time
    def _run(
        self, name: str, query_rows: Int32, k: int, anchors: Int32 | None, *, as_trained: bool = False
    ) -> Run:
        asked = [query_rows.tolist(), None if anchors is None else anchors.tolist()]
        inputs, path = self.inputs_of(asked, as_trained=as_trained), self.folder / name
        if by_leader(lambda: not is_current(path, KIND, inputs) or read_manifest(path).settings["k"] < k):
            queries: VectorsByRow = self.queries_as(as_trained) if anchors is None else self.passages
            if self.index is None:
                _ = self.passages

            def search() -> None:  # all have encoded, one asks, all search what they encoded
                vectors = queries.rows(query_rows) if anchors is None else self.passage_vectors(anchors)
                with self.timed("search", run=path.name, queries=len(query_rows), k=k):
                    run = self._search(self._searched(), vectors, query_rows, k)
                save_run(run, path, inputs=inputs, settings={"k": k})

            by_leader(search)
        run = loaded(path)
        if not by_leader(is_of, path, inputs, k):  # another command has put its own run there meanwhile
            return self._run(name, query_rows, k, anchors, as_trained=as_trained)
        if isinstance(run, Exception):
            raise run
        return run.cut(k)
