"""``hardneg import --check``: all faults of a source at once, with counts, and nothing written."""

import gzip
import json

import pytest
from test_conventions import ANSWERED, GRADED

import hardneg as hn
from formats.conventions import Plain, write
from hardneg.cli import run
from hardneg.data.importing import import_collection
from hardneg.errors import InputError


def told(place, **options):
    """The kinds of faults of a check, without the folder."""
    found = hn.check_import(place, **options)
    return found, [str(fault).removeprefix(f"{place}/") for fault in found.faults]


def jsonl(rows):
    return "".join(json.dumps(row) + "\n" if isinstance(row, dict) else row + "\n" for row in rows)


@pytest.mark.parametrize("plain", [ANSWERED, GRADED])
@pytest.mark.parametrize("name", ["beir", "msmarco", "qa", "dpr inline", "tevatron 1", "trec"])
def test_a_sound_source_has_no_fault(tmp_path, plain, name):
    if name in ("beir", "msmarco", "trec") and plain is ANSWERED:
        plain = Plain(
            plain.passages, {s: [(*q[:2], []) for q in each] for s, each in plain.queries.items()}, plain.qrels
        )
    if name not in ("beir", "msmarco", "trec") and plain is GRADED:
        pytest.skip("has no grades")
    place = write(name, plain, tmp_path / "in")
    found, lines = told(place)
    c = import_collection(place, tmp_path / "c")
    assert (lines, found.total, found.whole) == ([], 0, True)
    assert found.passages == c.n_passages
    assert found.judgements == sum(len(c.qrels(split).passage_rows) for split in c.splits)
    judged = {split: c.qrels(split) for split in c.splits}
    assert found.splits == {
        split: {"judgements": len(qrels.passage_rows), "queries": len(qrels)}
        for split, qrels in judged.items()
        if len(qrels)
    }


def broken(folder):
    """A BEIR folder with many faults of several kinds."""
    (folder / "qrels").mkdir(parents=True)
    corpus = [{"_id": f"p{i}", "text": f"text {i}"} for i in range(6)]
    corpus[1:1] = [
        "no json",
        {"_id": "p0", "text": "again"},
        {"_id": "x"},
        {"_id": "y", "text": " "},
        {"_id": 1.5, "text": "z"},
    ]
    (folder / "corpus.jsonl").write_bytes(
        jsonl(corpus).encode() + b'{"_id": "q", "text": "caf\xe9"}\n{"_id": "r"}\n'
    )
    (folder / "queries.jsonl").write_text(jsonl([{"_id": "q1", "text": "one"}, {"_id": "", "text": "two"}, "[1]"]))
    rows = ["q1\tp0\t1", "q1\tp0\t1", "q1\tp1\thigh", "q9\tp2\t1", "q1\tp9\t1", "q1\tp2"]
    (folder / "qrels" / "train.tsv").write_text("\n".join(["query-id\tcorpus-id\tscore", *rows]) + "\n")
    return folder


def test_all_faults_are_told_at_once_with_their_counts(tmp_path):
    place = broken(tmp_path / "in")
    found, lines = told(place)
    starts = [
        "corpus.jsonl:2: BAD_JSON: not valid JSON",
        "corpus.jsonl:3: DUPLICATE_ID: a passage is a duplicate of the one at line 1 of corpus.jsonl (1",
        "corpus.jsonl:4: MISSING_FIELD: the field 'text' is missing (found: _id) (2 such errors, lines 4, 13)",
        "corpus.jsonl:5: EMPTY_TEXT: the text of passage 'y' is empty",
        "corpus.jsonl:6: WRONG_TYPE: the field '_id' is 1.5, not a string",
        "corpus.jsonl:12: BAD_UTF8: not UTF-8 at byte 26",
        "queries.jsonl:2: EMPTY_ID",
        "queries.jsonl:3: BAD_JSON: a list where an object is expected",
        "qrels/train.tsv:3: DUPLICATE_ID: this judgement is a duplicate of the one at line 2 of train.tsv",
        "qrels/train.tsv:4: BAD_GRADE: the relevance 'high'",
        "qrels/train.tsv:5: UNKNOWN_ID: 2 judgements name ids that are not there: query 'q9' (train, line 5),",
        "qrels/train.tsv:7: WRONG_COLUMNS: 2 tab-separated columns where 3 are expected",
    ]
    assert len(lines) == len(starts)
    for line, start in zip(lines, starts, strict=True):
        assert line.startswith(start)
    assert (found.passages, found.queries, found.total, found.whole) == (6, 1, 14, True)
    assert not (tmp_path / "c").exists()


