"""A small artefact, for tests that damage or delete it."""

import numpy as np

from hardneg.storage.artifacts import open_artifact, publish, read_json

KIND = "pool"


def make(path, text="one", **options):
    """A small artefact of two files, one in a subfolder."""
    with publish(path, KIND, settings={"k": 10}, inputs={"collection": "c0ffee"}, **options) as draft:
        draft.json("texts/words.json", {"text": text, "größe": 1})
        draft.array("rows.npy", np.arange(5, dtype=np.int32))
        draft.facts["rows"] = 5
    return path


def text_of(path):
    open_artifact(path, KIND)
    return read_json(path / "texts/words.json")["text"]
