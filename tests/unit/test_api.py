"""``import hardneg as hn``: light to import, documented, strict about settings, honest about what it returns."""

import inspect
import json
import subprocess
import sys
import typing

import numpy as np
import pytest

import hardneg as hn
from hardneg import api
from hardneg.artifacts import lease, read_manifest
from hardneg.errors import ArtifactError, BusyError, Faults, InputError, SettingsError
from hardneg.negatives.pool import SOURCES, load_pool
from hardneg.operations.opening import check_file, check_folder, check_free, check_new, holding, one_of
from hardneg.operations.training import check_experiment
from hardneg.recipes.ance_tele import AnceTele
from tiny_world import one_thread, tiny_collection, tiny_model  # noqa: F401

SMALL = {
    "episodes": 2,
    "queries_per_step": 8,
    "passages_reference": [3],
    "steps": 3,
    "stop_step": 2,
    "depth": 10,
    "count": 3,
    "precision": "float32",
    "measures": "RR@10 R@100",
}


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    root = tmp_path_factory.mktemp("world")
    collection = tiny_collection(root / "collection")
    return collection, tiny_model(root / "model", collection)


@pytest.fixture(scope="module")
def trained(world, tmp_path_factory):
    collection, model = world
    out = tmp_path_factory.mktemp("trained") / "exp"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HARDNEG_CACHE", str(out.parent / "cache"))
        return out, hn.train_ance_tele(collection, model, out, device="cpu", **SMALL)


# ---------------------------------------------------------------- the face


def modules_after(code):
    """The modules that are loaded after running ``code`` in a fresh interpreter."""
    code = f"{code}\nimport sys, json; print(json.dumps(sorted(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120)
    return set(json.loads(done.stdout))


def test_every_name_is_the_same_at_the_top_and_in_api():
    names = set(hn.__all__) - {"__version__"}
    assert names == set(api.__all__)
    assert all(getattr(hn, name) is getattr(api, name) for name in names)
    assert set(dir(hn)) == set(hn.__all__)


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'trane'"):
        _ = hn.trane


@pytest.mark.parametrize(
    "module", ["operations.evaluation", "operations.inspection", "operations.retrieval", "cli"]
)
def test_what_needs_no_model_loads_no_torch(module):
    loaded = modules_after(f"import hardneg.{module}")
    assert not {"torch", "transformers", "matplotlib"} & loaded


@pytest.mark.parametrize("name", sorted(set(api.__all__) - {"AnceTele", "HardnegError"}))
def test_every_function_is_documented_and_typed(name):
    value = getattr(api, name)
    assert len(inspect.getdoc(value)) > 30
    if inspect.isfunction(value):
        hints = typing.get_type_hints(value)
        assert set(hints) == {*inspect.signature(value).parameters, "return"}


# ---------------------------------------------------------------- settings


def test_settings_are_keywords_and_later_layers_win(tmp_path):
    (tmp_path / "s.toml").write_text("steps = 7\ndepth = 50\nalpha = 0.25\n")
    settings = hn.settings_of("ance-tele", "demo", tmp_path / "s.toml", ["depth=60"], alpha=0.75)
    assert (settings.steps, settings.depth, settings.alpha) == (7, 60, 0.75)
    assert settings.queries_per_step == 16  # the preset's
    again = hn.settings_of("ance-tele", settings=settings, steps=9)
    assert again == settings.model_copy(update={"steps": 9})


def test_all_faults_of_all_layers_come_at_once():
    with pytest.raises(Faults) as caught:
        hn.settings_of("ance-tele", "dmo", None, ["nonsense", "epizodes=3"], alpha=2.0, learning_rat=1)
    assert caught.value.status == 2
    assert [line.split(";")[0] for line in caught.value.lines] == [
        "UNKNOWN_PRESET: ance-tele has no preset 'dmo'",
        "BAD_OVERRIDE: 'nonsense' is not key=value",
        "BAD_SETTING: alpha = 2.0",
        "UNKNOWN_SETTING: there is no setting 'epizodes'",
        "UNKNOWN_SETTING: there is no setting 'learning_rat'",
    ]
    assert "did you mean 'episodes'?" in caught.value.lines[3]


