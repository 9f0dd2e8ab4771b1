"""The cross-encoder, a ranker: it reads query and passage as one sequence, and gives the pair a score."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from typing import Any, Literal, get_args

import torch
from tokenizers import Tokenizer
from torch import Tensor, nn

from hardneg import keyed_random
from hardneg.arguments import brief
from hardneg.data.token_pairs import PairForm, PairTemplate
from hardneg.data.tokens import check_prompt
from hardneg.errors import SettingsError
from hardneg.models.encoder_settings import TitleJoin, check_of_model
from hardneg.models.linear import undrawn
from hardneg.models.pooling import Pooling
from hardneg.models.tower import Tower, TowerModel
from hardneg.records import TextTemplate, TokenBatch

KIND = "ranker"  # of a published folder

Activation = Literal["identity", "sigmoid"]


@dataclass(frozen=True)
class RankerSettings:
    """Everything about a ranker that is not in its weights or tokenizer; saved with the model.

    Lengths are in tokens, special ones included. A pair has at most ``max_length`` tokens; only its passage is cut
    to fit. A query alone has at most ``query_length`` (None: half of what a pair has room for), a passage alone at
    most ``passage_length`` (None: all that a pair can show). With ``chunks`` above 1 a passage is a document of up
    to so many sequences. Each of them is read with the query, and the document's score is their highest (MaxP).
    ``activation`` is the function that sentence-transformers applies to the score in ``predict``; rankings and
    losses here use the score without it.
    """

    max_length: int = 512
    query_length: int | None = None
    passage_length: int | None = None
    activation: Activation = "identity"
    query_prompt: str = ""
    passage_prompt: str = ""
    use_titles: bool = True
    title_join: TitleJoin = "sep"
    chunks: int = 1
    max_characters: int = 0

    def __post_init__(self) -> None:
        above_zero = ("max_length", "query_length", "passage_length", "chunks")
        check_of_model(self, {"activation": Activation, "title_join": TitleJoin}, above_zero)

    @classmethod
    def names(cls) -> list[str]:
        """The names of all settings."""
        return [field.name for field in fields(cls)]


# ---------------------------------------------------------------- heads


@dataclass(frozen=True)
class HeadForm:
    """The classification head that transformers gives to a type of model: Linear, activation, Linear.

    Attributes
    ----------
    dense, out : names of the two Linear in a file of weights; ``{}`` stands for the transformer's own name.
    activation : a name of transformers' activations, or of a field of the configuration that holds one.
    dropout : the configuration's field with the dropout before ``out``; if it is None, that of the layers counts.
    before : likewise the field of the dropout before ``dense``; "": there is none.
    norm : the name of a LayerNorm after the activation, if there is one.
    """

    dense: str
    out: str
    activation: str = "tanh"
    dropout: str = "classifier_dropout"
    before: str = ""
    norm: str | None = None


_POOLER = HeadForm("{}.pooler.dense", "classifier")
_CLASSIFIER = HeadForm("classifier.dense", "classifier.out_proj", before="classifier_dropout")
HEADS = {
    "bert": _POOLER,
    "ernie": _POOLER,
    "roberta": _CLASSIFIER,
    "xlm-roberta": _CLASSIFIER,
    "camembert": _CLASSIFIER,
    "mpnet": _CLASSIFIER,
    "electra": HeadForm("classifier.dense", "classifier.out_proj", "gelu", before="classifier_dropout"),
    "distilbert": HeadForm("pre_classifier", "classifier", "relu", "seq_classif_dropout"),
    "deberta-v2": HeadForm("pooler.dense", "classifier", "pooler_hidden_act", "cls_dropout", "pooler_dropout"),
    "modernbert": HeadForm("head.dense", "classifier", "classifier_activation", norm="head.norm"),
}


class PairHead(nn.Module):
    """The classification head of one label on the pooled state of a pair, as transformers computes it.

    Parameters
    ----------
    config : the transformer's configuration.

    Raises
    ------
    SettingsError : no head is known for this type of model, or it reads states that are not pooled here.
    """

    def __init__(self, config: Any) -> None:
        super().__init__()

        from transformers.activations import ACT2FN  # here, for it takes seconds to import

        if config.model_type not in HEADS:
            what = f"no classification head is known for a model of type {config.model_type}"
            raise SettingsError("UNSUPPORTED_MODEL", what, f"choose one of {', '.join(sorted(HEADS))}")
        form, width = HEADS[config.model_type], config.hidden_size
        self.form, self.pooling = form, _pooling(config)
        self.before = nn.Dropout(_rate(config, form.before) if form.before else 0.0)
        self.dense = undrawn(width, width, bias=getattr(config, "classifier_bias", True))
        self.activation = ACT2FN[getattr(config, form.activation, form.activation)]
        self.norm: nn.Module = nn.Identity()
        if form.norm is not None:
            self.norm = nn.LayerNorm(width, eps=config.norm_eps, bias=config.norm_bias)
        self.dropout = nn.Dropout(_rate(config, form.dropout))
        self.out = undrawn(width, 1)

    def forward(self, pooled: Tensor) -> Tensor:
        """[n, h] → [n]."""
        states = self.norm(self.activation(self.dense(self.before(pooled))))
        scores: Tensor = self.out(self.dropout(states)).squeeze(-1)
        return scores

    def stored_names(self, transformer: str) -> dict[str, str]:
        """The name of each weight here → its name in a file, which calls the transformer ``transformer``."""
        parts = {"dense": self.form.dense.format(transformer), "norm": self.form.norm, "out": self.form.out}
        split = (name.split(".") for name in self.state_dict())
        return {f"{part}.{weight}": f"{parts[part]}.{weight}" for part, weight in split}

    @torch.no_grad()
    def draw(self, seed: int, spread: float) -> None:
        """Draw new weights: normal matrices with deviation ``spread``, biases 0; on the CPU, for all devices."""
        generator = torch.Generator().manual_seed(keyed_random.key(seed, "ranker head") >> 1)
        for linear in (self.dense, self.out):
            linear.weight.copy_(torch.empty(linear.weight.shape).normal_(0.0, spread, generator=generator))
            if linear.bias is not None:
                linear.bias.zero_()


def _pooling(config: Any) -> Pooling:
    """The state that a head reads: the first token's, but in ModernBERT the one its configuration names."""
    pooling: Pooling = getattr(config, "classifier_pooling", "cls")
    if pooling not in get_args(Pooling):
        what = f"the model's classifier_pooling is {brief(pooling)}, which is not computed here"
        raise SettingsError(
            "UNSUPPORTED_MODEL", what, f"choose a model with one of {', '.join(get_args(Pooling))}"
        )
    return pooling


