"""``hn.audit`` and ``--judgements``: from a trained experiment to a page, labels, and the effect of labels."""

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import hardneg as hn
from hardneg.api.audit import Sampling, _runs_of, open_world
from hardneg.api.reopen import experiment_data
from hardneg.api.suspects import cell_of, write_table
from hardneg.cli.audit_text import pair_text
from hardneg.cli.ending import has_negatives
from hardneg.data.collection import Collection
from hardneg.diagnostics.audit_page import audit_page, audit_section
from hardneg.errors import ArtifactError, InputError, SettingsError
from hardneg.experiment.layout import Layout
from hardneg.experiment.states import StateRecord, states_text
from hardneg.negatives.pool import SOURCES, NegativePool, load_pool, save_pool
from hardneg.records import spans
from hardneg.report.lists import part_of
from hardneg.search.runs import load_run, save_run
from hardneg.storage.artifacts import read_manifest
from worlds import tiny_records as records
from worlds.tiny_world import COMMON, one_thread  # noqa: F401

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
HEADER = "query-id\tpassage-id\tlabel\n"


@pytest.fixture(scope="module")
def trained(world, tmp_path_factory):
    collection, model = world
    out = tmp_path_factory.mktemp("trained") / "exp"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HARDNEG_CACHE", str(out.parent / "cache"))
        hn.train_ance_tele(collection, model, out, device="cpu", **SMALL)
    return out


def pairs_in(pool, collection):
    """The ids of the query and the passage of every entry."""
    queries = collection.query_ids.take(np.repeat(pool.query_rows, spans(pool.offsets)))
    return set(zip(queries, collection.passage_ids.take(pool.passage_rows), strict=True))


def pool_of(experiment, episode=2):
    return load_pool(experiment / f"episodes/{episode}/negatives")


def labelled(path, **labels):
    """A file of judgements: of label the pairs."""
    lines = [f"{query}\t{passage}\t{label}\n" for label, pairs in labels.items() for query, passage in pairs]
    path.write_text(HEADER + "".join(lines))
    return path


@pytest.mark.parametrize(
    ("column", "text", "cell"),
    [
        ("passage_id", "a\u00a0b  c ", "a\u00a0b  c "),
        ("positive_id", "a\tb", "a b"),
        ("query", "a\u00a0b  c\td", "a b c d"),
    ],
)
def test_a_table_keeps_ids_as_they_are(column, text, cell):
    assert cell_of(column, text) == cell


# ---------------------------------------------------------------- the audit


def test_an_experiment_is_audited_with_all_its_states(trained, world, tmp_path):
    found = hn.audit(trained, out=tmp_path / "suspects.tsv", page=tmp_path / "suspects.html", most=7)
    assert [one["signal"] for one in found["signals"]] == ["text", "retriever", "both", "learned"]
    assert set(found["left_out"]) == {"answer", "ranker"}
    assert found["pool"] == str(trained / "episodes/2/negatives")
    assert (found["queries"], found["pairs"]) == (60, len(pairs_in(pool_of(trained), world.collection)))
    assert sum(one["suspected"] for one in found["sources"]) == found["suspected"]
    suspicions = [one["suspicion"] for one in found["suspects"]]
    assert len(suspicions) == min(7, found["suspected"]) > 0
    assert suspicions == sorted(suspicions, reverse=True)
    first = found["suspects"][0]
    assert first["fired"]
    assert (
        first["text"] == world.collection.texts[int(world.collection.passage_ids.rows([first["passage_id"]])[0])]
    )
    lines = (tmp_path / "suspects.tsv").read_text().splitlines()
    assert len(lines) == 1 + len(suspicions)
    assert lines[0].split("\t")[:3] == ["place", "query_id", "passage_id"]
    assert lines[1].split("\t")[1:3] == [first["query_id"], first["passage_id"]]
    assert (tmp_path / "suspects.html").read_text().count('<li class="pair"') == len(suspicions)
    json.dumps(found, allow_nan=False)


