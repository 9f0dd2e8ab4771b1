"""The token sequences that a model reads: kept in a store, made once for each tokenizer and template."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from tokenizers import Tokenizer

from hardneg.data.collection import Collection
from hardneg.data.token_pairs import PairForm, PairStore, PairTemplate
from hardneg.data.tokens import TokenStore, tokenize
from hardneg.models.bi_encoder import BiEncoder
from hardneg.models.tower import Tower
from hardneg.process.progress import track
from hardneg.records import Side, TextTemplate


def token_store(
    encoder: BiEncoder,
    collection: Collection,
    cache: Path,
    side: Side,
    *,
    searching: bool = False,
    most: int | None = None,
    beside: Path | None = None,
) -> TokenStore:
    """The token store of one side, made on first use for each tokenizer and template.

    Training and search share it, except for queries where ``searching`` takes longer ones, and for passages of
    which training steps read ``most`` tokens only. A store in the cache ``beside`` is used if ``cache`` has none.
    """
    template = encoder.search_template(side) if searching else encoder.template(side)
    return store_of(shorter(template, most), encoder.tokenizer(side), collection, cache, beside)


def shorter(template: TextTemplate, most: int | None) -> TextTemplate:
    """The template with texts of at most so many tokens; None: as it is."""
    return template if most is None else replace(template, max_length=min(template.max_length, most))


def pair_store(tower: Tower, template: PairTemplate, collection: Collection, cache: Path) -> PairStore:
    """The pairs that a tower reads, put together from the token stores of both sides, which are made on first use.

    Raises
    ------
    SettingsError : the tokenizer has no form for pairs, or a query may leave no room for its passage.
    """
    template.check(form := PairForm.of(tower.tokenizer))
    queries, passages = (
        store_of(side, tower.tokenizer, collection, cache) for side in (template.query, template.passage)
    )
    return PairStore(queries, passages, form, template.max_length)


def store_of(
    template: TextTemplate, tokenizer: Tokenizer, collection: Collection, cache: Path, beside: Path | None = None
) -> TokenStore:
    """The token store of a template, made on first use if it is not in the cache ``beside`` either."""
    with track(f"tokenising {'queries' if template.side == 'query' else 'passages'}", "texts") as tick:
        return tokenize(collection, template, tokenizer, cache, beside=beside, progress=tick)


def texts_digest(encoder: BiEncoder, collection: Collection, cache: Path, beside: Path | None = None) -> str:
    """The identity of the token sequences of all passages, which are made if ``beside`` has none either."""
    return token_store(encoder, collection, cache, "passage", searching=True, beside=beside).digest
