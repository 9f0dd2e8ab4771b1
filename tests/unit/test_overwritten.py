"""Outputs: no input is written over, half an import is none, and JSON holds numbers that JSON has."""

import json
import math

import pytest

import hardneg as hn
from faults.injected import tree
from hardneg.api import convert
from hardneg.cli.options import json_text
from hardneg.errors import ArtifactError, SettingsError
from worlds.small_trainings import train_small
from worlds.tiny_world import one_thread  # noqa: F401

PAIRS = '{"anchor": "what reads", "positive": "a shell reads commands", "negative": "a file holds bytes"}\n'


@pytest.fixture(scope="module")
def experiments(world, tmp_path_factory):
    """Two small experiments side by side."""
    root = tmp_path_factory.mktemp("two")
    for name, steps in (("one", 2), ("two", 3)):
        train_small("star", world, root / name, steps=steps)
    return root


@pytest.mark.parametrize("place", ["two/settings.json", "two/metrics.jsonl"])
def test_a_page_is_not_written_over_an_experiments_files(world, experiments, place):
    before = (experiments / place).read_bytes()
    both = [experiments / "one", experiments / "two"]
    with pytest.raises(SettingsError, match=r"EXISTS: this file is a part of .*two, and would be lost"):
        hn.compare_experiments(both, world.collection, out=experiments / place)
    with pytest.raises(SettingsError, match="EXISTS"):
        hn.diagnose(experiments / "two", world.collection, out=experiments / place)
    assert (experiments / place).read_bytes() == before


@pytest.mark.parametrize("again", [1, 2])
def test_a_page_may_be_made_again(world, experiments, again):
    both = [experiments / "one", experiments / "two"]
    hn.compare_experiments(both, world.collection, out=experiments / "one/side.html")
    hn.diagnose(experiments / "one", world.collection, out=experiments / "one/report.html", pictures=False)


def test_an_experiments_run_is_not_fused_into_itself(world, experiments):
    both = [experiments / "one", experiments / "two"]
    for name in ("final", "untrained"):
        run = experiments / f"one/runs/{name}.test.trec.gz"
        before = run.read_bytes()
        with pytest.raises(SettingsError, match="EXISTS"):
            hn.fuse(both, run, data=world.collection)
        assert run.read_bytes() == before


def test_the_page_of_one_experiment_is_written_where_it_is_asked_for(world, experiments, tmp_path, hardneg):
    page = tmp_path / "page.html"
    place = ["diagnose", experiments / "one", "--data", world.collection.path, "--no-pictures"]
    status, said, _ = hardneg(*place, "--out", page)
    assert (status, said.splitlines()[-1]) == (0, str(page))
    assert page.read_text().startswith("<!doctype html>")


@pytest.mark.parametrize("name", ["pairs.jsonl", "my:pairs.jsonl"])
def test_a_search_does_not_write_over_its_data(tmp_path, hardneg, name):
    data = tmp_path / name
    data.write_text(PAIRS)
    place = ["search", "--data", data, "--bm25", "--split", "train", "--cache", tmp_path / "cache"]
    status, _, err = hardneg(*place, "--out", data)
    assert status == 2
    assert "EXISTS: this file is an input of the command" in err
    assert data.read_text() == PAIRS


def test_a_search_does_not_write_over_a_file_of_its_folder(tmp_path, hardneg):
    (tmp_path / "data").mkdir()
    for name in ("train.jsonl", "test.jsonl"):
        (tmp_path / "data" / name).write_text(PAIRS)
    place = [
        "search",
        "--data",
        f"pairs:{tmp_path / 'data'}",
        "--bm25",
        "--split",
        "test",
        "--cache",
        tmp_path / "c",
    ]
    status, _, err = hardneg(*place, "--out", tmp_path / "data/test.jsonl")
    assert (status, "EXISTS" in err) == (2, True)
    assert (tmp_path / "data/test.jsonl").read_text() == PAIRS
    assert hardneg(*place, "--out", tmp_path / "data/run.trec")[0] == 0


def test_an_experiment_stands_for_its_run(world, experiments, tmp_path):
    one = experiments / "one"
    hn.fuse([one, experiments / "two"], tmp_path / "fused", data=world.collection)
    runs = [experiments / name / "runs/final.test.trec.gz" for name in ("one", "two")]
    hn.fuse(runs, tmp_path / "same", data=world.collection)
    assert (tmp_path / "fused").read_bytes() == (tmp_path / "same").read_bytes()
    with pytest.raises(ArtifactError, match=r"NO_RUN: .* on split 'dev'; give split=.test."):
        hn.fuse([one, experiments / "two"], tmp_path / "dev", data=world.collection, split="dev")


