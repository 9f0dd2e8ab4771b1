"""ANCE-Tele as an experiment: finished, extended, begun from given negatives, and the files of its folder."""

import json
import logging

import numpy as np
import pytest
import torch
from reference_tele import SlowEncoder, SlowTele
from safetensors.torch import load_file

import hardneg as hn
from faults.injected import TELEMETRY
from hardneg.api.diagnose import opened_at
from hardneg.data.training_data import choose_splits
from hardneg.errors import HardnegError
from hardneg.experiment.margins import read_margins
from hardneg.experiment.states import ends_of
from hardneg.models.loading import load_encoder
from hardneg.process import hardware
from hardneg.report.facts_scores import gradients_table
from hardneg.storage.artifacts import read_manifest
from hardneg.training.checkpoint import checkpoints
from worlds.tiny_world import SETTINGS, one_thread  # noqa: F401


def files_of(path):
    """Every file of an experiment that is no telemetry, by its name; checkpoints are the stage's own affair."""
    found = {}
    for file in sorted(path.rglob("*")):
        name = file.relative_to(path).as_posix()
        if (
            file.is_file()
            and not name.startswith("cache/")
            and "/checkpoint/" not in name
            and name not in TELEMETRY
        ):
            found[name] = file.read_bytes()
    return found


def times_of(path):
    return {file: file.stat().st_mtime_ns for file in path.rglob("*") if file.is_file()}


def weights_of(folder):
    return load_file(folder / "model.safetensors")


def equal(a, b):
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


@pytest.fixture(scope="module")
def two(execute):
    """The same experiment, of two episodes."""
    return execute(episodes=2)


# ---------------------------------------------------------------- the folder


def test_every_artefact_is_whole_and_nothing_temporary_is_left(whole):
    report = hn.verify(whole.path)
    assert report["whole"]
    assert not report["leftovers"]
    manifests = [file.parent for file in whole.path.rglob("manifest.json")]
    names = {folder.relative_to(whole.path).as_posix() for folder in manifests}
    expected = {"model", *(f"episodes/{i}/{part}" for i in (1, 2, 3) for part in ("negatives", "model"))}
    folders = [*(f"episodes/{i}/runs" for i in (1, 2, 3)), "final/runs"]
    expected |= {f"{folder}/{run}" for folder in folders for run in ("query", "lookahead", "dev", "test")}
    assert expected <= names
    assert not list(whole.path.rglob(".tmp-*"))


def test_results_are_returned_and_stored(whole):
    assert json.loads((whole.path / "results.json").read_text()) == whole.results


def test_the_final_model_is_that_of_the_last_step(whole, world):
    last = checkpoints(whole.path / "episodes/3/checkpoint")[-1]
    assert last.name == "step-0000012"
    trained = load_file(last / "retriever.weights.safetensors")
    final = weights_of(whole.path / "model")
    assert all(torch.equal(final[name.removeprefix("towers.0.transformer.")], trained[name]) for name in trained)
    assert not equal(final, weights_of(whole.path / "episodes/3/model"))


def test_the_final_model_is_found_to_search_as_the_final_runs_say(whole, world):
    slow = SlowEncoder(whole.path / "model")
    text = world.collection.query_texts.take(world.collection.qrels("test").query_rows[:1])[0]
    hits = whole.run("final/runs/test")[0]
    row, score = hits[0]
    with torch.no_grad():
        passage = (world.collection.titles.take([row])[0], world.collection.texts.take([row])[0])
        found = slow.encode(text) @ slow.encode(*(part for part in passage if part))
    assert score == pytest.approx(found.item(), rel=1e-4)


def test_only_the_final_states_embeddings_stay(whole):
    stores = [read_manifest(path) for path in (whole.path / "cache/embeddings").iterdir()]
    final = load_encoder(str(whole.path / "model")).digest("passage")
    assert {manifest.inputs["encoder"] for manifest in stores} == {final}
    assert {manifest.settings["side"] for manifest in stores} == {"query", "passage"}


def test_inputs_name_what_each_was_made_from(whole, world):
    def digest(name):
        return read_manifest(whole.path / name).digest

    base = load_encoder(world.calm).digest()
    miners = [base, *(load_encoder(str(whole.path / f"episodes/{i}/model")).digest() for i in (1, 2))]
    for i in (1, 2, 3):
        pool = read_manifest(whole.path / f"episodes/{i}/negatives").inputs
        previous = {} if i == 1 else {"previous": digest(f"episodes/{i - 1}/negatives")}
        assert pool == {"collection": world.collection.digest, "miner": miners[i - 1], **previous}
        model = read_manifest(whole.path / f"episodes/{i}/model").inputs
        assert model == {"pool": digest(f"episodes/{i}/negatives"), "start": base, "step": "4"}
    assert read_manifest(whole.path / "model").inputs["step"] == "12"


# ---------------------------------------------------------------- again


def test_the_same_again_does_nothing(execute, whole):
    before, files = times_of(whole.path), files_of(whole.path)
    again = execute(whole.path)
    assert again.results == whole.results
    assert not again.batches
    assert files_of(whole.path) == files
    after = times_of(whole.path)
    assert after.keys() == before.keys()
    changed = {file.name for file in after if after[file] != before[file]}
    assert changed <= {"settings.json", ".lock", "log.txt"}


