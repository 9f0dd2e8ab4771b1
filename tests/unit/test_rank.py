"""Runs made from runs by the functions of ``hardneg`` and the command line: fused, tuned, re-ranked."""

import dataclasses
import json
import shutil
import signal
from pathlib import Path

import numpy as np
import pytest
import torch

import hardneg as hn
from calls import uncalled
from hardneg.api import rank
from hardneg.api.inputs import check_file
from hardneg.data.formats.trec import read_run, write_run
from hardneg.diagnostics.reranked import Reranker
from hardneg.errors import ArtifactError, InputError, Interrupted, NumericError, ResourceError, SettingsError
from hardneg.models.rankers import new_ranker, save_ranker
from hardneg.models.source import ModelSource
from hardneg.models.tokenizing import pair_store
from hardneg.process.signals import stop_flag
from hardneg.records import Run, spans
from hardneg.search.runs import save_run
from worlds.tiny_world import one_thread  # noqa: F401

LINES = ("a Q0 d1 1 9 x\na Q0 d2 2 8 x\nb Q0 d1 1 3 x\n", "a Q0 d2 1 0.5 x\na Q0 d3 2 0.25 x\n")


@pytest.fixture
def pair(tmp_path):
    """Two run files of no collection."""
    paths = [tmp_path / name for name in ("one.trec", "two.trec")]
    for path, text in zip(paths, LINES, strict=True):
        path.write_text(text)
    return paths


@pytest.fixture(scope="module")
def searched(world):
    """Runs of BM25 and of the model over dev and test of the tiny world: (system, split) -> file."""
    found = {}
    for split in ("dev", "test"):
        for system, options in (("bm25", {"bm25": True}), ("dense", {"model": world.model, "device": "cpu"})):
            found[system, split] = world.root / f"{system}-{split}.trec"
            cache = world.root / "cache"
            hn.search_split(world.collection, found[system, split], split=split, k=50, cache=cache, **options)
    return found


def hits(path):
    """query id -> its (passage id, score), as they stand in the file."""
    found = {}
    for line in path.read_text().splitlines():
        query, _, passage, _, score, _ = line.split()
        found.setdefault(query, []).append((passage, float(score)))
    return found


# ---------------------------------------------------------------- runs in folders


@pytest.fixture
def folder(world, searched, tmp_path):
    """The run of the model over dev as training keeps it: rows in a folder."""
    c = hn.open_collection(world.collection)
    run = read_run(searched["dense", "dev"], c.query_ids, c.passage_ids, collection=c.digest)
    save_run(run, tmp_path / "kept", inputs={}, settings={})
    return tmp_path / "kept"


def test_a_run_that_training_keeps_is_taken_like_a_file(world, searched, folder, tmp_path):
    file, given = searched["dense", "dev"], {"data": world.collection}
    assert hn.evaluate(folder, split="dev", **given) == hn.evaluate(file, split="dev", **given)
    hn.fuse([folder, searched["bm25", "dev"]], tmp_path / "of_folder.trec", **given)
    hn.fuse([file, searched["bm25", "dev"]], tmp_path / "of_file.trec", **given)
    assert hits(tmp_path / "of_folder.trec") == hits(tmp_path / "of_file.trec")
    for run, name in ((folder, "a.trec"), (file, "b.trec")):
        hn.rerank(run, tmp_path / name, ranker=world.model, k=3, **given, cache=world.root / "cache")
    assert (tmp_path / "a.trec").read_bytes() == (tmp_path / "b.trec").read_bytes()
    assert len(hn.load_run(str(folder))) == len(hits(file))


def test_runs_of_rows_keep_what_they_rank(world, folder, tmp_path):
    c, run = hn.open_collection(world.collection), hn.load_run(folder)
    for unit in ("document", "chunk"):
        save_run(dataclasses.replace(run, unit=unit), tmp_path / unit, inputs={}, settings={})
    document = tmp_path / "document"
    hn.fuse([document, document], tmp_path / "out.trec", data=c)
    assert read_run(tmp_path / "out.trec", c.query_ids, c.passage_ids).unit == "document"
    chunk = tmp_path / "chunk"
    for call in (
        lambda: hn.evaluate(chunk, data=c, split="dev"),
        lambda: hn.fuse([chunk, chunk], tmp_path / "no.trec", data=c),
        lambda: hn.rerank(chunk, tmp_path / "no.trec", data=c, ranker=world.model),
    ):
        with pytest.raises(ArtifactError, match="WRONG_KIND: this run ranks the chunks of passages"):
            call()


