"""String columns and the canonical collection."""

import itertools
import pickle
import random
import unicodedata

import numpy as np
import pytest

from hardneg.data import building, checks, collection, ready, text
from hardneg.data.collection import Collection, hold_out
from hardneg.data.text import IdColumn, TextColumn, TextColumnWriter, as_hashes
from hardneg.errors import ArtifactError, InputError, SettingsError
from hardneg.negatives.candidates import is_known
from hardneg.storage import artifacts

PASSAGES = [("p2", "Two", "second text"), ("p1", "", "first text"), ("p10", "Ten", "second text")]
QUERIES = {"q2": "what is two", "q10": "what is ten", "Q": "asked by nobody"}
QRELS = {"train": {"q2": {"p2": 2, "p1": 0}, "q10": ["p10"]}, "test": {"q2": ["p1"]}}


class NAType:
    """What stands for a missing value in a table of pandas."""


class DataFrame:
    """As much of a table of pandas as is looked at: iterated, it gives the names of its columns."""

    columns = ("id", "text")
    to_dict = None

    def __iter__(self):
        return iter(self.columns)


def columns(tmp_path, strings, kind=TextColumn):
    """A column of these strings, written and opened; an id column with its table."""
    draft = artifacts.Draft(tmp_path)
    hashes = bytearray()
    with TextColumnWriter(draft, "c") as writer:
        for string in strings:
            writer.add(string.encode())
            hashes += text.hash_bytes(string.encode())
    if kind is IdColumn:
        text.write_id_table(draft, "c", "c", as_hashes(hashes))
    return kind.open(tmp_path, "c"), as_hashes(hashes)


@pytest.fixture(params=["blake2b", "colliding"])
def hashing(request, monkeypatch):
    """The usual hash, and one that collides all the time: lookups must not trust it."""
    if request.param == "colliding":
        collide(monkeypatch, text)


def collide(monkeypatch, *modules):
    """Let the hashes in these modules be those of the length modulo 3."""

    def hashed(data):
        return bytes([len(data) % 3]) + bytes(7)

    for module in modules:
        for name, change in (("hash_bytes", hashed), ("hash_each", lambda some: b"".join(map(hashed, some)))):
            if hasattr(module, name):
                monkeypatch.setattr(module, name, change)


def random_ids(n, seed=0):
    rng = np.random.default_rng(seed)
    alphabet = list("ab0_é☃𝄞\U0010ffff\uffee")
    made = {"".join(rng.choice(alphabet, rng.integers(1, 20))) for _ in range(n)}
    return sorted(made | {"common-prefix-" * 3 + str(i) for i in range(50)}, key=lambda s: hash(s) % 97)


# ---------------------------------------------------------------- columns


def test_texts_come_back_by_row(tmp_path):
    strings = ["", "a", "naïve ☃ 𝄞", "", "two\nlines\t", "z"]
    column, _ = columns(tmp_path, strings)
    assert len(column) == 6
    assert list(column) == strings
    assert [column[i] for i in range(6)] == strings
    assert column.take(np.array([5, 2, 2, 0], np.int32)) == ["z", strings[2], strings[2], ""]
    with pytest.raises(IndexError):
        column[6]
    with pytest.raises(IndexError):
        column[-1]


@pytest.mark.parametrize("strings", [[], ["", "", ""]])
def test_a_column_without_a_byte_opens(tmp_path, strings):
    column, _ = columns(tmp_path, strings)
    assert list(column) == strings


def test_rewrite_takes_rows_in_the_given_order(tmp_path, monkeypatch):
    monkeypatch.setattr(text, "CHUNK", 2)
    monkeypatch.setattr(text, "COPIED", 3)
    columns(tmp_path, ["a", "bb", "", "dddd", "e"])
    text.rewrite(artifacts.Draft(tmp_path), "c", np.array([4, 3, 1, 1, 2]))
    assert list(TextColumn.open(tmp_path, "c")) == ["e", "dddd", "bb", "bb", ""]
    assert sorted(p.name for p in tmp_path.iterdir() if p.name.startswith("c.")) == ["c.offsets.npy", "c.utf8"]