def test_answers_that_an_import_refuses_are_told(tmp_path):
    place = tmp_path / "in"
    place.mkdir()
    (place / "psgs_w100.tsv").write_text("id\ttext\ttitle\n1\ta\tb\n")
    rows = [
        {"qid": str(i), "question": "who", "answers": ["x", answer], "positive_ctxs": ["1"]}
        for i, answer in enumerate(["\ud800", "a\0b", "y"])
    ]
    (place / "train.json").write_text("\n".join(map(json.dumps, rows)) + "\n")
    found, lines = told(place)
    assert (found.queries, found.judgements) == (1, 1)
    assert lines == [
        "train.json:1: BAD_UNICODE: the answer holds a lone surrogate; correct the text",
        "train.json:2: NUL: the answer holds a NUL; remove it",
    ]
    with pytest.raises(InputError, match=r"train\.json:1: BAD_UNICODE: the answer"):
        import_collection(place, tmp_path / "c")


def test_what_the_rules_let_pass_is_counted(tmp_path):
    found, lines = told(broken(tmp_path / "in"), allow_empty=True, allow_unjudged=True, on_duplicate="first")
    assert not [line for line in lines if "EMPTY_TEXT" in line or "UNKNOWN_ID" in line or "DUPLICATE_ID" in line]
    assert found.counted == {
        "empty_passage_texts": 1,
        "passage_duplicates": 1,
        "unknown_judgements": 2,
        "judgement_duplicates": 1,
    }


def test_a_fault_that_ends_a_file_is_told_and_the_others_are_read(tmp_path):
    place = write("beir", GRADED, tmp_path / "in")
    packed = gzip.compress((place / "corpus.jsonl").read_bytes(), mtime=0)[:-9]
    (place / "corpus.jsonl").unlink()
    (place / "corpus.jsonl.gz").write_bytes(packed)
    found, lines = told(place)
    assert lines[0].startswith("corpus.jsonl.gz: TRUNCATED_GZIP")
    assert (found.whole, found.queries) == (False, 3)


def test_pairs_are_told_once_though_they_are_read_three_times(tmp_path):
    (tmp_path / "a.jsonl").write_text(
        jsonl([{"query": "q", "pos": 7}, {"query": 1, "pos": "p"}, {"query": "r", "pos": "p"}])
    )
    found = hn.check_import(str(tmp_path / "a.jsonl"))
    [line] = map(str, found.faults)
    assert "a.jsonl:1: WRONG_TYPE: the field 'pos' is 7, neither a text" in line
    assert "(2 such errors, lines 1, 2); correct it" in line
    assert (found.passages, found.queries) == (1, 2)


def test_a_line_with_two_faults_is_named_once(tmp_path):
    (tmp_path / "train.jsonl").write_text(jsonl([{"other": "x"}, {"query_id": "1", "query": "q"}, {"other": "y"}]))
    _, lines = told(f"tevatron:{tmp_path}")
    assert any("(4 such errors, lines 1, 3)" in line for line in lines)


def test_reading_is_strict_again_after_a_check(tmp_path):
    place = broken(tmp_path / "in")
    hn.check_import(str(place))
    with pytest.raises(InputError, match=r"corpus\.jsonl:2: BAD_JSON"):
        import_collection(str(place), tmp_path / "c")


