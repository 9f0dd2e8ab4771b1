"""The presets of every recipe are valid settings, and those of ANCE-Tele hold the published numbers."""

from importlib import resources

import pytest

from hardneg.config import build, is_operational, read_preset, read_presets
from hardneg.operations.recipes import RECIPES
from hardneg.recipes.ance_tele import AnceTele

SETTINGS = {"ance-tele": AnceTele}
PRESETS = [(recipe, name) for recipe in SETTINGS for name in sorted(read_presets(recipe))]

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
PUBLISHED = {"msmarco": MARCO, "nq": QA, "triviaqa": QA | {"search_query_length": 64}}


@pytest.mark.parametrize(("recipe", "name"), PRESETS)
def test_a_preset_is_valid_and_says_only_what_decides_the_result(recipe, name):
    values = read_preset(recipe, name)
    settings = build(SETTINGS[recipe], values)
    assert {key for key in values if is_operational(SETTINGS[recipe], key)} <= {"measures"}
    for key, value in values.items():  # nothing is turned into something else on the way
        assert getattr(settings, key) == value


def test_every_file_of_presets_belongs_to_a_recipe():
    files = resources.files("hardneg").joinpath("presets").iterdir()
    assert {file.name for file in files} == {"prompts.toml", *(f"{recipe}.toml" for recipe in RECIPES)}
    assert set(read_presets("ance-tele")) == {"demo", "msmarco", "nq", "triviaqa"}


@pytest.mark.parametrize(("name", "key"), [(name, key) for name, values in PUBLISHED.items() for key in values])
def test_a_preset_of_ance_tele_holds_the_published_number(name, key):
    assert getattr(build(AnceTele, read_preset("ance-tele", name)), key) == PUBLISHED[name][key]


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