@pytest.mark.usefixtures("hashing")
def test_rows_of_ids_equal_a_dictionary(tmp_path):
    ids = random_ids(300)
    column, _ = columns(tmp_path, ids, IdColumn)
    rows = {id_: row for row, id_ in enumerate(ids)}
    asked = [*ids[::3], "unknown", "", "a" * 100, "\ud800", *ids[:10]]
    found = column.rows(asked)
    assert found.dtype == np.int32
    assert found.tolist() == [rows.get(id_, -1) for id_ in asked]
    assert column.rows([]).tolist() == []


@pytest.mark.usefixtures("hashing")
def test_first_rows_equal_a_loop(tmp_path):
    strings = random_ids(40) + random_ids(60, seed=1) + random_ids(40)
    column, hashes = columns(tmp_path, strings)
    assert text.first_rows(column, hashes).tolist() == [strings.index(s) for s in strings]


def test_id_rank_is_the_order_of_utf8_bytes(tmp_path):
    ids = ["b", "a", "ab", "a0", "é", "Z", "\U0010ffff", "\uffee"]
    column, _ = columns(tmp_path, ids, IdColumn)
    assert column.id_rank.tolist() == [4, 1, 3, 2, 5, 0, 7, 6]  # UTF-16 would swap the last two
    assert column.id_rank.dtype == np.int32


def test_id_rank_equals_sorting_the_bytes(tmp_path, monkeypatch):
    monkeypatch.setattr(text, "CHUNK", 64)
    ids = random_ids(500)
    column, _ = columns(tmp_path, ids, IdColumn)
    ranked = sorted(ids, key=str.encode)
    assert [ranked[rank] for rank in column.id_rank] == ids


def test_equal_strings_share_the_lowest_rank(tmp_path):
    column, _ = columns(tmp_path, ["b", "long-common-prefix", "a", "long-common-prefix", "b"])
    assert text.byte_ranks(column).tolist() == [1, 3, 0, 3, 1]


# ---------------------------------------------------------------- the collection


def made(tmp_path, passages=PASSAGES, queries=QUERIES, qrels=QRELS, name="c", **options):
    return Collection.from_lists(passages, queries, qrels, to=tmp_path / name, **options)


def test_a_collection_by_hand(tmp_path):
    c = made(tmp_path, answers={"q2": ["2", "two"]})
    assert (c.n_passages, c.n_queries, c.splits) == (3, 3, ("test", "train"))
    assert list(c.passage_ids) == ["p2", "p1", "p10"]  # source order
    assert list(c.titles) == ["Two", "", "Ten"]
    assert list(c.texts) == ["second text", "first text", "second text"]
    assert list(c.query_ids) == ["Q", "q10", "q2"]  # byte order
    assert list(c.query_texts) == ["asked by nobody", "what is ten", "what is two"]
    assert c.text_keys[0] == c.text_keys[2] != c.text_keys[1]
    assert c.passage_ids.id_rank.tolist() == [2, 0, 1]
    assert (c.has_answers, c.answers(2), c.answers(0)) == (True, ["2", "two"], [])
    train = c.qrels("train")
    assert train.query_rows.tolist() == [1, 2]
    assert train.offsets.tolist() == [0, 1, 3]
    assert train.passage_rows.tolist() == [2, 0, 1]
    assert train.grades.tolist() == [1, 2, 0]
    assert c.qrels("test").query_rows.tolist() == [2]
    assert c.facts["splits"]["train"] == {"queries": 2, "judgements": 3, "positives": 2}
    artifacts.verify(c.path)
    assert Collection.open(c.path).digest == c.digest


def test_grades_by_ids_are_those_of_the_judgements(tmp_path):
    c = made(tmp_path)
    for split in c.splits:
        qrels, slow = c.qrels(split), {}
        for i, row in enumerate(qrels.query_rows.tolist()):
            span = slice(qrels.offsets[i], qrels.offsets[i + 1])
            ids = [c.passage_ids.take(np.array([p]))[0] for p in qrels.passage_rows[span].tolist()]
            slow[c.query_ids.take(np.array([row]))[0]] = dict(zip(ids, qrels.grades[span].tolist(), strict=True))
        assert c.grades(split) == slow
    assert sum(map(len, c.grades("train").values())) == len(c.qrels("train").passage_rows) > 0