def test_a_state_counts_only_if_it_was_searched_for_the_training_queries(trained, world, tmp_path):
    copied = Path(shutil.copytree(trained, tmp_path / "exp"))
    states = open_world(copied, world.collection, None).states()
    assert [one.name for one in states] == ["untrained", "episode-1", "final"]
    shutil.rmtree(copied / "episodes/2/runs/query")
    assert [one.name for one in open_world(copied, world.collection, None).states()] == ["untrained", "final"]


def test_margins_that_cannot_be_read_are_told_and_left_out(trained, world, tmp_path, caplog):
    copied = Path(shutil.copytree(trained, tmp_path / "exp"))
    (copied / "margins.tsv").write_text("1\t2\n")
    found = hn.audit(copied, bm25=False, most=1)
    assert found["left_out"]["learned"] == "no margins of training are kept"
    assert "margins.tsv: CORRUPT" in caplog.text


def test_the_lists_of_bm25_that_training_kept_are_taken_unless_it_is_asked(trained, world, tmp_path):
    copied = Path(shutil.copytree(trained, tmp_path / "exp"))
    asked = {one["signal"]: one["pairs"] for one in hn.audit(copied, most=1)["signals"]}
    kept = hn.audit(copied, bm25=False, most=1)
    assert {one["signal"]: one["pairs"] for one in kept["signals"]} == asked
    assert "both" not in kept["left_out"]
    place = copied / "bm25/runs/query"
    run = load_run(place)
    save_run(part_of(run, run.query_rows[1:]), place, inputs={}, settings={})
    assert hn.audit(copied, bm25=False, most=1)["left_out"]["both"] == "BM25 was not searched"


def test_a_pool_alone_has_texts_and_a_model_adds_ranks(trained, world, tmp_path):
    pool = shutil.copytree(trained / "episodes/1/negatives", tmp_path / "pool")
    alone = hn.audit(pool, world.collection, thresholds={"text": 0.01})
    assert alone["pairs"] > 0
    with_ranker = hn.audit(
        pool, world.collection, model=world.model, ranker=world.model, bm25=False, device="cpu", most=10_000
    )
    assert {"ranker", "text", "retriever"} <= {one["signal"] for one in with_ranker["signals"]}
    assert with_ranker["left_out"]["both"] == "BM25 was not searched"


def test_what_is_judged_is_left_out(trained, tmp_path):
    first, second = hn.audit(trained, most=2)["suspects"]
    file = labelled(
        tmp_path / "j.tsv",
        negative=[(first["query_id"], first["passage_id"])],
        unsure=[(second["query_id"], second["passage_id"])],
    )
    found = hn.audit(trained, judgements=file, most=1)
    assert found["judged"] == 1
    assert (found["suspects"][0]["query_id"], found["suspects"][0]["passage_id"]) == (
        second["query_id"],
        second["passage_id"],
    )


def named_pairs(found):
    return [(one["query_id"], one["passage_id"]) for one in found["suspects"]]


def small(folder, texts, grades, negatives, **others):
    """A pool of one query with these negatives and a collection with these texts and grades, audited by texts.

    ``others``: split -> its grades of the same query.
    """
    splits = {name: {"q": some} for name, some in {"train": grades, **others}.items()}
    data = Collection.from_lists(texts, {"q": "a query"}, splits, to=folder / "c")
    positives = data.passage_ids.rows([name for name, grade in grades.items() if grade > 0]).tolist()
    made = records.pool_of([data.passage_ids.rows(negatives).tolist()], [positives], collection=data.digest)
    save_pool(made, folder / "pool", settings={}, inputs={})
    return hn.audit(folder / "pool", data, bm25=False, cache=folder, out=folder / "table.tsv")


