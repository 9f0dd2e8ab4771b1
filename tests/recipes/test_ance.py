"""ANCE: losses against a slow re-implementation, versions in force, refreshing and resuming, in one process."""

import json
import os
import shutil
import signal
import threading
import time
from types import SimpleNamespace

import numpy as np
import pytest
from reference_pairs import SlowPairs, nll
from reference_tele import SlowEncoder

from faults.power import power_cut
from hardneg import settings_of
from hardneg.api.inspect import last_pool
from hardneg.data.training_data import choose_splits
from hardneg.errors import Faults, SettingsError
from hardneg.experiment.folder import Experiment
from hardneg.experiment.layout import version_in
from hardneg.models.loading import load_encoder
from hardneg.negatives.pool import load_pool
from hardneg.process import distributed
from hardneg.recipes.ance import recipe as ance
from hardneg.recipes.ance import refreshing
from hardneg.recipes.ance import versions as refresh
from hardneg.recipes.ance.recipe import RECIPE, Ance
from hardneg.recipes.ance.refreshed_pool import RefreshedPool
from hardneg.recipes.roles import peers
from hardneg.recipes.training_run import TrainingRun
from hardneg.storage.artifacts import publish
from processes import together
from worlds.tiny_world import COMMON, one_thread  # noqa: F401

EVERY, REFRESHES = 4, 2
SMALL = {"refresh_every": EVERY, "refreshes": REFRESHES, "warmup": 2}

# Losses of all steps, recorded from this code once the slow re-implementation had given the same.
RECORDED = [0.85424, 0.5253, 0.46096, 0.5335, 0.59406, 1.03632]
RECORDED += [1.29992, 0.24615, 0.52017, 0.48845, 0.46907, 0.80127]


@pytest.fixture(scope="module")
def whole(run_states):
    return run_states(RECIPE, **SMALL)


def files_of(path):
    """The bytes of everything that must not depend on how often a run was interrupted."""
    names = ["model/model.safetensors", "metrics.jsonl", "versions.jsonl"]
    names += [f"versions/v000{k}/passage_rows.npy" for k in range(REFRESHES + 1)]
    return {name: (path / name).read_bytes() for name in names}


def test_the_losses_of_every_step(whole):
    assert whole.losses(1) == pytest.approx(RECORDED, abs=1e-4)


def test_steps_equal_a_slow_reimplementation(whole, world):
    train = choose_splits(world.collection, dev="none").train
    slow = SlowPairs(world.collection, train, SlowEncoder(world.calm), in_batch=False)
    slow.pair = nll
    assert len(whole.metrics) == len(whole.batches) == EVERY * (REFRESHES + 1)
    for row, batch in zip(whole.metrics, whole.batches, strict=True):
        parts = [(batch.query_rows.tolist(), batch.passage_rows.tolist())]
        loss, norm = slow.train(parts, rate=row["lr"])
        assert row["loss"] == pytest.approx(loss, abs=2e-4)
        assert row["grad_norm"] == pytest.approx(norm, rel=2e-3)


def test_every_step_draws_from_the_version_in_force(whole, world):
    pools = [
        load_pool(whole.path / f"versions/v000{k}", n_passages=world.collection.n_passages)
        for k in range(REFRESHES + 1)
    ]
    for step, (row, batch) in enumerate(zip(whole.metrics, whole.batches, strict=True)):
        version = step // EVERY
        assert (row["negative_version"], row["async_gap"]) == (version, step % EVERY)
        pool = pools[version]
        for query, negative in zip(batch.query_rows, batch.passage_rows[:, 1], strict=True):
            i = int(np.flatnonzero(pool.query_rows == query)[0])
            assert negative in pool.passage_rows[pool.offsets[i] : pool.offsets[i + 1]]
    assert len({pool.scores.tobytes() for pool in pools}) == len(pools)  # each mined by other weights