def test_arrays_have_the_records_types(tmp_path):
    qrels = made(tmp_path).qrels("train")
    kinds = [a.dtype for a in (qrels.query_rows, qrels.offsets, qrels.passage_rows, qrels.grades)]
    assert kinds == [np.int32, np.int64, np.int32, np.int32]


ALIKE = [
    "caf\u00e9 au lait",
    "cafe\u0301 au lait",
    "caf\u00e9 au lait ",
    "\ufeffcaf\u00e9\u00a0au  lait\u200b",
    "\n caf\u00e9\tau\u3000lait",
]


def test_texts_that_look_the_same_are_the_same_text(tmp_path):
    c = made(
        tmp_path, [*((str(i), "", one) for i, one in enumerate(ALIKE)), ("o", "", "cafe au lait")], QUERIES, {}
    )
    assert len(set(c.text_keys[:-1].tolist())) == 1
    assert c.text_keys[-1] != c.text_keys[0] == text.hash_strings(ALIKE)[0]  # as it was for canonical texts
    assert list(c.texts)[:-1] == ALIKE  # texts stay as they are


def test_the_canonical_form_is_that_of_each_text_alone():
    """The quick look at many texts finds each that is not in the form; one that is keeps its bytes."""
    rng = random.Random(0)
    letters = [
        "a",
        "b",
        " ",
        "\n",
        "\x1d",
        "\x85",
        "\u00a0",
        "\u00e9",
        "e\u0301",
        "\u200b",
        "\ufeff",
        "\u3000",
        "\u212b",
        "\uac00",
        "\ud800",
    ]
    texts = [
        "".join(rng.choices(letters, [20, 20, 8, *[1] * (len(letters) - 3)], k=rng.randint(0, 12)))
        for _ in range(5000)
    ]
    wanted = [" ".join(unicodedata.normalize("NFC", one).split()).strip(" \u200b\ufeff") for one in texts]
    encoded = [one.encode(errors="surrogatepass") for one in texts]
    found = [one.decode(errors="surrogatepass") for one in text.canonical(encoded)]
    assert found == wanted != texts
    assert [text.canonical([one])[0].decode(errors="surrogatepass") for one in encoded] == wanted
    assert text.hash_texts(texts).tolist() == text.hash_strings(wanted).tolist()
    assert text.canonical([b"plain", b"ascii text"]) == [b"plain", b"ascii text"]
    assert (text.canonical([]), len(text.hash_texts([]))) == ([], 0)


def test_digest_is_blind_to_spelling_and_order_of_queries(tmp_path):
    base = made(tmp_path)
    mappings = [{"id": i, "title": t, "text": x} for i, t, x in PASSAGES]
    mappings[1] = {"_id": "p1", "text": "first text"}
    other = made(
        tmp_path,
        mappings,
        list(reversed(QUERIES.items())),
        {"test": {"q2": {"p1": 1}}, "train": {"q10": ["p10"], "q2": {"p1": 0, "p2": 2.0}}},
        name="elsewhere",
    )
    assert other.digest == base.digest
    assert not base.has_answers


@pytest.mark.parametrize(
    "change",
    [
        {"passages": [("p2", "Zwei", "second text"), *PASSAGES[1:]]},
        {"passages": [("p2", "Two", "other text"), *PASSAGES[1:]]},
        {"passages": [*PASSAGES, ("p3", "", "more")]},
        {"passages": PASSAGES[::-1]},
        {"queries": QUERIES | {"Q": "asked"}},
        {"queries": QUERIES | {"q3": "new"}},
        {"qrels": QRELS | {"test": {"q2": {"p1": 3}}}},
        {"qrels": QRELS | {"test": {"q2": ["p2"]}}},
        {"qrels": QRELS | {"test": {"q2": ["p1"], "Q": []}}},
        {"qrels": {"train": QRELS["train"], "dev": QRELS["test"]}},
        {"answers": {"q2": ["two"]}},
    ],
)
def test_digest_sees_every_part_of_the_content(tmp_path, change):
    assert made(tmp_path, **change).digest != made(tmp_path, name="base").digest


def test_digest_is_blind_to_what_is_derived(tmp_path, monkeypatch):
    base = made(tmp_path)
    collide(monkeypatch, text, building, ready)
    other = made(tmp_path, name="colliding")
    assert other.text_keys.tolist() != base.text_keys.tolist()
    assert other.digest == base.digest