def test_the_command(tmp_path, capsys):
    assert run(["import", str(broken(tmp_path / "in")), "--check", "--json"]) == 3
    out, err = capsys.readouterr()
    facts = json.loads(out)
    assert (facts["faults"], facts["kinds_of_faults"], len(err.splitlines())) == (14, 12, 12)
    assert run(["import", str(write("beir", GRADED, tmp_path / "good")), "--check"]) == 0
    assert "faults           0" in capsys.readouterr().out
    assert run(["import", str(tmp_path / "good")]) == 2
    assert run(["import", str(tmp_path / "good"), "--check", "--to", str(tmp_path / "c")]) == 2


# ---------------------------------------------------------------- odd files, odd options


def small_beir(folder, *, passages, queries=({"_id": "q1", "text": "one"},), judged=("q1\tp0\t1",)):
    (folder / "qrels").mkdir(parents=True)
    (folder / "corpus.jsonl").write_text(jsonl(passages))
    (folder / "queries.jsonl").write_text(jsonl(queries))
    (folder / "qrels/train.tsv").write_text("\n".join(["query-id\tcorpus-id\tscore", *judged]) + "\n")
    return folder


@pytest.mark.parametrize("text", ["", "a\0b", 3])
def test_a_refused_passage_is_no_unknown_one(tmp_path, text):
    """The fault of its text is told, and no other; its judgement counts as little as the passage does."""
    passages = [{"_id": "p0", "text": text}, {"_id": "p1", "text": "sound"}]
    found, lines = told(small_beir(tmp_path / "in", passages=passages))
    assert (found.total, len(lines), found.passages, found.judgements) == (1, 1, 1, 0)
    assert "UNKNOWN_ID" not in lines[0]


def test_a_refused_query_is_no_unknown_one(tmp_path):
    queries = [{"_id": "q1", "text": ""}, {"_id": "q2", "text": "two"}]
    place = small_beir(tmp_path / "in", passages=[{"_id": "p0", "text": "x"}], queries=queries)
    _, (line,) = told(place)
    assert line.startswith("queries.jsonl:1: EMPTY_TEXT")


@pytest.mark.parametrize("check", [True, False])
@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("t.csv", b"", "t.csv: EMPTY_FILE: the file holds no record"),
        ("t.jsonl", b"", "t.jsonl: EMPTY_FILE: the file holds no record"),
        ("t.csv", b'anchor,positive\na,"b\n', "t.csv:2: BAD_QUOTING: a column of more than"),
        ("t.csv", "anchor,positive\na,b\n".encode("utf-16"), "t.csv:1: BAD_UTF8: this is UTF-16"),
        ("t.tsv", "anchor\tpositive\na\tb\n".encode("utf-16-be"), "t.tsv:1: BAD_UTF8: this is UTF-16"),
        ("t.jsonl", '{"anchor": "a", "positive": "b"}'.encode("utf-16-le"), "t.jsonl:1: BAD_UTF8: this is UTF-16"),
        (
            "t.jsonl",
            b'{"anchor": "a", "positive": "b"}\n{"anchor": "a", "positive": "c", "score": %s}\n' % (b"9" * 5000),
            "t.jsonl:2: BAD_JSON: not JSON that is read here (an integer of more than 4,300 digits)",
        ),
        (
            "t.json",
            b'[{"anchor": "a", "positive": "b", "score": %s}]' % (b"9" * 5000),
            "t.json:1: BAD_JSON: not JSON that is read here (an integer of more than 4,300 digits)",
        ),
        ("t.jsonl", b'{"anchor": "a", "positive": "b", "score": %s}\n' % (b"9" * 400), "t.jsonl:1: BAD_GRADE: "),
        (
            "t.jsonl",
            b'{"query": "a", "pos": ["b"], "neg": ["c"], "pos_scores": [1], "neg_scores": [%s]}\n' % (b"9" * 400),
            "t.jsonl:1: WRONG_TYPE: the scores in 'neg_scores' are",
        ),
    ],
)
def test_an_odd_file_is_one_clear_line(tmp_path, capsys, name, content, said, check):
    (tmp_path / name).write_bytes(content)
    options = ["--check"] if check else ["--to", str(tmp_path / "c"), "--negatives", str(tmp_path / "n")]
    assert run(["import", f"pairs:{tmp_path / name}", *options]) == 3
    err = capsys.readouterr().err
    assert err.removeprefix(f"{tmp_path}/").startswith(said), err
    assert err.count("\n") == 1


