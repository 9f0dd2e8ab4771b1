"""ADORE's search at every step against ``hardneg search``, measurements on the way, and refreshed negatives."""

import gzip
import hashlib
import json
import shutil
from collections import defaultdict
from functools import partial

import numpy as np
import pytest

import hardneg as hn
from calls import spied, uncalled
from faults.power import assert_resumes
from hardneg.api.recipes import settings_of
from hardneg.diagnostics import pairwise_errors
from hardneg.diagnostics.counted_errors import load_errors
from hardneg.errors import Faults, SettingsError
from hardneg.experiment.layout import Layout
from hardneg.models.loading import load_encoder
from hardneg.models.tokenizing import token_store
from hardneg.recipes.adore.lists import Retrieval
from hardneg.recipes.adore.recipe import RECIPE
from hardneg.report.facts_negatives import pools_table
from hardneg.report.opened import Opened
from hardneg.search.embedding_store import Embeddings
from reference_ranking import slow_score
from worlds.tiny_records import vectors_of
from worlds.tiny_world import one_thread  # noqa: F401

DEPTH = 12
SMALL = {"cut": 10, "steps": 3, "warmup": 1, "depth": DEPTH}
COMPRESSED = {"index": "pq", "subvectors": 4, "bits": 4}


class Trained:
    """An experiment whose model is kept after every step, and the queries of every step."""

    def __init__(self, world, path, batches, **changes):
        self.world, self.path, self.batches = world, path, batches
        options = SMALL | {"measure_every": 1, "learning_rate": 1e-2, "queries_per_step": 8, "seed": 7} | changes
        self.results = hn.train_adore(
            world.collection,
            world.calm,
            path / "exp",
            cache=path / "cache",
            device="cpu",
            measures="RR@10",
            **options,
        )
        self.metrics = [json.loads(line) for line in (path / "exp/metrics.jsonl").read_text().splitlines()]

    def searched(self, step):
        """The lists of all training queries by id, as the command searches them with the model before a step."""
        index, out = self.path / "exp/index", self.path / f"step-{step}.trec.gz"
        hn.search_split(
            self.world.collection,
            out,
            model=str(self.path / f"exp/states/{step}/model") if step else self.world.calm,
            index=index if index.exists() else None,
            split="train",
            k=DEPTH,
            cache=self.path / "cache",
            device="cpu",
        )
        lists = defaultdict(list)
        for line in gzip.decompress(out.read_bytes()).decode().splitlines():
            query, _, passage, _, score, _ = line.split()
            lists[query].append((-float(score), int(passage[1:])))  # equal scores: by row, as in the index
        return {query: [row for _, row in sorted(hits)] for query, hits in lists.items()}

    def check(self):
        """What every step retrieved is what the command finds, hit by hit."""
        for step, (row, queries) in enumerate(zip(self.metrics, self.batches, strict=True)):
            lists = self.searched(step)
            found = np.array([lists[self.world.collection.query_ids[query]] for query in queries], np.int32)
            assert row["retrieved"] == hashlib.sha256(found.tobytes()).hexdigest()[:16], step


@pytest.fixture
def train(world, tmp_path, watched_batches):
    """A function that trains and watches the queries of every step."""
    return lambda **changes: Trained(world, tmp_path, watched_batches, **changes)


@pytest.mark.usefixtures("in_float32")  # autocast rounds elsewhere than inference: the two agree nowhere else
@pytest.mark.parametrize("index", [{}, COMPRESSED], ids=["exact", "pq"])
def test_a_step_retrieves_what_the_search_command_finds(train, index):
    done = train(**index)
    done.check()
    assert len({row["retrieved"] for row in done.metrics}) == SMALL["steps"]


@pytest.mark.usefixtures("in_float32")  # else it fails for another reason
@pytest.mark.parametrize("index", [{}, COMPRESSED], ids=["exact", "pq"])
def test_the_embeddings_of_the_step_before_fail_that_test(world, train, tmp_path, monkeypatch, index):
    real = Retrieval.lists

    def stale(self, batch, vectors):
        old = tmp_path / f"exp/states/{batch.step - 1}/model" if batch.step > 1 else world.calm
        encoder = load_encoder(str(old))
        queries = token_store(encoder, world.collection, tmp_path / "cache", "query")
        with encoder.inference():
            return real(self, batch, encoder.encode(queries.read(batch.query_rows), "query"))

    monkeypatch.setattr(Retrieval, "lists", stale)
    done = train(**index)
    with pytest.raises(AssertionError):
        done.check()


def test_micro_batches_of_a_step_are_noted_together(run_states):
    whole, parts = (run_states(RECIPE, **SMALL, micro_queries=size) for size in (None, 3))
    for a, b in zip(whole.metrics, parts.metrics, strict=True):
        assert (a["retrieved"], a["overlap"]) == (b["retrieved"], b["overlap"])


# ---------------------------------------------------------------- states on the way