def test_another_experiment_in_the_same_folder_is_refused(execute, whole):
    files = files_of(whole.path)
    for changes in ({"alpha": 0.4}, {"episodes": 2}, {"seed": 8}, {"learning_rate": 2e-3}):
        with pytest.raises(HardnegError) as fault:
            execute(whole.path, **changes)
        assert fault.value.status == 4
        assert next(iter(changes)) in str(fault.value)
    assert files_of(whole.path) == files


def test_the_same_elsewhere_gives_the_same_bytes(execute, two, tmp_path):
    assert files_of(execute(tmp_path / "exp", episodes=2).path) == files_of(two.path)


def test_another_seed_gives_others(execute, two, tmp_path):
    other = execute(tmp_path / "exp", episodes=2, seed=8)
    assert other.pool(1) != two.pool(1)
    assert other.losses(1) != two.losses(1)


# ---------------------------------------------------------------- extended


def test_two_episodes_extended_to_three_are_three(execute, whole, tmp_path):
    """Pools, runs and models are those of three episodes from the start; only episode 2 was trained to its end."""
    path = tmp_path / "exp"
    short = execute(path, episodes=2)
    assert len(short.losses(2)) == 12
    untouched = [f"episodes/{i}/{part}" for i in (1, 2) for part in ("negatives", "model", "runs", "checkpoint")]
    before = {name: times_of(path / name) for name in untouched}
    long = execute(path)
    assert {name: times_of(path / name) for name in untouched} == before
    found, expected = files_of(path), files_of(whole.path)
    assert found.keys() == expected.keys()
    assert {name for name in found if found[name] != expected[name]} == {
        "metrics.jsonl",
        "margins.tsv",
        "seal.json",
    }
    assert long.results == whole.results
    steps = [(row["episode"], row["step"]) for row in long.metrics]
    assert steps == [(i, step) for i, n in ((1, 4), (2, 12), (3, 12)) for step in range(1, n + 1)]
    assert [row for row in long.metrics if row["episode"] != 2 or row["step"] <= 4] == whole.metrics
    # The report and the audit leave the steps out that gave no model.
    extended, fresh = opened_at(path), opened_at(whole.path)
    assert gradients_table(extended) == gradients_table(fresh)
    ends = ends_of(extended.states)
    assert ends == {1: 4, 2: 4}
    kept = read_margins(path / "margins.tsv", ends)
    assert len(read_margins(path / "margins.tsv").margins) > len(kept.margins)
    alone = read_margins(whole.path / "margins.tsv", ends)
    assert all(np.array_equal(a, b) for a, b in zip(kept, alone, strict=True))


def test_extended_where_the_early_stop_is_the_end(execute, tmp_path):
    changes = {"stop_fraction": 1.0, "steps": 2, "splits": ("train", "none", "none")}
    execute(tmp_path / "short", episodes=1, **changes)
    assert equal(weights_of(tmp_path / "short/model"), weights_of(tmp_path / "short/episodes/1/model"))
    long = execute(tmp_path / "short", episodes=2, **changes)
    fresh = execute(tmp_path / "fresh", episodes=2, **changes)
    assert files_of(long.path) == files_of(fresh.path)


# ---------------------------------------------------------------- given negatives


def test_the_third_episode_from_given_negatives_is_the_third_episode(execute, whole, tmp_path):
    done = execute(tmp_path / "exp", start_episode=3, negatives=whole.path / "episodes/3/negatives")
    assert [path.name for path in (done.path / "episodes").iterdir()] == ["3"]
    assert done.pool(3) == whole.pool(3)
    assert done.metrics == [row for row in whole.metrics if row["episode"] == 3]
    assert equal(weights_of(done.path / "model"), weights_of(whole.path / "model"))
    assert list(done.results["test"]) == ["bm25", "untrained", "final"]
    assert done.results["test"]["untrained"] == whole.results["test"]["untrained"]
    assert done.results["test"]["final"] == whole.results["test"]["final"]
    assert len(done.results["forgetting"]) == 1
    assert {batch.passage_rows.shape[1] for batch in done.batches} == {SETTINGS["passages_reference"][2]}


def test_later_episodes_mine_from_given_ones(execute, whole, tmp_path):
    done = execute(
        tmp_path / "exp", start_episode=2, steps=2, negatives=whole.path / "episodes/2/negatives", episodes=3
    )
    given = {entry["passage_rows"] for entry in done.pool(2)[0]}
    momentum = [entry for entry in done.pool(3)[0] if entry["episodes"] < 3]
    assert len(momentum) == 12
    assert {entry["passage_rows"] for entry in momentum} <= given


def test_a_start_beyond_the_end_is_refused(execute, tmp_path):
    with pytest.raises(HardnegError, match="start_episode") as fault:
        execute(tmp_path / "exp", start_episode=4)
    assert fault.value.status == 2
    assert not (tmp_path / "exp").exists()