def test_parquet_with_two_columns_of_one_name_is_refused(tmp_path):
    pa = pytest.importorskip("pyarrow")
    import pyarrow.parquet

    columns = [pa.array([text]) for text in ("a", "b", "c")]
    table = pa.table(columns, names=["anchor", "positive", "anchor"])
    pyarrow.parquet.write_table(table, tmp_path / "t.parquet")
    with pytest.raises(InputError, match=r"t\.parquet: AMBIGUOUS: two columns are called 'anchor'"):
        import_collection(str(tmp_path / "t.parquet"), tmp_path / "c")
    _, (line,) = told(tmp_path / "t.parquet")
    assert "AMBIGUOUS" in line


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["import", "t.csv"], "USAGE: Missing option '--to'; give the new folder, or --check to write nothing"),
        (["import", "t.csv", "--to", "c", "--check"], "USAGE: --to and --check do not go together"),
        (["import", "", "--check"], "BAD_SETTING: the place of the data is empty; name a folder or a file"),
        (["import", "beir: ", "--to", "c"], "BAD_SETTING: the place of the data is empty"),
        (["import", "t.csv", "--check", "--language", "xx"], "UNKNOWN_LANGUAGE: BM25 has no analyser for 'xx'"),
    ],
)
def test_a_wrong_command_is_one_clear_line(tmp_path, capsys, monkeypatch, words, said):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "t.csv").write_text("anchor,positive\na,b\n")
    assert run(words) == 2
    err = capsys.readouterr().err
    assert err.startswith(said)
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("there", "judged", "told"),
    [
        (
            "Stra\u00dfe-a\u0308",
            "Stra\u00dfe-\u00e4",
            r"is there in another Unicode form (NFC, NFD): 'Stra\xdfe-a\u0308'",
        ),
        (
            "Stra\u00dfe-\u00e4",
            "Stra\u00dfe-a\u0308",
            r"is there in another Unicode form (NFC, NFD): 'Stra\xdfe-\xe4'",
        ),
        ("18", "018", "There is the passage '18'"),
        ("17", "17.0", "There is the passage '17'"),
        ("17.0", "17", "There is the passage '17.0'"),
        ("d1", "d1 ", "There is the passage 'd1'"),
        ("d1", "d2", ""),
        ("1", "0", ""),
    ],
)
def test_an_unknown_id_that_is_known_in_another_form_is_told(tmp_path, there, judged, told):
    place = tmp_path / "in"
    (place / "qrels").mkdir(parents=True)
    (place / "corpus.jsonl").write_text(jsonl([{"_id": there, "text": "one"}]))
    (place / "queries.jsonl").write_text(jsonl([{"_id": "q", "text": "two"}]))
    (place / "qrels" / "train.tsv").write_text(f"query-id\tcorpus-id\tscore\nq\t{judged}\t1\n")
    faults = [str(fault) for fault in hn.check_import(str(place)).faults]
    with pytest.raises(InputError) as caught:
        import_collection(str(place), tmp_path / "c")
    for said in (*faults, str(caught.value)):
        assert f"UNKNOWN_ID: 1 judgement names an id that is not there: passage {judged!r} (train, line 2)" in said
        assert told in said
        assert ("; write ids alike, or drop and count these by" in said) == bool(told)
    assert len(faults) == 1