def test_a_score_that_is_no_number_is_named_in_a_run_of_rows(world, folder):
    run = hn.load_run(folder)
    bad = dataclasses.replace(run, scores=np.where(np.arange(len(run.scores)) == 3, np.nan, run.scores))
    with pytest.raises(InputError, match=r"BAD_SCORE: query \S+, passage \S+: the score is no number"):
        hn.evaluate(bad, data=world.collection, split="dev")


def test_a_run_that_training_keeps_is_refused_for_other_data(folder, pair, tmp_path):
    other = hn.Collection.from_lists({"p": "a text"}, {"q": "a query"}, {"test": {"q": ["p"]}}, to=tmp_path / "c")
    for call in (
        lambda: hn.evaluate(folder, data=other),
        lambda: hn.fuse([folder, pair[0]], tmp_path / "out.trec", data=other),
        lambda: hn.rerank(folder, tmp_path / "out.trec", data=other, ranker=tmp_path / "model"),
    ):
        with pytest.raises(ArtifactError, match="OTHER_COLLECTION"):
            call()
    with pytest.raises(SettingsError, match="a run of rows has no ids without its collection; give data"):
        hn.fuse([folder, pair[0]], tmp_path / "out.trec")


def test_a_name_that_is_too_long_for_its_description_is_refused_before_the_search(pair, tmp_path):
    def fits(length, **named):
        try:
            check_file(tmp_path / ("r" * length), **named)
        except ResourceError as fault:
            return "NOT_WRITABLE: the name is" not in str(fault)
        return True

    alone, both = (max(filter(lambda n, told=told: fits(n, told=told), range(150, 256))) for told in (False, True))
    assert alone - both == len(".manifest.json")
    assert hn.fuse(pair, tmp_path / ("r" * both))["queries"] == 2


# ---------------------------------------------------------------- fusion


def test_ids_that_the_collection_lacks_are_told_and_kept(searched, world, tmp_path, caplog):
    strange = tmp_path / "strange.trec"
    query = next(iter(hits(searched["dense", "dev"])))
    more = f"{query} Q0 nowhere 60 -9 x\n{query} Q0 elsewhere 61 -10 x\nnobody Q0 nowhere 1 3 x\n"
    strange.write_text(searched["dense", "dev"].read_text() + more)
    hn.fuse([searched["bm25", "dev"], strange], tmp_path / "out.trec", data=world.collection)
    assert caplog.messages == [
        f"{strange}: 1 query id not in the collection, such as 'nobody'; kept in the fused run",
        f"{strange}: 2 passage ids not in the collection, such as 'nowhere'; kept in the fused run",
    ]
    assert hits(tmp_path / "out.trec")["nobody"]
    caplog.clear()
    hn.fuse([searched["bm25", "dev"], searched["dense", "dev"]], tmp_path / "out.trec", data=world.collection)
    assert not caplog.messages


def test_a_split_that_chooses_no_run_is_refused(pair, tmp_path):
    for call in (
        lambda: hn.fuse(pair, tmp_path / "out.trec", split="dev"),
        lambda: hn.rerank(pair[0], tmp_path / "out.trec", data=tmp_path, ranker=tmp_path, split="dev"),
    ):
        with pytest.raises(SettingsError, match="BAD_SETTING: split = dev has no effect on run files"):
            call()
    assert not (tmp_path / "out.trec").exists()


