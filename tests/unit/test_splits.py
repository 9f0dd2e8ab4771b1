"""The splits to train, choose and test with, which need judgements; and data sets' folders as published."""

import json
from dataclasses import replace

import pytest

import hardneg as hn
from hardneg.data.collection import Collection
from hardneg.data.importing import import_collection
from hardneg.data.training_data import ChosenSplits, DevDraw, choose_splits, named_split, open_splits
from hardneg.errors import HardnegError, InputError, SettingsError
from worlds.tiny_world import SETTINGS, one_thread, tiny_collection, tiny_model  # noqa: F401

BY_ANSWERS = frozenset({"answers"})
PASSAGES = [(f"p{i}", f"text {i}") for i in range(40)]


def collection(to, judged, answers=None):
    """Splits of 20 queries; ``judged``: by name whether they are judged, or only asked."""
    queries = {f"{name}-{i}": f"text {i} of {name}" for name in judged for i in range(20)}
    grade = {True: 1, False: 0}
    qrels = {
        name: {f"{name}-{i}": {f"p{i}": grade[positive]} for i in range(20)} for name, positive in judged.items()
    }
    given = {f"{name}-{i}": [f"{i}"] for name in answers or () for i in range(20)}
    return Collection.from_lists(PASSAGES, queries, qrels, answers=given, to=to)


def test_dev_queries_are_drawn_by_their_ids_from_those_that_can_be_measured(tmp_path):
    data = collection(tmp_path / "c", {"train": True, "dev": True})
    chosen = choose_splits(data, dev_queries=6, draw=DevDraw(1))
    assert "dev 'dev' (6 of 20, drawn)" in chosen.chosen
    rows = chosen.dev.query_rows.tolist()
    assert len(rows) == 6
    assert rows == sorted(rows)
    assert choose_splits(data, dev_queries=6, draw=DevDraw(2)).dev.query_rows.tolist() == rows, "for every seed"
    assert {*rows} < {*choose_splits(data, dev_queries=9).dev.query_rows.tolist()}
    assert open_splits(data, chosen.names).dev.query_rows.tolist() == rows
    assert open_splits(data, chosen.names).digest == chosen.digest != choose_splits(data).digest
    assert len(choose_splits(data, dev_queries=20).dev) == len(choose_splits(data).dev) == 20

    queries = {f"{name}-{i}": f"text {i}" for name in ("train", "dev") for i in range(20)}
    qrels = {name: {f"{name}-{i}": {f"p{i}": int(i % 2)} for i in range(20)} for name in ("train", "dev")}
    half = Collection.from_lists(PASSAGES, queries, qrels, to=tmp_path / "half")
    some = choose_splits(half, dev_queries=7).dev
    assert len(some) == 7
    assert (some.grades > 0).all(), "nothing is measured by a query without a relevant passage"


def test_a_drawn_dev_has_first_what_every_measure_can_count(tmp_path):
    queries = {f"{name}-{i}": f"text {i}" for name in ("train", "dev") for i in range(20)}
    qrels = {name: {f"{name}-{i}": {f"p{i}": int(i in (3, 8))} for i in range(20)} for name in ("train", "dev")}
    answers = {f"dev-{i}": ["a"] for i in range(20) if i != 8}
    data = Collection.from_lists(PASSAGES, queries, qrels, answers=answers, to=tmp_path / "c")
    names = [data.query_ids[row] for row in choose_splits(data, dev_queries=1).dev.query_rows]
    assert names == ["dev-3"], "it has both"
    names = {data.query_ids[row] for row in choose_splits(data, dev_queries=2).dev.query_rows}
    assert names == {"dev-3", "dev-8"}, "judged"
    assert len(choose_splits(data, dev_queries=9).dev) == 9


def test_not_more_training_queries_are_held_out_than_dev_is_to_have(tmp_path):
    data = collection(tmp_path / "c", {"train": True})
    assert choose_splits(data).held_out == 2
    chosen = choose_splits(data, dev_queries=1)
    assert (chosen.held_out, len(chosen.dev), len(chosen.all_train)) == (1, 1, 19)
    assert open_splits(data, chosen.names).digest == chosen.digest


