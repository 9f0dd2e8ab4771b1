"""Lengths and prompts that commands get in place of the model's own, and lengths in plans."""

import json

import numpy as np
import pytest

import hardneg as hn
from hardneg.errors import ArtifactError, SettingsError
from hardneg.models.loading import load_encoder
from hardneg.models.rankers import new_ranker, save_ranker
from hardneg.models.saving import save_encoder
from hardneg.models.source import ModelSource
from hardneg.storage.artifacts import read_manifest
from worlds.tiny_world import one_thread, tiny_collection, tiny_model  # noqa: F401

SHORT = {"query_length": 4, "passage_length": 6}


@pytest.fixture(scope="module")
def world(world):
    short = world.root / "short"
    save_encoder(load_encoder(world.model, **SHORT), short)
    return *world, str(short)


def lines(path):
    return path.read_text().splitlines()


def test_a_search_at_given_lengths_is_that_of_a_model_of_such_lengths(world, tmp_path):
    collection, model, short = world
    given = {"k": 10, "device": "cpu", "cache": tmp_path / "cache"}
    hn.search_split(collection, tmp_path / "own.trec", model=model, **given)
    hn.search_split(collection, tmp_path / "short.trec", model=model, **SHORT, **given)
    hn.search_split(collection, tmp_path / "saved.trec", model=short, **given)
    assert lines(tmp_path / "short.trec") == lines(tmp_path / "saved.trec") != lines(tmp_path / "own.trec")
    hn.search_split(collection, tmp_path / "again.trec", model=model, **given)
    assert lines(tmp_path / "again.trec") == lines(tmp_path / "own.trec")
    text = collection.query_texts[
        int(collection.query_ids.rows([lines(tmp_path / "short.trec")[0].split()[0]])[0])
    ]
    hits = hn.search_text(collection, text, model=model, **SHORT, **given)
    assert hits[0]["passage_id"] == lines(tmp_path / "short.trec")[0].split()[2]


def test_given_prompts_are_those_of_a_model_that_has_them(world, tmp_path):
    """A family's prompts give way to those that are given, also to an empty one."""
    collection, model, _ = world
    prompts = {"query_prompt": "find ", "passage_prompt": "read "}
    save_encoder(load_encoder(model, **prompts), tmp_path / "model")
    given = {"device": "cpu", "cache": tmp_path / "cache"}
    options = {
        "own": {},
        "both": prompts,
        "saved": {"model": tmp_path / "model"},
        "query": {"query_prompt": "find "},
    }
    options["family"] = {"prompts": "e5", **SHORT, **prompts}
    options["short"] = {**SHORT, **prompts}
    options["none"] = {"model": tmp_path / "model", "query_prompt": "", "passage_prompt": ""}
    runs = {}
    for name, chosen in options.items():
        hn.search_split(collection, tmp_path / name, k=10, **{"model": model, **given, **chosen})
        runs[name] = lines(tmp_path / name)
    assert runs["both"] == runs["saved"]
    assert runs["family"] == runs["short"]
    assert runs["none"] == runs["own"]
    assert len({tuple(run) for run in (runs["own"], runs["query"], runs["both"], runs["short"])}) == 4


def test_a_prompt_that_leaves_no_room_for_texts_is_refused(world, tmp_path):
    collection, model, _ = world
    search = {"model": model, "device": "cpu", "cache": tmp_path / "cache"}
    said = r"TOO_LONG: query_prompt takes \d+ tokens, but query_length is 4: no text would be left; shorten the pr"
    with pytest.raises(SettingsError, match=said):
        hn.search_text(collection, "baba", query_prompt="some words before it", query_length=4, **search)
    with pytest.raises(SettingsError, match="TOO_LONG: passage_prompt takes"):
        hn.search_text(collection, "baba", passage_prompt="word " * 100, **search)


@pytest.mark.parametrize(
    "lengths",
    [
        {"query_prompt": "ba " * 20, "query_length": 32, "search_query_length": 8},
        {"passage_prompt": "ba " * 20, "passage_length": 10, "chunks": 2},
    ],
)
def test_room_is_needed_in_search_and_in_all_chunks_together(world, lengths):
    with pytest.raises(SettingsError, match=r"TOO_LONG: .* no text would be left"):
        load_encoder(world[1], **lengths)
    load_encoder(world[1], **lengths | {"search_query_length": 32, "chunks": 4})


def test_room_is_needed_in_steps(world):
    prompt = {"passage_prompt": "ba " * 20, "passage_length": 40}
    given = {"data": world[0], "model": world[1], "steps": 2, "queries_per_step": 4}
    hn.plan("star", **given, **prompt)
    with pytest.raises(SettingsError, match=r"TOO_LONG: passage_prompt takes .* but train_passage_length is 8"):
        hn.plan("star", **given, **prompt, train_passage_length=8)


