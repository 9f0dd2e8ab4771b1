"""An encoder for mteb: the encoder protocol of mteb 2.x, which also accepts the calls of mteb 1.x.

Only the model's metadata needs mteb; mteb itself reads them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hardneg.api.inputs import Place, model_place
from hardneg.data.tokens import token_batch
from hardneg.errors import SettingsError
from hardneg.models.bi_encoder import BiEncoder
from hardneg.models.loading import load_encoder
from hardneg.models.packing import plan_batches
from hardneg.process.hardware import best_precision
from hardneg.process.threads import pick_device
from hardneg.records import Float32, Side

SIDES: tuple[Side, Side] = ("query", "passage")
WINDOW = 1 << 14  # texts in memory at a time
Array = NDArray[Any] | Tensor


class MtebEncoder:
    """A bi-encoder for ``mteb.evaluate``; queries and passages get their own prompts, lengths and towers.

    Texts are cut as in search: queries at ``search_query_length``, where the model has one.

    Parameters
    ----------
    model : a folder, an experiment, ``package:NAME`` or a hub name; or an encoder that is loaded already.
    revision : the revision under which mteb stores results; by default the digest of the model, so that results of
        two models never mix.
    device : ``cpu``, ``cuda``, ``cuda:1``, ...; by default CUDA if there is one.
    token_budget : tokens of a batch; mteb's own ``batch_size`` is not used.
    options : options of :func:`~hardneg.models.loading.load_encoder`.

    Raises
    ------
    SettingsError, InputError, TrustError : ``load_encoder`` raises them; or the model cuts documents into chunks.
    """

    def __init__(
        self,
        model: Place | BiEncoder,
        revision: str | None = None,
        *,
        device: str | None = None,
        token_budget: int = 16384,
        **options: Any,
    ) -> None:
        name = "model"
        if not isinstance(model, BiEncoder):
            name = Path(model).absolute().name if Path(model).is_dir() else str(model)
            if options.get("passage_model") is not None:
                options["passage_model"] = str(model_place(options["passage_model"]))
            model = load_encoder(str(model_place(model)), device=pick_device(device), **options)
        self.encoder: BiEncoder = model
        if self.encoder.settings.chunks > 1:
            what = "a document of several chunks has no single vector"
            raise SettingsError("BAD_SETTING", what, "evaluate it with hardneg search, or set chunks = 1")
        self.name = name if "/" in name else f"hardneg/{name}"
        self.revision = revision or self.encoder.digest()
        self.token_budget = token_budget

    def encode(self, inputs: Iterable[Any], *, prompt_type: Any = None, **ignored: Any) -> Float32:
        """Encode mteb's batches, or plain texts, as vectors [n, dim].

        Parameters
        ----------
        inputs : a loader of batches of columns (mteb 2.x), or strings, or records of ``title`` and ``text`` (1.x).
        prompt_type : ``query``, or anything else for passages; texts of symmetric tasks count as passages.
        """
        side: Side = "query" if str(getattr(prompt_type, "value", prompt_type)) == "query" else "passage"
        pairs = read_texts(inputs, side)
        parts = [np.zeros((0, self.encoder.dim), np.float32)]
        with self.encoder.inference(best_precision(self.encoder.device)):
            while window := list(islice(pairs, WINDOW)):
                titles, texts = map(list, zip(*window, strict=True))
                parts.append(self._encode(titles, texts, side))
        return np.concatenate(parts)

    def _encode(self, titles: list[str], texts: list[str], side: Side) -> Float32:
        encoder = self.encoder
        tokens = token_batch(texts, titles, encoder.search_template(side), encoder.tokenizer(side))
        vectors = np.empty((len(texts), encoder.dim), np.float32)
        for batch in plan_batches(tokens.lengths, self.token_budget):
            vectors[batch] = encoder.encode(tokens.take(batch), side).cpu().numpy()
        return vectors

    def similarity(self, embeddings1: Array, embeddings2: Array) -> Tensor:
        """Scores [n, m] float32: dot products, as in training, mining and search."""
        return _matrix(embeddings1) @ _matrix(embeddings2).T

    def similarity_pairwise(self, embeddings1: Array, embeddings2: Array) -> Tensor:
        """Scores [n] of the pairs of rows of two arrays of vectors [n, dim]."""
        return (_matrix(embeddings1) * _matrix(embeddings2)).sum(dim=-1)

    @property
    def mteb_model_meta(self) -> Any:
        """The metadata under which mteb stores results: name, revision, and the few other facts that are known."""
        from mteb.models import ModelMeta

        settings = self.encoder.settings
        known = {
            "name": self.name,
            "revision": self.revision,
            "embed_dim": self.encoder.dim,
            "max_tokens": float(max(self.encoder.search_template(side).max_length for side in SIDES)),
            "n_parameters": sum(weight.numel() for weight in self.encoder.parameters()),
            "similarity_fn_name": "dot",
            "use_instructions": bool(settings.query_prompt or settings.passage_prompt),
        }
        return ModelMeta.create_empty(overwrites=known)


def read_texts(inputs: Iterable[Any], side: Side) -> Iterator[tuple[str, str]]:
    """The (title, text) of every item of mteb's inputs, in any of their forms; queries have no titles."""
    for item in inputs:
        if isinstance(item, str):
            yield "", item
        elif side == "passage" and "body" in item:  # in batches of mteb 2.x, ``text`` is title and body joined
            yield from _pairs(item, "body")
        elif isinstance(item["text"], str):
            yield (item.get("title") or "" if side == "passage" else ""), item["text"]
        else:
            yield from (("", text) for text in item["text"])


def _pairs(batch: Mapping[str, Any], text: str) -> Iterator[tuple[str, str]]:
    titles = batch.get("title") or [""] * len(batch[text])
    return zip((title or "" for title in titles), batch[text], strict=True)


def _matrix(vectors: Array) -> Tensor:
    return torch.as_tensor(vectors).float().cpu()
