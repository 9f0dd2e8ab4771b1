"""DPR's, Tevatron's and TREC's folders, and that every convention gives the same collection."""

import gzip
import json
import tracemalloc

import pytest

from formats import conventions
from formats.conventions import Plain, jsonl, otherwise, quoted, tsv, write
from hardneg.data.collection import Collection
from hardneg.data.formats import arrays, lines
from hardneg.data.importing import detect, import_collection
from hardneg.errors import InputError, SettingsError

ODD = [
    ("p1", "A title", 'a lone " quote'),
    ("p2", '"Heroes"', '"quoted" at its start'),
    ("p3", "", "naïve ☃ \u2028 line separator, \\n no newline"),
    ("10", "Plain", "'single' \\\" backslash"),
]
ANSWERED = Plain(
    ODD,
    {"train": [("q2", "who?", ["me", 'the "I"']), ("q1", 'what is "it"', ["ü"])], "dev": [("q3", "why", [])]},
    {"train": {"q2": {"p3": 1, "p1": 1}, "q1": {"10": 1}}, "dev": {"q3": {"p2": 1}}},
)
GRADED = Plain(
    ODD,
    {"train": [("q2", "who?", []), ("q1", 'what is "it"', [])], "test": [("q3", "why", [])]},
    {"train": {"q2": {"p3": 2, "p1": 0}, "q1": {"10": 1}}, "test": {"q3": {"p2": 3, "p1": -1}}},
)


def from_lists(plain, to):
    queries = conventions.distinct_queries(plain)
    answers = {i: given for each in plain.queries.values() for i, _, given in each if given}
    return Collection.from_lists(plain.passages, queries, plain.qrels, answers=answers, to=to)


