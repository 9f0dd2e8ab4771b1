"""The presets of every recipe are valid settings, and hold the numbers that their papers publish."""

from importlib import resources

import pytest

from hardneg.config import build, is_operational, read_preset, read_presets
from hardneg.operations.recipes import RECIPES
from hardneg.recipes.adore import Adore
from hardneg.recipes.ance import Ance
from hardneg.recipes.ance_tele import AnceTele
from hardneg.recipes.star import Star
from hardneg.recipes.warmup import Warmup

SETTINGS = {"warmup": Warmup, "ance-tele": AnceTele, "ance": Ance, "star": Star, "adore": Adore}
PRESETS = [(recipe, name) for recipe in SETTINGS for name in read_presets(recipe)]

COMMON = {
    "pooling": "cls",
    "normalize": False,  # dot product
    "scale": 1.0,
    "title_join": "sep",
    "learning_rate": 5e-6,
    "weight_decay": 0.0,
    "warmup": 0.1,
    "clip": 1.0,
    "depth": 200,
    "alpha": 0.5,
    "beta": 0.5,
    "episodes": 3,
    "start": "scratch",
    "momentum": "weighted",
    "group_sizes": "reference",
    "dedup": False,
    "extra": [],
    "lookahead": "first",
    "in_batch": True,
}
MARCO = COMMON | {
    "towers": "tied",
    "queries_per_step": 8,
    "passages_reference": [16, 32, 32],
    "passages_paper": [32, 32, 32],
    "epochs": 3,
    "steps": None,
    "stop_step": 20_000,
    "query_length": 32,
    "search_query_length": None,
    "passage_length": 128,
    "count": 30,
    "positives": "rotate",
    "labels": "qrels",
}
QA = COMMON | {
    "towers": "untied",
    "queries_per_step": 128,
    "passages_reference": [4, 8, 12],
    "passages_paper": [12, 12, 12],
    "epochs": 40,
    "steps": None,
    "stop_step": 2_000,
    "query_length": 32,
    "search_query_length": None,
    "passage_length": 156,
    "count": 80,
    "positives": "first",
    "labels": "answers",
    "use_positive_ctxs": True,
    "require_gold": False,
    "answer_mode": "string",
    "measures": "Answer@5 Answer@20 Answer@100",
}