def test_a_query_without_judgements_has_an_empty_span(tmp_path):
    c = made(tmp_path, qrels={"train": {"q2": [], "q10": ["p1"]}})
    assert c.qrels("train").query_rows.tolist() == [1, 2]
    assert c.qrels("train").offsets.tolist() == [0, 1, 1]


def test_unknown_split_is_a_usage_fault(tmp_path):
    with pytest.raises(SettingsError, match="UNKNOWN_SPLIT: no split 'dev'; there are test, train"):
        made(tmp_path).qrels("dev")


def test_lists_go_into_the_cache_once():
    first = Collection.from_lists(PASSAGES, QUERIES, QRELS)
    assert first.path.parent == artifacts.cache_root() / "collections"
    before = (first.path / "manifest.json").stat()
    second = Collection.from_lists(PASSAGES, QUERIES, QRELS)
    assert (second.path, second.digest) == (first.path, first.digest)
    assert (second.path / "manifest.json").stat().st_ino == before.st_ino
    assert Collection.from_lists(PASSAGES[:2], {"q": "x"}, {"test": {"q": ["p1"]}}).path != first.path


def test_a_flipped_byte_is_found(tmp_path):
    c = made(tmp_path)
    file = c.path / "content" / "passages.texts.utf8"
    file.write_bytes(b"X" + file.read_bytes()[1:])
    with pytest.raises(ArtifactError, match="CORRUPT"):
        Collection.open(c.path)


# ---------------------------------------------------------------- faults and what may pass


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"passages": []}, "EMPTY_CORPUS"),
        ({"queries": {}}, "NO_QUERIES"),
        ({"passages": [("", "text")]}, "EMPTY_ID: the passage id is empty"),
        ({"passages": [(" \t", "text")]}, "EMPTY_ID"),
        ({"passages": [("p1", " \n")]}, "EMPTY_TEXT: the text of passage 'p1' is empty"),
        ({"queries": {"q": ""}}, "EMPTY_TEXT: the text of query 'q' is empty"),
        ({"passages": [("p", "a\0b")]}, "NUL: the passage text of 'p' holds a NUL"),
        ({"passages": [("p\0", "ab")]}, "NUL: the passage id holds a NUL"),
        ({"passages": [("p", "a\ud800b")]}, "BAD_UNICODE"),
        ({"passages": [(7.5, "text")]}, "WRONG_TYPE: the passage id is 7.5, not a string"),
        ({"passages": ["text"]}, "BAD_PASSAGE"),
        ({"passages": [("p", 7, "text")]}, "WRONG_TYPE: the title of 'p' is 7, not a string"),
        ({"passages": [{"id": "p", "body": "a"}]}, "BAD_PASSAGE: .* without 'text'; its fields are id, body"),
        ({"passages": [{"doc": "p", "text": "a"}]}, "BAD_PASSAGE: .* without 'id'; its fields are doc, text"),
        ({"queries": [{"id": "q2", "query": "a"}]}, "BAD_QUERY: .* without 'text'; its fields are id, query"),
        ({"passages": DataFrame()}, r"WRONG_TYPE: .* DataFrame; give its records: .*to_dict\('records'\)"),
        ({"qrels": {"a/b": {"q2": ["p1"]}}}, "BAD_SPLIT: a split is named 'a/b'"),
        ({"qrels": {"test": {"q2": {"p1": 1.5}}}}, r"BAD_GRADE: the relevance 1.5 .*\(query 'q2', passage 'p1'\)"),
        ({"qrels": {"test": {"q2": {"p1": 2**31}}}}, "BAD_GRADE"),
        ({"qrels": {"test": {"q2": {"p1": "abc"}}}}, "BAD_GRADE: the relevance 'abc'"),
        ({"qrels": {"test": {"q2": {"p1": float("nan")}}}}, "BAD_GRADE"),
        ({"qrels": {"test": {"q2": {"p1": 10**400}}}}, "BAD_GRADE"),
        (
            {"passages": [*PASSAGES, ("p1", "again")]},
            r"DUPLICATE_ID: passage 'p1' .* record 2; this is record 4",
        ),
        ({"queries": [("q2", "a"), ("q2", "a")]}, "DUPLICATE_ID: query 'q2' is a duplicate"),
    ],
)
def test_faults_leave_nothing_behind(tmp_path, arguments, message):
    with pytest.raises(InputError, match=message):
        made(tmp_path / "new", **arguments)
    assert list(tmp_path.rglob("new/*")) == []


