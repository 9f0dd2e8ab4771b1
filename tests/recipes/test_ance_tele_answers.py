"""ANCE-Tele on open-domain questions: positives and negatives by answers in every episode, and measures of it."""

import json
import logging
from functools import partial
from itertools import pairwise, product
from types import SimpleNamespace

import numpy as np
import pytest
from executed import Executed, watched
from reference_tele import SlowEncoder, SlowTele

import hardneg as hn
from hardneg.api.diagnose import opened_at
from hardneg.data.training_data import DevDraw, Labels, choose_splits
from hardneg.diagnostics.sampled_vectors import load_sample
from hardneg.errors import Faults
from hardneg.evaluation.matching import contains
from hardneg.experiment.folder import Experiment
from hardneg.experiment.layout import sample_of
from hardneg.models.loading import load_encoder
from hardneg.negatives.candidates import candidates
from hardneg.negatives.labels import answers_of, with_answers
from hardneg.negatives.pool import SOURCES, matches
from hardneg.recipes import ance_tele
from hardneg.recipes.training_run import TrainingRun
from hardneg.records import Positives
from hardneg.report.explorer import explorer_data
from hardneg.report.facts_queries import best_table, breakdown_table, change_of
from hardneg.report.facts_time import retrieved_share
from hardneg.report.lists import mined_lists
from hardneg.report.measured import training_ranks
from hardneg.search.runs import load_run
from hardneg.training import objectives
from hardneg.training.batches import masked_columns
from worlds.qa_world import PASSAGES, TRAIN, qa_collection
from worlds.tiny_world import SETTINGS, one_thread, tiny_model  # noqa: F401

EPISODES = 3
QA = SETTINGS | {
    "passages_reference": [3, 4, 5],
    "steps": 8,
    "stop_step": 3,
    "depth": 24,
    "count": 4,
    "labels": "answers",
    "positives": "first",
    "store_dtype": "float32",
    "measures": "Answer@1 Answer@5 RR@10",
}

STATES = {
    "untrained": "episodes/1/runs",
    "episode-1": "episodes/2/runs",
    "episode-2": "episodes/3/runs",
    "final": "final/runs",
}

# Losses of the steps of each episode, recorded from this code once `slow_tele` had given the same.
RECORDED = [
    [2.31496, 2.66303, 1.73924],
    [2.54192, 1.8902, 1.84327],
    [2.84967, 2.61047, 2.93075, 1.54575, 1.0545, 1.10177, 0.8384, 1.44196],
]


@pytest.fixture(scope="module")
def qa(tmp_path_factory):
    root = tmp_path_factory.mktemp("qa")
    collection = qa_collection(root / "collection")
    return SimpleNamespace(
        root=root, collection=collection, model=tiny_model(root / "model", collection, dropout=0.0)
    )


@pytest.fixture(scope="module")
def whole(qa):
    with watched() as batches:
        results = hn.train_ance_tele(qa.collection, qa.model, qa.root / "exp", device="cpu", **QA)
    return Executed(qa.root / "exp", QA, results, batches)


@pytest.fixture(scope="module")
def train(qa):
    return choose_splits(qa.collection).all_train


def answered(collection, query, passage):
    return contains(collection.texts[passage], collection.answers(query))


def slow_positives(qa, train, run, **labels):
    """By query row: judged passages, else the first of the first 24 hits that contains an answer."""
    found = {}
    for i, query in enumerate(train.query_rows.tolist()):
        best = [row for row, _ in run[i][: QA["depth"]] if answered(qa.collection, query, row)]
        judged = [] if labels.get("use_positive_ctxs") is False else train.of(i).tolist()
        found[query] = judged or best[:1]
    return found


def pool_positives(folder):
    rows, offsets, queries = (
        np.load(folder / f"{x}.npy") for x in ("positive_rows", "positive_offsets", "query_rows")
    )
    return {
        query: rows[a:b].tolist()
        for query, (a, b) in zip(queries.tolist(), pairwise(offsets.tolist()), strict=True)
    }


# ---------------------------------------------------------------- positives and negatives


def test_the_losses_of_every_step(whole):
    assert [len(whole.losses(episode)) for episode in (1, 2, 3)] == [3, 3, 8]
    for episode, recorded in enumerate(RECORDED, 1):
        assert whole.losses(episode) == pytest.approx(recorded, abs=1e-4)


