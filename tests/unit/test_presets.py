"""The presets of every recipe are valid settings, and hold the numbers of their papers or the papers' code."""

from importlib import resources
from typing import get_type_hints

import pytest

from hardneg.api.recipes import RECIPES
from hardneg.config import build, is_operational, read_preset, read_presets
from hardneg.errors import HardnegError, SettingsError
from hardneg.models.encoder_settings import EncoderSettings
from hardneg.recipes.adore.recipe import Adore
from hardneg.recipes.ance.recipe import Ance
from hardneg.recipes.ance_tele import AnceTele
from hardneg.recipes.ar2.settings import Ar2
from hardneg.recipes.settings import Episode
from hardneg.recipes.warmup import Warmup

SETTINGS = {name: recipe.settings for name, recipe in RECIPES.items()}
PRESETS = [(recipe, name) for recipe in SETTINGS for name in read_presets(recipe)]

OWN = {"demo", "tiny", "finetune", "finetune-bm25", "finetune-ranker"}  # presets of no paper

# Where numbers are from. CODE is what the papers' authors published beside them.
TELE_5 = "Sun et al., 2022, Table 5"
TELE_7 = "Sun et al., 2022, Table 7"
TELE_C2 = "Sun et al., 2022, Section C.2"
TELE_CODE = "the code of Sun et al., 2022: epi-*-mine-*.sh, epi-*-train-*.sh"
ANCE_5 = "Xiong et al., 2021, Section 5"
ANCE_A1 = "Xiong et al., 2021, Appendix A.1"
ANCE_1 = "Xiong et al., 2021, Table 1"
ANCE_CODE = "the code of Xiong et al., 2021: commands/, drivers/"
STAR_7 = "Zhan et al., 2021, Section 7"
STAR_8 = "Zhan et al., 2021, Section 8.4.1"
STAR_CODE = "the code of Zhan et al., 2021: star/train.py, adore/train.py and the README"
DPR_CODE = "the code of Karpukhin et al., 2020: biencoder_nq.yaml, hf_bert.yaml"
AR2_8 = "Zhang et al., 2022, Table 8"
AR2_9 = "Zhang et al., 2022, Table 9"
AR2_2 = "Zhang et al., 2022, Table 2"
AR2_4 = "Zhang et al., 2022, Section 4.2"
AR2_CODE = "the code of Zhang et al., 2022: run_de_model_ernie.py, co_training/*.py"
OURS = "not said by paper or code; ours"

# By preset and source, numbers and choices. What a preset leaves out is the recipe's default, and held here too.
DOT = {"pooling": "cls", "normalize": False, "scale": 1.0}  # the first token, dot products
TELE = {
    TELE_5: {"learning_rate": 5e-6, "warmup": 0.1, "depth": 200, "alpha": 0.5, "beta": 0.5, "optimizer": "adamw"},
    TELE_CODE: DOT
    | {
        "title_join": "sep",
        "weight_decay": 0.0,
        "clip": 1.0,
        "in_batch": True,
        "group_sizes": "reference",
        "query_length": 32,
    },
    "Sun et al., 2022, Section 4 and Table 8": {
        "episodes": 3,
        "start": "scratch",
        "momentum": "weighted",
        "dedup": False,
        "extra": [],
        "lookahead": "first",
    },
}
TELE_MARCO = {
    TELE_5: {"queries_per_step": 8, "passages_paper": [32, 32, 32], "epochs": 3, "passage_length": 128},
    TELE_C2: {"stop_step": 20_000},
    TELE_CODE: {
        "towers": "tied",
        "passages_reference": [16, 32, 32],
        "steps": None,
        "count": 30,
        "positives": "rotate",
        "labels": "qrels",
        "search_query_length": None,
        "cache_tokens": 8 * 128,
    },
}
TELE_QA = {
    TELE_5: {"queries_per_step": 128, "passages_paper": [12, 12, 12], "epochs": 40, "passage_length": 156},
    TELE_C2: {"stop_step": 2_000},
    TELE_CODE: {
        "towers": "untied",
        "passages_reference": [4, 8, 12],
        "steps": None,
        "count": 80,
        "positives": "first",
        "labels": "answers",
        "use_positive_ctxs": True,
        "require_gold": False,
        "answer_mode": "string",
        "cache_tokens": 128 * 156,
    },
    "Sun et al., 2022, Table 1": {"measures": "Answer@5 Answer@20 Answer@100"},
}