def test_the_positive_that_a_suspect_is_most_like_stands_first(tmp_path):
    """The signal is about that one, and texts, tables and reports show the first."""
    texts = {"p1": "a b c d e", "p2": "v w x y z", "p3": "f g h i j", "p4": "one more text", "p5": "v w x y k"}
    texts |= {"n": "v w x y z and", "m": "something else of a b c d e"}
    found = small(tmp_path, texts, {f"p{i}": 1 for i in range(1, 6)}, ["n", "m"])
    shown = {one["passage_id"]: one for one in found["suspects"]}
    assert [one["passage_id"] for one in shown["n"]["positives"]] == ["p2", "p5", "p1"]
    assert [one["passage_id"] for one in shown["m"]["positives"]] == ["p1", "p2", "p3"]
    assert shown["n"]["signals"]["text"] == 0.75
    assert "\tp2\t\tv w x y z\n" in (tmp_path / "table.tsv").read_text()
    assert "| positive [p2]" in pair_text(1, shown["n"])


def test_the_positives_of_a_query_are_read_once_however_many_they_are(tmp_path, monkeypatch):
    """Once for the signal and once for what is shown, not for each negative anew."""
    read = []
    monkeypatch.setattr("hardneg.diagnostics.text_runs.words_of", lambda text: read.append(text) or text.split())
    texts = {f"p{i}": f"a b c d {i}" for i in range(5000)} | {f"n{i}": f"x a b c d {i}" for i in range(4)}
    found = small(tmp_path, texts, {f"p{i}": 1 for i in range(5000)}, [f"n{i}" for i in range(4)])
    assert sorted(read) == sorted([*texts.values()] * 2)
    shown = {one["passage_id"]: [p["passage_id"] for p in one["positives"]] for one in found["suspects"]}
    assert shown["n0"] == ["p0", "p1", "p2"]
    assert shown["n3"] == ["p3", "p0", "p1"]


def test_pairs_that_a_split_judges_not_relevant_are_left_out(tmp_path):
    texts = {"p": "a b c d e", "n": "a b c d e and", "m": "a b c d e or", "l": "a b c d e but"}
    found = small(tmp_path, texts, {"p": 1, "n": 0, "l": -1}, ["n", "m", "l"])
    assert (found["judged"], found["pairs"], found["suspected"]) == (2, 1, 1)
    assert named_pairs(found) == [("q", "m")]
    (tmp_path / "other").mkdir()
    found = small(tmp_path / "other", texts, {"p": 1, "n": 0}, ["n"])
    assert (found["judged"], found["pairs"], found["suspects"], found["sources"]) == (1, 0, [], [])


def test_pairs_that_any_split_judges_relevant_are_suspected_all_the_same(tmp_path):
    """They are false negatives, and a pool leaves out only the positives of its own split."""
    texts = {"p": "a b c d e", "n": "a b c d e and", "m": "a b c d e or", "l": "a b c d e but"}
    found = small(tmp_path, texts, {"p": 1, "n": 0}, ["n", "m", "l"], dev={"n": 1, "m": 0}, test={"l": 1, "n": 0})
    assert (found["judged"], found["pairs"], found["suspected"]) == (1, 2, 2)
    assert sorted(named_pairs(found)) == [("q", "l"), ("q", "n")]


def test_faults_are_told_before_anything_is_done(trained, tmp_path):
    with pytest.raises(SettingsError, match="text"):
        hn.audit(trained, thresholds={"txt": 1.0})
    (tmp_path / "folder").mkdir()
    with pytest.raises(SettingsError) as fault:
        hn.audit(trained, page=tmp_path / "folder")
    assert fault.value.code == "NOT_A_FILE"
    with pytest.raises(InputError, match="nothing here"):
        hn.audit(tmp_path / "none")


