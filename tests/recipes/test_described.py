"""An experiment's folder describes its states and data, and its figures can be made again without a model."""

import json
import shutil

import pytest
from executed import run_of_state

import hardneg as hn
from hardneg.api.reopen import experiment_data
from hardneg.diagnostics.judge import Judge
from hardneg.diagnostics.measured import Measured, with_figures
from hardneg.diagnostics.search_state import bm25_judged
from hardneg.diagnostics.summary import summarize
from hardneg.errors import ArtifactError, SettingsError
from hardneg.evaluation.measures import parse_measures
from hardneg.experiment.folder import read_settings, write_settings
from hardneg.experiment.results_manifest import check_seal
from hardneg.experiment.states import read_states
from worlds.tiny_world import COMMON

TELE = {"episodes": 2, "steps": 6, "stop_step": 3, "passages_reference": [4], "count": 4, "keep": "best"}
TELE |= {
    "measure_every": 2,
    "measures": "RR@10 R@100",
    "learning_rate": 0.01,
}  # so the best state is an earlier one
SPLITS = hn.Splits("train", "dev", "test")


@pytest.fixture(scope="module")
def tele(world, tmp_path_factory):
    """Two episodes of ANCE-Tele, of which the best state is kept."""
    out = tmp_path_factory.mktemp("described") / "exp"
    settings = COMMON | TELE
    hn.train_ance_tele(world.collection, world.calm, out, splits=SPLITS, device="cpu", **settings)
    return out, settings


@pytest.fixture(scope="module")
def star(world, tmp_path_factory):
    """STAR without dev, on a collection that may be moved."""
    root = tmp_path_factory.mktemp("moving")
    shutil.copytree(world.collection.path, root / "collection")
    out = root / "exp"
    settings = COMMON | {"steps": 4, "measures": "RR@10"}
    hn.train_star(
        root / "collection", world.calm, out, splits=hn.Splits("train", "none", "test"), device="cpu", **settings
    )
    return out, settings


def figures(out):
    """What ``results.json`` says by split, of comparisons and forgetting, from folder and collection alone."""
    record, data = read_settings(out), experiment_data(out)
    measures, cache = parse_measures(record["settings"]["measures"]), out / "cache"
    judge, states, seen = Judge(data, measures, cache), read_states(out), {}
    for state in states:
        found = {"train": run_of_state(out, state, "query")}
        found |= {split: run_of_state(out, state, split) for split in ("test", "dev")}
        found |= {
            split: run.cut(judge.depth_of(split))
            for split, run in found.items()
            if run is not None and split != "train"
        }
        runs = {name: run for name, run in found.items() if run is not None}
        runs = bm25_judged(judge) if state.name == "bm25" else runs
        seen[state.name] = with_figures(Measured(state, runs), judge)
    return summarize(seen, seed=record["settings"]["seed"])


@pytest.mark.parametrize("made", ["tele", "star"])
def test_the_figures_are_made_again_from_the_folder_without_a_model(made, request, monkeypatch):
    out, _ = request.getfixturevalue(made)
    shutil.move(out / "model", out / "aside")  # nothing looks at it
    try:
        again = figures(out)
    finally:
        shutil.move(out / "aside", out / "model")
    results = json.loads((out / "results.json").read_text())
    assert next(iter(results["test"])) == "bm25"
    assert [*results["test"]][-1] == "final"
    for name in ("test", "dev", "comparisons", "forgetting"):
        assert json.dumps(again.get(name)) == json.dumps(results.get(name)), name


def test_the_states_say_what_they_are(tele):
    out, _ = tele
    states = {state.name: state for state in read_states(out)}
    results = json.loads((out / "results.json").read_text())
    assert set(results["dev"]) == set(states)
    kinds = {name: state.kind for name, state in states.items()}
    assert kinds["bm25"] == "bm25"
    assert kinds["untrained"] == "untrained"
    assert kinds["episode-1"] == "episode"
    assert kinds["episode-1-step-2"] == "passing"
    assert [*states][-1] == "final"
    assert kinds["final"] == "final"
    places = {name: (state.episode, state.step) for name, state in states.items()}
    assert places["untrained"] == (None, 0)
    assert places["episode-1-step-2"] == (1, 2)
    assert places["episode-1"] == (1, 3)
    assert places["final"][1] == results["kept"]["step"]
    assert states["episode-1"].pool == "episodes/1/negatives"
    assert states["episode-1"].model == "episodes/1/model"
    assert states["final"].model == "model"
    assert states["episode-1-step-2"].asked == "dev"
    for state in states.values():
        assert state.runs is None or (out / state.runs).is_dir()
        assert state.model is None or (out / state.model).is_dir()
        assert (state.digest is None) == (state.name == "bm25")
    assert states["final"].digest in {state.digest for state in states.values() if state.kind != "final"}