def test_a_version_is_the_top_of_its_own_model_without_positives(whole, run_states, world):
    first = run_states(RECIPE, **SMALL | {"refreshes": 0, "horizon": EVERY * (REFRESHES + 1)})
    encoder = load_encoder(str(first.path / "model"))  # as it was after the first of the refreshes
    collection = world.collection
    pool = load_pool(whole.path / "versions/v0001", n_passages=collection.n_passages)
    encoder.eval()
    from hardneg.data.tokens import token_batch

    def embed(side, texts, titles):
        batch = token_batch(texts, titles, encoder.template(side), encoder.tokenizer(side))
        return encoder.encode(batch, side).detach().numpy()

    everything = np.arange(collection.n_passages)
    passages = embed("passage", collection.texts.take(everything), collection.titles.take(everything))
    for i in (0, 7, 31):
        query = embed("query", collection.query_texts.take([pool.query_rows[i]]), [])
        order = np.argsort(-(query @ passages.T)[0], kind="stable")
        known = set(pool.positive_rows[pool.positive_offsets[i] : pool.positive_offsets[i + 1]].tolist())
        texts, expected = {collection.texts.take([row])[0] for row in known}, []
        for row in order.tolist():
            text = collection.texts.take([row])[0]
            if row not in known and text not in texts:  # nor is a text taken twice
                expected.append(row)
                texts.add(text)
        assert pool.passage_rows[pool.offsets[i] : pool.offsets[i + 1]].tolist() == expected[:20]


def test_queries_are_shuffled_and_all_seen_in_an_epoch(whole, world):
    train = choose_splits(world.collection, dev="none").train
    epoch = [row for batch in whole.batches[:8] for row in batch.query_rows.tolist()]
    assert sorted(epoch) == train.query_rows.tolist() != epoch


def test_its_last_pool_is_the_newest_version(whole, tmp_path):
    assert last_pool(whole.path) == whole.path / f"versions/v{REFRESHES:04d}"
    (tmp_path / "settings.json").write_text("{}")
    with pytest.raises(SettingsError, match="NO_POOL: this experiment has no pool"):
        last_pool(tmp_path)


@pytest.mark.slow
def test_training_is_timed_without_what_is_done_between_its_steps(run_states, monkeypatch):
    real = ance.publish_version

    def slow(*args, **kwargs):
        time.sleep(1)
        real(*args, **kwargs)

    monkeypatch.setattr(ance, "publish_version", slow)
    begun = time.perf_counter()
    done = run_states(RECIPE, **SMALL)
    whole = time.perf_counter() - begun
    rows = [json.loads(line) for line in (done.path / "timing.jsonl").read_text().splitlines()]
    assert sum(row["seconds"] for row in rows if row["stage"] == "train") < whole - 3
    assert all(row["peak_mib"] > 0 for row in rows)


def test_the_states_are_yielded_in_order(whole):
    assert whole.results["states"] == ["untrained", "refresh-1", "refresh-2", "final"]


def test_the_rate_is_linear_over_the_horizon_or_cyclical(whole, run_states):
    rates = [row["lr"] for row in whole.metrics]
    assert rates[:3] == pytest.approx([0.5e-3, 1e-3, 1e-3])
    assert rates[-1] == pytest.approx(1e-4)
    longer = run_states(RECIPE, **SMALL | {"horizon": 102, "refreshes": 0})
    assert [row["lr"] for row in longer.metrics][2:] == pytest.approx([1e-3, 0.99e-3])
    cyclic = run_states(RECIPE, **SMALL | {"schedule": "cyclical", "refreshes": 1, "horizon": 6})
    cycle = [0.5e-3, 1e-3, 1e-3, 0.75e-3]
    assert [row["lr"] for row in cyclic.metrics] == pytest.approx(cycle * 2)
    by_data = run_states(RECIPE, **SMALL | {"schedule": "cyclical", "refreshes": 1})
    cycle = [0.5e-3, 1e-3, 1e-3, 57 / 58 * 1e-3]  # 60 training queries, two steps of warm-up
    assert [row["lr"] for row in by_data.metrics] == pytest.approx(cycle * 2)


def test_a_fixed_schedule_rewarms_only_where_another_version_takes_effect():
    settings = Ance(
        schedule="cyclical", warmup=1, refresh_every=4, horizon=9, learning_rate=1.0, mode="async-fixed"
    )
    follow = refresh.VersionSelector(None, None, "async-fixed", every=4, wait=peers.no_wait)
    rate = ance.schedule_of(settings, 60, follow.first_step)
    assert [follow.first_step(step) for step in range(13)] == [0] * 8 + [8] * 4 + [12]
    cycle = [1.0, *(k / 8 for k in range(8, 0, -1))]
    assert [rate(step) for step in range(13)] == cycle[:8] + cycle[:4] + cycle[:1]