@pytest.mark.parametrize(
    ("judged", "names", "said"),
    [
        ({"train": 1, "dev": 1, "test": 1}, {}, "train 'train' (20 queries); dev 'dev' (20); test 'test' (20)"),
        (
            {"train": 1, "dev": 0, "dev.small": 1},
            {},
            "dev 'dev.small' (20), for 'dev' has no grade above 0; test none, for there is no split 'test'",
        ),
        ({"train": 1, "dev.small": 1}, {}, "dev 'dev.small' (20); test none"),
        ({"train": 1, "dev": 1, "dev.small": 1}, {}, "dev 'dev' (20)"),
        (
            {"train": 1, "validation": 1, "test": 0},
            {},
            "dev 'validation' (20); test none, for 'test' has no gr",
        ),
        ({"train": 1, "dev": 1}, {"dev": "none", "test": "none"}, "dev none; test none"),
        (
            {"train": 1, "dev": 0},
            {},
            "'train' (18 queries); dev 2 training queries are held out, for 'dev' has no grade above 0 (--dev",
        ),
        (
            {"train": 1, "dev": 1},
            {"test": "dev"},  # what judges does not steer
            "2 training queries are held out, for 'dev' is used already (--dev none to keep them); test 'dev' (20",
        ),
    ],
)
def test_no_split_is_chosen_without_judgements_and_one_line_says_which(tmp_path, judged, names, said):
    judged = {name: bool(positive) for name, positive in judged.items()}
    data = choose_splits(collection(tmp_path / "c", judged), **names)
    assert said in data.chosen
    assert data.chosen.startswith("splits: train 'train' (")
    assert "\n" not in data.chosen
    for part in (data.dev, data.test):
        assert part is None or (part.grades > 0).any()


def test_the_line_counts_what_is_trained_on(tmp_path):
    queries = {f"q{i}": f"query {i}" for i in range(8)}
    judged = {name: {"p": int(i != 3)} for i, name in enumerate(queries)}
    data = Collection.from_lists([("p", "a text"), ("o", "other")], queries, {"train": judged}, to=tmp_path / "c")
    found = choose_splits(data, dev="none")
    assert found.chosen.startswith("splits: train 'train' (7 queries, 1 without a positive left out); dev none")
    assert len(found.train) == 7


def test_what_the_user_names_and_cannot_be_measured_is_a_fault_that_names_what_can(tmp_path):
    made = collection(tmp_path / "c", {"train": True, "dev": False, "dev.small": True, "eval": False})
    with pytest.raises(InputError, match=r"NO_RELEVANT: split 'dev' has 20 queries .*dev.small"):
        choose_splits(made, dev="dev")
    with pytest.raises(InputError, match=r"NO_RELEVANT: split 'eval' .*another one by --test: dev.small, train"):
        choose_splits(made, test="eval")
    with pytest.raises(
        InputError, match=r"NO_POSITIVES: no query of split 'eval' .*another one by --train: dev.small"
    ):
        choose_splits(made, train="eval")
    with pytest.raises(SettingsError, match="UNKNOWN_SPLIT"):
        choose_splits(made, dev="develop")
    with pytest.raises(InputError, match=r"NO_ANSWERS: split 'dev.small' has 20 queries and no answers"):
        choose_splits(made, dev="dev.small", basis=BY_ANSWERS)


def test_what_measures_go_by_decides(tmp_path):
    made = collection(tmp_path / "c", {"train": True, "dev": True, "test": False}, answers=["train", "test"])
    judged, answered = choose_splits(made), choose_splits(made, basis=BY_ANSWERS)
    assert "dev 'dev' (20); test none, for 'test' has no grade above 0" in judged.chosen
    assert "held out, for 'dev' has no answers (--dev none to keep them); test 'test' (20)" in answered.chosen


# ---------------------------------------------------------------- folders as they are published


def rows(collection, split):
    """Query id, text and positives of each query of a split."""
    qrels = collection.qrels(split)
    for i, row in enumerate(qrels.query_rows.tolist()):
        positives = collection.passage_ids.take(qrels.positives().of(i))
        yield collection.query_ids[row], collection.query_texts[row], positives


