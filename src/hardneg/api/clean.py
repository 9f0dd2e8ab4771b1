"""Finds what an experiment or the cache need not keep, and deletes it."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from hardneg.api.inputs import Place, cache_at
from hardneg.arguments import checked
from hardneg.data.tokens import KIND as TOKENS
from hardneg.errors import ArtifactError, BusyError, HardnegError
from hardneg.evaluation.answers import KIND as ANSWERS
from hardneg.experiment.folder import read_settings
from hardneg.experiment.layout import RUNS, SETTINGS, Layout, is_store
from hardneg.models.source import REMEMBERED
from hardneg.negatives.pool import PARTS
from hardneg.process.progress import note
from hardneg.recipes import catalogue
from hardneg.report.scripts import SCRIPTS
from hardneg.search.bm25 import KIND as BM25
from hardneg.search.embedding_store import KIND as EMBEDDINGS
from hardneg.storage.artifacts import is_published, lease, read_manifest, remove
from hardneg.storage.disk import stale_below, sweep_below
from hardneg.storage.lease import LEASES, LOCK

DERIVED = (TOKENS, BM25, SCRIPTS, PARTS, ANSWERS)
COLLECTIONS = "collections"  # the cache's folder of imported collections


@dataclass(frozen=True)
class Item:
    """Something that can be deleted, and why."""

    path: str
    kind: str
    bytes: int
    why: str


@checked
def clean(experiment: Place, *, delete: bool = False) -> dict[str, Any]:
    """Find what an experiment need not keep, and ``delete`` it.

    The list never names what resuming, extending or ``inspect`` reads. For an experiment that is not finished, it
    names only the temporary files of processes that died. The derived stores of a finished experiment are made
    again when they are needed. Stores outside the experiment's folder are left alone, links to them too, and so is
    whatever else lies in its cache.

    Returns
    -------
    ``finished``; ``items``: ``path``, ``kind``, ``bytes`` and ``why`` of each; ``bytes``: of all; ``deleted``.

    Raises
    ------
    BusyError : a process works in the experiment; it is named, and unharmed.
    ArtifactError : this is no experiment.
    """
    folder = Path(experiment)
    parts = seeds_with_settings(Layout(folder)) or [folder]
    if not Layout(parts[0]).settings.is_file():
        what = f"there is no {SETTINGS} here, so this is no experiment"
        raise ArtifactError("NOT_EXPERIMENT", what, "give an experiment's folder", path=folder)
    with contextlib.ExitStack() as stack:
        for part in parts:
            stack.enter_context(holding_all(part))
        items = [item for part in parts for item in superfluous(part)]
        if delete:
            for part in parts:
                sweep_below(part)
            for item in items:
                remove(Path(item.path))
    return {
        "experiment": str(folder),
        "finished": all(Layout(part).results.is_file() for part in parts),
        "items": [asdict(item) for item in items],
        "bytes": sum(item.bytes for item in items),
        "deleted": delete,
    }


def seeds_with_settings(layout: Layout) -> list[Path]:
    """The folders of single seeds; a line names each that has lost its settings, and it is left out."""
    found = []
    for seed in layout.seeds():
        if seed.settings.is_file():
            found.append(seed.path)
        else:
            note(f"{seed.path}: {SETTINGS} is missing, so this seed is left out")
    return found


@checked
def clean_cache(cache: Place | None = None, *, delete: bool = False) -> dict[str, Any]:
    """List the stores in the cache, and ``delete`` them. They are made again when they are asked for.

    Other files in the cache stay, and so do links and their targets. A store that another process is making stays,
    too, and a line says so.

    An experiment remembers where its collection lies. If the collection lies in the cache and is deleted, the
    experiment asks for ``--data``.

    Parameters
    ----------
    cache : the cache's folder; by default the user's.

    Returns
    -------
    ``cache``, and ``items``, ``bytes`` and ``deleted`` as :func:`clean` has them.
    """
    root = cache_at(cache)
    places = [place for kind in shelves(root) for place in sorted(kind.iterdir()) if is_store(place)]
    stores = [place for place in places if place.suffix != LOCK]
    items = [item(place, place.parent.name, used_last(place)) for place in stores]
    if delete:
        items = [one for one in items if removed(Path(one.path), root)]
    found = {"items": [asdict(one) for one in items], "bytes": sum(one.bytes for one in items), "deleted": delete}
    return {"cache": str(root), **found}


def removed(store: Path, root: Path) -> bool:
    """Delete a store of a cache; returns False, after a line about it, if another process is making it now."""
    made_under = store.with_suffix(LOCK) if store.parent.name == COLLECTIONS else root / LEASES / store.name
    try:
        with lease(made_under):
            remove(store)
    except BusyError as busy:
        note(f"{store} stays: it is {busy.what}")
        return False
    return True


def shelves(root: Path) -> list[Path]:
    """The folders of a cache that hold stores, one for each kind of store."""
    places = [root / kind for kind in (COLLECTIONS, EMBEDDINGS, REMEMBERED, RUNS, *DERIVED)]
    return [place for place in places if place.is_dir() and not place.is_symlink()]


def used_last(place: Path) -> str:
    """When something was made or changed, in words."""
    return f"of {time.strftime('%Y-%m-%d', time.localtime(place.lstat().st_mtime))}"


def bytes_below(place: Path) -> int:
    """Bytes of all files below a folder."""
    return item(place, "", "").bytes


def freeable_bytes(experiment: Path) -> int:
    """Bytes that :func:`clean` finds in a finished experiment of one seed or several, without temporary files."""
    parts = [seed.path for seed in Layout(experiment).seeds()] or [experiment]
    places = [place for part in parts for kind in (EMBEDDINGS, *DERIVED) for place in Layout(part).stores(kind)]
    places += [place for part in parts for place in old_checkpoints(Layout(part))]
    return sum(map(bytes_below, places))


def old_checkpoints(layout: Layout) -> Iterator[Path]:
    """The folders of the checkpoints of episodes that are over."""
    ended = has_ended(layout)
    for episode in layout.episodes():
        if (ended or is_published(episode.model)) and episode.checkpoints.is_dir():
            yield episode.checkpoints


def has_ended(layout: Layout) -> bool:
    """Whether an experiment is finished, and of a recipe whose only episode nothing extends."""
    single = [facts.name for facts in catalogue.CATALOGUE if facts.one_episode]
    try:
        return layout.results.is_file() and read_settings(layout.path)["recipe"] in single
    except HardnegError:  # damaged settings are told where they are needed
        return False


@contextlib.contextmanager
def holding_all(folder: Path) -> Iterator[None]:
    """Hold an experiment and each of its roles; a role may run without a supervisor."""
    with contextlib.ExitStack() as stack:
        for place in (folder, *Layout(folder).roles_taken()):
            stack.enter_context(lease(place))
        yield


def superfluous(folder: Path) -> Iterator[Item]:
    """Yield what an experiment of one seed need not keep."""
    for leftover, _, place in stale_below(folder):
        if leftover.exists():
            yield item(leftover, "temporary", f"left by a process that died while it worked at {place.name}")
    layout = Layout(folder)
    if not layout.results.is_file():
        return
    stores = layout.stores(EMBEDDINGS)
    final = final_digests(folder) if stores else set()
    yield from (embeddings(store, final) for store in stores)
    for derived in DERIVED:
        for store in layout.stores(derived):
            yield item(store, derived, "made again when it is asked for")
    for place in old_checkpoints(layout):
        yield item(place, "checkpoints", "the episode has ended, and its model is saved")


def embeddings(store: Path, final: set[str]) -> Item:
    """The item of a store of embeddings: those of the final model, or superseded ones."""
    if is_published(store) and read_manifest(store).inputs.get("encoder") in final:
        return item(store, "embeddings", "of the final model; made again when it is asked for")
    return item(store, "superseded embeddings", "no model of this experiment uses them any more")


def final_digests(folder: Path) -> set[str]:
    """The digests of the final model's two sides, as its embeddings record them; empty for a ranker."""
    from hardneg.models.cross_encoder import KIND as RANKER
    from hardneg.models.loading import load_encoder

    model = Layout(folder).model
    if is_published(model, RANKER):
        return set()
    encoder = load_encoder(str(model))
    return {encoder.digest("query"), encoder.digest("passage")}


def item(path: Path, kind: str, why: str) -> Item:
    """The item of what is at ``path``, with its size."""
    alone = path.is_symlink() or path.is_file()
    files = [path] if alone else [file for file in path.rglob("*") if file.is_file()]
    return Item(str(path), kind, sum(file.lstat().st_size for file in files), why)
