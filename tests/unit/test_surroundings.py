"""What a caller has set in torch does not reach our work, and our work leaves it as it was."""

import contextlib
import json
import os
import signal
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import BertConfig

import hardneg as hn
from hardneg import surroundings as surroundings_of_torch
from hardneg.models.cross_encoder import PairHead
from hardneg.search.proposals import ALLOWED
from hardneg.surroundings import kept_draws, own_surroundings, places_of_modules
from worlds.small_trainings import train_small
from worlds.tiny_world import one_thread  # noqa: F401

BLOCKS = {
    "no_grad": torch.no_grad,
    "inference_mode": torch.inference_mode,
    "autocast": lambda: torch.autocast("cpu", torch.bfloat16),
}


@contextlib.contextmanager
def in_float64():
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(torch.float32)


BLOCKS["float64"] = in_float64


def precisions():
    """How precise torch lets products of float32 matrices be: on CUDA, and on a CPU with AMX."""
    return torch.backends.cuda.matmul.fp32_precision, torch.backends.mkldnn.matmul.fp32_precision


@contextlib.contextmanager
def with_products(precision):
    before = precisions()
    torch.set_float32_matmul_precision(precision)
    try:
        yield
    finally:
        torch.set_float32_matmul_precision("highest")
        torch.backends.cuda.matmul.fp32_precision, torch.backends.mkldnn.matmul.fp32_precision = before


BLOCKS["medium"] = lambda: with_products("medium")


def surroundings():
    return (
        precisions(),
        torch.is_grad_enabled(),
        torch.is_inference_mode_enabled(),
        torch.is_autocast_enabled("cpu"),
        torch.get_default_dtype(),
    )


def found(world, cache, *, held):
    if not held:
        return hn.search_text(world.collection, "bade", model=world.model, cache=cache)
    with hn.open_searcher(world.collection, world.model, cache=cache) as searcher:
        return searcher.search("bade", k=5)


@pytest.mark.parametrize("held", [False, True])
@pytest.mark.parametrize("name", BLOCKS)
def test_a_search_finds_the_same(world, in_float32, name, held, tmp_path):
    expected = found(world, tmp_path / "usual", held=held)
    with BLOCKS[name]():
        before = surroundings()
        assert found(world, tmp_path / "other", held=held) == expected
        assert surroundings() == before
    assert found(world, tmp_path / "other", held=held) == expected, "the cache holds the same vectors"


@pytest.mark.parametrize("method", ["search_texts", "search_queries"])
def test_an_open_retriever_finds_the_same(world, in_float32, method):
    asked = ["bade"] if method == "search_texts" else np.array([3], np.int32)
    with hn.open_retriever(world.collection, world.model) as retriever:
        expected = getattr(retriever, method)(asked, 5)
        with torch.autocast("cpu", torch.bfloat16):
            assert getattr(retriever, method)(asked, 5).scores.tolist() == expected.scores.tolist()


@pytest.mark.parametrize("name", BLOCKS)
def test_training_is_the_same(world, name, tmp_path):
    expected = train_small("star", world, tmp_path / "usual", head="ance")
    with BLOCKS[name]():
        before = surroundings()
        results = train_small("star", world, tmp_path / "other", head="ance")
        assert surroundings() == before
    assert results["test"] == expected["test"]


def blocks_of_autocast():
    torch.autocast_increment_nesting()
    return torch.autocast_decrement_nesting()


@pytest.mark.parametrize("recipe", ["warmup", "adore", "ranker"])
@pytest.mark.parametrize("enabled", [False, True])
def test_a_step_in_bfloat16_sees_the_updates_of_those_before(world, recipe, enabled, tmp_path):
    """Casts of weights stay until the outermost block of autocast ends, which is the caller's."""
    settings = {"precision": "bfloat16", "learning_rate": 0.01, "max_steps" if recipe == "warmup" else "steps": 4}
    losses = []
    for block in (contextlib.nullcontext(), torch.autocast("cpu", torch.bfloat16, enabled=enabled)):
        out = tmp_path / f"exp-{len(losses)}"
        with block:
            before = blocks_of_autocast()
            train_small(recipe, world, out, **settings)
            assert blocks_of_autocast() == before
        rows = map(json.loads, (out / "metrics.jsonl").read_text().splitlines())
        losses.append([row["loss"] for row in rows if "loss" in row])
    assert len(set(losses[0])) >= 3
    assert losses[0] == losses[1]


