"""The token sequences that an encoder reads: kept in a store, made once for each tokenizer and template."""

from __future__ import annotations

from pathlib import Path

from hardneg.data.collection import Collection
from hardneg.data.tokens import TokenStore, tokenize
from hardneg.models.bi_encoder import BiEncoder
from hardneg.process.progress import track
from hardneg.records import Side


def token_store(
    encoder: BiEncoder, collection: Collection, cache: Path, side: Side, *, searching: bool = False
) -> TokenStore:
    """The token store of one side, made once for each tokenizer and template.

    Training steps and search read the same one, but for queries where ``searching`` takes longer ones.
    """
    template = encoder.search_template(side) if searching else encoder.template(side)
    with track(f"tokenising {'queries' if side == 'query' else 'passages'}", "texts") as tick:
        return tokenize(collection, template, encoder.tokenizer(side), cache, progress=tick)


def texts_digest(encoder: BiEncoder, collection: Collection, cache: Path) -> str:
    """Identity of the token sequences of all passages, which are made unless they are there."""
    return token_store(encoder, collection, cache, "passage", searching=True).digest