def test_what_is_neither_pool_nor_experiment_is_told_by_what_it_is(hardneg, trained, world, tmp_path):
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder/notes.txt").touch()
    cases = {
        tmp_path / "folder": (2, "NO_POOL: this is neither a pool nor an experiment; it holds notes.txt; give"),
        tmp_path / "folder/notes.txt": (4, "WRONG_KIND: this is a file; give the folder of a pool"),
        world.collection.path: (4, "WRONG_KIND: this is a collection; give the folder of a pool"),
    }
    for place, (expected, said) in cases.items():
        status, out, err = hardneg("audit", str(place))
        assert (status, out, err.count("\n")) == (expected, "", 1)
        assert err.startswith(f"{place}: {said}")
    status, _, err = hardneg("audit", str(trained), "--threshold", "foo=1")
    assert (status, err) == (
        2,
        "BAD_SETTING: --threshold foo=1: there is no signal 'foo'; "
        "known are: answer, both, learned, ranker, retriever, text\n",
    )


def test_a_threshold_that_is_no_number_is_refused(trained):
    with pytest.raises(SettingsError, match="give a number"):
        hn.audit(trained, thresholds={"text": float("nan")})


def test_a_pool_that_nothing_belongs_to_is_told_in_one_line(hardneg, trained, world, tmp_path):
    alone = tmp_path / "pool"
    shutil.copytree(trained / "episodes/1/negatives", alone)
    status, out, err = hardneg("audit", str(alone))
    assert (status, out, err.count("\n")) == (2, "", 1)
    assert err.startswith(f"{alone}: NO_DATA: nothing here says where the collection is; ")
    other = Collection.from_lists([("p", "t")], {"q": "t"}, {"train": {"q": ["p"]}}, to=tmp_path / "other")
    status, out, err = hardneg("audit", str(alone), "--data", str(other.path))
    assert (status, out, err.count("\n")) == (4, "", 1)
    assert err.startswith(f"{alone}: OTHER_COLLECTION: ")
    assert hn.audit(alone, world.collection)["pairs"] > 0


def test_a_pool_without_ranks_scores_and_sources_of_lists_is_audited(trained, world, tmp_path):
    made = pool_of(trained)
    n = len(made.passage_rows)
    blank = {"sources": np.full(n, SOURCES.index("file"), np.uint8), "ranks": np.zeros(n, np.int32)}
    blank |= {"scores": np.full(n, np.nan, np.float32), "anchors": np.full(n, -1, np.int32)}
    save_pool(replace(made, **blank), tmp_path / "pool", settings={}, inputs={})
    found = hn.audit(tmp_path / "pool", world.collection, thresholds={"text": 0.01}, most=1)
    assert [one["source"] for one in found["sources"]] == ["file"]
    assert all((one["rank"], one["score"]) == (None, None) for one in found["suspects"])


def test_a_collection_that_has_moved_or_changed_is_told_in_one_line(hardneg, trained, world, tmp_path):
    experiment, moved = tmp_path / "exp", tmp_path / "moved"
    shutil.copytree(trained, experiment)
    shutil.copytree(world.collection.path, moved)
    places = Layout(experiment).places
    given = json.loads(places.read_text()) | {"collection": str(tmp_path / "nowhere")}
    places.write_text(json.dumps(given))
    status, out, err = hardneg("audit", str(experiment), "--no-bm25")
    assert (status, out, err.count("\n")) == (2, "", 1)
    assert "NO_DATA: the collection of this experiment is not at " in err
    assert hn.audit(experiment, moved, bm25=False)["pairs"] == hn.audit(trained, bm25=False)["pairs"]
    other = Collection.from_lists([("p", "t")], {"q": "t"}, {"train": {"q": ["p"]}}, to=tmp_path / "other")
    places.write_text(json.dumps(given | {"collection": str(other.path)}))
    status, out, err = hardneg("audit", str(experiment), "--no-bm25")
    assert (status, out, err.count("\n")) == (4, "", 1)
    assert "INPUT_CHANGED: the collection at " in err