def test_a_ranker_is_trained_in_float32(world, tmp_path):
    with in_float64():
        train_small("ranker", world, tmp_path / "exp")


def test_training_leaves_the_random_numbers_of_the_caller(world, tmp_path):
    torch.manual_seed(5)
    before = torch.get_rng_state()
    train_small("star", world, tmp_path / "exp")
    assert torch.equal(torch.get_rng_state(), before)


def test_a_model_that_is_opened_leaves_them_too(world):
    torch.manual_seed(5)
    before = torch.get_rng_state()
    hn.load_encoder(world.model, head="ance")
    PairHead(BertConfig(hidden_size=8)).draw(0, 0.02)
    assert torch.equal(torch.get_rng_state(), before)


def test_an_estimate_leaves_them_too(world):
    torch.manual_seed(5)
    before = torch.get_rng_state()
    options = {"estimate": True, "device": "cpu", "precision": "float32", "steps": 2}
    hn.plan("star", world.collection, world.model, **options)
    assert torch.equal(torch.get_rng_state(), before)


def test_a_failed_step_leaves_the_choice_of_algorithms_of_the_caller():
    with kept_draws():
        torch.use_deterministic_algorithms(True)  # as a failed step leaves it
    assert not torch.are_deterministic_algorithms_enabled()


def test_a_thread_of_the_caller_keeps_its_own(world):
    kept = []

    def work():
        with torch.no_grad():
            hn.search_text(world.collection, "bade", model=world.model)
            kept.append(torch.is_grad_enabled())

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert kept == [False]


def test_one_thread_works_in_float32_after_another_one_has_ended():
    """torch has one default for all threads."""
    own, theirs = surroundings_of_torch.own_surroundings(), surroundings_of_torch.own_surroundings()
    with in_float64(), ThreadPoolExecutor(1) as another:
        another.submit(theirs.__enter__).result()
        with own:
            another.submit(theirs.__exit__, None, None, None).result()
            assert torch.get_default_dtype() == torch.float32
        assert torch.get_default_dtype() == torch.float64


def test_a_caller_within_a_block_keeps_its_own_type_of_numbers():
    with surroundings_of_torch.own_surroundings():
        with in_float64():
            with surroundings_of_torch.own_surroundings():
                assert torch.get_default_dtype() == torch.float32
            assert torch.get_default_dtype() == torch.float64
        assert torch.get_default_dtype() == torch.float32


ROUNDED = {"high": ("tf32", "tf32"), "medium": ("tf32", "bf16")}


@pytest.mark.parametrize("precision", ROUNDED)
def test_products_are_in_full_float32(precision):
    """Otherwise vectors that are stored as float32 would hold less: TF32 on CUDA, bfloat16 with AMX."""
    with with_products(precision):
        for _ in range(2):
            with surroundings_of_torch.own_surroundings(), surroundings_of_torch.own_surroundings():
                assert precisions() == ("ieee", "ieee")
                assert not torch.backends.cuda.matmul.allow_tf32, "torch's profiler asks for this"
            assert (precisions(), torch.get_float32_matmul_precision()) == (ROUNDED[precision], precision)


@pytest.mark.parametrize("method", ["encode", "search_text"])
def test_a_caller_s_precision_reaches_no_product(world, in_float32, method, tmp_path, monkeypatch):
    seen, given = set(), torch.nn.functional.linear
    monkeypatch.setattr(torch.nn.functional, "linear", lambda *given_: seen.add(precisions()) or given(*given_))
    with with_products("medium"):
        if method == "encode":
            hn.encode(world.collection, world.model, tmp_path / "vectors")
        else:
            hn.search_text(world.collection, "bade", model=world.model, cache=tmp_path / "cache")
    assert seen == {("ieee", "ieee")}


def test_each_of_the_newer_settings_is_put_back():
    """They may differ from one another, and from what the older function says."""
    cuda, mkldnn = torch.backends.cuda.matmul, torch.backends.mkldnn.matmul
    with with_products("highest"):
        for chosen in (("tf32", "ieee"), ("ieee", "bf16"), ("ieee", "ieee")):
            cuda.fp32_precision, mkldnn.fp32_precision = chosen
            with surroundings_of_torch.own_surroundings():
                assert precisions() == ("ieee", "ieee")
            assert precisions() == chosen