def _rate(config: Any, name: str) -> float:
    rate = getattr(config, name, None)
    return float(config.hidden_dropout_prob if rate is None else rate)


# ---------------------------------------------------------------- the model


class CrossEncoder(TowerModel):
    """One transformer that reads query and passage together, and a head that makes a score of them.

    Parameters
    ----------
    tower : with a :class:`PairHead`.

    Raises
    ------
    SettingsError : the tokenizer has no form for pairs, or the lengths do not fit it, the prompts or the
        transformer.
    """

    settings: RankerSettings

    def __init__(self, settings: RankerSettings, tower: Tower) -> None:
        super().__init__(settings, [tower])
        assert isinstance(tower.head, PairHead)
        if settings.max_length > tower.longest:
            what = f"max_length = {settings.max_length}, the model takes {tower.longest} tokens"
            raise SettingsError("TOO_LONG", what, f"set it to at most {tower.longest}")
        self.form = PairForm.of(tower.tokenizer)
        self.template.check(self.form)
        for text in (self.template.query, self.template.passage):  # a passage's prompt may end in a later chunk
            length = text.max_length * text.chunks
            check_prompt(tower.tokenizer, text.side, text.prompt, f"the {text.side}'s length", length)

    @property
    def tower(self) -> Tower:
        """The transformer with its tokenizer and head."""
        return self.towers[0]  # type: ignore[return-value]

    @property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer; it neither truncates nor pads."""
        return self.tower.tokenizer

    @property
    def pooling(self) -> Pooling:
        """The states of a pair that its head reads."""
        return self.tower.head.pooling  # type: ignore[union-attr, return-value]

    @property
    def template(self) -> PairTemplate:
        """How texts become pairs; both sides' token stores are made by it.

        By default a query has at most half of the tokens that a pair has for texts. Pairs are then those of a
        tokenizer that cuts the longer text first, unless a query is longer than that half.
        """
        settings, digest = self.settings, self.tower.tokenizer_digest
        around, room = sum(self.form.around), settings.max_length - self.form.special
        length = settings.query_length or room // 2 + around
        query = TextTemplate("query", length, settings.query_prompt, use_titles=False, tokenizer=digest)
        beside = length - around if settings.chunks > 1 else 0  # a chunk is never cut: it fits with any query
        passage = TextTemplate(
            "passage",
            settings.passage_length or room - beside + around,
            settings.passage_prompt,
            settings.use_titles,
            settings.title_join,
            settings.chunks,
            settings.max_characters,
            digest,
        )
        return PairTemplate(query, passage, settings.max_length)

    def score(self, pairs: TokenBatch) -> Tensor:
        """Scores [n] float32 of pairs, without activation, on the module's device, with gradient where enabled."""
        if not len(pairs):
            return torch.zeros(0, device=self.device)
        pooled = self.tower.pooled(pairs, self.pooling)
        with torch.autocast(pooled.device.type, enabled=False):
            scores: Tensor = self.tower.head(pooled)  # type: ignore[misc]
            return scores

    def digest(self) -> str:
        """The model's identity, which no bi-encoder shares, whatever its weights and settings."""
        return self.digest_of(self, self.each_tower(), {"kind": KIND, **asdict(self.settings)})