@pytest.mark.parametrize("mode", ["sync", "async-fixed"])
def test_no_step_of_a_cycle_is_at_rest_with_few_queries(mode):
    settings = Ance(schedule="cyclical", warmup=1, refresh_every=10, refreshes=3, learning_rate=1.0, mode=mode)
    follow = refresh.VersionSelector(None, None, mode, every=10, wait=peers.no_wait)
    rate = ance.schedule_of(settings, 5, follow.first_step)
    assert min(rate(step) for step in range(settings.steps)) > 0
    longest = 1 + max(step - follow.first_step(step) for step in range(settings.steps))
    assert settings.longest_cycle == longest
    Ance(schedule="cyclical", refresh_every=10, horizon=longest, mode=mode).check()
    with pytest.raises(SettingsError, match=f"ends before a cycle of {longest} steps"):
        Ance(schedule="cyclical", refresh_every=10, horizon=longest - 1, mode=mode).check()


def test_the_presets_for_questions_decay_in_each_cycle_of_late_versions():
    settings = settings_of("ance", "nq")
    begins = [0, 9_000, 17_500, 58_000]  # where versions of Wikipedia took effect
    rate = ance.schedule_of(settings, 58_880, lambda step: max(first for first in begins if first <= step))
    for first in begins:
        assert [rate(first + k) for k in (0, 499, 999)] == pytest.approx([1e-8, 0.5e-5, 1e-5])
        assert rate(first + 1_000) == 1e-5 > rate(first + 1_001) > rate(first + 8_000) > 0.8e-5
    assert rate(57_999) == pytest.approx(1e-5 * (58_880 - 40_499) / 57_880)


def live_versions(monkeypatch, at):
    """Let the trainer of ``async`` find every version only when ``at`` many steps were made before."""
    real, asked, made = refresh.Versions.newest, refresh.VersionSelector._newest, 0

    def newest(self):
        found = real(self)
        return None if found is None else min(found, sum(first <= made for first in at) - 1)

    def ask(self, step):
        nonlocal made
        made = step
        return asked(self, step)

    monkeypatch.setattr(refresh.VersionSelector, "_newest", ask)
    monkeypatch.setattr(refresh.Versions, "newest", newest)


LATE = SMALL | {"schedule": "cyclical", "mode": "async", "horizon": 10, "refreshes": 2}
BEGINS = [0, 5, 10]  # a step behind the models that they are mined from, and two
CYCLE = [0.5e-3, 1e-3, 1e-3, 0.875e-3, 0.75e-3]


def train_async(world, path, cache):
    """The trainer alone, over versions that stand there."""
    settings = Ance(**COMMON | LATE)
    data = choose_splits(world.collection, dev="none", test="none")
    experiment = Experiment(path, cache)
    training = TrainingRun(settings, data, experiment)
    stage = ance.stage_of(training, load_encoder(world.calm), peers.no_wait)
    for until in range(EVERY, settings.steps + 1, EVERY):
        ance.train(stage, experiment, until, settings.steps)
    rows = [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]
    return [row["lr"] for row in rows], [row["negative_version"] for row in rows]


@pytest.fixture
def mined(whole, tmp_path):
    """A function that makes a folder where all versions stand and nothing is trained."""

    def make(name):
        shutil.copytree(whole.path / "versions", tmp_path / name / "versions")
        return tmp_path / name

    return make


def test_async_rewarms_where_a_late_version_takes_effect(world, mined, tmp_path, monkeypatch):
    live_versions(monkeypatch, BEGINS)
    rates, versions = train_async(world, mined("late"), tmp_path / "cache")
    assert versions == [0] * 5 + [1] * 5 + [2] * 2
    assert rates == pytest.approx(CYCLE + CYCLE + CYCLE[:2])


@pytest.mark.parametrize("at", [1, 4, 5, 6, 7, 11])
def test_async_killed_and_resumed_has_the_same_rates(world, mined, tmp_path, monkeypatch, at):
    live_versions(monkeypatch, BEGINS)
    path = mined("killed")
    with power_cut(at):
        train_async(world, path, tmp_path / "cache")
    assert train_async(world, path, tmp_path / "cache") == train_async(world, mined("whole"), tmp_path / "cache")


@pytest.mark.parametrize("at", [0, 1, 3, 4, 5, 8, 10, 12])
def test_interrupted_anywhere_it_ends_in_the_same_bytes(whole, run_states, tmp_path, at):
    with power_cut(at):
        run_states(RECIPE, path=tmp_path, **SMALL)
    again = run_states(RECIPE, path=tmp_path, **SMALL)
    assert again.results["states"] == whole.results["states"]
    assert files_of(tmp_path) == files_of(whole.path)