def test_what_a_caller_chooses_in_a_block_stays():
    with with_products("medium"):
        with surroundings_of_torch.own_surroundings():
            torch.set_float32_matmul_precision("high")
        assert precisions() == ROUNDED["high"]


def test_products_stay_in_full_float32_until_the_last_thread_has_ended():
    own, theirs = surroundings_of_torch.own_surroundings(), surroundings_of_torch.own_surroundings()
    with with_products("medium"), ThreadPoolExecutor(1) as another:
        another.submit(theirs.__enter__).result()
        with own:
            another.submit(theirs.__exit__, None, None, None).result()
            assert precisions() == ("ieee", "ieee")
        assert precisions() == ROUNDED["medium"]


def test_a_search_of_another_thread_keeps_its_products_and_leaves_ours():
    """It may begin before our work and end in it, or the other way round."""
    with with_products("medium"), ThreadPoolExecutor(1) as another:
        search, own = ALLOWED.leave(), surroundings_of_torch.own_surroundings()
        another.submit(search.__enter__).result()
        with own:
            assert precisions() == ("ieee", "bf16"), "the search goes on as it began"
            another.submit(search.__exit__, None, None, None).result()
            assert precisions() == ("ieee", "ieee")
            search = ALLOWED.leave()
            another.submit(search.__enter__).result()
        assert precisions() == ("ieee", "bf16")
        another.submit(search.__exit__, None, None, None).result()
        assert precisions() == ROUNDED["medium"]


def test_trainings_in_threads_take_turns_and_train_the_same(world, tmp_path, caplog):
    expected = train_small("star", world, tmp_path / "alone")
    with ThreadPoolExecutor(2) as threads:
        found = threads.map(lambda name: train_small("star", world, tmp_path / name), ["a", "b"])
        assert [results["test"] for results in found] == [expected["test"]] * 2
    assert "another thread of this process trains or plans" in caplog.text


def test_a_training_within_another_one_does_not_wait_for_itself():
    with kept_draws(), kept_draws():
        pass


def test_a_forked_process_does_not_wait_for_a_thread_that_it_lacks():
    holds, done = threading.Event(), threading.Event()

    def hold():
        with kept_draws():
            holds.set()
            done.wait()

    thread = threading.Thread(target=hold)
    thread.start()
    holds.wait()
    if (child := os.fork()) == 0:
        signal.alarm(20)  # ends a child that waits
        with kept_draws():
            os._exit(0)
    _, status = os.waitpid(child, 0)
    done.set()
    thread.join()
    assert status == 0


def test_the_warning_of_a_fork_says_what_is_known(monkeypatch, caplog):
    """Whether the parent computed nobody knows: it may have opened a collection alone, or used torch by itself."""
    monkeypatch.setattr(surroundings_of_torch, "_forked", True)
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        with surroundings_of_torch.own_surroundings():
            assert torch.get_num_threads() == 1
    finally:
        torch.set_num_threads(before)
    assert "may have computed on several threads, so it works on one; to use more, fork before" in caplog.text


@pytest.mark.parametrize(("computed", "threads"), [(True, 1), (False, 2)])
def test_a_fork_of_a_process_that_has_computed_works_on_one_thread(monkeypatch, computed, threads):
    """Otherwise OpenMP waits for ever for the threads of the parent."""
    monkeypatch.setattr(surroundings_of_torch, "_computed", computed)
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        if (child := os.fork()) == 0:
            with surroundings_of_torch.own_surroundings():
                os._exit(torch.get_num_threads())
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == threads
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def test_places_of_modules_are_texts_and_hold_this_package(monkeypatch):
    monkeypatch.setattr(sys, "path", ["", "/a", Path("/b"), "/a", None])
    places = places_of_modules().split(os.pathsep)
    assert places == ["/a", str(Path(hn.__file__).parents[1])]


def test_a_general_choice_of_the_caller_still_leads_afterwards():
    """What only follows the general setting is not made a setting of its own."""
    try:
        torch.backends.fp32_precision = "tf32"
        with own_surroundings():
            assert torch.backends.mkldnn.matmul.fp32_precision == "ieee"
        torch.backends.fp32_precision = "ieee"
        assert torch.backends.cuda.matmul.fp32_precision == torch.backends.mkldnn.matmul.fp32_precision == "ieee"
    finally:
        torch.backends.fp32_precision = "none"