def test_steps_equal_a_slow_reimplementation(whole, qa):
    # the mask knows the positives of the episode; it moves with them. Rates by hand: a horizon of 8, and a step of
    # warm-up
    rates = (1e-3, *(1e-3 * left / 7 for left in range(7, 0, -1)))
    for episode, first, steps in ((1, 0, 3), (2, 3, 3), (3, 6, 8)):
        positives = pool_positives(whole.path / f"episodes/{episode}/negatives")
        rows = np.array([row for found in positives.values() for row in found], np.int32)
        offsets = np.cumsum([0, *map(len, positives.values())])
        known = Positives(np.array(list(positives), np.int32), offsets, rows)
        slow = SlowTele(qa.collection, known, SlowEncoder(qa.model))
        rows = [row for row in whole.metrics if row["episode"] == episode]
        batches = whole.batches[first : first + steps]
        for row, batch, rate in zip(rows, batches, rates[:steps], strict=True):
            loss, norm = slow.train([(batch.query_rows.tolist(), batch.passage_rows.tolist())], rate=rate)
            assert row["lr"] == pytest.approx(rate)
            assert row["loss"] == pytest.approx(loss, abs=1e-5 if row["step"] == 1 else 2e-4)
            assert row["grad_norm"] == pytest.approx(norm, rel=2e-3)


def test_positives_are_judged_or_found_by_this_episodes_run(whole, qa, train):
    found = []
    for episode in (1, 2, 3):
        run = whole.run(f"episodes/{episode}/runs/query")
        expected = slow_positives(qa, train, run)
        pool = pool_positives(whole.path / f"episodes/{episode}/negatives")
        assert pool == {query: rows for query, rows in expected.items() if query in pool}
        assert all(expected[query] == [] for query in set(expected) - set(pool))
        found.append(pool)
    unjudged = [query for i, query in enumerate(train.query_rows.tolist()) if not len(train.of(i))]
    moved = [q for q in unjudged if len({str(pool.get(q)) for pool in found}) > 1]
    assert len(unjudged) == 10
    assert moved, "another model finds another positive"
    nowhere, judged = train.query_rows[:2].tolist()
    assert nowhere not in found[0], "its answer is in no passage"
    assert judged in found[0], "a judged positive needs no answer"


def test_groups_begin_with_the_first_positive(whole, qa, train):
    judged = dict(zip(train.query_rows.tolist(), map(train.of, range(len(train))), strict=True))
    steps = iter(whole.batches)
    swapped = 0
    for episode, count in ((1, 3), (2, 3), (3, 8)):
        pool = pool_positives(whole.path / f"episodes/{episode}/negatives")
        for batch in (next(steps) for _ in range(count)):
            for query, positive in zip(batch.query_rows.tolist(), batch.passage_rows[:, 0].tolist(), strict=True):
                assert positive == pool[query][0]
                swapped += len(judged[query]) == 2 and positive == max(judged[query])
    assert swapped > 0, "the first of the file, not the lowest row"


def test_no_pool_holds_an_answer_from_any_source(whole, qa, train):
    for episode in (1, 2, 3):
        folder = whole.path / f"episodes/{episode}/negatives"
        queries = np.load(folder / "query_rows.npy").tolist()
        positives = pool_positives(folder)
        sources = set()
        for query, entries in zip(queries, whole.pool(episode), strict=True):
            assert entries
            for entry in entries:
                assert not answered(qa.collection, query, entry["passage_rows"])
                assert entry["passage_rows"] not in positives[query]
                sources.add((entry["sources"], entry["episodes"] < episode))
                if entry["sources"] == "lookahead" and entry["episodes"] == episode:
                    assert entry["anchors"] == positives[query][0]
        assert sources == {("query", False), ("lookahead", False)} | (
            set() if episode == 1 else {("query", True), ("lookahead", True)}
        )


def test_negatives_are_those_of_the_first_hits_without_answers(whole, qa, train):
    run = whole.run("episodes/1/runs/query")
    pool = dict(
        zip(np.load(whole.path / "episodes/1/negatives/query_rows.npy").tolist(), whole.pool(1), strict=True)
    )
    texts, short = list(qa.collection.texts), 0
    for i, query in enumerate(train.query_rows.tolist()):
        if query not in pool:
            continue
        known = {texts[row] for row in slow_positives(qa, train, run)[query]}
        best = [row for row, _ in run[i] if texts[row] not in known][: QA["depth"]]
        allowed = [row for row in best if not answered(qa.collection, query, row)]
        short += len(allowed) < len(best)
        drawn = [entry["passage_rows"] for entry in pool[query] if entry["sources"] == "query"]
        assert len(drawn) == min(QA["count"], len(allowed))
        assert set(drawn) <= set(allowed)
    assert short > 0, "no answer was dropped"


