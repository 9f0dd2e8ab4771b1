"""Every flow of commands in both precisions, on any processor: bfloat16 is emulated if the hardware lacks it.

A model's digest does not depend on the precision. Vectors do, and store their precision.
"""

import json
import shutil

import numpy as np
import pytest

import hardneg as hn
from faults.power import power_cut_after_checkpoint
from hardneg.api.recipes import RECIPES
from hardneg.errors import ArtifactError, SettingsError
from hardneg.models.loading import load_encoder
from hardneg.process import hardware, progress
from hardneg.process.hardware import best_precision
from hardneg.search.embedding_store import Embeddings
from hardneg.storage.artifacts import MANIFEST, Manifest, read_manifest, write_json
from worlds.tiny_records import vectors_of
from worlds.tiny_world import one_thread, tiny_collection, tiny_model  # noqa: F401

COMMON = {"queries_per_step": 8, "depth": 10, "seed": 7, "token_budget": 512, "measures": "RR@10"}
OF_RECIPES = {
    "warmup": {"steps": [3]},
    "ance-tele": {"steps": 3, "episodes": 2, "passages_reference": [3], "stop_step": 2, "count": 3},
    "ance": {"refresh_every": 2, "refreshes": 1},
    "star": {"steps": 3},
    "adore": {"steps": 3, "cut": 10, "warmup": 1},
    "ranker": {"steps": 3, "max_length": 24, "negatives_per_query": 2, "rerank": 8},
    "ar2": {
        "iterations": 1,
        "retriever_steps": 3,
        "ranker_steps": 2,
        "first_ranker_steps": 2,
        "negatives_per_query": 2,
        "ranker_queries_per_step": 4,
        "first_ranker_queries_per_step": 4,
        "ranker_max_length": 24,
    },
}


def train(recipe, world, out, **changes):
    settings = COMMON | OF_RECIPES[recipe] | changes
    return hn.train(recipe, *world, out, device="cpu", **settings)


def begun_in(out):
    return json.loads((out / "settings.json").read_text())["result_settings"]["precision"]


@pytest.fixture
def run(hardneg, world, tmp_path):
    """A command over the tiny world: what it prints as JSON; it must not fail."""

    def go(*arguments, model=True, data=True):
        common = ["--data", world[0].path] if data else []
        common += ["--model", world[1], "--device", "cpu"] if model else []
        status, out, err = hardneg(*arguments, *common, "--json")
        assert status == 0, err
        return json.loads(out)

    return go


# ---------------------------------------------------------------- the whole flow


def whole_flow(run, world, root, precision):
    """Encode, search, index, train for the index and clean, by commands."""
    run("encode", "--out", root / "e")
    made = read_manifest(root / "e")
    assert made.settings["precision"] == precision
    assert made.inputs["encoder"] == load_encoder(world[1]).digest("passage")
    for shard in (root / "e").glob("shard-*"):
        assert read_manifest(shard).settings["precision"] == precision

    run("search", "--out", root / "plain.trec", "--k", 120)
    run("search", "--embeddings", root / "e", "--out", root / "given.trec", "--k", 120)
    run("index", root / "e", "--out", root / "i", "--kind", "flat", model=False, data=False)
    facts = run("index", root / "e", "--out", root / "j", "--kind", "flat", "--split", "test")
    assert facts["recall"]["R@100"] > 0.98  # near ties may go either way
    run("search", "--index", root / "i", "--out", root / "index.trec", "--k", 120)
    plain = (root / "plain.trec").read_bytes()
    assert (root / "given.trec").read_bytes() == (root / "index.trec").read_bytes() == plain

    sets = [f"--set={name}={value}" for name, value in (COMMON | OF_RECIPES["adore"]).items()]
    run("train", "adore", "--index", root / "i", "--out", root / "exp", *sets)
    assert begun_in(root / "exp") == precision
    items = run("clean", root / "exp", model=False, data=False)["items"]
    final = load_encoder(str(root / "exp/model"))
    kept = [item for item in items if item["kind"] == "embeddings"]
    stores = [path.parent for path in (root / "exp/cache/embeddings").glob(f"*/{MANIFEST}")]
    of_final = [path for path in stores if read_manifest(path).inputs["encoder"] == final.digest("query")]
    assert of_final
    assert {str(path) for path in of_final} <= {item["path"] for item in kept}  # none is called superseded