@pytest.mark.parametrize(
    ("values", "code"),
    [
        ({"measures": "RX@10"}, "UNKNOWN_MEASURE"),
        ({"extra": ["bm25", "bm25"]}, "REPEATED_SOURCE"),
        ({"steps": 1.5}, "BAD_SETTING"),
        ({"steps": True}, "BAD_SETTING"),
        ({"alpha": float("nan")}, "BAD_SETTING"),
        ({"start_episode": 4}, "BAD_SETTING"),
    ],
)
def test_wrong_values_are_refused_also_on_top_of_settings(world, tmp_path, values, code):
    collection, model = world
    with pytest.raises(hn.HardnegError) as caught:
        hn.train_ance_tele(collection, model, tmp_path / "exp", settings=AnceTele(), **values)
    assert (caught.value.code, caught.value.status) == (code, 2)
    assert not (tmp_path / "exp").exists()


def test_settings_are_found_wrong_before_a_model_is_looked_for(world, tmp_path):
    with pytest.raises(Faults, match="there is no setting 'epochz'; did you mean 'epochs'"):
        hn.train_ance_tele(world[0], "nowhere/at/all", tmp_path / "exp", epochz=3)


def test_a_query_longer_than_the_model_takes_is_refused_before_training(world, tmp_path):
    collection, model = world
    with pytest.raises(SettingsError, match="search_query_length = 65, the model takes 64"):
        hn.plan("ance-tele", collection, model, settings=hn.settings_of("ance-tele", search_query_length=65))


# ---------------------------------------------------------------- training


def test_training_returns_and_keeps_its_results(world, trained):
    out, results = trained
    assert json.loads((out / "results.json").read_text()) == results
    assert list(results["test"]) == list(results["dev"]) == ["bm25", "untrained", "episode-1", "final"]
    assert list(results["test"]["final"]) == ["RR@10", "R@100"]
    assert [row["episode"] for row in results["forgetting"]] == [1, 2]
    assert hn.load_encoder(str(out / "model")).dim == 64


def test_runs_and_a_curve_are_left_for_people(world, trained):
    collection, _ = world
    out, results = trained
    assert (out / "learning_curve.png").read_bytes().startswith(b"\x89PNG")
    for state in ("bm25", "untrained", "final"):
        found = hn.evaluate(out / f"runs/{state}.test.trec.gz", data=collection, measures="RR@10 R@100")
        assert found["measures"] == pytest.approx(results["test"][state])


def test_the_model_card_tells_how_it_was_made_and_how_good_it_is(world, trained):
    out, results = trained
    card = (out / "model/README.md").read_text()
    assert f"| final | {results['test']['final']['RR@10']:.4f} |" in card
    assert "from model." in card  # the pretrained model's name, not where it lies
    assert str(world[1]) not in card
    assert "steps = 3" in card.splitlines()


def test_a_finished_experiment_is_not_touched(world, trained):
    collection, model = world
    out, results = trained
    before = {path: path.stat().st_mtime_ns for path in out.rglob("*") if path.is_file()}
    assert hn.train_ance_tele(collection, model, out, device="cpu", **SMALL) == results
    after = {path: path.stat().st_mtime_ns for path in out.rglob("*") if path.is_file()}
    changed = {path.name for path in after if before.get(path) != after[path]}
    assert changed <= {"settings.json", ".lock"}


def test_other_measures_are_measured_without_training_again(world, trained):
    collection, model = world
    out, results = trained
    weights = (out / "model/model.safetensors").read_bytes()
    steps = (out / "metrics.jsonl").read_text()
    again = hn.train_ance_tele(collection, model, out, device="cpu", **SMALL | {"measures": "AP"})
    assert list(again["test"]["final"]) == ["AP"]
    assert (out / "model/model.safetensors").read_bytes() == weights
    assert (out / "metrics.jsonl").read_text() == steps
    assert hn.train_ance_tele(collection, model, out, device="cpu", **SMALL) == results


def test_what_a_recipe_or_a_role_cannot_take_is_refused(world, tmp_path):
    collection, model = world
    with pytest.raises(SettingsError, match="ance mines its own negatives"):
        hn.train_ance(collection, model, tmp_path / "exp", negatives=tmp_path, device="cpu")
    with pytest.raises(SettingsError, match="a role of 2 experiments"):
        hn.train_ance(collection, model, tmp_path / "exp", seeds=2, role="trainer", device="cpu")
    assert not (tmp_path / "exp/results.json").exists()