def test_whole_numbers_of_a_type_for_fractions_are_ids(tmp_path):
    """As pandas writes a column of integers in which a value is missing."""
    rows = [{"_id": 1.0, "text": "one"}, {"_id": 2, "text": "two"}, {"_id": 4503599627370496.0, "text": "three"}]
    (tmp_path / "in" / "qrels").mkdir(parents=True)
    (tmp_path / "in" / "corpus.jsonl").write_text(jsonl(rows))
    (tmp_path / "in" / "queries.jsonl").write_text(jsonl([{"_id": 7.0, "text": "four"}]))
    (tmp_path / "in" / "qrels" / "train.tsv").write_text("query-id\tcorpus-id\tscore\n7\t1\t1\n")
    found = import_collection(str(tmp_path / "in"), tmp_path / "c")
    assert sorted(found.passage_ids) == ["1", "2", "4503599627370496"]
    assert list(found.query_ids) == ["7"]
    for wrong in (1.5, 1e300, True):
        (tmp_path / "in" / "corpus.jsonl").write_text(jsonl([{"_id": wrong, "text": "one"}]))
        with pytest.raises(InputError, match="WRONG_TYPE: the field '_id' is"):
            import_collection(str(tmp_path / "in"), tmp_path / "other")


def test_an_id_that_no_run_can_hold_is_told_when_it_is_imported(tmp_path, caplog):
    place = write("beir", GRADED, tmp_path / "in")
    import_collection(str(place), tmp_path / "c")
    assert not caplog.messages
    with (place / "corpus.jsonl").open("a") as stream:
        stream.write(jsonl([{"_id": "d 1", "text": "one"}]))
    import_collection(str(place), tmp_path / "d")
    assert caplog.messages == ["the passage id 'd 1' holds a blank, which a TREC run cannot hold"]
    with (place / "queries.jsonl").open("a") as stream:
        stream.write(jsonl([{"_id": "q 1", "text": "one"}, {"_id": "z\t2", "text": "two"}]))
    both = [*caplog.messages, "the query id 'q 1' holds a blank, which a TREC run cannot hold"]
    caplog.clear()
    import_collection(str(place), tmp_path / "e")
    assert caplog.messages == both
    caplog.clear()
    found = hn.check_import(str(place))
    assert caplog.messages == both
    assert found.counted == {"passage_ids_with_a_blank": 1, "query_ids_with_a_blank": 2}
    assert not found.faults


def test_judgements_of_faulty_records_count_nowhere(tmp_path):
    place = tmp_path / "in"
    (place / "qrels").mkdir(parents=True)
    (place / "corpus.jsonl").write_text(jsonl([{"_id": "p1", "text": "one"}, {"_id": "p2", "text": ""}]))
    (place / "queries.jsonl").write_text(jsonl([{"_id": "q1", "text": "one"}, {"_id": "q2", "text": ""}]))
    rows = ["q1\tp1\t1", "q1\tp2\t1", "q2\tp1\t1", "q3\tp1\t1"]
    (place / "qrels" / "train.tsv").write_text("\n".join(["query-id\tcorpus-id\tscore", *rows]) + "\n")
    found, lines = told(place)
    assert (found.passages, found.queries, found.judgements) == (1, 1, 1)
    assert found.splits == {"train": {"judgements": 1, "queries": 1}}
    assert [line.split(": ")[1] for line in lines] == ["EMPTY_TEXT", "EMPTY_TEXT", "UNKNOWN_ID"]


@pytest.mark.parametrize(
    "text", ["\u200b", " \u200b\ufeff ", "\ufeff", "\u200b \u200b \u200b", "\u00a0\u200b\u00a0", " \t"]
)
@pytest.mark.parametrize("rows", [1, 5000])
def test_a_text_with_nothing_to_see_is_empty(tmp_path, text, rows):
    place = write("beir", GRADED, tmp_path / "in")
    with (place / "corpus.jsonl").open("a") as stream:
        stream.write(jsonl([{"_id": f"x{i}", "text": "seen\u200b"} for i in range(rows)]))
        stream.write(jsonl([{"_id": "y", "text": text}]))
    with pytest.raises(InputError, match="EMPTY_TEXT: the text of passage 'y' is empty"):
        import_collection(str(place), tmp_path / "c")
    found = hn.check_import(str(place))
    assert ["EMPTY_TEXT" in str(fault) for fault in found.faults] == [True]


PAIRS = [{"query": f"question {i}", "positive": f"text {i}"} for i in range(30)]