# ---------------------------------------------------------------- kinds of experiments


def test_without_dev_and_test(execute):
    done = execute(splits=("train", "none", "none"), episodes=1, steps=1)
    assert not {"dev", "test"} & set(done.results)
    assert len(done.results["forgetting"]) == 1
    kept = {path.name for path in (done.path / "final/runs").iterdir()}
    assert kept == {"geometry", "informative", "lookahead", "query", "sample"}


def test_dev_alone_is_compared_on(execute):
    done = execute(splits=("train", "dev", "none"), episodes=1, steps=1)
    assert "test" not in done.results
    assert done.results["compared_on"] == "dev"
    assert list(done.results["dev"]) == ["bm25", "untrained", "final"]


def test_two_towers(execute, world):
    done = execute(towers="untied", splits=("train", "none", "test"), episodes=2, steps=2)
    folder = done.path / "model"
    query, passage = weights_of(folder / "query"), weights_of(folder / "passage")
    assert query.keys() == passage.keys()
    assert not equal(query, passage), "each learnt its own"
    encoder = load_encoder(str(folder))
    assert not encoder.tied
    assert read_manifest(folder).facts["digest"] == encoder.digest()
    hits = hn.search_text(world.collection, "about", model=str(folder), k=3)
    assert len(hits) == 3


# ---------------------------------------------------------------- half precision


@pytest.fixture(scope="module")
def half(execute):
    """The experiment in bfloat16, on a processor that has to emulate it; what was said."""
    log, told = logging.getLogger("hardneg"), []
    handler = logging.Handler(logging.WARNING)
    handler.emit = lambda record: told.append(record.getMessage())
    log.addHandler(handler)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(hardware, "cpu_flags", lambda: {"avx512f"})
        done = execute(precision="bfloat16")
    log.removeHandler(handler)
    return done, "\n".join(told)


def test_emulated_bfloat16_is_said(half):
    assert "this device does not multiply bfloat16" in half[1]


def test_steps_in_bfloat16_are_those_of_a_slow_float32_loop_but_for_its_rounding(half, world):
    """bfloat16 has 8 bits: a rounding is 2^-9 of a value, and losses are to be within a few of them."""
    done, train, step, rounding = half[0], choose_splits(world.collection).train, 0, []
    rates = (1e-3, *(1e-3 * left / 11 for left in range(11, 0, -1)))
    for episode, steps in ((1, 4), (2, 4), (3, 12)):
        slow = SlowTele(world.collection, train, SlowEncoder(world.calm))
        rows = [row for row in done.metrics if row["episode"] == episode]
        for row, rate in zip(rows, rates[:steps], strict=True):
            batch = done.batches[step]
            loss, norm = slow.train([(batch.query_rows.tolist(), batch.passage_rows.tolist())], rate=rate)
            first = row["step"] == 1  # later ones begin with weights that rounding has moved
            assert row["loss"] == pytest.approx(loss, rel=0.005 if first else 0.03)
            assert row["grad_norm"] == pytest.approx(norm, rel=0.02 if first else 0.1)
            rounding += [abs(row["loss"] - loss)] if first else []
            step += 1
    assert min(rounding) > 1e-5, "it trained in float32, which is nearer"


@pytest.mark.parametrize(
    ("folder", "model"),
    [("episodes/1/runs", None), ("episodes/2/runs", "episodes/1/model"), ("final/runs", "model")],
)
def test_runs_in_bfloat16_score_and_order_as_the_same_model_does_in_float32(half, world, folder, model):
    done, collection = half[0], world.collection
    slow = SlowEncoder(done.path / model if model else world.calm)
    everything = np.arange(collection.n_passages)
    texts, titles = collection.texts.take(everything), collection.titles.take(everything)
    with torch.no_grad():
        parts = [(title, text) if title else (text,) for title, text in zip(titles, texts, strict=True)]
        passages = torch.stack([slow.encode(*part) for part in parts])
        worst = 0.0
        for query, hits in zip(collection.qrels("test").query_rows, done.run(f"{folder}/test"), strict=True):
            vector = slow.encode(collection.query_texts.take([query])[0])
            scores, length = passages @ vector, float(passages.norm(dim=1).max() * vector.norm())
            found = np.array([score for _, score in hits])
            expected = scores[[row for row, _ in hits]].numpy()
            worst = max(worst, np.abs(found - expected).max() / length)
            best = set(scores.topk(5).indices.tolist())
            assert len(best & {row for row, _ in hits[:8]}) >= 4
    assert 3e-4 < worst < 0.01, "float32 is nearer than the one, another model further than the other"


def test_an_experiment_in_bfloat16_ends_near_one_in_float32(half, whole):
    """Its pools differ by the near ties of two precisions, so its batches do; but not what is learnt."""
    losses = [np.mean(done.losses(3)[-6:]) for done in (half[0], whole)]
    assert losses[0] == pytest.approx(losses[1], rel=0.15)
    learnt = [done.results["forgetting"][-1]["train_mrr_100"] for done in (half[0], whole)]
    assert learnt[0] == pytest.approx(learnt[1], abs=0.1)