@pytest.mark.parametrize(
    ("lines", "at", "code"),
    [
        (["train-00 p000 positive", "train-00 nowhere relevant"], 3, "UNKNOWN_ID"),
        (["nobody p000 positive"], 2, "UNKNOWN_ID"),
        (["train-00 p000 positive", "train-00 p000 positive", "train-00 p000 negative"], 4, "CONFLICTING_LABELS"),
        (["train-00 p000 perhaps"], 2, "BAD_LABEL"),
    ],
)
def test_faulty_judgements_are_told_in_one_line(hardneg, trained, tmp_path, lines, at, code):
    file = tmp_path / "j.tsv"
    file.write_text(HEADER + "".join("\t".join(line.split()) + "\n" for line in lines))
    status, out, err = hardneg("audit", str(trained), "--no-bm25", "--judgements", str(file))
    assert (status, out, err.count("\n")) == (3, "", 1)
    assert err.startswith(f"{file}:{at}: {code}: ")


def test_the_command_shows_pairs_side_by_side(hardneg, trained):
    status, out, err = hardneg("audit", str(trained), "--show", "2", "--no-bm25")
    assert (status, err) == (0, "")
    assert "not known: ranker, because no ranker is given" in out
    assert "| positive [" in out
    assert out.count("\n1. query ") == out.count("\n2. query ") == 1
    assert "\n3. query" not in out
    status, out, err = hardneg("audit", str(trained), "--threshold", "text:1")
    assert (status, out) == (2, "")
    assert "SIGNAL=VALUE" in err
    words = ("--threshold", "text=0.5", "--threshold", "both=1", "--threshold", "text=0.9")
    status, out, err = hardneg("audit", str(trained), *words)
    assert (status, out) == (2, "")
    assert err == "BAD_SETTING: --threshold text is given twice; leave one of them out\n"


# ---------------------------------------------------------------- the page

HOSTILE = {
    "script": "</script><script>alert(1)</script>",
    "attribute": "\" onmouseover='x' a=\"",
    "marks": "evil \u202e txt \u2066 \x07",
    "long": "word" * 300_000,
}


def facts(**texts):
    """An audit of one pair whose texts are these."""
    one = {name: texts.get(name, name) for name in ("query_id", "query", "passage_id", "title", "text")}
    one |= {"positives": [{name: one[name] for name in ("passage_id", "title", "text")}], "source": "query"}
    one |= {"signals": {"text": 0.5, "ranker": None}, "fired": ["text"], "episode": 1, "suspicion": 1.0}
    counts = {"queries": 1, "pairs": 1, "suspected": 1, "judged": 0, "left_out": {}, "sources": []}
    return {**counts, "pool": "pool", "signals": [], "suspects": [one]}


@pytest.mark.parametrize("name", ["query_id", "query", "passage_id", "title", "text"])
@pytest.mark.parametrize("kind", HOSTILE)
def test_no_text_does_harm(name, kind):
    page = audit_page(facts(**{name: HOSTILE[kind]})).decode()
    assert page.count("<script>") == page.count("</script>") == 1
    assert "alert(1)</script>" not in page
    assert "\" onmouseover='x'" not in page
    if name not in ("query_id", "passage_id"):  # ids are whole, in attributes that no person reads
        assert len(page) < 30_000
        assert not any(mark in page for mark in "\u202e\u2066\x07")


@pytest.mark.parametrize("mark", "\t\r\n")
@pytest.mark.parametrize("name", ["query_id", "passage_id"])
def test_pairs_that_no_file_of_judgements_can_hold_are_left_out_and_counted(tmp_path, caplog, name, mark):
    found = facts(**{name: f"a{mark}b"})
    page = audit_page(found).decode()
    assert "<p>1 pair with a tab or a line break in an id cannot be labelled.</p>" in page
    assert 'class="pair"' not in page
    assert "No signal fires" not in page
    other = facts()["suspects"]
    page = audit_page({**found, "suspects": found["suspects"] + other}).decode()
    assert page.count('class="pair"') == 1
    assert 'aria-label="Pair 1 of 1"' in page
    write_table(tmp_path / "a.tsv", found["suspects"] + other, ["text", "ranker"])
    assert [line.split("\t")[:3] for line in (tmp_path / "a.tsv").read_text().split("\n")[1:-1]] == [
        ["2", "query_id", "passage_id"]
    ]
    assert caplog.messages == [f"{tmp_path / 'a.tsv'}: 1 pair with a tab or a line break in an id left out"]