def test_seeds_are_pooled_also_without_dev(world, tmp_path):
    collection, model = world
    splits = hn.Splits(dev="none")
    changes = SMALL | {"episodes": 1, "seed": 5}
    pooled = hn.train_ance_tele(
        collection, model, tmp_path / "exp", seeds=2, splits=splits, device="cpu", **changes
    )
    assert pooled["seeds"] == [5, 6]
    singles = [json.loads((tmp_path / f"exp/seed-{seed}/results.json").read_text()) for seed in (5, 6)]
    values = [single["test"]["final"]["RR@10"] for single in singles]
    assert pooled["test"]["final"]["RR@10"]["values"] == values
    assert pooled["test"]["final"]["RR@10"]["mean"] == pytest.approx(np.mean(values))
    assert json.loads((tmp_path / "exp/results.json").read_text()) == pooled
    with pytest.raises(ArtifactError, match="SEVERAL_SEEDS"):
        hn.train_ance_tele(collection, model, tmp_path / "exp", splits=splits, device="cpu", **changes)
    with pytest.raises(SettingsError, match="give one of them, such as"):
        hn.inspect(tmp_path / "exp", collection)


def test_an_experiment_takes_no_folder_of_another_kind(world, trained, tmp_path):
    with pytest.raises(ArtifactError, match="EXISTS") as caught:
        check_experiment(world[0].path, 1)
    assert caught.value.status == 2
    with pytest.raises(ArtifactError, match="ONE_SEED"):
        check_experiment(trained[0], 2)
    for name in ("cache", ".lock"):  # what an experiment leaves that was stopped at its very beginning
        (tmp_path / "begun").mkdir(exist_ok=True)
        (tmp_path / "begun" / name).touch()
    check_experiment(tmp_path / "begun", 1)
    check_experiment(tmp_path / "new", 1)
    assert not (tmp_path / "new").exists()


def test_a_plan_checks_and_writes_nothing(world, tmp_path):
    collection, model = world
    settings = hn.settings_of("ance-tele", **SMALL)
    plan = hn.plan("ance-tele", collection, model, tmp_path / "exp", settings=settings)
    assert plan["settings"]["steps"] == 3
    assert [row["steps"] for row in plan["episodes"]] == [2, 3]
    assert not (tmp_path / "exp").exists()
    with pytest.raises(SettingsError, match="UNKNOWN_SPLIT"):
        hn.plan("ance-tele", collection, model, settings=settings, splits=hn.Splits(train="tain"))
    with pytest.raises(ArtifactError, match="WRONG_KIND"):
        hn.plan("ance-tele", collection, model, settings=settings, negatives=collection.path)
    with pytest.raises(SettingsError, match="MODEL_NOT_FOUND"):
        hn.plan("ance-tele", collection, "nowhere/at/all", settings=settings)


def test_a_mined_pool_can_begin_an_experiment(world, tmp_path):
    collection, model = world
    pool = hn.mine(collection, None, tmp_path / "pool", sources=["bm25"], depth=10, count=4)
    hn.train_ance_tele(
        collection, model, tmp_path / "exp", negatives=tmp_path / "pool", device="cpu", **SMALL | {"episodes": 1}
    )
    used = load_pool(tmp_path / "exp/episodes/1/negatives")
    assert used.passage_rows.tolist() == pool.passage_rows.tolist()


# ---------------------------------------------------------------- mining


def sources_of(pool):
    return {SOURCES[code] for code in np.unique(pool.sources)}


@pytest.mark.parametrize(
    "sources", [["random"], ["bm25"], ["query"], ["lookahead"], ["query", "lookahead", "bm25", "random"]]
)
def test_every_source_is_mined_alone_and_together(world, tmp_path, sources):
    collection, model = world
    pool = hn.mine(collection, model, tmp_path / "pool", sources=sources, depth=10, count=4, device="cpu")
    assert sources_of(pool) == set(sources)
    assert len(pool) == 60
    again = load_pool(tmp_path / "pool", n_passages=120, collection=collection.digest)
    assert all(
        np.array_equal(getattr(again, name), getattr(pool, name)) for name in ("passage_rows", "sources", "ranks")
    )
    manifest = read_manifest(tmp_path / "pool")
    assert manifest.settings["sources"] == sources
    assert ("model" in manifest.inputs) == bool({"query", "lookahead"} & set(sources))


