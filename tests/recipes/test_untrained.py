"""The pretrained model as it came, compared with the state that training starts from."""

import json
from functools import partial

import pytest

import hardneg as hn
from hardneg.experiment.names import STARTED, UNTRAINED, shown
from hardneg.models.loading import load_encoder, read_model
from hardneg.models.source import ModelSource
from hardneg.recipes.star import Star
from hardneg.recipes.starting_model import own_encoder, settings_of, trained_encoder
from hardneg.recipes.untrained import own_model
from hardneg.storage.artifacts import read_manifest
from processes import command_of, finish
from worlds.tiny_world import COMMON, SETTINGS, one_thread  # noqa: F401

SHORT = {"query_length": 4, "passage_length": 5}
RECIPES = {
    "ance_tele": {"episodes": 2, "steps": 4, "passages_reference": [3], "count": 4, "stop_step": 2},
    "warmup": {"mixtures": ["random", "bm25"], "steps": [2]},
    "star": {"steps": 2},
    "ance": {"refresh_every": 2, "refreshes": 1},
    "adore": {"steps": 2, "cut": 10},
}
STATES = {
    "ance_tele": ["episode-1"],
    "warmup": ["episode-1"],
    "star": [],
    "ance": ["refresh-1"],
    "adore": [],
}


@pytest.fixture(scope="module")
def plain(world, tmp_path_factory):
    """STAR with the model's own settings."""
    return train(world, tmp_path_factory.mktemp("plain") / "exp")


def train(world, out, recipe="star", **changes):
    values = COMMON | {"depth": 20, "measures": "RR@10 R@5"} | RECIPES[recipe] | changes
    return getattr(hn, f"train_{recipe}")(world.collection, world.calm, out, device="cpu", **values)


@pytest.mark.parametrize("recipe", RECIPES)
def test_every_recipe_measures_the_model_as_it_came_and_as_trained_on(world, tmp_path, plain, recipe):
    results = train(world, tmp_path / "exp", recipe, **SHORT)
    for split in ("test", "dev"):
        assert list(results[split]) == ["bm25", UNTRAINED, STARTED, *STATES[recipe], "final"]
        assert results[split][UNTRAINED] == plain[split][UNTRAINED]
        assert results[split][STARTED] != plain[split][UNTRAINED]
    tests = {row["b"]: row["difference"] for row in results["comparisons"] if row["measure"] == "RR@10"}
    assert list(tests) == [UNTRAINED, STARTED, "bm25"]
    gained = results["test"]["final"]["RR@10"] - results["test"][STARTED]["RR@10"]
    assert tests[STARTED] == pytest.approx(gained), "what training gained, without what its settings did"
    names = [results["forgetting"][0]["before"], *(row["after"] for row in results["forgetting"])]
    assert names == [STARTED, *STATES[recipe], "final"]
    assert list(results["pairwise_errors"]["dev"])[:2] == [UNTRAINED, STARTED]
    assert sorted(path.name for path in (tmp_path / "exp/untrained/runs").iterdir()) == sorted(
        ["test", "dev", "test-errors", "dev-errors", "geometry"]
    )


def test_there_is_one_row_where_nothing_differs(plain):
    assert list(plain["test"]) == list(plain["dev"]) == ["bm25", UNTRAINED, "final"]
    assert plain["forgetting"][0]["before"] == UNTRAINED


def test_the_results_say_what_is_cut(world, tmp_path):
    results = train(world, tmp_path / "exp", **SHORT)
    lengths = {side: dict(found) for side, found in results["lengths"].items()}
    texts = {"passage": world.collection.n_passages, "query": world.collection.n_queries}
    assert {side: found["texts"] for side, found in lengths.items()} == texts
    assert [(lengths[side]["tokens"], lengths[side]["own"]) for side in texts] == [(5, 64), (4, 64)]
    assert lengths["passage"]["cut"] == texts["passage"]  # eight words and two special tokens
    assert lengths["query"]["cut"] == texts["query"]  # three words
    assert "drawn" not in lengths["passage"]