# ---------------------------------------------------------------- settings


@pytest.fixture(scope="module")
def run_recipe(qa, tmp_path_factory):
    cache = tmp_path_factory.mktemp("cache")

    def run(**changes):
        settings = ance_tele.AnceTele(**(QA | {"episodes": 1, "steps": 1} | changes))
        data = settings.data_of(qa.collection, hn.Splits(dev="none", test="none"), draw=DevDraw())
        path = tmp_path_factory.mktemp("experiment")
        with watched() as batches:
            base = partial(load_encoder, qa.model)
            for state in ance_tele.ance_tele(TrainingRun(settings, data, Experiment(path, cache)), base):
                state.discard()
        return Executed(path, settings.model_dump(), {}, batches)

    return run


def test_judged_positives_are_ignored_or_asked_for(run_recipe, qa, train):
    ignored = run_recipe(use_positive_ctxs=False)
    expected = slow_positives(qa, train, ignored.run("episodes/1/runs/query"), use_positive_ctxs=False)
    found = pool_positives(ignored.path / "episodes/1/negatives")
    assert found == {query: rows for query, rows in expected.items() if rows}
    gold = run_recipe(require_gold=True)
    found = pool_positives(gold.path / "episodes/1/negatives")
    assert found == {q: train.of(i).tolist() for i, q in enumerate(train.query_rows.tolist()) if len(train.of(i))}


def test_skipped_queries_are_counted(run_recipe, caplog):
    with caplog.at_level(logging.WARNING, "hardneg"):
        run_recipe()
    assert any("queries are skipped: " in message and "no positive" in message for message in caplog.messages)


def test_extra_sources_hold_no_answer(run_recipe, qa):
    done = run_recipe(extra=["bm25", "random"])
    queries = np.load(done.path / "episodes/1/negatives/query_rows.npy").tolist()
    seen = set()
    for query, entries in zip(queries, done.pool(1), strict=True):
        for entry in entries:
            seen.add(entry["sources"])
            assert not answered(qa.collection, query, entry["passage_rows"])
    assert seen == {"query", "lookahead", "bm25", "random"}


def test_given_negatives_are_filtered_too(whole, qa, tmp_path):
    pool = hn.mine(
        qa.collection, qa.model, tmp_path / "pool", depth=24, count=8
    )  # by judgements: answers are in it
    held = [
        answered(qa.collection, query, row)
        for query, entries in zip(pool.query_rows.tolist(), pairwise(pool.offsets.tolist()), strict=True)
        for row in pool.passage_rows[slice(*entries)].tolist()
    ]
    assert any(held)
    settings = QA | {"episodes": 1, "steps": 1, "measures": "Answer@5"}
    out = tmp_path / "exp"
    hn.train_ance_tele(qa.collection, qa.model, out, negatives=tmp_path / "pool", device="cpu", **settings)
    adopted = hn.load_pool(out / "episodes/1/negatives")
    for query, entries in zip(adopted.query_rows.tolist(), pairwise(adopted.offsets.tolist()), strict=True):
        rows = adopted.passage_rows[slice(*entries)].tolist()
        assert rows
        assert not any(answered(qa.collection, query, row) for row in rows)


# ---------------------------------------------------------------- mine, and what is measured


@pytest.mark.parametrize("sources", [("query", "lookahead", "random"), ("bm25",)])
def test_mining_by_answers(qa, train, tmp_path, sources):
    options = {"sources": sources, "depth": 24, "count": 4, "labels": Labels("answers")}
    pool = hn.mine(qa.collection, qa.model, tmp_path / "pool", **options)
    again = hn.load_pool(tmp_path / "pool", n_passages=PASSAGES)
    assert again.query_rows.tolist() == pool.query_rows.tolist()
    assert (np.diff(pool.offsets) > 0).all()
    assert (np.diff(pool.positive_offsets) > 0).all()
    judged = sum(len(train.of(i)) > 0 for i in range(len(train)))
    assert judged < len(pool) < TRAIN
    for query, entries in zip(pool.query_rows.tolist(), pairwise(pool.offsets.tolist()), strict=True):
        assert not any(answered(qa.collection, query, row) for row in pool.passage_rows[slice(*entries)].tolist())