@pytest.mark.parametrize("title", [None, float("nan"), NAType()])
def test_a_title_that_a_table_lacks_is_none(tmp_path, title):
    records = [{"id": "p1", "title": title, "text": "text"}]
    assert list(made(tmp_path, records, None, None).titles) == [""]
    assert list(made(tmp_path, [("p1", title, "text")], None, None, name="pairs").titles) == [""]


def test_answers_of_queries_without_text_are_told(tmp_path, caplog):
    made(tmp_path, answers={"q2": ["two"], "q3": ["three"]})
    assert "answers are given for 1 query without a text, such as 'q3'; they are left out" in caplog.text


def test_unknown_ids_are_named_and_counted(tmp_path):
    qrels = {"train": {"q2": [f"x{i}" for i in range(25)]}, "test": {"nobody": ["p1"], "q10": ["p1"]}}
    with pytest.raises(InputError) as caught:
        made(tmp_path, qrels=qrels)
    message = str(caught.value)
    assert "26 judgements name ids that are not there: passage 'x0' (train), passage 'x1'" in message
    assert "'x9' (train), …" in message
    assert "x10" not in message
    c = made(tmp_path, qrels=qrels, allow_unjudged=True)
    assert c.facts["counts"] == {"unknown_judgements": 26}
    assert c.qrels("train").query_rows.tolist() == [2]  # still asked, though nothing is judged
    assert c.qrels("train").offsets.tolist() == [0, 0]
    assert c.qrels("test").query_rows.tolist() == [1]


def test_the_first_of_duplicates_can_be_kept(tmp_path):
    passages = [*PASSAGES, ("p1", "Title", "other"), ("p4", "", "four"), ("p2", "", "again")]
    c = made(tmp_path, passages, qrels={"test": {"q2": ["p4", "p2"]}}, on_duplicate="first")
    assert list(c.passage_ids) == ["p2", "p1", "p10", "p4"]
    assert list(c.titles) == ["Two", "", "Ten", ""]
    assert list(c.texts) == ["second text", "first text", "second text", "four"]
    assert len(c.text_keys) == 4
    assert c.text_keys[3] == text.hash_strings(["four"])[0]
    assert c.facts["counts"] == {"passage_duplicates": 2}
    assert c.qrels("test").passage_rows.tolist() == [3, 0]
    base = made(tmp_path, [*PASSAGES, ("p4", "four")], qrels={"test": {"q2": ["p4", "p2"]}}, name="base")
    assert c.digest == base.digest


def test_empty_texts_can_be_kept(tmp_path):
    c = made(tmp_path, [("p1", "Title", ""), ("p2", " ")], {"q": ""}, {"test": {"q": ["p1"]}}, allow_empty=True)
    assert c.facts["counts"] == {"empty_passage_texts": 2, "empty_query_texts": 1}
    assert list(c.texts) == ["", " "]


@pytest.mark.parametrize("copied", [3, 100])
def test_passages_without_a_text_are_copies_only_if_their_titles_are_equal(tmp_path, monkeypatch, copied):
    monkeypatch.setattr(text, "COPIED", copied)
    titles = ["One", "Two ", "\u00a0", "", "One", "Two"]
    c = made(tmp_path, [*((str(i), title, " " * (i % 2)) for i, title in enumerate(titles)), ("6", "", "Three")],
             {"q": "which"}, {"train": {"q": ["0"]}}, allow_empty=True)  # fmt: skip
    assert len(set(c.text_keys.tolist())) == 5
    assert c.copies.tolist() == [0, 1, -1, -1, 0, 1, -1]
    assert text.NO_TEXT not in c.text_keys
    positives = c.qrels("train").positives()
    known = is_known(positives, np.zeros(7, np.int64), np.arange(7), c.text_keys)
    assert np.flatnonzero(known).tolist() == [0, 4]  # the others may be negatives