def test_momentum_joins_and_filters_hold(world, tmp_path):
    collection, model = world
    common = {"depth": 10, "count": 4, "device": "cpu"}
    hn.mine(collection, model, tmp_path / "one", **common)
    filters = hn.Filters(rank_from=3, rank_to=8)
    pool = hn.mine(
        collection, model, tmp_path / "two", previous=tmp_path / "one", filters=filters, seed=1, **common
    )
    assert pool.episode == 2
    assert pool.momentum.any()
    fresh = pool.ranks[~pool.momentum]
    assert fresh.min() >= 3
    assert fresh.max() <= 8
    manifest = read_manifest(tmp_path / "two")
    assert manifest.inputs["previous"] == read_manifest(tmp_path / "one").digest
    assert manifest.settings["filters"]["rank_from"] == 3


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"sources": ["qery"]}, "BAD_SETTING"),
        ({"sources": []}, "NO_SOURCES"),
        ({"sources": ["bm25", "bm25"]}, "REPEATED_SOURCE"),
        ({"sources": ["query"]}, "NO_MODEL"),
        ({"previous": "somewhere"}, "NO_MOMENTUM"),
        ({"depth": 0}, "BAD_SETTING"),
        ({"count": -1}, "BAD_SETTING"),
        ({"alpha": 1.0}, "BAD_SETTING"),
        ({"beta": float("nan")}, "BAD_SETTING"),
        ({"seed": -1}, "BAD_SETTING"),
        ({"filters": hn.Filters(max_score=float("nan"))}, "BAD_SETTING"),
        ({"split": "tain"}, "UNKNOWN_SPLIT"),
    ],
)
def test_mining_refuses_what_makes_no_sense(world, tmp_path, changes, code):
    with pytest.raises(SettingsError) as caught:
        hn.mine(world[0], None, tmp_path / "pool", **{"sources": ["bm25"], **changes})
    assert caught.value.code == code
    assert not (tmp_path / "pool").exists()


def test_a_pool_is_never_replaced(world, tmp_path):
    hn.mine(world[0], None, tmp_path / "pool", sources=["bm25"], count=2)
    before = read_manifest(tmp_path / "pool").digest
    with pytest.raises(ArtifactError, match="EXISTS") as caught:
        hn.mine(world[0], None, tmp_path / "pool", sources=["random"], count=2)
    assert caught.value.status == 2
    assert read_manifest(tmp_path / "pool").digest == before


def test_two_cannot_mine_into_one_place(world, tmp_path):
    cache = tmp_path / "cache"
    with holding(tmp_path / "pool", cache), pytest.raises(BusyError) as caught:
        hn.mine(world[0], None, tmp_path / "pool", sources=["bm25"], count=2, cache=cache)
    assert caught.value.path == tmp_path / "pool"
    hn.mine(world[0], None, tmp_path / "pool", sources=["bm25"], count=2, cache=cache)


# ---------------------------------------------------------------- inspection


def test_inspection_shows_texts_and_provenance(world, tmp_path):
    collection, model = world
    hn.mine(collection, model, tmp_path / "pool", sources=["lookahead"], depth=10, count=4, device="cpu")
    [found] = hn.inspect(tmp_path / "pool", collection, query_id="train-00")
    row = int(collection.query_ids.rows(["train-00"])[0])
    assert found["text"] == collection.query_texts[row]
    assert {passage["passage_id"] for passage in found["positives"]} == {
        collection.passage_ids[int(p)] for p in collection.qrels("train").positives().of(0)
    }
    first = found["negatives"][0]
    assert first["source"] == "lookahead"
    assert first["anchor"] == found["positives"][0]["passage_id"]
    assert first["rank"] >= 2
    json.dumps(found, allow_nan=False)