# Xiong et al., 2021: RoBERTa with a head, the first token, dot products; one negative a query; LAMB
DOT = {"pooling": "cls", "normalize": False, "scale": 1.0, "title_join": "sep", "clip": 1.0}
HEAD = DOT | {"head": "ance"}
REFRESHED = {
    "mode": "async",
    "optimizer": "lamb",
    "depth": 200,
    "negatives_per_query": 1,
    "loss": "pairwise_nll",
    "in_batch": False,
    "refresh_every": 10_000,
    "schedule": "single",
    "horizon": 1_000_000,
    "query_length": 64,
    "passage_length": 512,
    "keep_versions": 2,
}
ANCE_QA = (DOT | REFRESHED) | {
    "towers": "untied",
    "queries_per_step": 128,
    "learning_rate": 1e-5,
    "warmup": 1_000,
    "refresh_every": 1_000,
    "horizon": None,
    "schedule": "cyclical",
    "passage_length": 256,
    "labels": "answers",
    "measures": "Answer@5 Answer@20 Answer@100",
}
BM25_WARMUP = HEAD | {
    "queries_per_step": 32,
    "optimizer": "lamb",
    "learning_rate": 2e-4,
    "warmup": 1_000,
    "stop_step": 60_000,
    "passage_length": 128,
    "negatives": [1],
}
BASELINE = HEAD | {
    "queries_per_step": 256,
    "optimizer": "lamb",
    "learning_rate": 2e-4,
    "query_length": 24,
    "passage_length": 120,
}
PUBLISHED = {
    ("ance-tele", "msmarco"): MARCO,
    ("ance-tele", "nq"): QA,
    ("ance-tele", "triviaqa"): QA | {"search_query_length": 64},
    ("ance", "passage"): HEAD
    | REFRESHED
    | {"towers": "tied", "queries_per_step": 64, "learning_rate": 1e-6, "warmup": 5_000, "refreshes": 59},
    ("ance", "firstp"): HEAD
    | REFRESHED
    | {"queries_per_step": 64, "learning_rate": 5e-6, "warmup": 3_000, "chunks": 1, "max_characters": 10_000},
    ("ance", "maxp"): HEAD
    | REFRESHED
    | {"queries_per_step": 128, "learning_rate": 1e-5, "warmup": 500, "chunks": 4, "max_characters": 10_000},
    ("ance", "nq"): ANCE_QA,
    ("ance", "triviaqa"): ANCE_QA,
    ("ance", "ance-analysis"): (DOT | REFRESHED)
    | {
        "queries_per_step": 8,
        "negatives_per_query": 7,
        "loss": "contrastive",
        "optimizer": "adamw",
        "learning_rate": 1e-6,
        "warmup": 5_000,
        "horizon": None,
        "query_length": 32,
        "passage_length": 128,
    },
    ("warmup", "bm25"): BM25_WARMUP | {"mixtures": ["bm25"]},
    ("warmup", "bm25-random"): BM25_WARMUP | {"mixtures": ["bm25+random"]},
    ("warmup", "bm25-to-random"): BM25_WARMUP | {"mixtures": ["bm25", "random"]},
    ("warmup", "bm25-to-nce"): BM25_WARMUP | {"mixtures": ["bm25", "nce"]},
    ("warmup", "bm25-to-bm25-random"): BM25_WARMUP | {"mixtures": ["bm25", "bm25+random"]},
    ("warmup", "in-batch"): BASELINE | {"mixtures": ["in_batch"]},
    ("warmup", "random"): BASELINE | {"mixtures": ["random"]},
    ("warmup", "nce"): BASELINE | {"mixtures": ["nce"]},
    ("warmup", "dpr"): DOT  # Karpukhin et al., 2020
    | {
        "mixtures": ["bm25+in_batch"],
        "negatives": [1],
        "queries_per_step": 128,
        "optimizer": "adamw",
        "learning_rate": 2e-5,
        "warmup": 1_237,
        "epochs": 40,
    },
    # Zhan et al., 2021
    ("star", "passage"): HEAD
    | {
        "queries_per_step": 256,
        "optimizer": "lamb",
        "learning_rate": 1e-4,
        "weight_decay": 0.01,
        "warmup": 1_000,
        "depth": 200,
        "alpha": "implicit",
        "negatives_per_query": 1,
        "query_length": 24,
        "passage_length": 120,
    },
    ("star", "document"): HEAD
    | {"queries_per_step": 60, "optimizer": "adamw", "learning_rate": 2e-6, "passage_length": 512},
    ("adore", "passage"): {
        "queries_per_step": 32,
        "optimizer": "adamw",
        "learning_rate": 5e-6,
        "weight_decay": 0.01,
        "warmup": 2_000,
        "epochs": 6,
        "depth": 200,
        "cut": 200,
        "weighted": True,
        "negatives": "dynamic",
        "query_length": 64,
    },
    ("adore", "document"): {
        "queries_per_step": 32,
        "learning_rate": 5e-6,
        "warmup": 2_000,
        "epochs": 6,
        "depth": 200,
        "cut": 10,
        "query_length": 64,
    },
}


@pytest.mark.parametrize(("recipe", "name"), PRESETS)
def test_a_preset_is_valid_and_says_only_what_decides_the_result(recipe, name):
    values = read_preset(recipe, name)
    settings = build(SETTINGS[recipe], values)
    assert {key for key in values if is_operational(SETTINGS[recipe], key)} <= {"measures", "keep_versions"}
    for key, value in values.items():  # nothing is turned into something else on the way
        assert getattr(settings, key) == value


