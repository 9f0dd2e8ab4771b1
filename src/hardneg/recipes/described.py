"""What every setting and every preset means, for people: one table, without torch.

Types, defaults and bounds stand beside it in ``presets/settings.json``, which is made of the settings' classes
(``make settings``); a test compares both with the classes.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources
from typing import Any

from pydantic_core import PydanticUndefined

from hardneg.config import Settings, is_operational, nearest, read_preset
from hardneg.errors import SettingsError

TABLE = "settings.json"  # beside the presets


@dataclass(frozen=True)
class Meaning:
    """What a setting means.

    Attributes
    ----------
    text : a sentence or two; of a setting without a value, what holds then.
    unit : of its value.
    source : paper and place where it comes from, if it is a paper's.
    """

    text: str
    unit: str = ""
    source: str = ""


TELE = "Sun et al. 2022 (ANCE-Tele)"
ANCE = "Xiong et al. 2021 (ANCE)"
ZHAN = "Zhan et al. 2021 (STAR, ADORE)"
AR2 = "Zhang et al. 2022 (AR2)"

M = Meaning
MEANINGS: dict[str, dict[str, Meaning]] = {  # under headings; `recipe.setting` where a recipe means something else
    "Model": {
        "towers": M(
            "One encoder for queries and passages (tied), or one each (untied). Not set: the model's own."
        ),
        "pooling": M("How token vectors become one: cls, mean or last. Not set: the model's own."),
        "head": M("A linear layer with LayerNorm on top (ance), or none. Not set: the model's own.", "", ANCE),
        "normalize": M("Whether vectors have length 1, so scores are cosines. Not set: the model's own."),
        "dim": M("Keep only so many first dimensions of a vector.", "dimensions"),
        "scale": M("Scores are multiplied by it before the softmax; 1 / temperature. Not set: the model's own."),
        "title_join": M("Titles and texts are joined by a separator token (sep) or a space."),
        "use_titles": M("Whether passages are encoded with their titles."),
        "prompts": M("A model family (e5, bge, gte) whose prompts and lengths are used."),
        "query_prompt": M("A text before every query."),
        "passage_prompt": M("A text before every passage."),
        "query_length": M("A query is cut at this length. Not set: the model's own.", "tokens"),
        "passage_length": M(
            "A passage, or a chunk of one, is cut at this length. Not set: the model's own.", "tokens"
        ),
        "chunks": M("A document has up to so many chunks, and its best one scores (MaxP).", "chunks"),
        "max_characters": M("A text is cut at this length before it is tokenised; 0: never.", "characters"),
        "search_query_length": M("A query of the test split is cut here. Not set: at query_length.", "tokens"),
        "reinit_layers": M("So many top layers begin anew, with random weights.", "layers"),
        "reinit_seed": M("Seed of the layers that begin anew."),
    },
    "Optimiser": {
        "optimizer": M("adamw or lamb."),
        "queries_per_step": M("Queries of an optimiser step; over all processes together.", "queries"),
        "learning_rate": M("The highest learning rate: it rises for the warm-up, then falls to 0 in a line."),
        "weight_decay": M("Decay of weights, but not of biases and norms."),
        "warmup": M("Steps while the rate rises; below 1, a share of all steps.", "steps or share"),
        "clip": M("Gradients are scaled down to this norm."),
        "micro_queries": M("A step is computed in parts of so many queries, to save memory.", "queries"),
        "gradient_cache": M("A step is computed twice, in chunks: the whole step in the memory of one chunk."),
        "cache_tokens": M("Size of a chunk of the gradient cache.", "tokens"),
        "mask_known_positives": M("Whether a query's other positives in the step do not count as negatives."),
        "seed": M("Seed of all random draws; of several seeds, the first."),
        "precision": M("Numbers to compute in. By default the best of the device.", "float32 or bfloat16"),
    },
    "How long": {
        "epochs": M("Passes over the training queries; steps follow from them.", "epochs"),
        "steps": M("Steps of the schedule, in place of epochs.", "steps"),
        "warmup.steps": M("Steps of each mixture's schedule, in place of epochs; the last repeats.", "steps"),
        "ance-tele.steps": M("Steps of a whole episode, in place of epochs.", "steps"),
        "ance.epochs": M("Passes over the training queries; refresh_every follows from them.", "epochs"),
        "min_steps": M("No fewer steps than this follow from epochs.", "steps"),
        "max_steps": M("No more steps than this follow from epochs.", "steps"),
        "stop_step": M("Training ends here; its schedule is not shortened.", "steps"),
        "ance-tele.stop_step": M("All episodes but the last end here; wins over stop_fraction.", "steps", TELE),
        "stop_fraction": M("All episodes but the last end after this share of their steps.", "share", TELE),
        "episodes": M("Times that negatives are mined and trained on.", "episodes", TELE),
        "start_episode": M("The first episode; later ones begin from given negatives.", "number"),
        "start": M(
            "An episode begins with the first model (scratch), or goes on with the last one (continue).", "", TELE
        ),
        "refreshes": M("Times that negatives are mined anew after the first time.", "times", ANCE),
        "refresh_every": M("Steps between two refreshes.", "steps", ANCE),
        "adore.refresh_every": M("Steps after which static negatives are mined anew. Not set: never.", "steps"),
        "horizon": M("Steps over which the rate falls. Not set: all that are made.", "steps", ANCE),
        "schedule": M("One schedule for all (single), or one that begins anew with new negatives (cyclical)."),
        "iterations": M("Turns of retriever and ranker.", "turns", AR2),
        "retriever_steps": M("Steps of the retriever in a turn.", "steps", AR2),
        "ranker_steps": M("Steps of the ranker in a turn.", "steps", AR2),
        "first_ranker_steps": M("Steps of the first ranker's own training, where none is given.", "steps", AR2),
    },
    "Negatives": {
        "depth": M("Hits of a query that negatives are taken from.", "hits"),
        "adore.depth": M("Hits of a query that are compared at each step.", "hits", ZHAN),
        "ar2.depth": M("Hits of a query that negatives are drawn from.", "hits", AR2),
        "count": M("Negatives of a query kept from each mined source.", "passages"),
        "ance-tele.count": M("The newly mined part is twice so many.", "passages", TELE),
        "negatives_per_query": M("Mined negatives of a query in a step.", "passages"),
        "warmup.negatives": M(
            "Mined negatives of a query in a step, for each mixture; the last repeats.", "passages"
        ),
        "adore.negatives": M("Retrieved at each step (dynamic), mined before (static), or random.", "", ZHAN),
        "group_sizes": M(
            "Which list gives the group sizes: that of the published code, or of the paper.", "", TELE
        ),
        "passages_reference": M(
            "Passages of a query in each episode: 1 positive, the rest negatives.", "passages", TELE
        ),
        "passages_paper": M("The same, as the paper's Table 5 has it.", "passages", TELE),
        "mixtures": M("Kinds of negatives, joined by +; one training after the other."),
        "sources": M("Where negatives come from. Empty: from what ranks first."),
        "extra": M("Sources beside query and lookahead: bm25, random."),
        "in_batch": M("Whether the other passages of the step are negatives too."),
        "alpha": M("Share of negatives kept from the episode before (momentum).", "share", TELE),
        "star.alpha": M("Weight of the loss over random negatives; implicit: they share one softmax.", "", ZHAN),
        "beta": M("Share of lookahead negatives among the newly mined.", "share", TELE),
        "momentum": M("How the pool before is kept: by weight, or all of it (accumulate).", "", TELE),
        "dedup": M("Whether a passage stands only once in a pool."),
        "lookahead": M("Lookahead negatives of the first positive, or of all.", "", TELE),
        "positives": M("A query's positive in each visit: the next one (rotate), or always the first."),
        "max_score": M("No negative has a higher score.", "score"),
        "absolute_margin": M("A negative scores at least so far below the positive.", "score"),
        "relative_margin": M("A negative scores at least this share below the positive.", "share"),
        "top": M("Of what the bounds leave, only so many of the highest.", "passages"),
        "filter_by": M(
            "Whose scores the bounds compare: the miner's, the starting model's, or those of --filter-by."
        ),
        "guide_mask": M("Whether the starting model masks passages of the step that it scores like the positive."),
        "guide_margin": M("How far below the positive the mask begins.", "score"),
        "mode": M("Mining between steps (sync), or beside training (async, async-fixed).", "", ANCE),
        "max_staleness": M("Most steps between mining and use, in async mode.", "steps"),
        "stale": M("Beyond max_staleness: wait for new negatives, or stop."),
    },
    "Loss": {
        "loss": M("The loss of a step."),
        "margin": M("Margin of the hinge loss.", "score"),
        "distill": M("Also learn a teacher's scores, by kl or margin_mse."),
        "distill_weight": M("Weight of the teacher's term; the recipe's loss has the rest.", "share"),
        "distill_scale": M("Scores are multiplied by it in the teacher's term. Not set: the model's scale."),
        "teacher_temperature": M("The teacher's scores are divided by it."),
        "cut": M("The rank at which the measure that it improves is cut.", "rank", ZHAN),
        "measure": M("The measure whose change weighs a pair: RR or nDCG.", "", ZHAN),
        "weighted": M("Whether pairs are weighted by it; without, the loss is RankNet's.", "", ZHAN),
        "order": M("Who trains first in a turn.", "", AR2),
        "game": M("AR2's game, or IRGAN's.", "", AR2),
        "weighting": M(
            "How the adversarial loss weighs candidates: as Eq. 10, or as the published code.", "", AR2
        ),
        "balance": M("Share of the adversarial loss; distillation has the rest.", "share", AR2),
        "temperature": M("The ranker's scores are divided by it in distillation.", "", AR2),
    },
    "Index": {
        "index": M(
            "What is searched at each step: all vectors (exact), a compressed index (pq), or --index.", "", ZHAN
        ),
        "subvectors": M("Codes of a passage in the compressed index. Not set: chosen by size.", "codes"),
        "bits": M("Bits of a code.", "bits"),
    },
    "Ranker": {
        "max_length": M("A query with its passage is cut at this length. Not set: the model's own.", "tokens"),
        "rerank": M("Hits of a dev or test query that are re-ranked to measure a state.", "hits"),
        "rerank_depth": M("Hits of dev and test that the ranker is measured by; 0: it is not.", "hits"),
        "ranker_learning_rate": M("The ranker's highest learning rate.", "", AR2),
        "ranker_queries_per_step": M("Queries of a step of the ranker.", "queries", AR2),
        "ranker_micro_queries": M("A step of the ranker is computed in parts of so many queries.", "queries"),
        "ranker_max_length": M("A query with its passage is cut here. Not set: the ranker's own.", "tokens"),
        "ranker_query_length": M("A query is cut at this length for the ranker.", "tokens"),
        "first_ranker_learning_rate": M("Highest learning rate of the first ranker's own training.", "", AR2),
        "first_ranker_queries_per_step": M("Queries of a step of that training.", "queries", AR2),
    },
    "Dev and test": {
        "measures": M("What dev and test are measured by; the first decides.", "ir_measures notation"),
        "measure_every": M("Dev is measured after so many steps; below 1, a share of them.", "steps or share"),
        "dev_passages": M(
            "Dev is judged among so many passages that BM25 finds for each query. Not set: among all.", "passages"
        ),
        "keep": M("model/ holds the best state on dev, or the last one."),
        "patience": M("Training ends after so many measurements without a better one.", "measurements"),
        "examine": M("Training queries are searched too, for diagnostics (all), or only dev and test (judged)."),
    },
    "Labels": {
        "labels": M("A passage is positive by judgement (qrels), or if it holds an answer (answers)."),
        "use_positive_ctxs": M("Whether the positives that come with a question are used."),
        "require_gold": M("Whether questions without a given positive are left out."),
        "answer_mode": M("Answers are texts (string) or patterns (regex)."),
    },
    "Machine": {
        "token_budget": M("Tokens of a batch when texts are encoded.", "tokens"),
        "store_dtype": M("Numbers that embeddings are stored in.", "float16 or float32"),
        "checkpoint_every": M("Steps between two checkpoints.", "steps"),
        "tensorboard": M("Whether metrics are written for TensorBoard too."),
        "silent_seconds": M("A process without a sign of life for so long is dead.", "seconds"),
        "keep_versions": M("Versions of the negatives to keep. Not set: all.", "versions"),
    },
}

MINUTES = "Minutes on two CPU cores: to see that everything works."
OWN_DATA = "For your own data; keeps the best state on dev."
PRESETS: dict[str, dict[str, str]] = {
    "ance-tele": {
        "finetune": OWN_DATA + " Two episodes.",
        "msmarco": "The paper's settings for MS MARCO passages.",
        "nq": "The paper's settings for Natural Questions.",
        "triviaqa": "The paper's settings for TriviaQA.",
        "demo": MINUTES,
    },
    "warmup": {
        "finetune": OWN_DATA + " In-batch negatives alone: the baseline.",
        "finetune-bm25": OWN_DATA + " With three BM25 negatives besides.",
        "bm25": "ANCE's BM25 Neg, and the warm-up of ANCE and STAR.",
        "in-batch": "The other queries' positives of the step (ANCE's Rand Neg).",
        "random": "Random passages of the corpus (STAR's Rand Neg).",
        "nce": "The hardest passage of the step (ANCE's NCE Neg).",
        "dpr": "DPR: one BM25 negative and the other passages of the step.",
        "ar2-nq": "AR2's first retriever for Natural Questions.",
        "ar2-triviaqa": "AR2's first retriever for TriviaQA.",
        "ar2-msmarco": "AR2's first retriever for MS MARCO passages.",
        "bm25-in-batch": "ANCE's BM25 + Rand Neg: one BM25 negative and those of the step.",
        "bm25-to-in-batch": "ANCE's BM25 -> Rand: one after the other.",
        "bm25-to-nce": "ANCE's BM25 -> NCE Neg: one after the other.",
        "bm25-to-bm25-in-batch": "ANCE's BM25 -> BM25 + Rand: one after the other.",
        "bm25-corpus-random": "BM25 and random passages of the corpus, together.",
        "bm25-to-corpus-random": "BM25, then random passages of the corpus.",
        "bm25-to-bm25-corpus-random": "BM25, then both together.",
        "demo": MINUTES,
    },
    "ance": {
        "finetune": OWN_DATA + " Negatives are mined three times.",
        "passage": "The paper's settings for MS MARCO passages.",
        "firstp": "The paper's settings for documents: their first 512 tokens.",
        "maxp": "The paper's settings for documents: up to four chunks.",
        "nq": "The paper's settings for Natural Questions.",
        "triviaqa": "The paper's settings for TriviaQA.",
        "ance-analysis": "ANCE as Table 7 of the ANCE-Tele paper analyses it.",
        "demo": MINUTES,
    },
    "star": {
        "finetune": OWN_DATA + " One hard negative of each query.",
        "passage": "The paper's settings for MS MARCO passages.",
        "document": "The paper's settings for MS MARCO documents.",
        "demo": MINUTES,
    },
    "adore": {
        "finetune": OWN_DATA + " A last, cheap stage: the query side alone.",
        "passage": "The paper's settings for MS MARCO passages.",
        "document": "The paper's settings for MS MARCO documents.",
        "demo": MINUTES,
    },
    "ar2": {
        "nq": "The paper's settings for Natural Questions.",
        "triviaqa": "The paper's settings for TriviaQA.",
        "msmarco": "The paper's settings for MS MARCO passages.",
        "irgan": "IRGAN's game by the same models, for comparison.",
        "demo": MINUTES,
    },
    "ranker": {
        "finetune": OWN_DATA,
        "demo": MINUTES,
    },
}


def meaning_of(recipe: str, name: str) -> tuple[str, Meaning]:
    """The heading that a recipe's setting stands under, and what it means; raises :class:`KeyError`."""
    for heading, settings in MEANINGS.items():
        if (found := settings.get(f"{recipe}.{name}") or settings.get(name)) is not None:
            return heading, found
    raise KeyError(f"{recipe}.{name}")


