"""The data that an experiment was trained and judged on, from its folder alone.

Figures that are made of it and of the runs in the folder equal those of ``results.json`` bit for bit, and need no
model. Torch is loaded only for answers.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hardneg.api.inputs import Data, Place, collection_of
from hardneg.arguments import checked
from hardneg.data.training_data import TrainingData, amended, labelled, open_splits
from hardneg.errors import ArtifactError
from hardneg.experiment.folder import kept_judgements, read_settings, splits_of
from hardneg.experiment.provenance import collection_within


@checked
def experiment_data(experiment: Place, data: Data | None = None, *, cache: Place | None = None) -> TrainingData:
    """The training queries, dev and test of an experiment, opened again.

    Parameters
    ----------
    data : the collection, if it is no longer where the experiment remembers it.
    cache : the folder that ``data`` in a foreign convention is imported into.

    Raises
    ------
    SettingsError : the collection does not exist any more, and no other place of it is given.
    ArtifactError : this is no experiment, or one of an older format; the collection is another one.
    """
    folder = Path(experiment)
    record = read_settings(folder)
    names = splits_of(record, folder)
    collection = collection_within(folder) if data is None else collection_of(data, cache)
    same(record, "collection", collection.digest, folder)
    opened = amended(open_splits(collection, names), kept_judgements(folder, collection))
    same(record, "splits", opened.digest, folder)
    return labelled(opened, record["result_settings"])


def same(record: Mapping[str, Any], what: str, digest: str, folder: Path) -> None:
    """Refuse an input whose digest is not the one in the experiment's record."""
    if digest != (was := record["inputs"][what]):
        said = f"the {what} of this experiment was another one (digest {was:.12}, this one's {digest:.12})"
        raise ArtifactError("INPUT_CHANGED", said, "give it with --data", path=folder)
