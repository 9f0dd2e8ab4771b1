"""The time to the first answer of a fresh process, which searches a corpus whose vectors are on the disk.

Each run starts Python, so imports count. The peer reads the same vectors with numpy and multiplies them.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from contest import Arrays, Contest, Run, main
from material import MODEL, model_folder, passages, some

SIZE = {"passages": 500, "k": 5}
QUERY = "how to copy a whole directory tree"
PEER = """
import json, sys
import numpy as np
from sentence_transformers import SentenceTransformer
model = SentenceTransformer(sys.argv[1], device="cpu")
vectors = np.load(sys.argv[2])
scores = vectors @ model.encode([sys.argv[3]], show_progress_bar=False)[0]
best = np.argsort(-scores)[: int(sys.argv[4])]
print(json.dumps([best.tolist(), scores[best].tolist()]))
"""


def texts(size: Mapping[str, Any]) -> list[str]:
    from material import docs

    return passages(some(size["passages"], docs().n_passages))


def answered(command: list[str]) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def hardneg(size: Mapping[str, Any]) -> Run:
    from hardneg.data.collection import Collection

    folder = Path(tempfile.mkdtemp())
    given = [(f"p{row}", text) for row, text in enumerate(texts(size))]
    Collection.from_lists(given, to=folder / "data")
    command = [sys.executable, "-m", "hardneg", "search", "--data", str(folder / "data"), "--model", MODEL]
    command += ["--cache", str(folder / "cache"), "--query", QUERY, "--k", str(size["k"]), "--json"]

    def run() -> Arrays:
        hits = json.loads(answered(command))
        rows = [int(hit["passage_id"][1:]) for hit in hits]
        return {"rows": np.array(rows), "scores": np.array([hit["score"] for hit in hits])}

    run()  # encodes the corpus
    return run


def help_page(size: Mapping[str, Any]) -> Run:
    def run() -> Arrays:
        return {"help": np.array(len(answered([sys.executable, "-m", "hardneg", "--help"])) > 0)}

    return run


def sentence_transformers(size: Mapping[str, Any]) -> Run:
    from sentence_transformers import SentenceTransformer

    file = Path(tempfile.mkdtemp()) / "vectors.npy"
    model = SentenceTransformer(model_folder(), device="cpu")
    np.save(file, model.encode(texts(size), show_progress_bar=False))
    command = [sys.executable, "-c", PEER, model_folder(), str(file), QUERY, str(size["k"])]

    def run() -> Arrays:
        rows, scores = json.loads(answered(command))
        return {"rows": np.array(rows), "scores": np.array(scores)}

    return run


def gate(found: dict[str, dict[str, np.ndarray]]) -> dict[str, int]:
    """Both contenders find the same passages in the same order, with nearly the same scores.

    hardneg's vectors are float16 on the disk. On a machine that computes in bfloat16, rounding is larger.
    """
    from hardneg.process.hardware import best_precision

    ours = found["hardneg"]
    if theirs := found.get("sentence-transformers"):
        rounding = 2e-3 if best_precision("cpu") == "float32" else 5e-3
        np.testing.assert_array_equal(theirs["rows"], ours["rows"])
        np.testing.assert_allclose(theirs["scores"], ours["scores"], atol=rounding)
    return {"hits": len(ours["rows"])}


def contests() -> list[Contest]:
    contenders = {
        "hardneg": "answer:hardneg",
        "sentence-transformers": "answer:sentence_transformers",
        "hardneg --help": "answer:help_page",
    }
    return [Contest("first answer", contenders, SIZE, gate, (1, "answers/s"), rate=1 / 2.5)]


if __name__ == "__main__":
    raise SystemExit(main(contests()))