def test_the_flow_of_commands(run, world, tmp_path, precision):
    assert best_precision("cpu") == precision
    whole_flow(run, world, tmp_path, precision)


@pytest.mark.parametrize("flag", ["amx_bf16", "avx512_bf16"])
def test_the_flow_where_the_processor_multiplies_bfloat16(run, world, tmp_path, monkeypatch, flag):
    monkeypatch.delenv("HARDNEG_PRECISION", raising=False)
    monkeypatch.setattr(hardware, "cpu_flags", lambda: {"avx512f", flag})
    whole_flow(run, world, tmp_path, "bfloat16")


@pytest.mark.parametrize("recipe", sorted(RECIPES))
def test_every_recipe_and_what_is_done_with_its_experiment(world, tmp_path, precision, recipe):
    out = tmp_path / "exp"
    results = train(recipe, world, out)
    assert begun_in(out) == precision
    assert results == train(recipe, world, out)  # finished: read, not run again
    assert 0 < results["test"]["final"]["RR@10"] <= 1
    assert hn.verify(out)["whole"]
    again = tmp_path / "run.trec"
    if recipe == "ranker":
        first = out / "runs/bm25.test.trec.gz"
        hn.rerank(first, again, data=world[0], ranker=out / "model", k=8, device="cpu")
    else:
        hn.search_split(world[0], again, model=str(out / "model"), k=10, device="cpu")
    measured = hn.evaluate(again, data=world[0], measures="RR@10")["measures"]["RR@10"]
    assert measured == pytest.approx(results["test"]["final"]["RR@10"], abs=0.02)


def test_mining_inspecting_and_exporting(run, world, tmp_path, precision):
    run("mine", "--out", tmp_path / "pool", "--depth", 10, "--count", 4)
    manifest = read_manifest(tmp_path / "pool")
    stores = [path.parent for path in tmp_path.glob(f"cache/embeddings/*/{MANIFEST}")]
    assert {read_manifest(path).settings["precision"] for path in stores} == {precision}
    assert manifest.inputs["model"] == load_encoder(world[1]).digest()
    assert run("inspect", tmp_path / "pool", "--random", 2, model=False)
    run("export", tmp_path / "pool", "--format", "tevatron", "--out", tmp_path / "out.jsonl", model=False)
    assert (tmp_path / "out.jsonl").stat().st_size


# ---------------------------------------------------------------- from one precision to the other


def test_embeddings_of_either_precision_serve_a_search_in_either(world, tmp_path, monkeypatch):
    for made in ("float32", "bfloat16"):
        monkeypatch.setenv("HARDNEG_PRECISION", made)
        hn.encode(*world, tmp_path / made, device="cpu")
        hn.index(tmp_path / made, tmp_path / f"{made}-index", kind="flat")
    a, b = (Embeddings.open(tmp_path / name) for name in ("float32", "bfloat16"))
    assert not np.array_equal(vectors_of(a), vectors_of(b))  # or the two were one
    assert a.manifest.inputs == b.manifest.inputs
    for made, searches in (("float32", "bfloat16"), ("bfloat16", "float32")):
        monkeypatch.setenv("HARDNEG_PRECISION", searches)
        for name, place in (("embeddings", tmp_path / made), ("index", tmp_path / f"{made}-index")):
            facts = hn.search_split(
                world[0], tmp_path / name, model=world[1], k=120, device="cpu", **{name: place}
            )
            assert facts["queries"] == 16
        assert (tmp_path / "embeddings").read_bytes() == (tmp_path / "index").read_bytes()