def test_states_on_the_way_are_measured_and_change_nothing(train, run_states, world, tmp_path):
    done = train(measure_every=2, steps=5)
    states = ["untrained", "step-2", "step-4", "final"]
    assert list(done.results["dev"]) == ["bm25", *states]
    for split in ("dev", "test"):
        assert list(done.results["pairwise_errors"][split]) == states
    plain = hn.train_adore(
        world.collection,
        world.calm,
        tmp_path / "plain",
        cache=tmp_path / "cache",
        device="cpu",
        measures="RR@10",
        **SMALL | {"learning_rate": 1e-2, "queries_per_step": 8, "seed": 7, "steps": 5},
    )
    assert plain["dev"]["final"] == done.results["dev"]["final"]
    for name in ("metrics.jsonl", "model/query/model.safetensors"):
        assert (tmp_path / "plain" / name).read_bytes() == (done.path / "exp" / name).read_bytes()


def test_recorded_errors_equal_a_loop_over_all_passages(train, world):
    done = train(steps=2)
    collection, qrels = world.collection, world.collection.qrels("test")
    stores = [Embeddings.open(path.parent) for path in (done.path / "cache").rglob("embeddings/*/manifest.json")]
    kept = load_errors(done.path / "exp/final/runs/test-errors")
    digest = load_encoder(str(done.path / "exp/model")).digest
    passages, queries = (
        next(s for s in stores if s.manifest.inputs["encoder"] == digest(side) and s.n == n)
        for side, n in (("passage", collection.n_passages), ("query", collection.n_queries))
    )
    matrix, expected = vectors_of(passages), []
    for i, row in enumerate(qrels.query_rows):
        known = qrels.positives().of(i).tolist()
        query = queries.rows(np.array([row]))[0]
        scores = [slow_score(query, passage) for passage in matrix]
        others = [score for other, score in enumerate(scores) if other not in known]
        expected += [sum(score > scores[positive] for score in others) for positive in known]
    assert kept.errors.tolist() == expected
    assert sum(expected) > 0
    found = done.results["pairwise_errors"]["test"]["final"]
    assert found["total"] == sum(expected) / 16 == found["top"]  # 120 passages: none has 200 errors
    assert sum(row["queries"] for row in found["distribution"]) == pytest.approx(1)
    assert found["queries"] == 16


def test_errors_are_counted_once(world, train):
    with spied(pairwise_errors, "count_above") as counted:
        done = train(steps=2)
    assert len(counted) > 3  # of dev and test, of every state
    (done.path / "exp/results.json").unlink()
    again = partial(Trained, world, done.path, [], steps=2)
    with uncalled(pairwise_errors, "count_above", control=partial(count_anew, again)):
        assert again().results == done.results


def count_anew(again):
    """What was counted is gone, and so are the results that were made of it."""
    for folder in [*again.args[1].glob("exp/**/*-errors")]:
        shutil.rmtree(folder)
    (again.args[1] / "exp/results.json").unlink()
    again()


# ---------------------------------------------------------------- static negatives, mined anew


def test_static_negatives_are_what_was_retrieved_at_the_newest_refresh(run_states):
    done = run_states(RECIPE, **SMALL | {"steps": 8}, negatives="static", refresh_every=3, learning_rate=1e-2)
    once = run_states(RECIPE, **SMALL | {"steps": 8}, negatives="static", learning_rate=1e-2)
    assert [path.name for path in sorted((done.path / "episodes/1/negatives").iterdir())] == [
        "v0000",
        "v0001",
        "v0002",
    ]
    overlaps = [[row["overlap"] for row in run.metrics] for run in (done, once)]
    assert overlaps[0][:3] == overlaps[1][:3]
    assert np.mean(overlaps[0][3:]) > np.mean(overlaps[1][3:])
    assert done.metrics[3]["overlap"] > done.metrics[2]["overlap"]


def test_static_negatives_say_which_refresh_mined_them(run_states):
    done = run_states(RECIPE, **SMALL | {"steps": 8}, negatives="static", refresh_every=3, learning_rate=1e-2)
    assert [row["negative_version"] for row in done.metrics] == [0, 0, 0, 1, 1, 1, 2, 2]
    pools = [hn.load_pool(path) for path in sorted((done.path / "episodes/1/negatives").iterdir())]
    assert [(pool.episode, set(pool.episodes.tolist())) for pool in pools] == [(0, {0}), (1, {1}), (2, {2})]
    met = defaultdict(list)
    for name, first, _, share in pools_table(Opened(Layout(done.path))).rows:
        met[name].append(first)
        assert share < 1 or name == "refresh 0"
    first = ["refresh 0 query"]
    assert met["refresh 0"] == first
    assert met["refresh 1"] == [*first, "refresh 1 query"]
    assert met["refresh 2"] == [*first, "refresh 1 query", "refresh 2 query"]


def test_refreshed_negatives_resume_to_the_same_bytes(run_states, tmp_path):
    settings = SMALL | {"steps": 7, "negatives": "static", "refresh_every": 3, "measure_every": 4}
    files = ("model/query/model.safetensors", "states/4/model/query/model.safetensors", "metrics.jsonl")
    assert_resumes(partial(run_states, RECIPE, **settings), tmp_path, after=4, files=files)


def test_only_static_negatives_are_refreshed():
    with pytest.raises((Faults, SettingsError), match="refresh_every = 5 with negatives = dynamic"):
        settings_of("adore", None, None, ["cut=10", "refresh_every=5"])