def test_files_without_a_collection_are_fused(pair, tmp_path):
    facts = hn.fuse(pair, tmp_path / "out.trec")
    assert facts == {
        "run": str(tmp_path / "out.trec"),
        "queries": 2,
        "hits": 4,
        "method": "rrf",
        "weights": [1.0, 1.0],
    }
    found = hits(tmp_path / "out.trec")
    assert [passage for passage, _ in found["a"]] == ["d2", "d1", "d3"]
    assert found["a"][0][1] == pytest.approx(1 / 62 + 1 / 61, rel=1e-6)
    assert [passage for passage, _ in found["b"]] == ["d1"]


def test_runs_that_share_no_query_are_told_in_one_line(pair, tmp_path, caplog):
    (tmp_path / "other.trec").write_text("z Q0 d1 1 2.0 t\n")
    hn.fuse([*pair, tmp_path / "other.trec"], tmp_path / "out.trec")
    said = "no query of these runs is in another one, so nothing of them is fused: "
    assert caplog.messages == [said + str(tmp_path / "other.trec")]
    caplog.clear()
    hn.fuse([pair[0], tmp_path / "other.trec"], tmp_path / "out2.trec")
    assert caplog.messages == [f"{said}{pair[0]}, {tmp_path / 'other.trec'}"]
    caplog.clear()
    hn.fuse(pair, tmp_path / "out3.trec")
    assert caplog.messages == []


def test_queries_that_only_runs_of_weight_0_have_are_told_and_not_counted(tmp_path, caplog):
    (two := tmp_path / "two.trec").write_text("a Q0 d1 1 2.0 t\nb Q0 d1 1 2.0 t\n")
    (one := tmp_path / "one.trec").write_text("a Q0 d1 1 2.0 t\n")
    facts = hn.fuse([two, one], tmp_path / "out.trec", weights=[0, 1])
    assert (facts["queries"], facts["hits"]) == (len(hits(tmp_path / "out.trec")), 1) == (1, 1)
    assert caplog.messages == ["1 query has no hits in the fused run, since only runs of weight 0 have them"]
    assert hn.fuse([two, one], weights=[0, 1])["queries"] == 1
    caplog.clear()
    assert hn.fuse([two, one], tmp_path / "out.trec", weights=[1, 0])["queries"] == 2
    assert hn.fuse([{"a": {"d1": 1.0}, "b": {}}, {"a": {"d1": 2.0}}], weights=[1, 0])["queries"] == 1
    assert not caplog.messages


def test_runs_that_share_no_passage_are_told_in_one_line(pair, tmp_path, caplog):
    (tmp_path / "other.trec").write_text("a Q0 7 1 2.0 t\na Q0 8 2 1.0 t\n")
    hn.fuse([*pair, tmp_path / "other.trec"], tmp_path / "out.trec")
    said = "no passage of these runs is in another one; are the ids of one collection? "
    assert caplog.messages == [said + str(tmp_path / "other.trec")]


def test_a_run_that_is_read_is_not_replaced(pair, tmp_path):
    before = Path(pair[0]).read_bytes()
    with pytest.raises(SettingsError, match="would be overwritten"):
        hn.fuse(pair, pair[0])
    assert Path(pair[0]).read_bytes() == before


def test_equal_scores_are_cut_as_files_rank_them(tmp_path):
    for name, first, second in (("x", "d1", "d2"), ("y", "d2", "d1")):
        (tmp_path / name).write_text(f"q Q0 {first} 1 2 t\nq Q0 {second} 2 1 t\n")
    for order in (["x", "y"], ["y", "x"]):
        hn.fuse([tmp_path / name for name in order], tmp_path / "out", k=1)
        assert [passage for passage, _ in hits(tmp_path / "out")["q"]] == ["d2"]


def test_linear_takes_weights_and_normalisation(pair, tmp_path, hardneg):
    options = ["--method", "linear", "--weights", "1,4", "--out", tmp_path / "out.trec", "--json"]
    status, out, err = hardneg("fuse", *pair, *options)
    assert (status, err) == (0, "")
    assert json.loads(out)["weights"] == [1.0, 4.0]
    assert hits(tmp_path / "out.trec") == {"a": [("d2", 4.0), ("d1", 1.0), ("d3", 0.0)], "b": [("d1", 1.0)]}
    status, out, _ = hardneg("fuse", *pair, *options[:-1], "--normalisation", "z", "--k", "1")
    assert (status, hits(tmp_path / "out.trec")["a"]) == (0, [("d2", 8.0)])
    assert "weights  1.0000, 4.0000" in out