def test_the_page_loads_nothing_and_labels_are_reached_by_keyboard():
    page = audit_page(facts()).decode()
    assert "default-src 'none'" in page.replace("&#x27;", "'")
    assert not any(word in page for word in ("http:", "https:", "src=", "@import"))
    assert all(f"<kbd>{key}</kbd>" in page for key in "prnujkx")
    empty = facts() | {"suspects": []}
    assert "No signal fires" in audit_section(empty)


# ---------------------------------------------------------------- a sample of a large pool


def pool_with(*counts):
    """A pool of queries 10, 11, … with so many entries each."""
    rows = np.arange(10, 10 + len(counts), dtype=np.int32)
    n, one = sum(counts), np.zeros(len(counts) + 1, np.int64)
    entries = {"passage_rows": np.int32, "ranks": np.int32, "scores": np.float32, "episodes": np.int32}
    arrays = {name: np.zeros(n, kind) for name, kind in (entries | {"anchors": np.int32}).items()}
    offsets = np.concatenate([[0], np.cumsum(counts)])
    none = np.zeros(0, np.int32)
    return NegativePool(rows, one, none, offsets, sources=np.zeros(n, np.uint8), episode=1, **arrays)


def test_a_small_pool_is_audited_whole_and_of_a_large_one_as_much_as_fits():
    pool = pool_with(*[5] * 40)
    assert Sampling(most=200, about=50).of(pool) is None
    some = Sampling(most=199, about=50).of(pool)
    assert len(some) == 10  # ten queries of five entries are fifty
    assert some.tolist() == sorted(set(some.tolist()))
    assert Sampling(most=199, about=54).of(pool).tolist() == some.tolist()
    assert Sampling(most=199, about=50, seed=1).of(pool).tolist() != some.tolist()
    assert len(Sampling(most=199, about=3).of(pool)) == 1  # one query, however large it is


def test_which_queries_are_drawn_depends_on_their_rows_and_not_on_the_others():
    pool = pool_with(*[5] * 40)
    some = set(pool.query_rows[Sampling(most=1, about=50).of(pool)].tolist())
    half = pool.select(np.arange(0, 40, 2))
    of_half = set(half.query_rows[Sampling(most=1, about=50).of(half)].tolist())
    assert some & set(half.query_rows.tolist()) <= of_half


def test_queries_are_drawn_from_those_that_bm25_searched():
    pool, searched = pool_with(*[5] * 40), np.array([12, 30, 31, 49, 99], np.int32)
    assert pool.query_rows[Sampling(most=1, about=50).of(pool, searched)].tolist() == [12, 30, 31, 49]
    assert set(pool.query_rows[Sampling(most=1, about=10).of(pool, searched)]) < {12, 30, 31, 49}
    assert len(Sampling(most=1, about=50).of(pool, np.array([99], np.int32))) == 10  # none of the pool's


# ---------------------------------------------------------------- judgements in train, mine and evaluate


def test_mining_obeys_judgements(trained, world, tmp_path):
    collection, model = world
    options = {"sources": ["query", "bm25"], "depth": 20, "count": 10, "device": "cpu"}
    before = hn.mine(collection, model, tmp_path / "before", **options)
    chosen = sorted(pairs_in(before, collection))[:3]
    file = labelled(tmp_path / "j.tsv", positive=chosen[:1], relevant=chosen[1:])
    after = hn.mine(collection, model, tmp_path / "after", judgements=file, **options)
    assert not pairs_in(after, collection) & set(chosen)
    query, passage = chosen[0]
    at = int(np.flatnonzero(after.query_rows == collection.query_ids.rows([query])[0])[0])
    assert collection.passage_ids.take(after.positives.of(at))[-1] == passage
    assert len(after.positive_rows) == len(before.positive_rows) + 1
    assert "judgements" in read_manifest(tmp_path / "after").inputs
    assert "judgements" not in read_manifest(tmp_path / "before").inputs