def test_more_rows_than_int32_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(checks, "MAX_ROWS", 2)
    with pytest.raises(InputError, match="TOO_MANY: more than 2 passages"):
        made(tmp_path)


def test_a_folder_that_is_taken_is_left_alone(tmp_path):
    first = made(tmp_path)
    with pytest.raises(ArtifactError, match="EXISTS"):
        made(tmp_path, [("p", "text")], {"q": "x"}, {"test": {"q": ["p"]}})
    assert Collection.open(first.path).digest == first.digest


# ---------------------------------------------------------------- held-out queries


def asked(tmp_path, n, name="asked", extra=()):
    queries = {**{f"q{i}": f"question {i}" for i in range(n)}, **dict.fromkeys(extra, "more")}
    qrels = {"train": {f"q{i}": ["p1"] if i % 3 else [] for i in range(n)}}
    return made(tmp_path, queries=queries, qrels=qrels, name=name)


def test_hold_out_parts_the_queries(tmp_path):
    c = asked(tmp_path, 60)
    train, dev = hold_out(c.qrels("train"), c.query_ids, seed=3)
    assert (len(train), len(dev)) == (54, 6)
    assert sorted([*train.query_rows, *dev.query_rows]) == list(range(60))
    for part in (train, dev):
        assert (np.diff(part.query_rows) > 0).all()
        judged = [int(id_[1:]) % 3 > 0 for id_ in c.query_ids.take(part.query_rows)]
        assert np.diff(part.offsets).tolist() == judged
    again = hold_out(c.qrels("train"), c.query_ids, seed=3)[1]
    other = hold_out(c.qrels("train"), c.query_ids, seed=4)[1]
    assert again.query_rows.tolist() == dev.query_rows.tolist() != other.query_rows.tolist()


def test_hold_out_depends_on_ids_not_rows(tmp_path):
    few = asked(tmp_path, 60)
    more = asked(tmp_path, 60, "more", extra=[f"a{i}" for i in range(7)])
    held = [
        sorted(c.query_ids.take(hold_out(c.qrels("train"), c.query_ids, seed=0)[1].query_rows))
        for c in (few, more)
    ]
    assert held[0] == held[1]


@pytest.mark.parametrize(
    ("n", "most", "expected"), [(1, 500, 0), (2, 500, 1), (9, 500, 1), (40, 3, 3), (39, 500, 3)]
)
def test_hold_out_sizes(tmp_path, n, most, expected):
    c = asked(tmp_path, n)
    train, dev = hold_out(c.qrels("train"), c.query_ids, seed=0, most=most)
    assert (len(train), len(dev)) == (n - expected, expected)


def with_texts(tmp_path, texts):
    """A collection of queries with these texts, all of them in train."""
    queries = {f"q{i:03d}": text for i, text in enumerate(texts)}
    return made(tmp_path, queries=queries, qrels={"train": {name: ["p1"] for name in queries}})


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("most", [3, 7, 500])
def test_queries_with_the_same_text_are_held_out_together(tmp_path, monkeypatch, seed, most):
    """Equal to a plain loop: texts come in the order of their first query, until one does not fit."""
    monkeypatch.setattr(collection, "RARE", 30)  # so texts of up to three queries
    texts = [f"question {i % 23}" if i % 3 else "often" if i % 2 else f"own {i}" for i in range(90)]
    c = with_texts(tmp_path, texts)
    expected, before, full = set(), set(), False
    for n in range(1, 91):
        drawn = hold_out(c.qrels("train"), c.query_ids, seed=seed, share=(n + 0.5) / 90)[1].query_rows
        (row,) = set(drawn.tolist()) - before  # the next one in the order of the ids' hashes
        before.add(row)
        same = {i for i in range(90) if texts[i] == texts[row]}
        full = full or (len(same) <= 3 and len(expected | same) > min(most, 9))
        if len(same) <= 3 and not full:
            expected |= same
    train, dev = hold_out(c.qrels("train"), c.query_ids, seed=seed, most=most, texts=c.query_texts)
    assert set(dev.query_rows.tolist()) == expected
    assert len(expected) > 0
    assert sorted([*train.query_rows, *dev.query_rows]) == list(range(90))