def test_weights_are_tuned_on_dev_and_used_on_test(world, searched, tmp_path, hardneg):
    dev, test = ([searched[system, split] for system in ("bm25", "dense")] for split in ("dev", "test"))
    out = tmp_path / "out.trec"
    tuning = [word for path in dev for word in ("--tuning-run", path)]
    options = ["--data", world.collection.path, "--tune", "dev", "--measure", "nDCG@10", *tuning, "--json"]
    status, text, err = hardneg("fuse", *test, "--out", out, "--method", "linear", *options)
    assert status == 0, err
    facts = json.loads(text)

    def value(weights):
        hn.fuse(dev, tmp_path / "dev.trec", method="linear", weights=weights)
        found = hn.evaluate(tmp_path / "dev.trec", data=world.collection, split="dev", measures="nDCG@10")
        return found["measures"]["nDCG@10"]

    tried = {(i / 10, 1 - i / 10): value([i / 10, 1 - i / 10]) for i in range(11)}
    assert facts["tuned"]["split"] == "dev"
    assert facts["tuned"]["nDCG@10"] == pytest.approx(max(tried.values()))
    assert value(facts["weights"]) == pytest.approx(max(tried.values()))
    hn.fuse(test, tmp_path / "same.trec", method="linear", weights=facts["weights"])
    assert (tmp_path / "same.trec").read_bytes() == out.read_bytes()
    assert facts["queries"] == 16


def test_runs_that_hold_the_split_are_tuned_on_themselves(world, searched, tmp_path):
    dev = [searched[system, "dev"] for system in ("bm25", "dense")]
    facts = hn.fuse(dev, tmp_path / "out.trec", data=world.collection, tune="dev")
    assert sum(facts["weights"]) == pytest.approx(1)
    test = [searched[system, "test"] for system in ("bm25", "dense")]
    with pytest.raises(InputError, match=r"NO_OVERLAP.*give runs of that split to tune on \(tuning_runs=\)"):
        hn.fuse(test, tmp_path / "out.trec", data=world.collection, tune="dev")


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"weights": [1.0]}, "BAD_WEIGHTS"),
        ({"weights": [1.0, -1.0]}, "BAD_WEIGHTS"),
        ({"k": 0}, "BAD_SETTING"),
        ({"rank_constant": -1}, "BAD_SETTING"),
        ({"method": "borda"}, "BAD_SETTING"),
        ({"method": "linear", "normalisation": "max"}, "BAD_SETTING"),
        ({"normalisation": "z"}, "BAD_SETTING"),  # of the other method, which would pass it over
        ({"method": "linear", "rank_constant": 60}, "BAD_SETTING"),
        ({"tune": "dev"}, "BAD_TUNING"),
        ({"tuning_runs": ["r", "s"]}, "BAD_TUNING"),
        ({"tune": "dev", "data": "d", "weights": [1.0, 2.0]}, "BAD_TUNING"),
        ({"tune": "dev", "data": "d", "tuning_runs": ["r"]}, "BAD_TUNING"),
        ({"tune": "dev", "data": "d", "measure": "RR@10 R@100"}, "BAD_TUNING"),
        ({"measure": "R@100"}, "BAD_TUNING"),
        ({"tune": "dev", "data": "d", "measure": "RX@10"}, "UNKNOWN_MEASURE"),
    ],
)
def test_fusion_refuses_what_makes_no_sense(pair, tmp_path, changes, code):
    with pytest.raises(SettingsError) as caught:
        hn.fuse(pair, tmp_path / "out.trec", **changes)
    assert caught.value.code == code
    assert not (tmp_path / "out.trec").exists()