def test_a_prompt_that_is_not_utf_8_is_refused(hardneg, world):
    collection, model, _ = world
    search = ("search", "--data", collection.path, "--model", model, "--device", "cpu", "--query", "baba")
    status, _, err = hardneg(*search, "--query-prompt", "\udcff ")
    assert status == 2
    assert (
        err == "BAD_SETTING: query_prompt = '\\udcff ' is not UTF-8, or holds a lone surrogate; correct the text\n"
    )


def test_an_open_retriever_takes_no_other_prompt(world, tmp_path):
    collection, model, _ = world
    how = {"device": "cpu", "cache": tmp_path / "cache"}
    retriever = hn.open_retriever(collection, model, query_prompt="find ", **how)
    for prompt in ("", "q "):
        with pytest.raises(SettingsError, match="TWO_SEARCHERS"):
            hn.search_text(collection, "baba", retriever=retriever, query_prompt=prompt)


def test_embeddings_are_searched_with_the_prompt_they_were_made_with(world, tmp_path):
    collection, model, _ = world
    given = {"device": "cpu", "cache": tmp_path / "cache"}
    hn.encode(collection, model, tmp_path / "emb", passage_prompt="read ", **given)
    search = {"model": model, "embeddings": tmp_path / "emb", "k": 10, **given}
    with pytest.raises(ArtifactError, match=r"OTHER_TEXTS: .*with the lengths and prompts that you search with"):
        hn.search_split(collection, tmp_path / "a", **search)
    hn.search_split(collection, tmp_path / "a", passage_prompt="read ", **search)
    hn.search_split(collection, tmp_path / "b", model=model, passage_prompt="read ", k=10, **given)
    assert lines(tmp_path / "a") == lines(tmp_path / "b")


def test_a_cross_encoder_has_no_prompts(world, tmp_path):
    collection, model, _ = world
    save_ranker(new_ranker(ModelSource(model, device="cpu"), seed=1), tmp_path / "ranker")
    given = {"device": "cpu", "cache": tmp_path / "cache"}
    hn.search_split(collection, tmp_path / "run", model=model, k=5, **given)
    ranking = {"data": collection, "ranker": tmp_path / "ranker", **given}
    with pytest.raises(
        SettingsError, match="BAD_SETTING: embeddings or prompts are given, but the ranker is a cr"
    ):
        hn.rerank(tmp_path / "run", tmp_path / "out", query_prompt="find ", **ranking)
    hn.rerank(tmp_path / "run", tmp_path / "out", **ranking)


def test_embeddings_are_searched_at_the_length_they_were_made_at(world, tmp_path):
    collection, model, _ = world
    given = {"device": "cpu", "cache": tmp_path / "cache"}
    hn.encode(collection, model, tmp_path / "emb", passage_length=6, **given)
    search = {"model": model, "embeddings": tmp_path / "emb", "k": 10, **given}
    with pytest.raises(ArtifactError, match=r"OTHER_TEXTS: .*with the lengths and prompts that you search with"):
        hn.search_split(collection, tmp_path / "a.trec", **search)
    with pytest.raises(ArtifactError, match=r"EXISTS|OTHER_|SETTINGS"):
        hn.encode(collection, model, tmp_path / "emb", **given)
    hn.search_split(collection, tmp_path / "a.trec", passage_length=6, **search)
    hn.search_split(collection, tmp_path / "b.trec", model=model, passage_length=6, k=10, **given)
    assert lines(tmp_path / "a.trec") == lines(tmp_path / "b.trec")


def test_an_index_measures_recall_at_the_same_lengths(world, tmp_path):
    pytest.importorskip("faiss")
    collection, model, _ = world
    given = {"device": "cpu", "cache": tmp_path / "cache"}
    hn.encode(collection, model, tmp_path / "emb", passage_length=6, **given)
    found = hn.index(
        tmp_path / "emb", tmp_path / "index", data=collection, split="dev", model=model, passage_length=6, **given
    )
    assert found["recall"]
    hn.search_split(
        collection, tmp_path / "a.trec", model=model, index=tmp_path / "index", passage_length=6, k=10, **given
    )


def test_a_pool_is_mined_at_given_lengths(world, tmp_path):
    collection, model, short = world
    common = {"depth": 10, "count": 4, "device": "cpu", "cache": tmp_path / "cache"}
    pools = {
        "own": hn.mine(collection, model, tmp_path / "own", **common),
        "given": hn.mine(collection, model, tmp_path / "given", **SHORT, **common),
        "saved": hn.mine(collection, short, tmp_path / "saved", **common),
    }
    assert np.array_equal(pools["given"].passage_rows, pools["saved"].passage_rows)
    assert not np.array_equal(pools["given"].passage_rows, pools["own"].passage_rows)
    models = {name: read_manifest(tmp_path / name).inputs["model"] for name in pools}
    assert models["given"] == models["saved"] != models["own"]