@pytest.mark.parametrize(
    ("name", "lines", "at"),
    [
        ("train.jsonl", [*PAIRS[:3], "", *PAIRS[3:]], 4),
        ("train.jsonl", ["# question, text", *PAIRS], 1),
        ("train.json", ["[", *(f"{json.dumps(row)}," for row in PAIRS[:10]), "]"], 12),
    ],
)
def test_a_damaged_record_hides_no_format(tmp_path, name, lines, at):
    """It is counted, and the good records are read as what they are, in a folder as in a file."""
    (tmp_path / "in").mkdir()
    (file := tmp_path / "in" / name).write_text(jsonl(lines))
    good = sum(line in PAIRS or "query" in line for line in lines)
    for place in (tmp_path / "in", file, f"pairs:{tmp_path / 'in'}"):
        found = hn.check_import(str(place))
        assert (found.format, found.queries, found.total) == ("pairs", good, 1)
        assert [(fault.code, fault.line) for fault in found.faults] == [("BAD_JSON", at)]
        with pytest.raises(InputError, match=f":{at}: BAD_JSON"):
            import_collection(str(place), tmp_path / "c")
    assert not (tmp_path / "c").exists()


def test_of_a_file_without_any_record_the_first_fault_is_told(tmp_path):
    (tmp_path / "train.jsonl").write_text("no json\n" * 1000)
    with pytest.raises(InputError, match=r"train\.jsonl:1: BAD_JSON"):
        hn.check_import(str(tmp_path / "train.jsonl"))


SPREAD = [{"docid": str(i), "query": f"q {i}", "positive": f"p {i}"} for i in range(500)]


def over_lines(rows, inner):
    """Rows over several lines each, and their one object ``inner`` on a line of its own."""
    whole = "".join(json.dumps({**row, "sources": ["HERE"]}, indent=2) + "\n" for row in rows)
    return whole.replace('"HERE"', json.dumps(inner))


@pytest.mark.parametrize("inner", [{"url": "u"}, {"docid": "1", "score": 2}, {"text": "n"}])
def test_records_of_several_lines_are_told_and_not_left_out(tmp_path, inner):
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "train.jsonl").write_text(jsonl(PAIRS))
    (tmp_path / "in" / "train-2.json").write_text(over_lines(SPREAD, inner))
    (alone := tmp_path / "train.jsonl").write_text(over_lines(SPREAD, inner))
    for place, name in ((tmp_path / "in", "train-2.json"), (alone, "train.jsonl")):
        for read in (hn.check_import, lambda place: import_collection(place, tmp_path / "c")):
            with pytest.raises(InputError, match=f"{name}:1: BAD_JSON"):
                read(str(place))


def test_records_of_several_lines_are_told_in_a_folder_of_three_tables_too(tmp_path):
    (tmp_path / "passages.jsonl").write_text(jsonl([{"id": "p", "text": "one"}]))
    (tmp_path / "passages-2.json").write_text(over_lines(SPREAD, {"url": "u"}))
    (tmp_path / "queries.jsonl").write_text(jsonl([{"id": "q", "text": "what"}]))
    (tmp_path / "qrels.jsonl").write_text(jsonl([{"query_id": "q", "passage_id": "p"}]))
    for read in (hn.check_import, lambda place: import_collection(place, tmp_path / "c")):
        with pytest.raises(InputError, match=r"passages-2\.json:1: BAD_JSON"):
            read(str(tmp_path))


def test_of_a_damaged_file_with_unknown_columns_the_damage_is_told(tmp_path):
    """In a folder it would be passed over as other JSON; alone its columns may be those of other objects."""
    (tmp_path / "train.jsonl").write_text(jsonl(PAIRS))
    (strange := tmp_path / "train-2.json").write_text(jsonl([{"url": "a"}, {"url": "b"}, "", {"url": "c"}]))
    for place in (tmp_path, strange, f"pairs:{tmp_path}"):
        with pytest.raises(InputError, match=r"train-2\.json:3: BAD_JSON"):
            hn.check_import(str(place))
    strange.write_text(jsonl([{"url": "a"}, {"url": "b"}]))
    assert hn.check_import(str(tmp_path)).total == 0