def test_drawn_queries_are_drawn_by_the_seed(world, tmp_path):
    hn.mine(world[0], None, tmp_path / "pool", sources=["bm25"], count=2)
    ids = [
        [one["query_id"] for one in hn.inspect(tmp_path / "pool", world[0], random=5, seed=s)] for s in (0, 0, 1)
    ]
    assert ids[0] == ids[1] != ids[2]
    assert len(set(ids[0])) == 5


def test_unknown_queries_are_named(world, tmp_path):
    hn.mine(world[0], None, tmp_path / "pool", sources=["bm25"], count=2)
    with pytest.raises(InputError, match="the collection has no query 'nope'"):
        hn.inspect(tmp_path / "pool", world[0], query_id="nope")
    with pytest.raises(InputError, match="the pool has no query 'test-00'"):
        hn.inspect(tmp_path / "pool", world[0], query_id="test-00")


# ---------------------------------------------------------------- encoding and search


def test_given_embeddings_give_the_same_run(world, tmp_path):
    collection, model = world
    made = hn.encode(collection, model, tmp_path / "emb", device="cpu")
    assert made == {**made, "complete": True, "vectors": 120, "dim": 64}
    facts = hn.search_split(collection, tmp_path / "a.trec", model=model, k=10, device="cpu")
    assert facts == {"run": str(tmp_path / "a.trec"), "queries": 16, "hits": 160}
    hn.search_split(collection, tmp_path / "b.trec", model=model, k=10, embeddings=tmp_path / "emb", device="cpu")
    assert (tmp_path / "a.trec").read_bytes() == (tmp_path / "b.trec").read_bytes()
    assert hn.encode(collection, model, tmp_path / "emb", device="cpu") == made


def test_embeddings_of_other_texts_are_refused(world, tmp_path):
    collection, model = world
    hn.encode(collection, model, tmp_path / "queries", side="query", device="cpu")
    with pytest.raises(ArtifactError, match="OTHER_TEXTS"):
        hn.search_split(
            collection, tmp_path / "a.trec", model=model, embeddings=tmp_path / "queries", device="cpu"
        )
    assert not (tmp_path / "a.trec").exists()


def test_one_text_is_searched_like_a_query(world, tmp_path):
    collection, model = world
    hn.search_split(collection, tmp_path / "a.trec", model=model, k=3, device="cpu")
    first = [line.split() for line in (tmp_path / "a.trec").read_text().splitlines()[:3]]
    text = collection.query_texts[int(collection.query_ids.rows([first[0][0]])[0])]
    hits = hn.search_text(collection, text, model=model, k=3, device="cpu")
    assert [hit["passage_id"] for hit in hits] == [columns[2] for columns in first]
    assert [hit["rank"] for hit in hits] == [1, 2, 3]
    assert set(hits[0]) == {"rank", "score", "passage_id", "title", "text"}


def test_bm25_finds_the_words(world):
    collection, _ = world
    [best, *_] = hn.search_text(collection, collection.texts[7], bm25=True)
    assert best["passage_id"] == collection.passage_ids[7]


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        ({}, "NO_MODEL"),
        ({"model": "m", "bm25": True}, "TWO_SEARCHERS"),
        ({"bm25": True, "embeddings": "e"}, "TWO_SEARCHERS"),
        ({"bm25": True, "index": "i"}, "TWO_SEARCHERS"),
        ({"model": "m", "embeddings": "e", "index": "i"}, "TWO_SEARCHERS"),
        ({"bm25": True, "k": 0}, "BAD_SETTING"),
        ({"bm25": True, "split": "tset"}, "UNKNOWN_SPLIT"),
    ],
)
def test_a_search_refuses_what_makes_no_sense(world, tmp_path, arguments, code):
    with pytest.raises(SettingsError) as caught:
        hn.search_split(world[0], tmp_path / "run", **arguments)
    assert caught.value.code == code


# ---------------------------------------------------------------- evaluation


@pytest.fixture
def run_files(tmp_path):
    """Two runs of the queries q1 (positive a) and q2 (positive b), by qrels without a collection."""
    (tmp_path / "qrels").write_text("q1 0 a 1\nq2 0 b 1\n")
    (tmp_path / "one").write_text("q1 Q0 a 1 2 x\nq1 Q0 b 2 1 x\nq9 Q0 a 1 1 x\n")
    (tmp_path / "two").write_text("q1 Q0 b 1 2 x\nq1 Q0 a 2 1 x\nq2 Q0 b 1 1 x\n")
    return tmp_path