def files(folder, **content):
    """A folder of files; ``__`` in a name stands for a dot, and None for no file."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in content.items():
        if text is None:
            continue
        path = folder / name.replace("__", ".")
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return folder


def fault(source, tmp_path, **options):
    with pytest.raises(InputError) as caught:
        import_collection(str(source), tmp_path / "never", **options)
    assert not (tmp_path / "never").exists()
    return str(caught.value).removeprefix(f"{source}/").removeprefix(f"{tmp_path}/")


# ---------------------------------------------------------------- one digest


@pytest.mark.parametrize("name", conventions.able(ANSWERED))
def test_conventions_with_answers_give_one_digest(tmp_path, name):
    plain = import_collection(str(write(name, ANSWERED, tmp_path / "in")), tmp_path / "a")
    other = import_collection(str(write(name, ANSWERED, tmp_path / "other", otherwise, ".gz")), tmp_path / "b")
    assert plain.digest == other.digest == from_lists(ANSWERED, tmp_path / "c").digest
    assert plain.answers(int(plain.query_ids.rows(["q2"])[0])) == ["me", 'the "I"']


@pytest.mark.parametrize("name", conventions.able(GRADED))
def test_conventions_with_grades_give_one_digest(tmp_path, name):
    plain = import_collection(str(write(name, GRADED, tmp_path / "in")), tmp_path / "a")
    other = import_collection(str(write(name, GRADED, tmp_path / "other", otherwise, ".gz")), tmp_path / "b")
    assert plain.digest == other.digest == from_lists(GRADED, tmp_path / "c").digest


def test_the_digest_is_of_ids_texts_queries_judgements_and_answers(tmp_path):
    # or the tests above could not fail
    base = from_lists(ANSWERED, tmp_path / "base").digest
    passages, queries, qrels = ANSWERED.passages, ANSWERED.queries, ANSWERED.qrels
    others = [
        Plain(
            [("p0", *passages[0][1:]), *passages[1:]],
            queries,
            {**qrels, "train": {"q1": {"10": 1}, "q2": {"p3": 1}}},
        ),
        Plain([("p1", "Another", passages[0][2]), *passages[1:]], queries, qrels),
        Plain([*passages[:3], ("10", "Plain", "other")], queries, qrels),
        Plain(passages[::-1], queries, qrels),
        Plain(passages, {**queries, "dev": [("q3", "how", [])]}, qrels),
        Plain(passages, {**queries, "dev": [("q3", "why", ["so"])]}, qrels),
        Plain(passages, queries, {**qrels, "dev": {"q3": {"p1": 1}}}),
        Plain(passages, queries, {**qrels, "dev": {"q3": {"p2": 2}}}),
        Plain(
            passages,
            {"train": queries["train"], "test": queries["dev"]},
            {"train": qrels["train"], "test": qrels["dev"]},
        ),
    ]
    digests = {from_lists(other, tmp_path / str(i)).digest for i, other in enumerate(others)}
    assert len(digests | {base}) == len(others) + 1
    turned = Plain(passages, {split: each[::-1] for split, each in reversed(queries.items())}, qrels)
    assert from_lists(turned, tmp_path / "turned").digest == base


@pytest.mark.parametrize("name", conventions.ALL)
def test_the_convention_is_told_by_the_names_of_the_files(tmp_path, name):
    format = name.split()[0]
    assert detect(str(write(name, ANSWERED, tmp_path / "in"))) == format
    assert detect(str(write(name, ANSWERED, tmp_path / "gz", gzip.compress, ".gz"))) == format


@pytest.mark.parametrize(
    ("names", "format"),
    [
        (["train.jsonl"], "tevatron"),
        (["nq-train.json.gz"], "dpr"),
        (["collection.tsv", "queries.dev.small.tsv"], "msmarco"),
        (["corpus.tsv", "queries.dl19.tsv", "topics.dl20.tsv"], "trec"),
        (["msmarco-docs.tsv.gz"], "msmarco"),
    ],
)
def test_other_folders_are_told_too(tmp_path, names, format):
    for name in names:
        (tmp_path / name).touch()
    assert detect(str(tmp_path)) == format


# ---------------------------------------------------------------- inline passages


@pytest.mark.parametrize("name", ["dpr inline", "tevatron 1"])
def test_without_a_corpus_it_is_what_stands_in_the_records(tmp_path, name):
    folder = write(name, ANSWERED, tmp_path / "in")
    for corpus in ("psgs_w100.tsv", "corpus.jsonl"):
        (folder / corpus).unlink(missing_ok=True)
    c = import_collection(str(folder), tmp_path / "out", format=name.split()[0])
    first, *_, last = ODD
    splits = sorted(ANSWERED.queries)  # files are read in order of name
    seen = [
        [*ANSWERED.qrels[split][query], (first if name == "dpr inline" else last)[0]]
        for split in splits
        for query, *_ in ANSWERED.queries[split]
    ]
    expected = list(dict.fromkeys(i for ids in seen for i in ids))
    assert list(c.passage_ids) == expected
    by_id = {i: (title, text) for i, title, text in ODD}
    assert list(zip(c.titles, c.texts, strict=True)) == [by_id[i] for i in expected]
    assert c.qrels("train").offsets.tolist() == [0, 1, 3]


def test_a_passage_without_an_id_is_named_by_its_text(tmp_path):
    one, two = {"title": "t", "text": "x"}, {"title": "", "text": "tx"}
    records = [
        {"question": "a", "positive_ctxs": [one, one], "hard_negative_ctxs": [two]},
        {"question": "b", "answers": "yes", "positive_ctxs": [two]},
    ]
    c = import_collection(str(files(tmp_path / "in", train__json=json.dumps(records))), tmp_path / "out")
    assert (list(c.titles), list(c.texts)) == (["t", ""], ["x", "tx"])
    assert list(c.query_ids) == ["train-0", "train-1"]
    assert c.answers(1) == ["yes"]
    assert c.qrels("train").passage_rows.tolist() == [0, 1]


def test_one_id_with_two_texts_is_refused_with_both_lines(tmp_path):
    records = [
        {"query_id": i, "query": "x", "positive_passages": [{"docid": "p", "title": "", "text": text}]}
        for i, text in enumerate(("one", "one", "two"))
    ]
    folder = files(tmp_path / "in", train__jsonl=jsonl(records))
    message = "train.jsonl:3: DUPLICATE_ID: passage 'p' is a duplicate of the one at line 1 of train.jsonl"
    assert fault(folder, tmp_path).startswith(message)
    c = import_collection(str(folder), tmp_path / "out", on_duplicate="first")
    assert list(c.texts) == ["one"]


# ---------------------------------------------------------------- what each convention has of its own


def test_dpr_questions_as_rows_and_what_is_ignored(tmp_path):
    rows = [("who", "['a', \"b's\"]"), ('say "x"', '["1"]')]
    dev = [{"qid": 3, "question": "q", "positive_ctxs": [7], "hard_negative_ctxs": [], "source": "z"}]
    folder = files(
        tmp_path / "in",
        psgs_w100__tsv=quoted([("id", "text", "title", "wiki"), (7, 'the "body"', "T", 1)]),
        dev__jsonl=jsonl(dev),
    )
    (folder / "nq-test.qa.csv").write_text(quoted(rows))
    c = import_collection(str(folder), tmp_path / "out")
    assert c.splits == ("dev", "test")
    assert (c.titles[0], c.texts[0]) == ("T", 'the "body"')
    assert list(c.query_ids) == ["3", "test-0", "test-1"]
    assert [c.answers(i) for i in range(3)] == [[], ["a", "b's"], ["1"]]
    assert c.qrels("test").offsets.tolist() == [0, 0, 0]
    assert c.facts["ignored_fields"] == {"hard_negative_ctxs": 1, "source": 1, "wiki": 1}


def test_a_topic_is_in_the_splits_that_judge_it(tmp_path):
    folder = files(
        tmp_path / "in",
        corpus__tsv=tsv([("a", "text"), ("b", "more")]),
        topics__one__tsv=tsv([("q1", "x"), ("q2", "y"), ("q3", "z")]),
        topics__two__tsv=tsv([("q1", "x"), ("q2", "y")]),
        qrels__one__txt="q1 0 a 1\n",
        qrels__two__txt="#\nq1 0 b 1\nq2 0 b 0\n",
    )
    c = import_collection(f"trec:{folder}", tmp_path / "out")
    assert list(c.query_ids) == ["q1", "q2", "q3"]
    assert {split: c.qrels(split).query_rows.tolist() for split in c.splits} == {"one": [0], "two": [0, 1]}
    (folder / "topics.two.tsv").write_text(tsv([("q1", "other")]))
    assert fault(folder, tmp_path).startswith(
        "topics.two.tsv:1: DUPLICATE_ID: query 'q1' is a duplicate of the one at line 1"
    )


def test_topics_and_qrels_alone_are_the_test_split(tmp_path):
    folder = files(
        tmp_path / "in",
        corpus__tsv="a\ttext\n",
        topics__tsv="q\tx\n",
        qrels__txt="q 0 a 1\n",
        readme__md="no data",
    )
    assert import_collection(f"trec:{folder}", tmp_path / "out").splits == ("test",)


def test_ids_may_hold_blanks_that_are_not_of_ascii(tmp_path):
    passages, queries = ["東京\u3000駅", "a\u00a0b", "c\u2028d"], ["q\u30001", "q\x852"]
    folder = files(
        tmp_path / "in",
        corpus__tsv=tsv([(passage, "text") for passage in passages]),
        topics__test__tsv=tsv([(query, "x") for query in queries]),
        qrels__test__txt="".join(f"{query} 0 {passage}\t1\n" for query in queries for passage in passages),
    )
    c = import_collection(f"trec:{folder}", tmp_path / "out")
    assert c.passage_ids.take(c.qrels("test").passage_rows) == passages * 2


def test_official_names_of_ms_marco(tmp_path):
    folder = files(tmp_path / "in", collection__tsv="1\ttext\n")
    (folder / "queries.dev.small.tsv").write_text("q\tx\n")
    (folder / "qrels.dev.small.tsv").write_text("q\t0\t1\t1\n")
    assert import_collection(str(folder), tmp_path / "out").splits == ("dev.small",)
    assert fault(f"msmarco-docs:{folder}", tmp_path).startswith("in/msmarco-docs.tsv: NOT_FOUND")


# ---------------------------------------------------------------- faults

PSGS = quoted([("id", "text", "title"), ("1", "body", "T")])
ASKED = jsonl([{"qid": "q", "question": "x", "positive_ctxs": ["1"]}])


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"train__json": ""}, "train.json: EMPTY_FILE"),
        ({"train__json": "[]"}, "train.json: EMPTY_FILE"),
        (
            {"train__json": '[{"positive_ctxs": [{"text": "x"}]},\n{}]'},
            "train.json:1: MISSING_FIELD: the field 'question' is missing",
        ),
        (
            {"train__json": '[\n{"question": "a"}\n{"question": "b"}]'},
            "train.json:3: BAD_JSON: '{' where ',' or ']'",
        ),
        ({"train__json": '[\n{"question": "a"},\n'}, "train.json:3: BAD_JSON: not valid JSON (Expecting value)"),
        ({"train__json": '[\n{"question": "a"}\n'}, "train.json:3: BAD_JSON: 'the end of the file' where"),
        ({"train__json": '[{"question": "a"}]\n[]'}, "train.json:2: BAD_JSON: more text after the array's end"),
        ({"train__json": '[\n\n{"question": nope}]'}, "train.json:3: BAD_JSON: not valid JSON (Expecting value)"),
        ({"train__json": '[\n"text"]'}, "train.json:2: BAD_JSON: a text where an object is expected"),
        ({"train__json": "[" * 100_000}, "train.json:1: BAD_JSON"),
        ({"train__json": '[{"a": ' + "1" * 5000 + "}]"}, "train.json:1: BAD_JSON"),
        ({"train__json": b'[\n{"question": "\xe9"}]'}, "train.json:2: BAD_UTF8: not UTF-8 at byte 15 (0xe9)"),
        ({"train__json": b'[\n{"question": "\xc3'}, "train.json:2: BAD_UTF8: not UTF-8 at byte 15 (0xc3)"),
        (
            {"train__jsonl": jsonl([{"question": "x", "positive_ctxs": ["1"]}])},
            "train.jsonl:1: NO_CORPUS: 'positive_ctxs' names passage '1' by its id, but no corpus is here",
        ),
        (
            {"train__jsonl": jsonl([{"question": "x", "positive_ctxs": [{"text": 1}]}])},
            "train.jsonl:1: WRONG_TYPE",
        ),
        (
            {"train__jsonl": jsonl([{"question": "x", "positive_ctxs": [{"title": "only"}]}])},
            "train.jsonl:1: MISSING_FIELD: the field 'text' is missing",
        ),
        ({"train__jsonl": jsonl([{"question": "x", "positive_ctxs": ""}])}, "train.jsonl:1: WRONG_TYPE"),
        ({"psgs_w100__tsv": "p1\tbody\tT\n", "dev__jsonl": ASKED}, "psgs_w100.tsv:1: NO_HEADER"),
        (
            {"psgs_w100__tsv": PSGS + '2\t"open\tT\n', "dev__jsonl": ASKED},
            "psgs_w100.tsv:3: BAD_QUOTING: a quoted",
        ),
        (
            {"psgs_w100__tsv": PSGS + '2\t"a\nb"\tT\n', "dev__jsonl": ASKED},
            "psgs_w100.tsv:3: BAD_QUOTING: a quoted",
        ),
        (
            {"psgs_w100__tsv": PSGS + '2\t"' + "x" * 200_000 + '"\tT\n', "dev__jsonl": ASKED},
            "psgs_w100.tsv:3: BAD_QUOTING: the quoted columns cannot be read (field larger",
        ),
        ({"psgs_w100__tsv": PSGS + '2\t"a"\n', "dev__jsonl": ASKED}, "psgs_w100.tsv:3: WRONG_COLUMNS: 2 tab"),
        ({"psgs_w100__tsv": PSGS}, ": NOT_FOUND: no <split>.json or .jsonl here"),
        (
            {"psgs_w100__tsv": PSGS, "dev__jsonl": ASKED.replace('["1"]', '["2"]')},
            "dev.jsonl:1: UNKNOWN_ID: 1 judgement names an id that is not there: passage '2' (dev, line 1)",
        ),
        ({"psgs_w100__tsv": PSGS, "test__qa__csv": "who\t[1]\n"}, "test.qa.csv:1: WRONG_TYPE: the answers '[1]'"),
        ({"psgs_w100__tsv": PSGS, "test__qa__csv": "who\t['a' 'b']\n"}, "test.qa.csv:1: WRONG_TYPE: the answers"),
        ({"psgs_w100__tsv": PSGS, "test__qa__csv": "who\tos.remove('x')\n"}, "test.qa.csv:1: WRONG_TYPE"),
        ({"psgs_w100__tsv": PSGS, "test__qa__csv": "who\n"}, "test.qa.csv:1: WRONG_COLUMNS"),
        (
            {"psgs_w100__tsv": PSGS, "nq-dev__json": ASKED, "dev__jsonl": ASKED},
            "nq-dev.json: AMBIGUOUS: two files of split 'dev'",
        ),
    ],
)
def test_dpr_faults(tmp_path, content, message):
    folder = files(tmp_path / "in", **content)
    assert fault(f"dpr:{folder}", tmp_path).removeprefix("in/").removeprefix("in").startswith(message)


CORPUS = jsonl([{"docid": 1, "text": "body"}])


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"train__jsonl": None}, ": NOT_FOUND: no <split>.jsonl here"),
        (
            {"train__jsonl": jsonl([{"query": "x"}])},
            "train.jsonl:1: MISSING_FIELD: the field 'query_id' is missing",
        ),
        (
            {"train__jsonl": jsonl([{"query_id": "q"}])},
            "train.jsonl:1: MISSING_FIELD: the field 'query' is missing",
        ),
        ({"corpus__jsonl": jsonl([{"text": "x"}])}, "corpus.jsonl:1: MISSING_FIELD: the field 'docid' is missing"),
        ({"corpus__jsonl": jsonl([{"docid": "x"}])}, "corpus.jsonl:1: MISSING_FIELD: the field 'text' is missing"),
        ({"corpus__jsonl": CORPUS + CORPUS}, "corpus.jsonl:2: DUPLICATE_ID"),
    ],
)
def test_tevatron_faults(tmp_path, content, message):
    asked = {"train__jsonl": jsonl([{"query_id": "q", "query": "x", "positive_document_ids": ["1"]}])}
    folder = files(tmp_path / "in", **({"corpus__jsonl": CORPUS} | asked | content))
    assert fault(f"tevatron:{folder}", tmp_path).removeprefix("in/").removeprefix("in").startswith(message)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"qrels__test__txt": None}, ": NOT_FOUND: no qrels.<split>.txt here"),
        ({"topics__test__tsv": None}, ": NOT_FOUND: no topics.<split>.tsv here"),
        ({"corpus__tsv": None}, "/corpus.tsv: NOT_FOUND"),
        ({"collection__tsv": "a\tx\n"}, "/corpus.tsv: AMBIGUOUS: collection.tsv is here too"),
        ({"qrels__test__txt": "q 0 a\n"}, "/qrels.test.txt:1: WRONG_COLUMNS: 3 columns where 4"),
        ({"qrels__test__txt": "#\nq 0 a x\n"}, "/qrels.test.txt:2: BAD_GRADE"),
        ({"corpus__tsv": "a\tx\nb\n"}, "/corpus.tsv:2: WRONG_COLUMNS"),
        ({"topics__test__tsv": "q\tx\ty\n"}, "/topics.test.tsv:1: WRONG_COLUMNS"),
    ],
)
def test_trec_faults(tmp_path, content, message):
    sound = {"corpus__tsv": "a\tx\n", "topics__test__tsv": "q\tx\n", "qrels__test__txt": "q 0 a 1\n"}
    folder = files(tmp_path / "in", **(sound | content))
    assert fault(f"trec:{folder}", tmp_path).removeprefix("in").startswith(message)


def test_unknown_formats_are_refused(tmp_path):
    with pytest.raises(SettingsError, match="did you mean tevatron"):
        import_collection(f"tevatrn:{tmp_path}", tmp_path / "out")
    assert fault("dpr:nowhere", tmp_path).startswith("nowhere: NOT_FOUND: no such folder")


# ---------------------------------------------------------------- streams


@pytest.mark.parametrize("chunk", [1, 7, 1 << 20])
def test_arrays_are_read_the_same_whatever_the_chunk(tmp_path, monkeypatch, chunk):
    monkeypatch.setattr(lines, "CHUNK", chunk)
    records = [{"é": "\\u00e9 \n", "n": [1.5, None, True, -12]}, {}, {"long": "x" * 100, "nested": [{"a": {}}]}]
    path = tmp_path / "a.json"
    for spelled in (json.dumps(records, ensure_ascii=False), json.dumps(records), json.dumps(records, indent=1)):
        path.write_text(spelled + "\n")
        assert [fields for _, fields in arrays.read_records(path)] == records
    numbers = [number for number, _ in arrays.read_records(path)]
    assert [spelled.split("\n")[number - 1].strip()[0] for number in numbers] == ["{"] * 3
    path.write_text(jsonl(records))
    assert list(arrays.read_records(path)) == list(enumerate(records, 1))


def test_a_record_without_end_is_refused_in_little_memory(tmp_path, monkeypatch):
    monkeypatch.setattr(arrays, "MAX_LINE", 1 << 20)
    path = tmp_path / "a.json"
    path.write_text('[{"a": 1},\n{"b": "' + "x" * (8 << 20))
    tracemalloc.start()
    with pytest.raises(InputError, match=r"a\.json:2: LONG_LINE: a record of more than 1,048,576 characters"):
        list(arrays.read_records(path))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 12 << 20


def big_psgs(n):
    return quoted([("id", "text", "title"), *((i, f'"{i}" ' + "words " * 200, "T") for i in range(n))])


def big_array(n):
    text = "words " * 200
    return json.dumps(
        [{"question": f"{i} {text}", "positive_ctxs": [{"title": "", "text": "same"}]} for i in range(n)]
    )


@pytest.mark.parametrize(
    "content",
    [
        lambda n: {"psgs_w100__tsv": big_psgs(n), "dev__jsonl": ASKED.replace('["1"]', '["0"]')},
        lambda n: {"train__json": big_array(n)},
    ],
)
def test_texts_are_not_held_in_memory(tmp_path, content):
    folder = files(tmp_path / "in", **content(8_000))
    tracemalloc.start()
    import_collection(f"dpr:{folder}", tmp_path / "out")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert sum(path.stat().st_size for path in folder.iterdir()) > 9.5e6
    assert peak < 8.5e6  # below the texts, whatever else the process allocates meanwhile