def test_more_refreshes_extend_a_run_with_a_horizon(run_states, tmp_path):
    fixed = SMALL | {"horizon": 40}
    longer = run_states(RECIPE, **fixed | {"refreshes": 3})
    run_states(RECIPE, path=tmp_path, **fixed | {"refreshes": 1})
    extended = run_states(RECIPE, path=tmp_path, **fixed | {"refreshes": 3})
    assert extended.results["states"] == longer.results["states"]
    assert files_of(tmp_path) == files_of(longer.path)
    assert Ance(**fixed).may_grow == ("refreshes",)


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"horizon": 40, "measure_every": 0.34}, "measure_every = 0.34 is a share of all steps"),
        ({"horizon": 40, "keep": "best"}, "keep = best"),
        ({}, "without horizon, the learning rate falls to 0"),
    ],
)
def test_more_refreshes_are_refused_where_other_things_depend_on_them(changes, why):
    settings = Ance(**SMALL | changes)
    assert settings.may_grow == ()
    assert why in settings.may_not_grow["refreshes"]
    assert Ance(**SMALL | {"schedule": "cyclical", "measure_every": 2}).may_grow == ("refreshes",)


# ---------------------------------------------------------------- the protocol, without processes


def test_the_schedules_of_the_modes():
    every = 10
    sync = [refresh.scheduled_version("sync", step, every) for step in (0, 9, 10, 19, 20)]
    fixed = [refresh.scheduled_version("async-fixed", step, every) for step in (0, 9, 10, 19, 20, 30)]
    assert (sync, fixed) == ([0, 0, 1, 1, 2], [0, 0, 0, 0, 2, 3])
    assert [refresh.source_step("sync", k, every) for k in range(3)] == [0, 10, 20]
    assert [refresh.source_step("async-fixed", k, every) for k in (0, 2, 3)] == [0, 10, 20]


class FakeVersions:
    """Versions by number, with the step of the model that mined each."""

    def __init__(self, steps):
        self.steps, self.folder = steps, None

    def newest(self):
        return max(self.steps, default=None)

    def is_complete(self, version):
        return version in self.steps

    def step(self, version):
        return self.steps[version]


def publish_mined(folder, number, step):
    with publish(version_in(folder, number), "negatives", inputs={"step": str(step)}):
        pass


def test_the_newest_version_is_looked_for_from_the_end(tmp_path, monkeypatch):
    for number in (0, 1, 2, 10):
        publish_mined(tmp_path, number, 5 * number)
    version_in(tmp_path, 11).mkdir()  # it is being written
    versions, looked, real = refresh.Versions(tmp_path), [], refresh.is_published
    monkeypatch.setattr(refresh, "is_published", lambda path: looked.append(path.name) or real(path))
    assert versions.newest() == 10
    assert looked == ["v0011", "v0010"]
    assert [versions.step(number) for number in (1, 10)] == [5, 50]
    assert refresh.Versions(tmp_path / "none").newest() is None


def test_the_manifest_of_the_version_in_force_is_read_once(tmp_path, monkeypatch):
    for number in (0, 1):
        publish_mined(tmp_path, number, 5 * number)
    versions, read, real = refresh.Versions(tmp_path), [], refresh.read_manifest
    monkeypatch.setattr(refresh, "read_manifest", lambda path: read.append(path.name) or real(path))
    pool = RefreshedPool.__new__(RefreshedPool)
    pool.used, pool.loaded, pool.training = {}, None, SimpleNamespace(read_pool=lambda path: path.name)
    pool.select = refresh.VersionSelector(
        versions, refresh.VersionLog(tmp_path / "log"), "sync", every=5, wait=lambda ready, what: ready()
    )
    assert [pool(step) for step in range(8)] == 5 * ["v0000"] + 3 * ["v0001"]
    assert [pool.facts(step)["async_gap"] for step in range(8)] == [0, 1, 2, 3, 4, 0, 1, 2]
    assert read == ["v0000", "v0001"]


def test_a_version_that_is_mined_again_has_the_step_of_its_new_model(tmp_path):
    """The trainer waits at step 160 while version 1, of step 100, is deleted and mined again at step 150."""
    folder, asked = tmp_path / "negatives", []
    publish_mined(folder, 1, 100)

    def wait(ready, what):
        asked.append(ready())
        shutil.rmtree(version_in(folder, 1))
        asked.append(ready())
        publish_mined(folder, 1, 150)
        asked.append(ready())
        return asked[-1]

    log = refresh.VersionLog(tmp_path / "log")
    follow = refresh.VersionSelector(refresh.Versions(folder), log, "async", every=50, wait=wait, max_staleness=50)
    assert follow(160) == 1
    assert asked == [None, None, 1]


