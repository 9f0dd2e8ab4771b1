"""The index over fixed passages for which an experiment trains the query side, built here or given."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from hardneg.experiment import layout
from hardneg.experiment.folder import Experiment
from hardneg.experiment.snapshot import Snapshot
from hardneg.process.distributed import by_leader, has_others
from hardneg.process.memory import require
from hardneg.process.threads import load_faiss
from hardneg.search.ann import KIND, open_index
from hardneg.search.ann_building import build_index, choose, memory_of
from hardneg.search.parts import SharedIndex
from hardneg.search.retrieve import Index, StoredIndex
from hardneg.storage.artifacts import is_current


def check_options(kind: str, n: int, dim: int, options: Mapping[str, int]) -> None:
    """Refuse at once the options that :func:`build_once` would refuse after all passages have been encoded.

    Raises
    ------
    SettingsError, InputError : an option does not fit n passages of ``dim``; Faults: several do not.
    SettingsError : faiss is missing.
    ResourceError : the index does not fit into the available memory.
    """
    chosen = choose(kind, n, dim, options)
    load_faiss()
    require(memory_of(kind, n, dim, chosen), "the index")


def build_once(state: Snapshot, experiment: Experiment, kind: str, options: Mapping[str, int]) -> Index:
    """The experiment's own index over a state's passages; it is built unless it exists."""
    path = experiment.layout.index
    inputs = {"embeddings": state.passages.digest, **state.passages.manifest.inputs}
    passages = state.passages

    def build() -> None:
        if not is_current(path, KIND, inputs):
            with experiment.timed("index"):
                build_index(passages, path, kind, options)

    by_leader(build)
    return open_index(path)


def exact_index(state: Snapshot) -> Index:
    """The stored embeddings of a state's passages, searched exactly, by several processes in parts."""
    passages, device = state.passages, state.encoder.device
    return SharedIndex(passages, device) if has_others() else StoredIndex(passages, device, resident=True)


def with_index(state: Snapshot, index: Index) -> Iterator[Snapshot]:
    """Yield the state as an index of faiss retrieves it, named after the index's kind.

    Nothing is yielded for the exact index over the embeddings.
    """
    if about := index.describe():
        kind = about["kind"]
        yield state.with_index(index, f"{state.name}/{kind}", layout.with_index(state.folder, kind))