def test_usage_faults_are_one_line(pair, tmp_path, hardneg):
    status, _, err = hardneg("fuse", *pair, "--out", tmp_path / "o", "--weights", "1,a")
    assert (status, err.count("\n")) == (2, 1)
    assert "'1,a' is no list of numbers" in err
    status, _, err = hardneg("fuse", pair[0], "--out", tmp_path / "o")
    assert (status, err) == (2, "ONE_RUN: there is nothing to fuse; give two runs or more\n")
    status, _, err = hardneg("fuse", *pair, "--out", tmp_path / "o", "--method", "rff")
    assert (status, err.count("\n")) == (2, 1)
    pair[1].write_text("a Q0 d1 1 inf x\n")
    status, _, err = hardneg("fuse", *pair, "--out", tmp_path / "o", "--method", "linear")
    what = "NAN_SCORE: a score is infinite, and cannot be normalised; fuse by rrf, which looks at ranks only"
    assert (status, err) == (7, f"{pair[1]}: {what}\n")
    assert not (tmp_path / "o").exists()


def test_runs_of_another_collection_are_refused(world, searched, pair, tmp_path):
    run = searched["bm25", "test"]
    manifest = json.loads((run.parent / f"{run.name}.manifest.json").read_text())
    assert manifest["inputs"]["collection"] == world.collection.digest
    ours = read_run(run, world.collection.query_ids, world.collection.passage_ids)
    other = Run(ours.query_rows, ours.offsets, ours.passage_rows, ours.scores, collection="f" * 64)
    write_run(tmp_path / "other.trec", other, world.collection.query_ids, world.collection.passage_ids)
    with pytest.raises(ArtifactError, match="OTHER_COLLECTION"):
        hn.fuse([run, tmp_path / "other.trec"], tmp_path / "out.trec")


# ---------------------------------------------------------------- re-ranking


def test_a_bi_encoder_re_ranks_as_it_searches(world, searched, tmp_path, hardneg):
    out, cache = tmp_path / "out.trec.gz", world.root / "cache"
    options = ["--data", world.collection.path, "--ranker", world.model, "--cache", cache, "--device", "cpu"]
    status, text, err = hardneg(
        "rerank", "--run", searched["bm25", "test"], *options, "--k", "10", "--out", out, "--json"
    )
    assert status == 0, err
    spaces = world.collection.query_ids, world.collection.passage_ids
    old, new = (read_run(path, *spaces) for path in (searched["bm25", "test"], out))
    own = hn.open_retriever(world.collection, world.model, cache=cache, device="cpu")
    full = own.search_queries(new.query_rows, world.collection.n_passages)
    for i in range(len(new)):
        dense = dict(zip(*(part.tolist() for part in full.hits(i)), strict=True))
        was, (rows, scores) = old.hits(i)[0], new.hits(i)
        assert set(rows[:10]) == set(was[:10])
        assert rows[10:].tolist() == was[10:].tolist()
        assert scores[:10].tolist() == [dense[row] for row in rows[:10].tolist()]
        assert (np.diff(scores[9:]) < 0).all()
    facts = json.loads(text)
    assert facts["reranked"] == sum(min(10, len(old.hits(i)[0])) for i in range(len(old)))
    assert facts["hits"] == len(old.scores)


def test_given_embeddings_are_used(world, searched, tmp_path):
    made = tmp_path / "emb"
    hn.encode(world.collection, world.model, made, device="cpu", cache=tmp_path / "a")
    common = {"data": world.collection, "ranker": world.model, "device": "cpu"}
    hn.rerank(searched["bm25", "dev"], tmp_path / "one.trec", **common, cache=world.root / "cache")
    hn.rerank(searched["bm25", "dev"], tmp_path / "two.trec", **common, cache=tmp_path / "b", embeddings=made)
    assert (tmp_path / "one.trec").read_bytes() == (tmp_path / "two.trec").read_bytes()
    assert len(list((tmp_path / "b" / "embeddings").iterdir())) == 1  # the queries


class Nothing:
    """A scorer whose scores are no numbers."""

    def score(self, query_rows, passage_rows, *, progress):
        return np.full(len(query_rows), np.nan, np.float32)


