"""The import command: it makes a collection of a source, and a pool of the negatives that the source has."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from hardneg.api.external import keep_given
from hardneg.api.inputs import Data, Place, check_new, collection_of
from hardneg.arguments import checked
from hardneg.data.checks import Rules
from hardneg.data.collection import Collection, is_made_of
from hardneg.data.formats.in_memory import source_from_pairs
from hardneg.data.importing import find_source, import_collection
from hardneg.data.languages import language_named
from hardneg.data.record_source import Source
from hardneg.errors import InputError, SettingsError
from hardneg.negatives.pool import NegativePool
from hardneg.process.progress import note
from hardneg.storage.artifacts import remove


def convert(
    source: str, to: Place, *, format: str = "auto", negatives: Place | None = None, **options: Any
) -> dict[str, Any]:
    """Import a source into a new folder, and keep the negatives that it gives as a pool at ``negatives``.

    With ``negatives``, the collection of this source may stand at ``to`` already: of a command without them, or of
    one that was killed before the pool was whole.

    Parameters
    ----------
    options : as of :func:`~hardneg.data.importing.import_collection`.

    Returns
    -------
    The collection's place, digest and counts; for a pool, also its place and number of negatives.
    """
    if negatives is None:
        check_new(Path(to))
    found = find_source(source, format)
    there = False
    if negatives is not None:
        check_new(Path(negatives))
        check_beside(Path(to), Path(negatives))
        if found.negatives is None:
            what = f"the format {found.format} gives no negatives as texts"
            raise InputError("NO_NEGATIVES", what, "leave --negatives out, or read them by hardneg mine --file")
        if there := is_imported(Path(to), found, **options):
            note(f"{to}: this collection is whole already, and only the negatives are kept")
    collection = Collection.open(to) if there else import_collection(found, to, **options)
    facts = {"collection": str(to), "digest": collection.digest, **collection.facts}
    if negatives is not None:
        split = "train" if "train" in collection.splits else next(iter(collection.splits), "train")
        try:
            pool = keep_given(found, collection, Path(negatives), split=split)
        except BaseException:
            if not there:
                remove(Path(to))  # all or nothing: the corrected command finds no collection in its way
            raise
        facts |= {"negatives": str(negatives), "given_negatives": len(pool.passage_rows)}
    elif found.negatives is not None and next(found.negatives(), None) is not None:
        note("the source gives negatives too; import it with --negatives POOL to keep them")
    return facts


@checked
def import_negatives(
    source: Any,
    data: Data,
    out: Place,
    *,
    split: str = "train",
    format: str = "auto",
    cache: Place | None = None,
) -> NegativePool:
    """Keep the negatives of triplets in memory, or of a source, as a pool that recipes train on.

    A positive of the query, or a copy of its text, is left out. If all rows have a teacher's scores, the pool has
    them too.

    Parameters
    ----------
    source : pairs with negatives in memory, as of :meth:`~hardneg.data.collection.Collection.from_pairs`; or
        ``[FORMAT:]PLACE``, as of :func:`~hardneg.data.importing.import_collection`.
    data : the collection, which has the texts of the negatives; one that is made of ``source`` has them.
    out : the new folder of the pool.
    split : the split whose queries have the negatives.
    format : of the source.
    cache : keeps what is read of ``data``.

    Raises
    ------
    InputError : the source has no negatives for these queries, or all are their positives, or they are not in the
        collection.
    """
    check_new(Path(out))
    found = find_source(str(source), format) if isinstance(source, str | Path) else source_from_pairs(source)
    return keep_given(found, collection_of(data, cache), out, split=split)


def is_imported(to: Path, source: Source, *, language: str | None = None, **rules: Any) -> bool:
    """Whether the collection that the import would make stands there already."""
    if language is not None:
        source = replace(source, language=language_named(language))
    return is_made_of(to, source, Rules(**rules))


def check_beside(to: Path, negatives: Path) -> None:
    """Refuse places where the collection and the pool would lie in one another."""
    to, negatives = to.absolute(), negatives.absolute()
    if to == negatives or to in negatives.parents or negatives in to.parents:
        what = f"the collection at {to} and the pool at {negatives} would lie in one folder"
        raise SettingsError("BAD_SETTING", what, "give --to and --negatives two folders side by side")