def test_a_run_is_scored_with_what_it_lacks(run_files):
    found = hn.evaluate(
        run_files / "one", qrels=run_files / "qrels", measures="RR@10", per_query=run_files / "each"
    )
    assert found == {"measures": {"RR@10": 0.5}, "queries": 2, "missing": 1, "unjudged": 1}
    rows = [json.loads(line) for line in (run_files / "each").read_text().splitlines()]
    assert rows == [{"query_id": "q1", "RR@10": 1.0}, {"query_id": "q2", "RR@10": 0.0}]


def test_runs_are_compared_pair_by_pair(run_files):
    runs = [run_files / "one", run_files / "two"]
    [row] = hn.compare(runs, qrels=run_files / "qrels", measures="RR@10")
    assert (row["a"], row["b"]) == tuple(map(str, runs))
    assert row["difference"] == -0.25
    assert (row["wins"], row["ties"], row["losses"]) == (1, 0, 1)
    assert row["overlap"] == pytest.approx((2 / 100 + 0 + 0) / 3)  # q1 has both hits in both, q2 and q9 are in one
    assert len(hn.compare([*runs, runs[0]], qrels=run_files / "qrels", measures="RR@10 R@10")) == 6


def test_two_runs_are_compared_query_by_query(run_files):
    a, b = map(str, (run_files / "one", run_files / "two"))
    hn.compare([a, b], qrels=run_files / "qrels", measures="RR@10", per_query=run_files / "each")
    first, second = (json.loads(line) for line in (run_files / "each").read_text().splitlines())
    parted = {"differ_at": 1, "hits": ["a", "b"], "grades": [1, None]}
    assert first == {"query_id": "q1", "a": a, "b": b, "RR@10": [1.0, 0.5], **parted}
    parted = {"differ_at": 1, "hits": [None, "b"], "grades": [None, 1]}
    assert second == {"query_id": "q2", "a": a, "b": b, "RR@10": [0.0, 1.0], **parted}
    hn.compare([a, b, a], qrels=run_files / "qrels", measures="RR@10", per_query=run_files / "each")
    rows = [json.loads(line) for line in (run_files / "each").read_text().splitlines()]
    assert len(rows) == 6  # three pairs of two queries
    assert {row["differ_at"] for row in rows if row["a"] == row["b"]} == {None}


def test_judgements_come_from_one_place(run_files, world):
    for sources in ({}, {"data": world[0], "qrels": run_files / "qrels"}):
        with pytest.raises(SettingsError, match="NO_JUDGEMENTS"):
            hn.evaluate(run_files / "one", **sources)
    with pytest.raises(SettingsError, match="ONE_RUN"):
        hn.compare([run_files / "one"], qrels=run_files / "qrels")


# ---------------------------------------------------------------- places and words


def test_places_are_checked_before_anything_is_computed(tmp_path):
    (tmp_path / "file").touch()
    (tmp_path / "dangling").symlink_to(tmp_path / "nowhere")
    for place in ("file", "file/below", "file/far/below"):
        with pytest.raises(SettingsError, match="NOT_A_FOLDER"):
            check_folder(tmp_path / place)
    for place in ("file", "dangling"):
        with pytest.raises(ArtifactError, match="EXISTS"):
            check_new(tmp_path / place)
    with pytest.raises(SettingsError, match="NOT_A_FILE"):
        check_file(tmp_path)
    check_file(tmp_path / "file")
    check_folder(tmp_path / "new/far/below")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["dangling", "file"]


def test_words_are_checked_and_the_nearest_is_named():
    assert one_of("--dtype", "float16", ("float16", "float32")) == "float16"
    with pytest.raises(SettingsError, match="did you mean 'float16'"):
        one_of("--dtype", "float61", ("float16", "float32"))


def test_an_experiment_in_use_is_found_at_once(tmp_path):
    check_free(tmp_path)
    with lease(tmp_path), pytest.raises(BusyError):
        check_free(tmp_path)
    check_free(tmp_path)