def test_a_state_names_the_negatives_in_force_before_its_step(tmp_path):
    experiment = Experiment(tmp_path, tmp_path / "cache")
    rows = ({"step": 0, "version": 0}, {"step": 250, "version": 1}, {"step": 300, "version": 4})
    experiment.layout.version_log.write_text("".join(json.dumps(row) + "\n" for row in rows))

    def before(mode, step):
        found = refreshing.version_before(mode, experiment, step, 100)
        return None if found is None else int(found.name[1:])

    asked = (0, 100, 250, 251, 300, 301)
    assert [before("async", step) for step in asked] == [
        None,
        0,
        0,
        1,
        1,
        4,
    ]  # the model of step 200 mines version 2
    assert [before("sync", step) for step in asked] == [None, 0, 2, 2, 2, 3]
    assert [before("async-fixed", step) for step in asked] == [None, 0, 2, 2, 2, 3]


def test_the_inferencer_deletes_the_models_that_it_passed_over(tmp_path, monkeypatch):
    experiment, there = Experiment(tmp_path, tmp_path / "cache"), {}
    for step in (10, 20, 30, 40):
        with publish(experiment.layout.exported(step), "model", inputs={"step": str(step)}):
            pass
    jobs = iter([(0, 0), (1, 30), (2, 40), refreshing.DONE])

    def search(state, judge, *, depth):
        there[state] = [step for step, _ in experiment.layout.exports()]

    monkeypatch.setattr(ance, "wait_for_peer", lambda *given: lambda ready, what: next(jobs))
    monkeypatch.setattr(ance, "published_model", lambda experiment, step, device: step)
    monkeypatch.setattr(ance, "mining_state", lambda training, miner, version, step: version)
    monkeypatch.setattr(ance, "search_state", search)
    for name in ("judge_of", "publish_together"):
        monkeypatch.setattr(ance, name, lambda *given: None)
    training = SimpleNamespace(settings=Ance(**SMALL | {"mode": "async"}), data=None, experiment=experiment)
    ance.infer(training, lambda: SimpleNamespace(device="cpu"), 1.0)
    assert there == {0: [10, 20, 30, 40], 1: [30, 40], 2: [40]}


def test_async_takes_the_newest_version_at_once_and_replays_its_log(tmp_path):
    versions, path = FakeVersions({0: 0}), tmp_path / "versions.jsonl"

    def follower():
        return refresh.VersionSelector(versions, refresh.VersionLog(path), "async", every=10, wait=peers.no_wait)

    follow = follower()
    assert [follow(step) for step in range(3)] == [0, 0, 0]
    versions.steps[1] = 2
    assert [follow(step) for step in (3, 4)] == [1, 1]
    versions.steps |= {2: 4, 3: 6}
    assert follow(9) == 3
    assert [json.loads(line) for line in path.read_text().splitlines()] == [
        {"step": 0, "version": 0},
        {"step": 3, "version": 1},
        {"step": 9, "version": 3},
    ]
    assert [follow.first_step(step) for step in (0, 2, 3, 8, 9)] == [0, 0, 3, 3, 9]
    again = follower()
    versions.steps[4] = 9
    assert [again(step) for step in (1, 2, 3, 8, 9)] == [0, 0, 1, 1, 3]
    assert [again.first_step(step) for step in (1, 2, 3, 8, 9)] == [0, 0, 3, 3, 9]
    assert (again(10), again.first_step(10)) == (4, 10)


def test_what_was_in_force_up_to_a_crash_is_in_force_again(tmp_path):
    versions, path = FakeVersions({0: 0}), tmp_path / "versions.jsonl"

    def follower(made):
        return refresh.VersionSelector(
            versions, refresh.VersionLog(path, made), "async", every=10, wait=peers.no_wait
        )

    before = follower(-1)
    assert [before(step) for step in range(9)] == [0] * 9
    versions.steps[1] = 4  # comes while the process is down
    again = follower(made=8)
    assert [again(step) for step in (4, 7, 8, 9, 10)] == [0, 0, 0, 1, 1]


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"mode": "async", "max_staleness": 9}, "max_staleness = 9 is less than refresh_every = 10"),
        ({"mode": "async-fixed", "max_staleness": 20}, "max_staleness = 20 with mode = async-fixed"),
        ({"horizon": 29}, "horizon = 29 ends before the 30 steps do"),
        ({"horizon": 9, "schedule": "cyclical"}, "horizon = 9 ends before a cycle of 10 steps does"),
    ],
)
def test_settings_that_could_only_wait_or_learn_nothing_are_refused(values, said):
    with pytest.raises(Faults, match=said):
        settings_of("ance", refresh_every=10, refreshes=2, **values)
    settings_of("ance", refresh_every=10, refreshes=2, mode="async", max_staleness=10, horizon=30)