def facts_of(settings: type[Settings]) -> dict[str, dict[str, Any]]:
    """The facts of a class of settings, by setting, as ``presets/settings.json`` has them.

    Returns
    -------
    ``values``: which there are, in words; ``default``; ``needed``: it has no default; ``result``: it decides the
    result, so that an experiment cannot go on with another value.
    """
    schema = settings.model_json_schema(mode="validation")["properties"]
    return {
        name: {
            "values": values_of(schema[name]),
            "default": None if field.default is PydanticUndefined else field.default,
            "needed": field.is_required(),
            "result": not is_operational(settings, name),
        }
        for name, field in settings.model_fields.items()
    }


NUMBERS = (
    ("minimum", "from {}"),
    ("exclusiveMinimum", "above {}"),
    ("maximum", "to {}"),
    ("exclusiveMaximum", "below {}"),
)


def values_of(schema: Mapping[str, Any]) -> str:
    """The values that a JSON schema allows, in words."""
    if "anyOf" in schema:
        return " or ".join(values_of(one) for one in schema["anyOf"] if one.get("type") != "null")
    if "enum" in schema or "const" in schema:
        return ", ".join(map(str, schema.get("enum", [schema.get("const")])))
    if schema.get("type") == "array":
        return f"list of: {values_of(schema['items'])}"
    kind = {"integer": "whole number", "boolean": "true or false", "string": "text"}.get(schema["type"], "number")
    return " ".join([kind, *(text.format(f"{schema[key]:g}") for key, text in NUMBERS if key in schema)])


