"""Everything about an encoder that is not in its weights or tokenizer."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal, get_args

from hardneg.arguments import brief, check_fields, fits
from hardneg.errors import SettingsError
from hardneg.models.pooling import Pooling
from hardneg.records import Side, TextTemplate

Head = Literal["none", "ance"]
TitleJoin = Literal["sep", "space"]

OF_VECTORS = ("pooling", "head", "normalize", "dim")  # settings that decide what vector tokens get


@dataclass(frozen=True)
class EncoderSettings:
    """Everything about an encoder that is not in its weights or tokenizer; saved with the model.

    ``dim`` cuts the vector (None: whole), after normalisation; logits are ``scale`` × score. Lengths are in
    tokens, special ones included; a loaded model brings its own. ``search_query_length`` is the length of queries
    after training: in ``search``, in ``encode``, and on an experiment's test split (None: ``query_length``). All
    that belongs to training (its steps, mining, forgetting, dev) uses ``query_length``. With ``chunks`` above 1 a
    passage is a document of up to so many sequences of ``passage_length``, and its score is the highest of theirs
    (MaxP; 1: FirstP). Texts are cut after ``max_characters`` (0: nowhere).
    """

    pooling: Pooling = "cls"
    head: Head = "none"
    normalize: bool = False
    dim: int | None = None
    scale: float = 1.0
    query_prompt: str = ""
    passage_prompt: str = ""
    query_length: int = 32
    passage_length: int = 128
    use_titles: bool = True
    title_join: TitleJoin = "sep"
    chunks: int = 1
    max_characters: int = 0
    search_query_length: int | None = None

    def __post_init__(self) -> None:
        for name, choices in (("pooling", Pooling), ("head", Head), ("title_join", TitleJoin)):
            if not fits(value := getattr(self, name), choices):
                raise SettingsError(
                    "BAD_SETTING", f"{name} = {brief(value)}", f"choose one of {', '.join(get_args(choices))}"
                )
        check_fields(self)
        if self.max_characters < 0:
            raise SettingsError("BAD_SETTING", f"max_characters = {self.max_characters}", "give 0 or more")
        for name in ("query_length", "passage_length", "scale", "chunks", "dim", "search_query_length"):
            if (value := getattr(self, name)) is not None and not value > 0:
                raise SettingsError("BAD_SETTING", f"{name} = {value}", "give a number above 0")

    def template(self, side: Side, tokenizer: str = "") -> TextTemplate:
        """How this side's texts become tokens in training; ``tokenizer`` is the tokenizer's digest."""
        if side == "query":
            return TextTemplate(side, self.query_length, self.query_prompt, use_titles=False, tokenizer=tokenizer)
        return TextTemplate(
            side,
            self.passage_length,
            self.passage_prompt,
            self.use_titles,
            self.title_join,
            self.chunks,
            self.max_characters,
            tokenizer,
        )

    def search_template(self, side: Side, tokenizer: str = "") -> TextTemplate:
        """How this side's texts become tokens in search, where queries may be longer than in training."""
        template = self.template(side, tokenizer)
        if side == "passage":
            return template
        return replace(template, max_length=self.search_query_length or template.max_length)

    def embeds_as(self, other: EncoderSettings, side: Side) -> bool:
        """Whether a model gives a side's texts the same vectors, in search, with these settings and ``other``."""
        same = all(getattr(self, name) == getattr(other, name) for name in OF_VECTORS)
        return same and self.search_template(side) == other.search_template(side)