def test_what_cannot_be_re_ranked_is_refused_before_it_is_scored(world, searched, tmp_path, monkeypatch):
    common = {"data": world.collection, "ranker": world.model, "device": "cpu", "cache": world.root / "cache"}
    (tmp_path / "run.trec").write_text("test-00 Q0 nobody 1 2 x\n")
    out = tmp_path / "out.trec"

    def reaches():
        hn.rerank(searched["bm25", "dev"], tmp_path / "fine.trec", **common)

    with uncalled(rank, "open_scorer", control=reaches):
        with pytest.raises(InputError, match="UNKNOWN_ID"):
            hn.rerank(tmp_path / "run.trec", out, **common)
        with pytest.raises(SettingsError, match="BAD_SETTING"):
            hn.rerank(searched["bm25", "dev"], out, **common, k=0)
        with pytest.raises(SettingsError, match="NOT_A_FILE"):
            hn.rerank(searched["bm25", "dev"], tmp_path, **common)
    monkeypatch.setattr(rank, "open_scorer", lambda *_, **__: Nothing())
    with pytest.raises(NumericError, match=r"the score of query dev-\d\d and passage p\d+ is nan"):
        hn.rerank(searched["bm25", "dev"], out, **common)
    assert not out.exists()


def test_any_scorer_of_pairs_will_do(world, searched, tmp_path, monkeypatch):
    class Rows:
        def score(self, query_rows, passage_rows, *, progress):
            assert isinstance(query_rows, np.ndarray)
            return passage_rows.astype(np.float32)

    monkeypatch.setattr(rank, "open_scorer", lambda *_, **__: Rows())
    hn.rerank(searched["bm25", "dev"], tmp_path / "out.trec", data=world.collection, ranker="any", k=5)
    for found in hits(tmp_path / "out.trec").values():
        scores = [score for _, score in found]
        assert scores == sorted(scores, reverse=True)
        assert [f"p{score:03.0f}" for score in scores[:5]] == [passage for passage, _ in found[:5]]


def test_a_cross_encoder_is_known_by_its_folder(world, searched, tmp_path):
    ranker = new_ranker(ModelSource.at(world.model), seed=3)
    save_ranker(ranker, tmp_path / "ranker")
    out, cache = tmp_path / "out.trec", world.root / "cache"
    common = {"data": world.collection, "ranker": tmp_path / "ranker", "cache": cache, "device": "cpu"}
    hn.rerank(searched["bm25", "dev"], out, **common, k=8)
    spaces = world.collection.query_ids, world.collection.passage_ids
    old, new = (read_run(path, *spaces) for path in (searched["bm25", "dev"], out))
    pairs = pair_store(ranker.tower, ranker.template, world.collection, cache)
    with torch.no_grad():
        for i, query in enumerate(new.query_rows):
            (was, _), (rows, scores) = old.hits(i), new.hits(i)
            assert sorted(rows[:8]) == sorted(was[:8])
            assert rows[8:].tolist() == was[8:].tolist()
            expected = ranker.eval().score(pairs.read(np.full(len(rows[:8]), query), rows[:8]))
            assert scores[:8].tolist() == pytest.approx(expected.tolist(), abs=1e-4)
    with pytest.raises(SettingsError, match="BAD_SETTING"):
        hn.rerank(searched["bm25", "dev"], out, **common, embeddings=tmp_path)


def test_a_classifier_of_several_labels_re_ranks_nothing(world, searched, tmp_path):
    """Its vectors were never trained to be compared, and a run ordered by them looks like any other."""
    folder = shutil.copytree(world.model, tmp_path / "labels")
    config = json.loads((folder / "config.json").read_text())
    config |= {"architectures": ["BertForSequenceClassification"], "id2label": {"0": "no", "1": "yes"}}
    (folder / "config.json").write_text(json.dumps(config))
    out, said = (
        tmp_path / "out.trec",
        "NOT_A_RANKER: this is a classifier of 2 labels; give a cross-encoder of one",
    )
    with pytest.raises(SettingsError, match=said):
        hn.rerank(searched["bm25", "dev"], out, data=world.collection, ranker=folder, device="cpu")
    assert not out.exists()