@pytest.mark.parametrize(
    ("changes", "differs"),
    [
        ({"head": "ance"}, True),
        ({"pooling": "mean"}, True),
        ({"normalize": True}, True),
        ({"reinit_layers": 1}, True),
        ({"query_prompt": "ask : "}, True),
        ({"scale": 3.0}, False),
        ({"towers": "untied"}, False),
        ({"query_length": 64, "passage_length": 64}, False),
    ],
)
def test_there_is_a_second_row_where_something_else_is_retrieved(world, changes, differs):
    settings = Star(**COMMON, **changes)
    source = ModelSource(world.calm, device="cpu")
    model = read_model(source)
    found, start = settings_of(model), trained_encoder(model, settings)
    load = partial(own_encoder, source, settings)
    own = own_model(found, start.settings, load, reinit=settings.reinit_layers)
    plain = load_encoder(world.calm)
    assert found == plain.settings
    assert (own is not None) == differs
    assert own is None or own.load().digest() == plain.digest()
    for side in ("passage", "query"):  # told by settings, and true of texts and weights
        same = start.search_template(side) == plain.search_template(side) and start.digest(side) == plain.digest(
            side
        )
        assert same == (own is None or side not in own.sides)


def test_the_cost_of_the_cut_is_said_and_logged(world, tmp_path, capsys, monkeypatch):
    from hardneg.process import progress

    monkeypatch.setattr(progress, "enabled", True)
    results = train(world, tmp_path / "exp", **SHORT)
    found = [results["dev"][state]["RR@10"] for state in (UNTRAINED, STARTED)]
    lines = capsys.readouterr().err.splitlines()
    now = f"{found[1]:.4f} with passages of 5 and queries of 4 tokens"
    assert f"untrained: dev RR@10 {found[0]:.4f} as you gave it, {now}" in lines
    texts = [f"{world.collection.n_passages:,}", f"{world.collection.n_queries:,}"]
    assert (
        f"passages: 100 % of {texts[0]} are cut at 5 tokens (the model takes 64); "
        f"queries: 100 % of {texts[1]} are cut at 4 tokens (the model takes 64)" in lines
    )


def test_the_same_command_resumes_and_searches_nothing_twice(world, tmp_path):
    first = train(world, tmp_path / "exp", **SHORT)
    run = read_manifest(tmp_path / "exp/untrained/runs/dev").digest
    for name in ("results.json", "seal.json"):
        (tmp_path / "exp" / name).unlink()
    timing = tmp_path / "exp/timing.jsonl"
    timing.unlink()
    assert train(world, tmp_path / "exp", **SHORT) == first
    assert read_manifest(tmp_path / "exp/untrained/runs/dev").digest == run
    stages = [json.loads(line)["stage"] for line in timing.read_text().splitlines()] if timing.exists() else []
    assert "encode" not in stages


def test_names_for_people():
    assert shown(UNTRAINED) == "untrained"
    assert shown(STARTED) == "untrained, as trained on"
    assert shown(f"{STARTED}/pq") == "untrained, as trained on/pq"


@pytest.mark.slow
def test_two_processes_measure_both_together(world, execute, tmp_path):
    changes = SHORT | {"episodes": 1, "steps": 4, "stop_step": 2}
    one = execute(**changes)
    settings = SETTINGS | {"store_dtype": "float32"} | changes
    finish(2, command_of(world.collection.path, world.calm, tmp_path / "exp", settings), tmp_path / "log")
    results = json.loads((tmp_path / "exp/results.json").read_text())
    for state in (UNTRAINED, STARTED):
        assert results["test"][state] == one.results["test"][state]
    assert results["lengths"] == one.results["lengths"]


@pytest.mark.slow
def test_roles_in_processes_of_their_own_bear_the_same_names(world, tmp_path):
    results = train(world, tmp_path / "exp", "ance", mode="async-fixed", **SHORT)
    assert list(results["test"])[:3] == ["bm25", UNTRAINED, STARTED]
    assert results["forgetting"][0]["before"] == STARTED