def test_states_are_sealed_and_are_the_same_bytes_after_a_kill(tele, world):
    out, settings = tele
    before = {name: (out / name).read_bytes() for name in ("states.jsonl", "results.json", "seal.json")}
    for gone in (("seal.json", "results.json"), ("seal.json", "results.json", "states.jsonl")):
        for name in gone:
            (out / name).unlink()
        hn.train_ance_tele(world.collection, world.calm, out, splits=SPLITS, device="cpu", **settings)
        assert {name: (out / name).read_bytes() for name in before} == before
    (out / "states.jsonl").write_bytes(before["states.jsonl"].replace(b'"step": 2', b'"step": 3'))
    with pytest.raises(ArtifactError, match=r"states\.jsonl: CORRUPT"):
        check_seal(out)
    (out / "states.jsonl").write_bytes(before["states.jsonl"])
    check_seal(out)


def test_a_damaged_line_of_states_is_named(tele, tmp_path):
    lines = (tele[0] / "states.jsonl").read_text().splitlines()
    (tmp_path / "states.jsonl").write_text("\n".join([lines[0], '{"name": "x"}']) + "\n")
    with pytest.raises(ArtifactError, match=r"states\.jsonl:2: BAD_JSON"):
        read_states(tmp_path)
    (tmp_path / "states.jsonl").unlink()
    with pytest.raises(ArtifactError, match="MISSING_FILE"):
        read_states(tmp_path)


# ---------------------------------------------------------------- the data


def test_the_settings_name_splits_and_model(tele, world):
    record = read_settings(tele[0])
    named = {"train": "train", "dev": "dev", "test": "test"}
    drawn = {"held_out": 0, "seed": 7, "dev_queries": None, "measurable": False, "whole_texts": False}
    assert record["splits"] == named | drawn
    assert record["base_model"] == {"model": world.calm, "passage_model": None}


def test_queries_that_are_held_out_are_the_same_again(world, tmp_path):
    from hardneg.data.training_data import DevDraw, choose_splits, open_splits

    passages = [(f"p{i}", f"text {i}") for i in range(30)]
    queries = {f"q{i}": f"text {i}" for i in range(30)}
    collection = hn.Collection.from_lists(passages, queries, {"train": {f"q{i}": [f"p{i}"] for i in range(30)}})
    for seed in (0, 3):
        chosen = choose_splits(collection, draw=DevDraw(seed))
        assert chosen.names.held_out == 3
        again = open_splits(collection, chosen.names)
        assert again.digest == chosen.digest
        assert again.held_out == 3


def test_a_collection_that_moved_is_given_and_one_that_is_gone_is_told(star):
    out, _ = star
    collection = out.parent / "collection"
    known = experiment_data(out).digest
    collection.rename(out.parent / "moved")
    try:
        with pytest.raises(SettingsError, match="NO_DATA") as fault:
            experiment_data(out)
        assert len(fault.value.lines) == 1
        assert experiment_data(out, out.parent / "moved").digest == known
    finally:
        (out.parent / "moved").rename(collection)


def test_another_collection_is_refused(star):
    other = hn.Collection.from_lists([("p", "text")], {"q": "query"}, {"train": {"q": ["p"]}})
    with pytest.raises(ArtifactError, match=r"INPUT_CHANGED: the collection of this experiment was another one"):
        experiment_data(star[0], other)


def test_an_experiment_of_the_old_form_is_refused(star, tmp_path):
    record = {
        name: value for name, value in read_settings(star[0]).items() if name not in ("splits", "base_model")
    }
    write_settings(tmp_path, {**record, "format": 2})
    with pytest.raises(ArtifactError, match=r"FORMAT_VERSION: this experiment has format version 2"):
        experiment_data(tmp_path)