def test_every_file_of_presets_belongs_to_a_recipe():
    files = resources.files("hardneg").joinpath("presets").iterdir()
    assert {file.name for file in files} == {"prompts.toml", *(f"{recipe}.toml" for recipe in RECIPES)}
    assert set(SETTINGS) == set(RECIPES)


def test_every_preset_but_the_demos_is_held_to_its_paper():
    ours = ("demo", "finetune", "finetune-bm25")
    assert set(PUBLISHED) == {(recipe, name) for recipe, name in PRESETS if name not in ours}
    assert {recipe for recipe, name in PRESETS if name == "demo"} == set(RECIPES)


@pytest.mark.parametrize(("recipe", "name"), PUBLISHED)
def test_a_preset_holds_the_published_numbers(recipe, name):
    settings, published = build(SETTINGS[recipe], read_preset(recipe, name)), PUBLISHED[recipe, name]
    assert {key: getattr(settings, key) for key in published} == published


@pytest.mark.parametrize(
    ("name", "reference", "paper"),
    [
        ("msmarco", [16, 32, 32, 32], [32] * 4),
        ("nq", [4, 8, 12, 12], [12] * 4),
        ("triviaqa", [4, 8, 12, 12], [12] * 4),
    ],
)
def test_group_sizes_of_the_episodes_and_the_last_one_repeats(name, reference, paper):
    for chosen, sizes in (("reference", reference), ("paper", paper)):
        settings = build(AnceTele, read_preset("ance-tele", name), {"group_sizes": chosen})
        assert [settings.passages_per_query(episode) for episode in (1, 2, 3, 4)] == sizes


def test_early_stops_do_not_shorten_the_schedule():
    # MS MARCO: 502 939 training queries with a positive, 8 a step: 62 868 steps an epoch
    settings = build(AnceTele, read_preset("ance-tele", "msmarco"))
    assert settings.horizon(502_939) == 3 * 62_868
    assert settings.stop(settings.horizon(502_939)) == 20_000
    assert settings.stop(12_000) == 12_000  # no later than the schedule's end
    fraction = settings.model_copy(update={"stop_step": None})
    assert [fraction.stop(horizon) for horizon in (100, 105, 104, 5, 4)] == [10, 11, 10, 1, 1]
    assert fraction.model_copy(update={"steps": 77}).horizon(502_939) == 77


def test_papers_keep_the_last_state_and_measure_nothing_on_the_way():
    for recipe, name in PRESETS:
        if not name.startswith("finetune"):
            assert not {"keep", "measure_every", "patience"} & set(read_preset(recipe, name)), (recipe, name)


@pytest.mark.parametrize("recipe", SETTINGS)
def test_finetune_leaves_the_model_as_it_is_and_keeps_the_best(recipe):
    preset = read_preset(recipe, "finetune")
    settings = build(SETTINGS[recipe], preset)
    assert settings.encoder_overrides == {}
    assert (settings.prompts, settings.towers, settings.reinit_layers) == (None, None, 0)
    assert (settings.optimizer, settings.weight_decay, settings.warmup, settings.clip) == ("adamw", 0.01, 0.1, 1.0)
    assert settings.keep == "best"
    counts = [steps_of(settings, queries) for queries in (2000, 20_000, 500_000)]
    assert 300 <= counts[0] < counts[1] < counts[2] <= 10_000
    for queries, steps in zip((2000, 20_000, 500_000), counts, strict=True):
        assert 3 <= len(settings.measured_steps(steps, steps)) <= 10, queries


def steps_of(settings, queries):
    """Steps of the schedule."""
    if isinstance(settings, Ance):
        return settings.for_data(queries).steps
    return settings.horizon(queries, 1) if isinstance(settings, Warmup) else settings.horizon(queries)