@pytest.mark.parametrize("name", SHORT)
def test_a_length_that_the_model_has_no_positions_for_is_refused(world, tmp_path, name):
    collection, model, _ = world
    with pytest.raises(SettingsError, match=f"^TOO_LONG: {name} = 65, the model takes 64 tokens; lower it$"):
        hn.search_split(collection, tmp_path / "a.trec", model=model, device="cpu", **{name: 65})
    with pytest.raises(SettingsError, match=f"BAD_SETTING: {name} = 0"):
        hn.mine(collection, model, tmp_path / "pool", device="cpu", **{name: 0})
    assert not (tmp_path / "a.trec").exists()
    assert not (tmp_path / "pool").exists()


def test_a_length_that_nobody_gave_is_told_with_the_family_that_means_it(world, tmp_path):
    collection, model, _ = world
    common = {"model": model, "prompts": "e5", "device": "cpu"}
    said = "TOO_LONG: prompts = e5 means query_length = 512, the model takes 64 tokens; give query_length as well"
    with pytest.raises(SettingsError, match=f"^{said}, at most 64$"):
        hn.search_split(collection, tmp_path / "a.trec", **common)
    with pytest.raises(SettingsError, match=f"^{said}"):
        hn.train_star(collection, model, tmp_path / "exp", prompts="e5", device="cpu")
    with pytest.raises(SettingsError, match=r"^TOO_LONG: passage_length = 65, the model takes 64 tokens; lower"):
        hn.search_split(collection, tmp_path / "a.trec", **common, query_length=4, passage_length=65)
    hn.search_split(collection, tmp_path / "a.trec", **common, **SHORT)


def test_the_commands_take_lengths(hardneg, world, tmp_path):
    collection, model, short = world
    common = ("--data", collection.path, "--device", "cpu", "--cache", tmp_path / "cache")
    lengths = ("--query-length", 4, "--passage-length", 6)
    search = ("search", *common, "--k", 10)
    assert hardneg(*search, "--model", model, *lengths, "--out", tmp_path / "a.trec")[0] == 0
    assert hardneg(*search, "--model", short, "--out", tmp_path / "b.trec")[0] == 0
    assert lines(tmp_path / "a.trec") == lines(tmp_path / "b.trec")
    assert hardneg("encode", *common, "--model", model, *lengths, "--out", tmp_path / "emb")[0] == 0
    assert hardneg("mine", *common, "--model", model, *lengths, "--depth", 10, "--out", tmp_path / "pool")[0] == 0
    status, _, err = hardneg(*search, "--model", model, "--passage-length", 65, "--out", tmp_path / "c.trec")
    assert (status, err) == (2, "TOO_LONG: passage_length = 65, the model takes 64 tokens; lower it\n")


@pytest.mark.parametrize("measure", [False, True])
def test_a_plan_says_what_is_cut_and_counts_one_encoding_more(world, measure):
    collection, model, _ = world
    values = {"steps": 2, "queries_per_step": 4, "precision": "float32"}
    found = {
        name: hn.plan(
            "star", collection, model, settings=hn.settings_of("star", **values, **lengths), estimate=measure,
            device="cpu",
        )
        for name, lengths in (("own", {}), ("short", SHORT))
    }  # fmt: skip
    facts = {name: plan["facts"] for name, plan in found.items()}
    assert facts["short"]["cut passages"] == "100 % of 120 are cut at 6 tokens (the model takes 64)"
    assert facts["short"]["untrained"] == "measured as you gave it, and with passages of 6 and queries of 4 tokens"
    assert facts["own"]["cut queries"] == "none is cut at 64 tokens"
    assert "untrained" not in facts["own"]
    json.dumps(found)


def test_the_model_as_it_came_adds_to_an_estimate(world, monkeypatch):
    from hardneg.recipes import estimate

    collection, model, _ = world
    monkeypatch.setattr(estimate, "encode_seconds", lambda *given: 1.0)
    monkeypatch.setattr(estimate, "search_seconds", lambda *given: 0.0)
    values = {"steps": 2, "queries_per_step": 4, "precision": "float32"}
    seconds = {}
    for name, lengths in (("own", {}), ("short", {"passage_length": 6})):
        settings = hn.settings_of("star", **values, **lengths)
        plan = hn.plan("star", collection, model, settings=settings, estimate=True, device="cpu")
        seconds[name] = plan["seconds"]["encode"]
    tokens = float(estimate.take_sample(_work(collection), load_encoder(model)).tokens(0, 120))
    short = float(estimate.take_sample(_work(collection), load_encoder(model, passage_length=6)).tokens(0, 120))
    # two states of either; the passages, not the queries, once more at their own length
    assert seconds["short"] - seconds["own"] == pytest.approx(2 * (short - tokens) + tokens)


def _work(collection):
    """As much of a plan's work as a sample asks for."""
    from types import SimpleNamespace

    return SimpleNamespace(data=SimpleNamespace(collection=collection), passage_length=None)