def test_a_copy_of_a_relevant_passage_is_no_negative(world, tmp_path):
    collection, model = world
    options = {"sources": ["query"], "depth": 60, "count": 60, "device": "cpu"}
    before = pairs_in(hn.mine(collection, model, tmp_path / "before", **options), collection)
    copies = {f"p{10 * i:03d}": f"p{100 + i}" for i in range(10)}  # these have equal texts, of which one is mined
    query, passage = next((query, one) for query, one in sorted(before) if one in copies)
    file = labelled(tmp_path / "j.tsv", relevant=[(query, passage)])
    after = pairs_in(hn.mine(collection, model, tmp_path / "after", judgements=file, **options), collection)
    assert not after & {(query, passage), (query, copies[passage])}


@pytest.mark.parametrize(
    ("query", "told"),
    [
        ("test-00", ": none of its judged pairs (1) is of a training query, so it changes nothing"),
        (
            "train-01",
            ": 1 judged pair of training queries (1 negative); 1 training query has no positive any more",
        ),
    ],
)
def test_mining_says_what_judgements_change(hardneg, world, tmp_path, query, told):
    collection = world.collection
    positives = collection.qrels("train").positives()
    single = positives.query_rows.tolist().index(int(collection.query_ids.rows(["train-01"])[0]))
    passage = collection.passage_ids[int(positives.of(single)[0])]
    file = labelled(tmp_path / "j.tsv", negative=[(query, passage)])
    options = ["--sources", "random", "--count", "2", "--judgements", str(file)]
    status, _, err = hardneg("mine", "--data", str(collection.path), "--out", str(tmp_path / "pool"), *options)
    assert status == 0
    assert f"{file}{told}" in err


def test_training_obeys_judgements_and_remembers_them(trained, world, tmp_path):
    collection, model = world
    chosen = sorted(pairs_in(pool_of(trained), collection) & pairs_in(pool_of(trained, 1), collection))[:4]
    file = labelled(tmp_path / "j.tsv", positive=chosen[:2], relevant=chosen[2:])
    out, options = tmp_path / "exp", {"device": "cpu", "judgements": file, **SMALL}
    hn.train_ance_tele(collection, model, out, **options)
    for episode in (1, 2):
        assert not pairs_in(pool_of(out, episode), collection) & set(chosen)
    record = json.loads((out / "settings.json").read_text())
    assert "judgements" in record["inputs"]
    assert experiment_data(out).digest == record["inputs"]["splits"]
    assert hn.audit(out)["judged"] == 0  # nothing of it is in the pool any more
    one = hn.audit(out, bm25=False, most=1)["suspects"][0]
    more = labelled(tmp_path / "more.tsv", negative=[(one["query_id"], one["passage_id"]), chosen[0]])
    assert hn.audit(out, bm25=False, judgements=more, page=tmp_path / "page.html")["judged"] == 1
    kept = set(re.search(r'data-known="([^"]*)"', (tmp_path / "page.html").read_text())[1].split("\n"))
    assert (
        kept - {""}
        == {  # what the page saves has lost nothing of what the experiment was trained with
            f"{one['query_id']}\t{one['passage_id']}\tnegative",
            "\t".join((*chosen[0], "negative")),
            "\t".join((*chosen[1], "positive")),
            *("\t".join((*pair, "relevant")) for pair in chosen[2:]),
        }
    )
    assert hn.train_ance_tele(collection, model, out, **options)  # finished already
    labelled(file, positive=chosen[:1])
    with pytest.raises(ArtifactError, match="judgements"):
        hn.train_ance_tele(collection, model, out, **options)
    with pytest.raises(ArtifactError, match="judgements"):
        hn.train_ance_tele(collection, model, out, **options | {"judgements": None})