REFRESHED = {
    ANCE_5: DOT | {"mode": "async", "depth": 200, "negatives_per_query": 1, "refresh_every": 10_000},
    ANCE_A1: {"optimizer": "lamb", "loss": "pairwise_nll"},
    ANCE_CODE: {
        "title_join": "sep",
        "clip": 1.0,
        "in_batch": False,
        "schedule": "single",
        "horizon": 1_000_000,
        "query_length": 64,
    },
    OURS: {"keep_versions": 2},
}
ANCE_HEAD = {ANCE_A1: {"head": "ance"}, ANCE_5: {"passage_length": 512}, ANCE_CODE: {"towers": "tied"}}
ANCE_DOCUMENTS = {ANCE_CODE: {"max_characters": 10_000}, OURS: {"refreshes": 20}}
ANCE_QA = {
    ANCE_CODE: {
        "towers": "untied",
        "queries_per_step": 128,
        "learning_rate": 1e-5,
        "warmup": 1_000,
        "refresh_every": 1_000,
        "schedule": "cyclical",
        "horizon": None,  # one step a line of training data
        "passage_length": 256,
        "labels": "answers",
    },
    OURS: {"positives": "first"},
    ANCE_1: {"measures": "Answer@5 Answer@20 Answer@100"},
}
BM25_WARMUP = {
    ANCE_5: DOT | {"depth": 100, "negatives": [1]},
    ANCE_A1: {"head": "ance"},
    ANCE_CODE: {
        "title_join": "sep",
        "use_titles": False,
        "queries_per_step": 32,
        "optimizer": "lamb",
        "learning_rate": 2e-4,
        "warmup": 1_000,
        "steps": [2 * 35_000_000 // 32],
        "stop_step": 60_000,
        "query_length": 64,
        "passage_length": 128,
        "clip": 1.0,
    },
}
BASELINE = {
    STAR_7: DOT | {"queries_per_step": 256, "optimizer": "lamb", "learning_rate": 2e-4, "passage_length": 120},
    STAR_CODE: {
        "head": "ance",
        "title_join": "sep",
        "use_titles": False,
        "query_length": 24,
        "warmup": 1_000,
        "weight_decay": 0.01,
        "epochs": 100,
        "clip": 1.0,
    },
    OURS: {"stop_step": 50_000},
}
STAR = {
    STAR_7: DOT | {"depth": 200, "negatives_per_query": 1},
    STAR_CODE: {
        "head": "ance",
        "title_join": "sep",
        "towers": "tied",
        "weight_decay": 0.01,
        "warmup": 1_000,
        "epochs": 100,
        "query_length": 24,
        "alpha": "implicit",
        "clip": 1.0,
    },
}
ADORE = {
    STAR_7: {
        "queries_per_step": 32,
        "optimizer": "adamw",
        "learning_rate": 5e-6,
        "measure": "RR",
        "weighted": True,
        "negatives": "dynamic",
        "depth": 200,
    },
    STAR_CODE: {"weight_decay": 0.01, "warmup": 2_000, "epochs": 6, "query_length": 64, "clip": 1.0},
}
FIRST_RETRIEVER = {
    AR2_9: {
        "queries_per_step": 128,
        "learning_rate": 1e-5,
        "warmup": 0.1,
        "epochs": 40,
        "query_length": 32,
        "passage_length": 128,
        "scale": 1.0,
        "optimizer": "adamw",
    },
    AR2_4: {"mixtures": ["bm25+in_batch"], "negatives": [1]},  # "follow the experiment settings of DPR"
    AR2_CODE: {"clip": 2.0, "towers": "untied", "pooling": "cls", "normalize": False, "title_join": "sep"},
    OURS: {"depth": 100},
}
FIRST_RETRIEVER_QA = {
    AR2_CODE: {"labels": "answers", "positives": "first"},
    AR2_2: {"measures": "Answer@5 Answer@20 Answer@100"},
}
AR2 = {
    AR2_9: {
        "queries_per_step": 64,
        "learning_rate": 1e-5,
        "ranker_queries_per_step": 64,
        "ranker_learning_rate": 1e-6,
        "first_ranker_steps": 2_000,
        "first_ranker_queries_per_step": 64,
        "first_ranker_learning_rate": 1e-5,
        "negatives_per_query": 15,
        "optimizer": "adamw",
        "warmup": 0.1,
        "scale": 1.0,
        "temperature": 1.0,
        "query_length": 32,
        "passage_length": 128,
    },
    AR2_4: {"iterations": 10, "retriever_steps": 1_500, "ranker_steps": 500, "depth": 100},
    "Zhang et al., 2022, Eq. 10": {"weighting": "p_theta"},
    AR2_CODE: {
        "order": "ranker-first",
        "balance": 0.5,
        "clip": 2.0,
        "towers": "untied",
        "pooling": "cls",
        "normalize": False,
        "title_join": "sep",
        "weight_decay": 0.0,
        "labels": "answers",
        "positives": "first",  # the gold one
    },
    OURS: {"ranker_max_length": 32 + 128, "ranker_query_length": 32},
}
AR2_NQ = {"Zhang et al., 2022, Table 5": {"measures": "Answer@1 Answer@5 Answer@20 Answer@100"}}


def joined(*tables):
    """Tables of numbers by source, later ones on top: a number has one source."""
    found = {}
    for table in tables:
        for source, values in table.items():
            for others in found.values():
                for name in values:
                    others.pop(name, None)
            found.setdefault(source, {}).update(values)
    return found


PUBLISHED = {
    ("ance-tele", "msmarco"): joined(
        TELE, TELE_MARCO, {TELE_CODE: {"measures": "RR@10 nDCG@10 Success@1000 R@1000"}}
    ),
    ("ance-tele", "nq"): joined(TELE, TELE_QA, {TELE_CODE: {"search_query_length": None}}),
    ("ance-tele", "triviaqa"): joined(TELE, TELE_QA, {TELE_CODE: {"search_query_length": 64}}),
    ("ance", "passage"): joined(
        REFRESHED,
        ANCE_HEAD,
        {
            ANCE_5: {"queries_per_step": 8 * 2 * 4},
            ANCE_A1: {"learning_rate": 1e-6, "warmup": 5_000},
            ANCE_CODE: {"use_titles": False},
            STAR_8: {"refreshes": 600_000 // 10_000 - 1},
        },
    ),
    ("ance", "firstp"): joined(
        REFRESHED,
        ANCE_HEAD,
        ANCE_DOCUMENTS,
        {
            ANCE_5: {"queries_per_step": 8 * 2 * 4, "chunks": 1},
            ANCE_A1: {"learning_rate": 5e-6},
            ANCE_CODE: {"warmup": 3_000},
        },
    ),
    ("ance", "maxp"): joined(
        REFRESHED,
        ANCE_HEAD,
        ANCE_DOCUMENTS,
        {ANCE_5: {"chunks": 4}, ANCE_CODE: {"queries_per_step": 128, "learning_rate": 1e-5, "warmup": 500}},
    ),
    ("ance", "nq"): joined(REFRESHED, ANCE_QA, {AR2_8: {"refreshes": 136_000 // 1_000 - 1}}),
    ("ance", "triviaqa"): joined(REFRESHED, ANCE_QA, {OURS: {"refreshes": 136_000 // 1_000 - 1}}),
    ("ance", "ance-analysis"): joined(
        REFRESHED,
        {
            TELE_7: {
                "queries_per_step": 8,
                "negatives_per_query": 7,
                "optimizer": "adamw",
                "learning_rate": 1e-6,
                "warmup": 5_000,
            },
            TELE_5: {"query_length": 32, "passage_length": 128},
            TELE_CODE: {"towers": "tied", "loss": "contrastive"},
            OURS: {"refreshes": 20, "horizon": None},
        },
    ),
    ("warmup", "bm25"): joined(BM25_WARMUP, {ANCE_5: {"mixtures": ["bm25"]}}),
    ("warmup", "bm25-in-batch"): joined(BM25_WARMUP, {ANCE_5: {"mixtures": ["bm25+in_batch"], "loss": "auto"}}),
    ("warmup", "bm25-to-in-batch"): joined(
        BM25_WARMUP, {ANCE_5: {"mixtures": ["bm25", "in_batch"]}, ANCE_A1: {"loss": "pairwise_nll"}}
    ),
    ("warmup", "bm25-to-nce"): joined(BM25_WARMUP, {ANCE_5: {"mixtures": ["bm25", "nce"]}}),
    ("warmup", "bm25-to-bm25-in-batch"): joined(BM25_WARMUP, {ANCE_5: {"mixtures": ["bm25", "bm25+in_batch"]}}),
    ("warmup", "bm25-corpus-random"): joined(BM25_WARMUP, {OURS: {"mixtures": ["bm25+random"]}}),
    ("warmup", "bm25-to-corpus-random"): joined(BM25_WARMUP, {OURS: {"mixtures": ["bm25", "random"]}}),
    ("warmup", "bm25-to-bm25-corpus-random"): joined(BM25_WARMUP, {OURS: {"mixtures": ["bm25", "bm25+random"]}}),
    ("warmup", "in-batch"): joined(BASELINE, {STAR_7: {"mixtures": ["in_batch"], "loss": "pairwise_nll"}}),
    ("warmup", "random"): joined(BASELINE, {STAR_7: {"mixtures": ["random"]}}),
    ("warmup", "nce"): joined(
        BASELINE, {ANCE_5: {"mixtures": ["nce"]}, OURS: {"queries_per_step": 256, "epochs": 100}}
    ),
    ("warmup", "dpr"): {
        DPR_CODE: DOT
        | {
            "mixtures": ["bm25+in_batch"],
            "positives": "first",
            "negatives": [1],
            "queries_per_step": 8 * 16,
            "optimizer": "adamw",
            "learning_rate": 2e-5,
            "weight_decay": 0.0,
            "warmup": 1_237,
            "epochs": 40,
            "stop_step": None,
            "clip": 2.0,
            "towers": "untied",
            "query_length": 256,
            "passage_length": 256,
            "title_join": "sep",
        },
        "Karpukhin et al., 2020, Section 4": {"depth": 100},
    },
    ("star", "passage"): joined(
        STAR,
        {
            STAR_7: {"queries_per_step": 256, "optimizer": "lamb", "learning_rate": 1e-4, "passage_length": 120},
            STAR_CODE: {"stop_step": 50_000, "use_titles": False},
        },
    ),
    ("star", "document"): joined(
        STAR,
        {
            STAR_7: {"queries_per_step": 60, "optimizer": "adamw", "learning_rate": 2e-6, "passage_length": 512},
            ANCE_CODE: {"max_characters": 10_000},
            OURS: {"stop_step": 50_000},
        },
    ),
    ("warmup", "ar2-nq"): joined(FIRST_RETRIEVER, FIRST_RETRIEVER_QA),
    ("warmup", "ar2-triviaqa"): joined(FIRST_RETRIEVER, FIRST_RETRIEVER_QA),
    ("warmup", "ar2-msmarco"): joined(
        FIRST_RETRIEVER, {AR2_9: {"queries_per_step": 64, "learning_rate": 1e-4, "epochs": 3}}
    ),
    ("ar2", "nq"): joined(AR2, AR2_NQ),
    ("ar2", "triviaqa"): joined(AR2, {AR2_2: {"measures": "Answer@5 Answer@20 Answer@100"}}),
    ("ar2", "msmarco"): joined(
        AR2,
        {
            AR2_9: {
                "learning_rate": 5e-6,
                "ranker_learning_rate": 5e-7,
                "first_ranker_steps": 4_000,
                "first_ranker_queries_per_step": 256,
            },
            AR2_CODE: {"labels": "qrels"},
            AR2_2: {"measures": "RR@10 R@50 R@1000 Success@50 Success@1000"},
        },
    ),
    ("ar2", "irgan"): joined(AR2, AR2_NQ, {"Zhang et al., 2022, Eq. 3": {"game": "irgan", "balance": 1.0}}),
    ("adore", "passage"): joined(ADORE, {STAR_7: {"cut": 200}}),
    ("adore", "document"): joined(ADORE, {STAR_7: {"cut": 10}}),
}


@pytest.mark.parametrize(("recipe", "name"), PRESETS)
def test_a_preset_is_valid_and_says_only_what_decides_the_result(recipe, name):
    values = read_preset(recipe, name)
    settings = build(SETTINGS[recipe], values)
    assert {key for key in values if is_operational(SETTINGS[recipe], key)} <= {"measures", "keep_versions"}
    for key, value in values.items():  # nothing is turned into something else on the way
        assert getattr(settings, key) == value


def test_the_settings_of_an_encoder_have_the_words_of_the_model():
    for name in ("pooling", "head", "title_join"):
        words = get_type_hints(EncoderSettings)[name]
        for recipe in SETTINGS.values():
            assert recipe.model_fields[name].annotation == words | None


def test_every_file_of_presets_belongs_to_a_recipe():
    files = resources.files("hardneg").joinpath("presets").iterdir()
    others = {"prompts.toml", "described.json"}
    assert {file.name for file in files} == {*others, *(f"{recipe}.toml" for recipe in RECIPES)}


def test_every_preset_of_a_paper_is_held_to_it():
    assert set(PUBLISHED) == {(recipe, name) for recipe, name in PRESETS if name not in OWN}
    assert {recipe for recipe, name in PRESETS if name == "demo"} == set(RECIPES)


@pytest.mark.parametrize(("recipe", "name"), PUBLISHED)
def test_a_preset_holds_the_numbers_of_its_sources(recipe, name):
    settings = build(SETTINGS[recipe], read_preset(recipe, name))
    for source, published in PUBLISHED[recipe, name].items():
        assert {key: getattr(settings, key) for key in published} == published, source


@pytest.mark.parametrize(("recipe", "name"), PUBLISHED)
def test_every_number_of_a_preset_has_one_source(recipe, name):
    held = [key for published in PUBLISHED[recipe, name].values() for key in published]
    assert len(held) == len(set(held))
    assert set(read_preset(recipe, name)) <= set(held)


@pytest.mark.parametrize(("recipe", "name"), PUBLISHED)
def test_every_preset_of_a_paper_says_how_long_it_trains(recipe, name):
    values = read_preset(recipe, name)
    assert {"epochs", "steps", "refreshes", "retriever_steps"} & set(values)


def test_random_negatives_are_named_for_where_they_are_drawn():
    for old, batch, corpus in (
        ("bm25-random", "bm25-in-batch", "bm25-corpus-random"),
        ("bm25-to-random", "bm25-to-in-batch", "bm25-to-corpus-random"),
        ("bm25-to-bm25-random", "bm25-to-bm25-in-batch", "bm25-to-bm25-corpus-random"),
    ):
        with pytest.raises(SettingsError, match=f"UNKNOWN_PRESET: .*'{old}'.* use '{batch}' .* or '{corpus}'"):
            read_preset("warmup", old)
        assert "random" not in str(read_preset("warmup", batch)["mixtures"])
        assert "in_batch" not in str(read_preset("warmup", corpus)["mixtures"])


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
        if name not in OWN:
            assert not {"keep", "measure_every", "patience"} & set(read_preset(recipe, name)), (recipe, name)


@pytest.mark.parametrize("recipe", sorted({recipe for recipe, name in PRESETS if name == "finetune"}))
def test_finetune_leaves_the_model_as_it_is_and_keeps_the_best(recipe):
    preset = read_preset(recipe, "finetune")
    settings = build(SETTINGS[recipe], preset)
    assert settings.encoder_overrides == {}
    assert (settings.prompts, settings.towers, settings.reinit_layers) == (None, None, 0)
    assert (settings.optimizer, settings.weight_decay, settings.warmup, settings.clip) == ("adamw", 0.01, 0.1, 1.0)
    assert settings.keep == "best"
    sizes = (2000, 20_000, 500_000)
    counts = [steps_of(settings, queries) for queries in sizes]
    assert 100 <= counts[0] < counts[1] < counts[2] <= 10_000
    for queries in sizes:  # a look encodes the whole corpus
        looks = [settings.measured_steps(episode) for episode in episodes_of(settings, queries)]
        looks += [settings.for_data(queries).kept_steps] if isinstance(settings, Ar2) else []
        assert 2 <= sum(map(len, looks)) <= 4, queries
    assert settings.examine == "judged"


def test_every_finetune_preset_spends_its_time_on_training():
    for recipe, name in PRESETS:
        examined = read_preset(recipe, name).get("examine", "all")
        assert examined == ("judged" if name.startswith("finetune") else "all"), (recipe, name)


def test_ance_looks_at_dev_where_a_refresh_encodes_the_corpus_anyway():
    for queries in (2000, 20_000, 500_000):
        settings = build(Ance, read_preset("ance", "finetune")).for_data(queries)
        every = settings.refresh_every
        assert settings.measured_steps(settings.episode_of(queries)) == [every, 2 * every]


def test_ar2_turns_epochs_into_turns_of_both_models():
    settings = build(Ar2, read_preset("ar2", "finetune")).for_data(20_000)
    assert (settings.retriever_steps, settings.steps) == (834, 2502)  # 2 epochs of 1 250 steps, in 3 iterations
    assert settings.ranker_steps == 278  # a third, as in the paper
    assert settings.first_ranker_steps == 2500
    few = build(Ar2, read_preset("ar2", "finetune")).for_data(16)
    assert (few.retriever_steps, few.ranker_steps, few.first_ranker_steps) == (100, 33, 300)
    paper = build(Ar2, read_preset("ar2", "nq"))
    assert paper.for_data(20_000) is paper


@pytest.mark.parametrize(("most", "steps"), [(1000, 999), (999, 999), (2, 3), (None, 15_627)])
@pytest.mark.parametrize("recipe", [Ance, Ar2])
def test_parts_together_are_within_max_steps(recipe, most, steps):
    """Parts are rounded up only where the bound allows it, and each has a step at least."""
    chosen = read_preset(recipe.__name__.lower(), "finetune") | {"max_steps": most, "epochs": 1.0}
    settings = build(recipe, {name: value for name, value in chosen.items() if name != "min_steps"})
    parts = settings.iterations if recipe is Ar2 else settings.refreshes + 1
    assert (parts, settings.queries_per_step) == (3, 16)
    assert settings.for_data(250_000).steps == steps


def steps_of(settings, queries):
    """Steps of the schedule."""
    if isinstance(settings, Ance | Ar2):
        return settings.for_data(queries).steps
    return settings.horizon(queries, 1) if isinstance(settings, Warmup) else settings.horizon(queries)


def episodes_of(settings, queries):
    """What a preset's episodes do with so many queries."""
    if isinstance(settings, Warmup | AnceTele):
        count = settings.episodes if isinstance(settings, AnceTele) else len(settings.mixtures)
        return [settings.episode_of(queries, number) for number in range(1, count + 1)]
    if isinstance(settings, Ar2):
        return settings.for_data(queries).episodes_of(queries)[:1]
    if isinstance(settings, Adore):
        steps = settings.horizon(queries)
        return [Episode(1, queries, steps, settings.queries_per_step, 1)]
    return [settings.for_data(queries).episode_of(queries)]


def test_measures_may_be_a_list_and_are_kept_as_one_text():
    """An experiment that was begun with the text goes on with the list, for both are the same setting."""
    listed = build(Warmup, {"measures": ["RR@10", "nDCG@10"]})
    assert listed == build(Warmup, {"measures": "RR@10 nDCG@10"})
    assert [str(measure) for measure in listed.judging] == ["RR@10", "nDCG@10"]
    assert str(Warmup(measures=["AP", "RR@10"]).steering) == "AP"
    with pytest.raises(HardnegError, match="BAD_SETTING: measures = "):
        build(Warmup, {"measures": [1]})