def test_a_torn_line_of_the_log_is_forgotten(tmp_path):
    path = tmp_path / "versions.jsonl"
    path.write_text('{"step": 0, "version": 0}\n{"step": 7, "ver')
    assert refresh.VersionLog(path).rows == [(0, 0)]
    assert path.read_text() == '{"step": 0, "version": 0}\n'


def test_stale_negatives_are_waited_for_or_refused(tmp_path):
    versions, waits = FakeVersions({0: 0}), []

    def wait(ready, what):
        waits.append(what)
        if ready() is None:
            versions.steps[1] = 5
        return ready()

    options = {"every": 10, "wait": wait, "max_staleness": 4}
    follow = refresh.VersionSelector(versions, refresh.VersionLog(tmp_path / "a"), "async", **options)
    assert [follow(step) for step in (0, 4, 5)] == [0, 0, 1]
    strict = refresh.VersionSelector(
        versions, refresh.VersionLog(tmp_path / "b"), "async", stop_when_stale=True, **options
    )
    assert strict(9) == 1
    with pytest.raises(refresh.PeerError, match="STALE: the newest negatives are 5 steps old"):
        strict(10)


def test_waiting_ends_when_the_peer_is_silent_by_our_own_clock(tmp_path):
    beat = peers.RoleHeartbeat(tmp_path / "inferencer.beat", "inferencer")
    with pytest.raises(refresh.PeerError, match=r"PEER_SILENT: no sign of life of the inferencer") as caught:
        peers.wait_for_peer(beat, 0.3)(lambda: None, "version 2")
    assert caught.value.status == 8
    count = 0

    def ready():
        nonlocal count
        count += 1
        beat.path.write_text(str(count))  # it lives
        return "found" if count > 6 else None

    assert peers.wait_for_peer(beat, 0.3)(ready, "version 2") == "found"


def test_who_waits_for_the_other_role_notices_that_a_process_of_its_own_group_is_gone(tmp_path, monkeypatch):
    """Rank 0 waits alone, and the others wait for it: no message would tell it that they are gone."""
    monkeypatch.setattr(peers, "LOOK_SECONDS", 0.2)
    monkeypatch.setattr(distributed, "LINGER_SECONDS", 0.0)
    beat = peers.RoleHeartbeat(tmp_path / "inferencer.beat", "inferencer")

    def work(rank):
        count = 0

        def ready():
            nonlocal count
            count += 1
            beat.path.write_text(str(count))  # the other role lives, and makes nothing

        with distributed.group():
            if rank:
                threading.Timer(1.5, os.kill, (os.getpid(), signal.SIGKILL)).start()
            try:
                distributed.by_leader(peers.wait_for_peer(beat, 60.0), ready, "version 2")
            except refresh.PeerError as fault:
                return 8 if fault.code == "PEER_LOST" else 1
        return 0

    begun = time.monotonic()
    assert together(2, work, tmp_path / "log") == [8, -signal.SIGKILL], (tmp_path / "log").read_text()
    assert time.monotonic() - begun < 50


@pytest.mark.slow
def test_a_heart_beats_only_while_there_is_progress(tmp_path):
    import time

    beat, progress = peers.RoleHeartbeat(tmp_path / "trainer.beat", "trainer"), 0
    with beat.beating(lambda: progress):
        time.sleep(2.5 * peers.BEAT_SECONDS)
        first = beat.read()
        time.sleep(1.5 * peers.BEAT_SECONDS)
        assert beat.read() == first != ""
        progress = 1
        time.sleep(1.5 * peers.BEAT_SECONDS)
        assert beat.read() != first


def test_queries_that_bounds_leave_without_negatives_are_counted(run_states, caplog):
    run_states(RECIPE, refresh_every=2, refreshes=1, relative_margin=0.005, depth=20)
    told = [
        line for line in caplog.text.splitlines() if "training queries have no negative, and are skipped" in line
    ]
    assert len(told) == 2  # once for each version: their counts differ