def test_a_faulty_judgement_stops_training_before_it_begins(hardneg, world, tmp_path):
    file = labelled(tmp_path / "j.tsv", positive=[("train-00", "nowhere")])
    given = ["--data", str(world.collection.path), "--model", world.model, "--out", str(tmp_path / "exp")]
    status, out, err = hardneg("train", "star", *given, "--judgements", str(file))
    assert (status, out) == (3, "")
    assert err.splitlines()[-1].startswith(f"{file}:2: UNKNOWN_ID: ")
    assert not (tmp_path / "exp").exists()


def test_evaluation_extends_the_judgements(world, tmp_path):
    collection = world.collection
    query, judged = collection.query_ids[0], collection.qrels("dev")
    positive = collection.passage_ids[int(judged.passage_rows[0])]
    other = next(one for one in ("p111", "p112") if one != positive)
    run = tmp_path / "run.trec"
    run.write_text(f"{query} Q0 {other} 1 2.0 x\n{query} Q0 {positive} 2 1.0 x\n")
    file = labelled(tmp_path / "j.tsv", relevant=[(query, other), ("train-00", "p000")])
    options = {"data": collection, "split": "dev", "measures": "P@2 RR@10"}
    before, after = (hn.evaluate(run, **options | more)["measures"] for more in ({}, {"judgements": file}))
    n = len(judged)
    assert (before["RR@10"], after["RR@10"]) == pytest.approx((0.5 / n, 1 / n))
    (tmp_path / "qrels").write_text(f"{query} 0 {positive} 1\n")
    by_file = {"qrels": tmp_path / "qrels", "measures": "RR@10"}
    assert hn.evaluate(run, **by_file)["measures"]["RR@10"] == 0.5
    assert hn.evaluate(run, **by_file, judgements=file)["measures"]["RR@10"] == 1


def test_evaluation_does_not_take_judgements_of_another_collection_or_of_other_queries(world, tmp_path, caplog):
    collection = world.collection
    query = collection.query_ids.take(collection.qrels("dev").query_rows)[0]
    run = tmp_path / "run.trec"
    run.write_text(f"{query} Q0 p001 1 2.0 x\n")
    options = {"data": collection, "split": "dev", "measures": "RR@10"}
    for pair in ((query, "nowhere"), ("nobody", "p001")):
        with pytest.raises(InputError, match="UNKNOWN_ID"):
            hn.evaluate(run, judgements=labelled(tmp_path / "j.tsv", relevant=[pair]), **options)
    for pair, given in ((("train-00", "p001"), options), (("nobody", "p001"), {"qrels": {query: {"p001": 1}}})):
        caplog.clear()
        hn.evaluate(run, judgements=labelled(tmp_path / "j.tsv", relevant=[pair]), **given)
        assert "none of its judged pairs (1) is of a query that is measured, so it changes nothing" in caplog.text


def test_a_pool_without_negatives_is_told_so(world, tmp_path):
    options = {"mixtures": ["in_batch"], "epochs": 0.2, "examine": "judged", "device": "cpu"}
    hn.train_warmup(world.collection, world.model, tmp_path / "exp", **COMMON | options)
    with pytest.raises(InputError, match="NO_NEGATIVES: the pool has no negatives: the model was"):
        hn.audit(tmp_path / "exp")
    assert not has_negatives(tmp_path / "exp")


def test_the_kept_state_is_looked_at_once(tmp_path):
    names = {"untrained": "episodes/1/runs", "last": "last/runs", "final": "episodes/1/runs"}
    records = [StateRecord(name, name, runs=runs) for name, runs in names.items()]
    (tmp_path / "states.jsonl").write_bytes(states_text(records))
    assert [name for name, _ in _runs_of(Layout(tmp_path))] == ["untrained", "last"]
    (tmp_path / "states.jsonl").write_bytes(states_text(one for one in records if one.name != "last"))
    assert [name for name, _ in _runs_of(Layout(tmp_path))] == ["untrained", "final"]