@pytest.mark.parametrize("seed", range(6))
def test_a_smaller_draw_of_whole_texts_is_a_part_of_a_larger_one(tmp_path, seed):
    """Experiments with other ``dev_queries`` are compared on the smaller dev."""
    texts = ["often" if i < 40 else f"question {i // (1 + i % 4)}" for i in range(400)]
    c = with_texts(tmp_path, texts)
    draws = [
        set(
            hold_out(c.qrels("train"), c.query_ids, seed=seed, most=most, texts=c.query_texts)[
                1
            ].query_rows.tolist()
        )
        for most in (1, 2, 3, 5, 8, 13, 20, 30, 40)
    ]
    for small, large in itertools.pairwise(draws):
        assert small <= large
    assert len(draws[-1]) > 30
    assert not any(texts[i] == "often" for i in draws[-1])


def test_texts_are_parted_only_where_none_fits(tmp_path):
    pairs = with_texts(tmp_path, [f"question {i // 2}" for i in range(10)])
    for seed in range(4):
        dev = hold_out(pairs.qrels("train"), pairs.query_ids, seed=seed, texts=pairs.query_texts)[1].query_rows
        assert len(dev) == 2
        assert dev[0] // 2 == dev[1] // 2
        parted = hold_out(pairs.qrels("train"), pairs.query_ids, seed=seed, most=1, texts=pairs.query_texts)[1]
        assert len(parted) == 1
        assert parted.query_rows[0] in dev
    (tmp_path / "one").mkdir()
    one = with_texts(tmp_path / "one", ["the same"] * 10)
    assert len(hold_out(one.qrels("train"), one.query_ids, seed=0, texts=one.query_texts)[1]) == 1


def test_any_format_opens_and_a_file_that_is_no_folder_says_how(tmp_path):
    import hardneg as hn

    table = tmp_path / "pairs.csv"
    table.write_text("anchor,positive\nwhat jumps,The fox jumps.\nwho sleeps,The dog sleeps.\n")
    collection = hn.open_collection(str(table), cache=tmp_path / "cache")
    assert (collection.n_passages, collection.n_queries) == (2, 2)
    assert hn.open_collection(collection) is collection
    assert hn.open_collection(collection.path).digest == collection.digest
    for place in (table, tmp_path / "nothing"):
        with pytest.raises(
            ArtifactError,
            match=r"NO_MANIFEST: this is not the folder .*; open other formats with hardneg.open_collection",
        ):
            Collection.open(place)


def test_a_pickled_collection_is_opened_again(tmp_path):
    collection = made(tmp_path)
    found = pickle.loads(pickle.dumps(collection))
    assert (found.path, found.digest) == (collection.path, collection.digest)
    assert found.columns() == collection.columns()
    kept = pickle.dumps(collection)
    Collection.from_lists(PASSAGES[:1], to=tmp_path / "other")
    collection.path.rename(tmp_path / "before")
    (tmp_path / "other").rename(collection.path)
    with pytest.raises(ArtifactError, match="INPUT_CHANGED"):
        pickle.loads(kept)


def test_a_set_of_positives_has_an_order(tmp_path):
    """That of Python's sets of strings differs from process to process."""
    many = {f"p{i}" for i in range(30)}
    qrels = {"train": {"q1": many}}
    passages = {name: f"text of {name}" for name in sorted(many, reverse=True)}
    found = Collection.from_lists(passages, {"q1": "a question"}, qrels, to=tmp_path / "c").qrels("train")
    ids = Collection.open(tmp_path / "c").passage_ids.take(found.passage_rows)
    assert ids == sorted(many)


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        (
            {"passages": [("1", "a"), ("1", "b")]},
            '(1 duplicate in all); remove one, or keep the first by on_duplicate="first"',
        ),
        ({"qrels": {"train": {"q": ["9"]}}}, "drop and count these by allow_unjudged=True"),
    ],
)
def test_faults_of_lists_name_keywords(tmp_path, changes, told):
    lists = {"passages": [("1", "a")], "queries": {"q": "x"}, "qrels": {"train": {"q": ["1"]}}} | changes
    with pytest.raises(InputError) as caught:
        Collection.from_lists(**lists, to=tmp_path / "made")
    assert told in str(caught.value)
    assert "hardneg import" not in str(caught.value)