def test_a_score_that_is_no_number_is_told_by_ids(world, searched, tmp_path):
    ranker = new_ranker(ModelSource.at(world.model), seed=0)
    torch.nn.init.constant_(ranker.tower.head.out.bias, float("nan"))
    save_ranker(ranker, tmp_path / "ranker")
    common = {"data": world.collection, "cache": world.root / "cache", "device": "cpu"}
    with pytest.raises(NumericError, match=r"score of query dev-\d+ and passage p\d+ is nan"):
        hn.rerank(searched["bm25", "dev"], tmp_path / "out.trec", ranker=tmp_path / "ranker", **common)
    text = world.collection.query_texts.take(np.array([0]))[0]
    behind = hn.open_reranker(world.collection, tmp_path / "ranker", cache=common["cache"], device="cpu")
    with pytest.raises(NumericError, match=r"score of text 1 and passage p\d+ is nan"):
        behind.search_texts([text], 3)


def test_re_ranking_stops_after_a_batch(world, tmp_path, monkeypatch):
    """A block of pairs may take tens of minutes. All ways of re-ranking show how far it is, and can be stopped."""
    save_ranker(new_ranker(ModelSource.at(world.model), seed=3), tmp_path / "ranker")
    how = {"cache": world.root / "cache", "device": "cpu"}
    behind = hn.open_reranker(world.collection, tmp_path / "ranker", k=6, **how)
    run = behind.first.search_queries(np.arange(4, dtype=np.int32), 6)
    scorer, score, batches = behind.scorer, behind.scorer.ranker.score, []
    scorer.budget = 64
    monkeypatch.setattr(stop_flag, "signal", None)
    text = world.collection.query_texts.take(np.array([0]))

    def first_batch(pairs):
        batches.append(len(pairs))
        stop_flag.signal = signal.SIGTERM
        return score(pairs)

    monkeypatch.setattr(scorer.ranker, "score", first_batch)
    for call in (
        lambda: behind.search_queries(run.query_rows, 6),
        lambda: behind.search_texts(text, 6),
        lambda: rank.reranked(run, scorer, world.collection, 6),
        lambda: Reranker(scorer, "m", 6).run(run),
    ):
        batches.clear()
        with pytest.raises(Interrupted, match="STOPPED: stopped by SIGTERM"):
            call()
        assert len(batches) == 1
        stop_flag.signal = None


def by_id(run, collection):
    return [
        [(collection.passage_ids[row], score) for row, score in zip(*run.hits(i), strict=True)]
        for i in range(len(run))
    ]


@pytest.mark.parametrize("first", ["bm25", "model"])
@pytest.mark.parametrize("second", ["cross-encoder", "bi-encoder"])
def test_a_search_that_is_re_ranked_is_the_search_and_then_rerank(world, tmp_path, hardneg, first, second):
    folder, cache = tmp_path / "ranker", world.root / "cache"
    ranker = world.model
    if second == "cross-encoder":
        save_ranker(new_ranker(ModelSource.at(world.model), seed=3), folder)
        ranker = folder
    searcher = {"bm25": True} if first == "bm25" else {"model": world.model}
    common = {"device": "cpu", "cache": cache}
    hn.search_split(world.collection, tmp_path / "one.trec", **searcher, split="dev", k=20, **common)
    hn.rerank(tmp_path / "one.trec", tmp_path / "two.trec", data=world.collection, ranker=ranker, k=6, **common)
    options = {"rerank_by": ranker, "rerank_k": 6}
    hn.search_split(world.collection, tmp_path / "all.trec", **searcher, split="dev", k=20, **options, **common)
    spaces = world.collection.query_ids, world.collection.passage_ids
    expected, found = (read_run(tmp_path / name, *spaces) for name in ("two.trec", "all.trec"))
    assert found.passage_rows.tolist() == expected.passage_rows.tolist()
    assert found.scores == pytest.approx(expected.scores, abs=1e-5)
    # one text of the split, from the command line, and few hits: the same six are re-ranked
    row = int(found.query_rows[0])
    text = world.collection.query_texts.take(np.array([row]))[0]
    flags = ["--bm25"] if first == "bm25" else ["--model", world.model]
    status, out, err = hardneg(
        *("search", "--data", world.collection.path, *flags, "--query", text, "--k", 3, "--cache", cache),
        *("--rerank-by", ranker, "--rerank-k", 6, "--device", "cpu", "--json"),
    )
    assert status == 0, err
    shown, told = json.loads(out), by_id(found, world.collection)[0]
    assert [hit["score"] for hit in shown] == pytest.approx(
        [score for _, score in told[:3]], rel=1e-3
    )  # a text's vector is float32
    assert {hit["passage_id"] for hit in shown} <= {passage for passage, _ in told[:6]}