def passages(collection):
    for i in range(collection.n_passages):
        yield collection.passage_ids[i], collection.titles[i], collection.texts[i]


def tsv(path, lines):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join("\t".join(line) + "\n" for line in lines))


def qrels_tsv(path, queries):
    tsv(path, [(query, "0", passage, "1") for query, _, positives in queries for passage in positives])


def marco(folder, collection):
    """As ANCE-Tele's README lays it out."""
    train, dev = list(rows(collection, "train")), list(rows(collection, "dev"))
    tsv(folder / "corpus.tsv", passages(collection))
    tsv(folder / "train.query.txt", [row[:2] for row in train])
    tsv(
        folder / "dev.query.txt", [row[:2] for row in dev + list(rows(collection, "test"))]
    )  # more than are judged
    qrels_tsv(folder / "qrels.train.tsv", train)
    qrels_tsv(folder / "qrels.dev.small.tsv", dev)
    return folder


def official(folder, collection):
    """As the archive of MS MARCO is."""
    tsv(folder / "collection.tsv", [(i, text) for i, _, text in passages(collection)])
    for split, name in (("train", "train"), ("dev", "dev.small")):
        tsv(folder / f"queries.{name}.tsv", [row[:2] for row in rows(collection, split)])
        qrels_tsv(folder / f"qrels.{name}.tsv", rows(collection, split))
    tsv(folder / "queries.eval.small.tsv", [row[:2] for row in rows(collection, "test")])
    return folder


def questions(path, queries, *, judged):
    lines = []
    for number, (_, text, positives) in enumerate(queries):
        said = {"qid": 1000 * judged + number, "question": text, "answers": [text.split()[0]]}
        lines.append(json.dumps(said | ({"positive_ctxs": positives if number % 5 else []} if judged else {})))
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(lines) + "\n")


def wiki(folder, collection, header=("id", "text", "title")):
    lines = [(i, text, title) for i, title, text in passages(collection)]
    tsv(folder / "psgs_w100.tsv", [header, *lines] if header else lines)


def open_domain(folder, collection, name, corpus=None):
    """As ANCE-Tele's README lays NQ and TriviaQA out; the passages lie in a folder beside it."""
    questions(folder / f"{name}-train-qrels.jsonl", list(rows(collection, "train")), judged=True)
    questions(folder / f"{name}-test.jsonl", list(rows(collection, "test")), judged=False)
    wiki(corpus or folder.parent / "wikipedia-corpus-index", collection)
    return folder


LAYOUTS = {
    "marco": marco,
    "official": official,
    "nq": lambda folder, collection: open_domain(folder / "nq", collection, "nq"),
    "triviaqa": lambda folder, collection: open_domain(folder / "triviaqa", collection, "triviaqa"),
    "nq-together": lambda folder, collection: open_domain(folder, collection, "nq", corpus=folder),
}
CHOSEN = {
    "marco": "splits: train 'train' (60 queries); dev 'dev.small' (16), for 'dev' has no judgements; test none",
    "official": "splits: train 'train' (60 queries); dev 'dev.small' (16); test none, for there is no",
}
BY_NAME = {"nq": "nq", "triviaqa": "triviaqa", "nq-together": "nq"}
SHORT = {"episodes": 1, "steps": 2, "stop_step": 2, "queries_per_step": 4, "depth": 20, "count": 4}
SHORT |= {"query_length": 12, "passage_length": 24, "precision": "float32", "passages_reference": [3]}


def words(values):
    return [word for name, value in values.items() for word in ("--set", f"{name}={json.dumps(value)}")]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_published_layouts_train_as_they_are(world, tmp_path, hardneg, layout):
    folder = LAYOUTS[layout](tmp_path / "in", world[0])
    values = SHORT if layout in BY_NAME else {**SETTINGS, **SHORT}
    preset = ["--preset", BY_NAME[layout]] if layout in BY_NAME else []
    command = ["train", "ance-tele", "--data", folder, "--model", world[1], "--out", tmp_path / "exp", *preset]
    status, out, err = hardneg(*command, *words(values), "--device", "cpu", "--json")
    assert status == 0, err
    results = json.loads(out)
    default = "dev 6 training queries are held out (--dev none to keep them); test 'test' (16)"
    assert CHOSEN.get(layout, default) in err
    assert {name for name in ("dev", "test") if name in results} == (
        {"dev", "test"} if layout in BY_NAME else {"dev"}
    )
    assert (tmp_path / "exp/model").is_dir()