def test_momentum_of_another_pool_is_filtered_when_mining(qa, tmp_path):
    options = {"depth": 24, "count": 6, "device": "cpu"}
    hn.mine(qa.collection, qa.model, tmp_path / "old", **options)
    new = hn.mine(
        qa.collection, qa.model, tmp_path / "new", previous=tmp_path / "old", labels=Labels("answers"), **options
    )
    assert new.momentum.any()
    for query, entries in zip(new.query_rows.tolist(), pairwise(new.offsets.tolist()), strict=True):
        assert not any(answered(qa.collection, query, row) for row in new.passage_rows[slice(*entries)].tolist())


def test_results_hold_answer_at_k(whole, qa):
    values = []
    for split, (state, folder) in product(("dev", "test"), STATES.items()):
        qrels = qa.collection.qrels(split)
        run = whole.run(f"{folder}/{split}")
        found = [
            [answered(qa.collection, query, row) for row, _ in run[i][:5]]
            for i, query in enumerate(qrels.query_rows.tolist())
        ]
        measured = whole.results[split][state]
        assert measured["Answer@1"] == pytest.approx(np.mean([hits[0] for hits in found]))
        assert measured["Answer@5"] == pytest.approx(np.mean([any(hits) for hits in found]))
        values.append((measured["Answer@1"], measured["Answer@5"]))
    assert len(set(values)) > 4, "states differ"
    compared = {row["measure"] for row in whole.results["comparisons"]}
    assert compared == {"Answer@1", "Answer@5", "RR@10"}


def test_forgetting_counts_hits_with_answers(whole, qa, train):
    def reciprocal(run):
        values = []
        for i, query in enumerate(train.query_rows.tolist()):
            if not len(train.of(i)) and not qa.collection.answers(query):
                continue
            good = (
                1 / rank
                for rank, (row, _) in enumerate(run[i][:100], 1)
                if row in train.of(i) or answered(qa.collection, query, row)
            )
            values.append(next(good, 0.0))
        return np.array(values)

    ranks = [reciprocal(whole.run(f"{folder}/query")) for folder in STATES.values()]
    for row, before, after in zip(whole.results["forgetting"], ranks[:-1], ranks[1:], strict=True):
        assert row["forgotten"] == pytest.approx(np.mean(after < before))
        assert row["learned"] == pytest.approx(np.mean(after > before))
        assert row["train_mrr_100"] == pytest.approx(after.mean())
    assert ranks[-1].mean() > ranks[0].mean() + 0.1, "it learns its training questions"


def test_the_same_call_again_does_nothing(whole, qa):
    before = (whole.path / "results.json").stat().st_mtime_ns
    results = hn.train_ance_tele(qa.collection, qa.model, whole.path, device="cpu", **QA)
    assert results == json.loads((whole.path / "results.json").read_text())
    assert (whole.path / "results.json").stat().st_mtime_ns == before


# ---------------------------------------------------------------- other recipes


@pytest.mark.parametrize(
    ("recipe", "values", "place"),
    [
        ("warmup", {"mixtures": ["bm25+random"], "steps": [9]}, "episodes/1/negatives"),
        ("star", {"steps": 9}, "episodes/1/negatives"),
        ("ance", {"refresh_every": 5, "refreshes": 1}, "versions/v0001"),
    ],
)
def test_other_recipes_know_positives_and_negatives_by_answers_too(qa, train, tmp_path, recipe, values, place):
    common = {"depth": 24, "labels": "answers", "measures": "Answer@5", "queries_per_step": 4}
    with watched() as batches:
        getattr(hn, f"train_{recipe}")(qa.collection, qa.model, tmp_path / "exp", device="cpu", **common | values)
    positives, queries = (
        pool_positives(tmp_path / "exp" / place),
        np.load(tmp_path / "exp" / place / "query_rows.npy"),
    )
    offsets, rows = (np.load(tmp_path / "exp" / place / f"{name}.npy") for name in ("offsets", "passage_rows"))
    negatives = [rows[a:b].tolist() for a, b in pairwise(offsets.tolist())]
    assert not any(
        answered(qa.collection, q, row) for q, found in zip(queries, negatives, strict=True) for row in found
    )
    judged = {query: train.of(i).tolist() for i, query in enumerate(train.query_rows.tolist())}
    found = {query: rows for query, rows in positives.items() if not judged[query] and rows}
    assert found
    assert all(answered(qa.collection, query, *rows) for query, rows in found.items())
    seen = {
        query: group[0]
        for batch in batches
        for query, group in zip(batch.query_rows.tolist(), batch.passage_rows.tolist(), strict=True)
    }
    assert set(seen) & set(found), "a question without a judged passage was trained on"
    assert all(answered(qa.collection, query, seen[query]) for query in set(seen) & set(found))