def test_options_of_the_model_that_re_ranks_stand_beside_an_open_retriever(world):
    how = {"retriever": hn.open_retriever(world.collection, world.model, cache=world.root / "cache")}
    how |= {"rerank_by": world.model, "rerank_k": 6, "k": 3, "cache": world.root / "cache"}
    text = world.collection.query_texts[0]
    found = hn.search_text(world.collection, text, **how, device="cpu", allow_bin=True)
    assert [hit["passage_id"] for hit in found] == [
        hit["passage_id"] for hit in hn.search_text(world.collection, text, **how)
    ]
    for other in ({"query_prompt": ""}, {"device": "cpu", "rerank_by": None, "rerank_k": None}):
        with pytest.raises(SettingsError, match="TWO_SEARCHERS"):
            hn.search_text(world.collection, text, **how | other)


def test_a_depth_of_re_ranking_alone_names_what_the_caller_has(world, hardneg):
    data = world.collection.path
    status, _, err = hardneg("search", "--data", data, "--bm25", "--query", "x", "--rerank-k", 5)
    told = "BAD_SETTING: rerank_k = 5 has no effect without a ranker; give"
    assert (status, err) == (2, f"{told} --rerank-by, or leave --rerank-k out\n")
    with pytest.raises(SettingsError, match=f"{told} rerank_by=, or leave rerank_k out"):
        hn.search_text(world.collection, "x", bm25=True, rerank_k=5)


def test_a_resident_reranker_answers_as_searching_does(world, tmp_path):
    common = {"device": "cpu", "cache": world.root / "cache"}
    rows = world.collection.qrels("dev").query_rows
    with hn.open_retriever(world.collection, world.model, **common) as retriever:
        opened = hn.open_reranker(world.collection, world.model, retriever=retriever, k=4, **common)
        plain = retriever.search_queries(rows, 10)
        again = opened.search_queries(rows, 10)
        for i in range(len(rows)):  # the same scores, so the same order, but for ties
            assert again.hits(i)[1][:4].tolist() == plain.hits(i)[1][:4].tolist()
            assert set(again.hits(i)[0]) >= set(plain.hits(i)[0][:4])
        texts = world.collection.query_texts.take(rows[:2])
        shown = hn.search_text(world.collection, texts[0], retriever=opened, k=3)
        assert [hit["passage_id"] for hit in shown] == [
            world.collection.passage_ids[row] for row in opened.search_texts(texts, 3).hits(0)[0]
        ]
        with pytest.raises(SettingsError, match="BAD_SETTING"):
            hn.open_reranker(world.collection, world.model, retriever=retriever, k=0, **common)
    lexical = hn.open_reranker(world.collection, world.model, k=5, **common)
    assert spans(lexical.search_queries(rows, 7).offsets).max() <= 7


def test_a_reranker_opens_all_that_it_needs_at_once(world, tmp_path, monkeypatch):
    """Embeddings at a relative path are found later, too; and wrong ones are refused before the first query."""
    common = {"device": "cpu", "cache": world.root / "cache"}
    hn.encode(world.collection, world.model, tmp_path / "passages", **common)
    hn.encode(world.collection, world.model, tmp_path / "short", passage_length=8, **common)
    monkeypatch.chdir(tmp_path)
    opened = hn.open_reranker(world.collection, world.model, k=5, embeddings="passages", **common)
    assert "index" in vars(opened.first)
    with pytest.raises(ArtifactError, match="OTHER_TEXTS"):
        hn.open_reranker(world.collection, world.model, k=5, embeddings="short", **common)
    monkeypatch.chdir(world.root)
    assert len(opened.search_texts(["bade"], 3)) == 1