def test_an_open_domain_folder_is_recognised_and_the_same_however_its_corpus_begins(world, tmp_path):
    digests = set()
    for name, header in {"a": ("id", "text", "title"), "b": ("psg_id", "psg", "psg_title"), "c": None}.items():
        folder = open_domain(tmp_path / name / "nq", world[0], "nq")
        lines = [(str(i), text, title) for i, (_, title, text) in enumerate(passages(world[0]))]
        tsv(tmp_path / name / "wikipedia-corpus-index/psgs_w100.tsv", [header, *lines] if header else lines)
        path = folder / "nq-train-qrels.jsonl"
        path.write_text(path.read_text().replace('"p0', '"').replace('"p', '"').replace('"ositive', '"positive'))
        given = [json.loads(line) for line in path.read_text().splitlines()]
        for one in given:
            one["positive_ctxs"] = [str(int(i)) for i in one["positive_ctxs"]]
        path.write_text("".join(json.dumps(one) + "\n" for one in given))
        made = import_collection(str(folder), tmp_path / f"{name}-made")
        digests.add(made.digest)
        assert made.splits == ("test", "train")
        assert made.facts["splits"]["train"]["positives"] > 40
        assert not (made.qrels("test").grades > 0).any()
    assert len(digests) == 1


def test_questions_without_their_corpus_say_so(world, tmp_path):
    folder = open_domain(tmp_path / "nq", world[0], "nq")
    (tmp_path / "wikipedia-corpus-index/psgs_w100.tsv").unlink()
    with pytest.raises(HardnegError, match="NO_CORPUS"):
        import_collection(str(folder), tmp_path / "made")


def test_measures_by_judgements_pass_over_a_test_split_that_has_none(world, tmp_path):
    folder = open_domain(tmp_path / "nq", world[0], "nq")
    plan = hn.plan("ance-tele", str(folder), world[1], **{**SETTINGS, **SHORT}, device="cpu")
    assert plan["episodes"]
    with pytest.raises(InputError, match="NO_RELEVANT: split 'test'"):
        hn.plan("ance-tele", str(folder), world[1], splits=hn.Splits(dev="test"), **SETTINGS, device="cpu")


def test_a_split_that_is_not_there_is_told_with_what_named_it(tmp_path):
    made = collection(tmp_path / "c", {"train": True, "dev": True})
    for use in ("train", "dev", "test"):
        with pytest.raises(SettingsError) as fault:
            choose_splits(made, **{use: "develop"})
        line = f"UNKNOWN_SPLIT: {use} = 'develop', but the collection has no such split; did you mean 'dev'?"
        assert str(fault.value) == line
    with pytest.raises(SettingsError, match="UNKNOWN_SPLIT: split = 'tset', but the collection has no such"):
        named_split(made, "tset", "split")
    with pytest.raises(SettingsError, match="UNKNOWN_SPLIT: the experiment's test = 'gone', but the collection"):
        open_splits(made, ChosenSplits("train", "dev", "gone"))
    with pytest.raises(SettingsError, match="split = 'x', but this is a corpus without queries; import it with"):
        named_split(Collection.from_lists([("p", "one text")], to=tmp_path / "corpus"), "x", "split")


def test_a_split_with_two_uses_is_warned_of(tmp_path, caplog):
    made = collection(tmp_path / "c", {"train": True, "dev": True, "test": True})
    choose_splits(made)
    assert caplog.messages == []
    for use, said in (
        ({"dev": "train"}, "dev is the split 'train' that is trained on"),
        ({"test": "train"}, "test is the split 'train' that is trained on"),
        ({"test": "dev"}, "test is 'dev', which dev chooses the best state on"),
    ):
        caplog.clear()
        choose_splits(made, **{"dev": "dev", **use})
        (line,) = caplog.messages
        assert line.startswith(said)