def test_no_candidate_and_no_irrelevant_hit_of_the_report_holds_an_answer(whole, qa):
    opened = opened_at(whole.path)
    for lists in mined_lists(opened).values():
        passages = np.split(lists.passage_rows, lists.offsets[1:-1])
        for query, rows in zip(lists.query_rows.tolist(), passages, strict=True):
            assert len(rows)
            assert not any(answered(qa.collection, query, row) for row in rows.tolist())
    for place in STATES.values():
        sample = load_sample(sample_of(whole.path / place))
        for query, rows in zip(sample.query_rows.tolist(), sample.negatives.tolist(), strict=True):
            assert min(rows) >= 0
            assert not any(answered(qa.collection, query, row) for row in rows)
    shown = explorer_data(opened)
    query_rows = {name: row for row, name in enumerate(qa.collection.query_ids)}
    passage_rows = {name: row for row, name in enumerate(qa.collection.passage_ids)}
    judged = [one for one in shown["queries"] if one["split"] != "train"]
    assert judged
    for one in judged:
        rows = [passage_rows[shown["passages"][place][0]] for place, *_ in one["negatives"]]
        assert rows
        assert not any(answered(qa.collection, query_rows[one["id"]], row) for row in rows)


@pytest.mark.parametrize("name", ["query", "lookahead"])
def test_lists_of_the_report_are_the_candidates_that_mining_drew_from(whole, qa, tmp_path, name):
    """The positive that the run of an episode found, and copies of it, do not count for the depth."""
    opened, found = opened_at(whole.path), {}
    data, depth = opened.data_here, QA["depth"]
    given = {"text_keys": qa.collection.text_keys, "copies": qa.collection.copies, "depth": depth}
    given["contains"] = answers_of(data, tmp_path / "cache")
    for episode, place in enumerate(list(STATES.values())[:EPISODES], 1):
        runs = {kind: load_run(whole.path / place / kind) for kind in {"query", name}}
        positives = with_answers(runs["query"], data.train, given["contains"], depth)
        found[f"episode {episode}"] = candidates(runs[name], positives, source=name, episode=episode, **given)
    lists = mined_lists(opened, name)
    assert list(lists) == list(found)
    for episode, expected in found.items():
        rows, _ = matches(expected.query_rows, lists[episode].query_rows)
        assert lists[episode].passage_rows.tolist() == expected.select(rows).passage_rows.tolist()
        if name == "query":
            assert len(rows) == len(data.train)
            pool, state = opened.pools[episode], opened.trained_states[int(episode[-1]) - 1]
            mined_here = pool.keep(pool.episodes == pool.episode)
            mined_here = mined_here.keep(mined_here.sources == SOURCES.index("query"))
            assert retrieved_share(opened, mined_here, state) == 1.0


def test_the_explorer_knows_the_positives_and_ranks_of_questions_that_nobody_judged(whole, qa, train):
    opened = opened_at(whole.path)
    rows, ranks = training_ranks(opened)
    shown = explorer_data(opened)
    queries = {one["id"]: one for one in shown["queries"] if one["split"] == "train"}
    last, unjudged = pool_positives(whole.path / f"episodes/{EPISODES}/negatives"), 0
    assert len(queries) == len(rows)
    for i, row in enumerate(rows.tolist()):
        one = queries[qa.collection.query_ids[row]]
        assert [rank and 1 / rank for rank in one["moves"]] == pytest.approx([ranks[name][i] for name in ranks])
        judged = train.of(int(np.flatnonzero(train.query_rows == row)[0])).tolist()
        names = [shown["passages"][place][0] for place, _ in one["positives"]]
        assert names == qa.collection.passage_ids.take(np.array(judged or last.get(row, []), np.int32))
        unjudged += not judged and bool(names) and any(one["moves"])
    assert unjudged