@pytest.mark.parametrize("split", ["train", "dev"])
def test_given_negatives_are_those_of_the_split_that_is_there(tmp_path, hardneg, split):
    (tmp_path / f"{split}.jsonl").write_text(PAIRS)
    place = ["import", tmp_path / f"{split}.jsonl", "--to", tmp_path / "data", "--negatives", tmp_path / "pool"]
    status, _, err = hardneg(*place)
    assert status == 0, err
    assert len(hn.open_collection(tmp_path / "data").splits) == 1
    assert (tmp_path / "pool/manifest.json").is_file()


@pytest.mark.parametrize("options", [[], ["--language", "german"]])
def test_negatives_are_kept_beside_the_collection_of_a_killed_import(tmp_path, hardneg, options):
    """Killed after the collection was whole, and before the pool was."""
    file, data, pool = tmp_path / "train.jsonl", tmp_path / "data", tmp_path / "pool"
    file.write_text(PAIRS)
    assert hardneg("import", file, "--to", data, *options)[0] == 0
    before = tree(data)
    status, _, err = hardneg("import", file, "--to", data, "--negatives", pool, *options)
    assert (status, "whole already" in err) == (0, True)
    assert tree(data) == before
    whole = tmp_path / "whole"
    assert hardneg("import", file, "--to", whole / "data", "--negatives", whole / "pool", *options)[0] == 0
    assert tree(pool) == tree(whole / "pool")
    assert hardneg("import", file, "--to", data, "--negatives", pool, *options)[0] == 2  # the pool is there


@pytest.mark.parametrize("change", ["file", "language", "rules", "other"])
def test_negatives_are_not_kept_beside_another_collection(tmp_path, hardneg, change):
    file, data, pool = tmp_path / "train.jsonl", tmp_path / "data", tmp_path / "pool"
    file.write_text(PAIRS)
    if change == "other":
        data.mkdir()
    else:
        assert hardneg("import", file, "--to", data)[0] == 0
    if change == "file":
        file.write_text(PAIRS.replace("bytes", "bits"))
    options = {"language": ["--language", "german"], "rules": ["--allow-empty"]}.get(change, [])
    status, _, err = hardneg("import", file, "--to", data, "--negatives", pool, *options)
    assert (status, "EXISTS" in err, pool.exists()) == (2, True, False)


def test_a_failed_pool_leaves_no_collection(tmp_path, monkeypatch):
    def failing(*args, **named):
        raise SettingsError("BAD_SETTING", "no pool", "give one")

    monkeypatch.setattr(convert, "keep_given", failing)
    (tmp_path / "train.jsonl").write_text(PAIRS)
    with pytest.raises(SettingsError, match="no pool"):
        convert.convert(str(tmp_path / "train.jsonl"), tmp_path / "data", negatives=tmp_path / "pool")
    assert not (tmp_path / "data").exists()


def test_a_text_that_looks_like_a_list_is_a_text_where_lists_can_be_written(tmp_path):
    text = '["a", "b"]'
    (tmp_path / "one.jsonl").write_text(json.dumps({"anchor": "a list", "positive": text}) + "\n")
    (tmp_path / "two.csv").write_text('anchor,positive\na list,"[""a"", ""b""]"\n')
    (tmp_path / "three.TAB").write_text('anchor\tpositive\na list\t["a", "b"]\n')
    found = {}
    for name in ("one.jsonl", "two.csv", "three.TAB"):
        convert.convert(str(tmp_path / name), tmp_path / f"to-{name}")
        found[name] = sorted(hn.open_collection(tmp_path / f"to-{name}").texts)
    assert found == {"one.jsonl": [text], "two.csv": ["a", "b"], "three.TAB": ["a", "b"]}


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            ["index", "EMB", "--out", "INDEX", "--query-length", "4"],
            "query_length = 4 has no effect without a model",
        ),
        (["audit", "POOL", "--prompts", "e5"], "prompts = 'e5' has no effect without a model"),
        (["audit", "POOL", "--threshold", "text=inf"], "--threshold text=inf; give a number"),
        (["import", "F", "--check", "--negatives", "DIR"], "--negatives and --check do not go together"),
    ],
)
def test_options_without_an_effect_are_refused(words, said, hardneg):
    status, _, err = hardneg(*words)
    assert (status, said in err) == (2, True), err


def test_json_has_no_infinite_numbers():
    result = {"a": [1.5, math.inf, (2, -math.inf)], "b": {"c": math.nan}, "d": "Infinity"}
    assert json.loads(json_text(result)) == {"a": [1.5, None, [2, None]], "b": {"c": None}, "d": "Infinity"}
    assert json_text({"a": "é"}) == '{"a": "é"}'