@functools.cache
def all_facts() -> dict[str, dict[str, dict[str, Any]]]:
    """The facts of the settings of every recipe, without its class, by recipe and setting."""
    text = resources.files("hardneg").joinpath("presets", TABLE).read_text("utf-8")
    found: dict[str, dict[str, dict[str, Any]]] = json.loads(text)
    return found


def described(recipe: str, preset: str | None = None) -> list[dict[str, Any]]:
    """Every setting of a recipe, in the order of the headings.

    Returns
    -------
    Of each ``name``, ``heading``, ``values``, ``default``, ``preset`` (its value there; only if one is named),
    ``needed``, ``result``, ``meaning``, ``unit`` and ``source``.

    Raises
    ------
    SettingsError : there is no such recipe or preset.
    """
    recipes = all_facts()
    if recipe not in recipes:
        raise SettingsError("UNKNOWN_RECIPE", f"no recipe is called {recipe!r:.60}", nearest(recipe, recipes))
    values = {} if preset is None else read_preset(recipe, preset)
    rows = []
    for name, facts in recipes[recipe].items():
        heading, meaning = meaning_of(recipe, name)
        row = {"name": name, "heading": heading, **facts}
        if preset is not None:
            row["preset"] = values.get(name, facts["default"])
        rows.append(row | {"meaning": meaning.text, "unit": meaning.unit, "source": meaning.source})
    order = [(heading, name.rpartition(".")[2]) for heading, settings in MEANINGS.items() for name in settings]
    return sorted(rows, key=lambda row: order.index((row["heading"], row["name"])))


def presets_of(recipe: str | None = None) -> dict[str, dict[str, str]]:
    """What each preset is for, by recipe and preset; raises :class:`SettingsError` for an unknown recipe."""
    if recipe is None:
        return PRESETS
    if recipe not in PRESETS:
        raise SettingsError("UNKNOWN_RECIPE", f"no recipe is called {recipe!r:.60}", nearest(recipe, PRESETS))
    return {recipe: PRESETS[recipe]}