def test_the_report_shows_no_positive_of_another_query(qa, tmp_path):
    values = {"mixtures": ["bm25"], "steps": [2], "depth": 24, "labels": "answers", "measures": "Answer@1 RR@10"}
    hn.train_warmup(qa.collection, qa.model, tmp_path / "exp", device="cpu", queries_per_step=4, **values)
    found = opened_at(tmp_path / "exp")
    change = change_of(found)
    judged = np.diff(change.positives.offsets)
    assert (judged == 0).any()
    change.before[:], change.after[:] = 0.0, 1.0  # every query moved, also the last one
    assert len(breakdown_table(found).rows) > 0
    shown = {row["query"]: row["positive"] for row in best_table(found).records()}
    for at, row in enumerate(change.query_rows.tolist()):
        if (query := qa.collection.query_ids[row]) in shown:
            own = [qa.collection.texts[one] for one in change.positives.of(at).tolist()]
            assert shown[query] == (own[0] if own else None)
    assert None in shown.values()


def test_what_people_judged_relevant_is_masked_where_known_positives_are_not(qa, train, tmp_path, monkeypatch):
    masks = []

    def recorded(batch, known, *, in_batch):
        masks.append((batch, masked_columns(batch, known, in_batch=in_batch)))
        return masks[-1][1]

    monkeypatch.setattr(objectives, "masked_columns", recorded)
    some = train.select(np.flatnonzero(np.diff(train.offsets)))
    query, others = some.query_rows[0], some.passage_rows[some.offsets[1] :: 2]
    name = qa.collection.query_ids[int(query)]
    lines = [f"{name}\t{qa.collection.passage_ids[int(row)]}\trelevant\n" for row in np.unique(others)]
    (tmp_path / "judged.tsv").write_text("query-id\tpassage-id\tlabel\n" + "".join(lines))
    values = {"mixtures": ["in_batch"], "steps": [3], "queries_per_step": 20, "mask_known_positives": False}
    judged = {"judgements": tmp_path / "judged.tsv", "measures": "RR@10", "examine": "judged"}
    hn.train_warmup(qa.collection, qa.model, tmp_path / "exp", device="cpu", **values, **judged)
    assert any(mask.any() for _, mask in masks)
    for batch, mask in masks:
        relevant = (batch.query_rows == query)[:, None] & np.isin(batch.passage_rows.ravel(), others)[None, :]
        assert mask.tolist() == relevant.tolist()


def test_no_positive_of_the_version_in_force_is_an_in_batch_negative_of_ance(qa, train, tmp_path, monkeypatch):
    masks = []

    def recorded(batch, known, *, in_batch):
        masks.append((batch, masked_columns(batch, known, in_batch=in_batch)))
        return masks[-1][1]

    monkeypatch.setattr(objectives, "masked_columns", recorded)
    values = {"labels": "answers", "depth": 24, "measures": "Answer@5", "in_batch": True, "queries_per_step": 8}
    out = tmp_path / "exp"
    hn.train_ance(qa.collection, qa.model, out, device="cpu", refresh_every=3, refreshes=1, **values)
    versions = [
        row["negative_version"] for row in map(json.loads, (out / "metrics.jsonl").read_text().splitlines())
    ]
    assert set(versions) == {0, 1}
    by_answers = 0
    for version, (batch, mask) in zip(versions, masks, strict=True):
        positives = pool_positives(out / f"versions/v{version:04}")
        judged = dict(zip(train.query_rows.tolist(), map(train.of, range(len(train))), strict=True))
        for query, masked in zip(batch.query_rows.tolist(), mask, strict=True):
            known = np.isin(batch.passage_rows.ravel(), positives[query])
            assert masked[known].all()
            by_answers += (known & ~np.isin(batch.passage_rows.ravel(), judged[query])).sum()
    assert by_answers > len(masks), "some step has a positive that only its answer tells"


def test_adore_refuses_labels_by_answers(qa, tmp_path):
    with pytest.raises(
        Faults, match="adore does not support labels = answers: it uses judged positives only; leave labels out"
    ):
        hn.train_adore(qa.collection, qa.model, tmp_path / "exp", device="cpu", labels="answers", cut=10)
