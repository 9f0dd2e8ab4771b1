"""Everything about an encoder that is not in its weights or tokenizer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

from hardneg.arguments import brief, check_fields, fits
from hardneg.errors import SettingsError
from hardneg.models.pooling import Pooling
from hardneg.records import Side, TextTemplate

Head = Literal["none", "ance", "dense"]
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
        above_zero = ("query_length", "passage_length", "scale", "chunks", "dim", "search_query_length")
        for name in ("query_prompt", "passage_prompt"):
            _check_utf8(name, getattr(self, name))
        check_of_model(self, {"pooling": Pooling, "head": Head, "title_join": TitleJoin}, above_zero)

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


def _check_utf8(name: str, prompt: object) -> None:
    """Refuse a prompt that no tokenizer takes; other types than text are refused elsewhere."""
    try:
        str(prompt).encode()
    except UnicodeEncodeError:
        what = f"{name} = {brief(prompt)} is not UTF-8, or holds a lone surrogate"
        raise SettingsError("BAD_SETTING", what, "correct the text") from None


def check_of_model(settings: Any, choices: Mapping[str, Any], above_zero: Sequence[str]) -> None:
    """Refuse settings of a model that do not fit their types or are out of range; raises :class:`SettingsError`.

    Parameters
    ----------
    choices : setting -> the ``Literal`` of its values.
    above_zero : the settings that must be above 0, or None.
    """
    for name, values in choices.items():
        if not fits(value := getattr(settings, name), values):
            known = ", ".join(get_args(values))
            raise SettingsError("BAD_SETTING", f"{name} = {brief(value)}", f"choose one of {known}")
    check_fields(settings)
    if settings.max_characters < 0:
        raise SettingsError("BAD_SETTING", f"max_characters = {settings.max_characters}", "give 0 or more")
    for name in above_zero:
        if (value := getattr(settings, name)) is not None and not value > 0:
            raise SettingsError("BAD_SETTING", f"{name} = {value}", "give a number above 0")