def test_only_queries_that_can_be_measured_are_held_out(tmp_path):
    """As MS MARCO's training queries, of which a third is not judged."""
    queries = {f"q{i}": f"text {i}" for i in range(40)}
    qrels = {"train": {f"q{i}": {f"p{i}": 1} if i % 7 == 0 else {} for i in range(40)}}
    data = Collection.from_lists(PASSAGES, queries, qrels, to=tmp_path / "c")
    for seed in range(6):
        dev = choose_splits(data, draw=DevDraw(seed), dev_queries=3).dev
        assert len(dev) == 1
        assert (dev.grades > 0).any()
        names = choose_splits(data, draw=DevDraw(seed), dev_queries=3).names
        assert len(open_splits(data, names).dev) == 1
        before = open_splits(data, replace(names, measurable=False)).dev  # as an older version drew it
        assert len(before) == 3


def test_a_dev_that_shares_queries_is_passed_over_or_told(tmp_path, caplog):
    queries = {f"q{i}": f"text {i}" for i in range(60)}
    parts = {"train": range(30), "dev": range(30, 50), "dev.small": range(40, 45)}
    qrels = {name: {f"q{i}": {f"p{i % 40}": 1} for i in rows} for name, rows in parts.items()}
    data = Collection.from_lists(PASSAGES, queries, qrels, to=tmp_path / "c")
    chosen = choose_splits(data, test="dev.small")
    assert chosen.names.held_out == 3
    assert "for 'dev' shares queries with 'dev.small'" in chosen.chosen
    assert not set(chosen.dev.query_rows.tolist()) & set(chosen.test.query_rows.tolist())
    assert "share" not in caplog.text
    choose_splits(data, dev="dev", test="dev.small")
    assert "dev 'dev' and test 'dev.small' share 5 queries" in caplog.text


def test_no_text_is_both_trained_on_and_held_out(tmp_path, caplog):
    queries = {f"q{i}": f"text {i % 37}" for i in range(60)}
    data = Collection.from_lists(
        PASSAGES, queries, {"train": {f"q{i}": {"p0": 1} for i in range(60)}}, to=tmp_path / "c"
    )
    for seed in range(5):
        chosen = choose_splits(data, draw=DevDraw(seed))
        parts = [set(data.query_texts.take(one.query_rows)) for one in (chosen.train, chosen.dev)]
        assert not parts[0] & parts[1]
        opened = open_splits(data, chosen.names)
        assert opened.digest == chosen.digest
        assert chosen.names.whole_texts
        before = choose_splits(data, draw=DevDraw(seed, whole_texts=False))  # as an older version drew it
        assert before.digest == open_splits(data, replace(chosen.names, whole_texts=False)).digest
        assert not before.names.whole_texts
    assert "the text of" not in caplog.text


def test_splits_that_share_texts_are_told(tmp_path, caplog):
    queries = {f"q{i}": f"text {i % 50}" for i in range(60)}
    parts = {"train": range(50), "dev": range(49, 60)}
    qrels = {name: {f"q{i}": {"p0": 1} for i in rows} for name, rows in parts.items()}
    data = Collection.from_lists(PASSAGES, queries, qrels, to=tmp_path / "c")
    choose_splits(data, dev="dev")
    assert "train 'train' and dev 'dev' share 1 query, so" in caplog.text
    told = "10 queries of dev 'dev' have the text of one of train 'train', so the figures measured on 'dev'"
    assert told in caplog.text


def test_a_positive_that_a_question_names_twice_counts_once(tmp_path):
    """As in DPR's and Tevatron's conventions."""
    (tmp_path / "corpus.tsv").write_text("psg_id\ttitle\ttext\n1\t\tone\n2\t\ttwo\n")
    (tmp_path / "train.jsonl").write_text(
        json.dumps({"qid": "q", "question": "x", "positive_ctxs": ["2", "2", "1"]})
    )
    found = hn.open_collection(f"qa:{tmp_path}", cache=tmp_path / "cache").qrels("train")
    assert found.passage_rows.tolist() == [1, 0]