def test_a_store_is_made_in_one_precision(world, tmp_path, monkeypatch):
    monkeypatch.setenv("HARDNEG_PRECISION", "bfloat16")
    hn.encode(*world, tmp_path / "e", device="cpu")
    monkeypatch.setenv("HARDNEG_PRECISION", "float32")
    line = "OTHER_INPUTS: made with precision bfloat16, not float32.*set HARDNEG_PRECISION=bfloat16"
    with pytest.raises(ArtifactError, match=line):
        hn.encode(*world, tmp_path / "e", device="cpu")


def test_embeddings_of_an_earlier_form_are_refused_by_their_version(world, tmp_path):
    hn.encode(*world, tmp_path / "e", device="cpu")
    for place in (tmp_path / "e", *(tmp_path / "e").glob("shard-*")):
        new = read_manifest(place)
        settings = {name: value for name, value in new.settings.items() if name != "precision"}
        old = Manifest(new.kind, settings, new.inputs, new.facts, new.files, 1)
        write_json(place / MANIFEST, old.as_json())
    line = "FORMAT_VERSION: format version 1, this hardneg reads 2; make the artefact again"
    for use in (
        lambda: hn.search_split(*world[:1], tmp_path / "r", model=world[1], embeddings=tmp_path / "e"),
        lambda: hn.index(tmp_path / "e", tmp_path / "i", kind="flat"),
        lambda: hn.encode(*world, tmp_path / "e", device="cpu"),
    ):
        with pytest.raises(ArtifactError, match=line):
            use()


# ---------------------------------------------------------------- an experiment on two machines


@pytest.mark.parametrize(("first", "then"), [("bfloat16", "float32"), ("float32", "bfloat16")])
def test_an_experiment_goes_on_in_its_own_precision(world, tmp_path, monkeypatch, capsys, first, then):
    monkeypatch.setenv("HARDNEG_PRECISION", first)
    train("star", world, tmp_path / "whole", checkpoint_every=1)
    with power_cut_after_checkpoint():
        train("star", world, tmp_path / "exp", checkpoint_every=1)
    monkeypatch.setenv("HARDNEG_PRECISION", then)
    monkeypatch.setattr(progress, "enabled", True)
    train("star", world, tmp_path / "exp", checkpoint_every=1)
    said = f"begun in {first}, and kept in it; the default here is {then}\n"
    assert capsys.readouterr().err.count(said) == 1
    assert begun_in(tmp_path / "exp") == first
    for name in ("metrics.jsonl", "model/model.safetensors"):
        assert (tmp_path / "exp" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()
    with pytest.raises(ArtifactError, match=f"SETTINGS_CHANGED: .*precision.*{first}.*{then}"):
        train("star", world, tmp_path / "exp", checkpoint_every=1, precision=then)  # who asks is heard


def test_the_command_goes_on_in_it_too(run, world, tmp_path, monkeypatch):
    monkeypatch.setenv("HARDNEG_PRECISION", "bfloat16")
    with power_cut_after_checkpoint():
        train("star", world, tmp_path / "exp", checkpoint_every=1)
    shutil.copytree(tmp_path / "exp", tmp_path / "api")
    monkeypatch.setenv("HARDNEG_PRECISION", "float32")
    sets = [f"--set={name}={value}" for name, value in (COMMON | OF_RECIPES["star"]).items()]
    found = run("train", "star", "--out", tmp_path / "exp", *sets, "--set=checkpoint_every=1")
    assert begun_in(tmp_path / "exp") == "bfloat16"
    assert found == train("star", world, tmp_path / "api", checkpoint_every=1)


# ---------------------------------------------------------------- the variable


def test_a_wrong_precision_in_the_environment_is_one_line(hardneg, world, tmp_path, monkeypatch):
    monkeypatch.setenv("HARDNEG_PRECISION", "bf16")
    with pytest.raises(SettingsError, match=r"BAD_SETTING: .*HARDNEG_PRECISION = 'bf16'"):
        best_precision("cpu")
    arguments = ["encode", "--data", world[0].path, "--model", world[1], "--out", tmp_path / "e"]
    status, _, err = hardneg(*arguments, "--device", "cpu")
    assert status == 2
    what = "BAD_SETTING: the environment says HARDNEG_PRECISION = 'bf16'"
    assert err == f"{what}; use float32 or bfloat16, or unset it\n"
