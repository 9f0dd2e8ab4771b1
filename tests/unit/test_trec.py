"""TREC runs and qrels: order, forms, sidecars, and every fault with its line."""

import contextlib
import gzip
import itertools
import json
import random
import tracemalloc

import numpy as np
import pytest

from faults.injected import fate, tree
from hardneg.data.formats import lines as line_reader
from hardneg.data.formats import pair_table, trec
from hardneg.data.formats.trec import open_qrels, read_run, read_runs, verify_run, write_run
from hardneg.data.ids import Vocabulary, byte_ranks, extend
from hardneg.errors import ArtifactError, InputError, NumericError, ResourceError
from hardneg.records import Run, offsets_of

QUERIES = Vocabulary.of(["q1", "q2", "q3"])
PASSAGES = Vocabulary.of(["a", "b", "c", "é", "z10", "z9"])


def file(tmp_path, text, name="run.trec"):
    path = tmp_path / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def example(collection=""):
    return Run(
        np.array([2, 0], np.int32),
        offsets_of(np.array([3, 2])),
        np.array([4, 5, 0, 3, 1], np.int32),
        np.array([0.1, 0.1, -2.5, 1e-9, 1e-9], np.float32),
        collection=collection,
    )


def as_dict(run, queries=QUERIES, passages=PASSAGES):
    return {
        queries.take(run.query_rows[i : i + 1])[0]: list(
            zip(passages.take(run.hits(i)[0]), run.hits(i)[1], strict=True)
        )
        for i in range(len(run))
    }


# ---------------------------------------------------------------- ids


def test_vocabulary():
    assert QUERIES.rows(["q3", "x", "q1"]).tolist() == [2, -1, 0]
    assert PASSAGES.take(np.array([3, 0, 3])) == ["é", "a", "é"]
    assert Vocabulary.of(["b", "a"], ["a", "c"]).take(np.arange(3)) == ["b", "a", "c"]
    assert PASSAGES.id_rank.tolist() == [0, 1, 2, 5, 3, 4]  # é is after z, as its bytes are


def test_ids_behind_a_space_keep_its_rows():
    space, rows = extend(PASSAGES, ["z9", "new", "a", "0"])
    assert rows.tolist() == [5, 6, 0, 7]
    assert space.rows(["0", "a", "nowhere"]).tolist() == [7, 0, -1]
    assert space.take(np.array([7, 1, 6, 1])) == ["0", "b", "new", "b"]
    assert len(space) == 8
    assert extend(space, ["a", "new"])[0] is space


def test_byte_ranks_are_those_of_the_bytes():
    ids = list({"".join(random.Random(i).choices("aZ0é\U0001f600\uffff", k=3)) for i in range(60)})
    ranks = byte_ranks(ids)
    assert [ids[i] for i in np.argsort(ranks)] == sorted(ids, key=str.encode)


# ---------------------------------------------------------------- writing


@pytest.mark.parametrize("name", ["run.trec", "run.trec.gz"])
def test_writes_score_then_id_descending_and_reads_it_back(tmp_path, name):
    path = tmp_path / name
    write_run(path, example("digest"), QUERIES, PASSAGES, tag="mine")
    data = gzip.decompress(path.read_bytes()) if name.endswith("gz") else path.read_bytes()
    assert data.decode().splitlines() == [
        "q3 Q0 z9 1 0.100000001 mine",
        "q3 Q0 z10 2 0.100000001 mine",
        "q3 Q0 a 3 -2.5 mine",
        "q1 Q0 é 1 9.99999972e-10 mine",
        "q1 Q0 b 2 9.99999972e-10 mine",
    ]
    run = read_run(path, QUERIES, PASSAGES, collection="digest")
    assert run.query_rows.tolist() == [0, 2]
    assert run.passage_rows.tolist() == [3, 1, 5, 4, 0]
    assert run.scores.tolist() == [*example().scores[3:], *example().scores[:3]]
    assert run.collection == "digest"
    assert [array.dtype for array in (run.query_rows, run.offsets, run.passage_rows, run.scores)] == [
        np.int32, np.int64, np.int32, np.float32,
    ]  # fmt: skip


def test_gzip_bytes_have_no_time_or_name(tmp_path):
    for name in ("a.gz", "b.gz"):
        write_run(tmp_path / name, example(), QUERIES, PASSAGES)
    data = (tmp_path / "a.gz").read_bytes()
    assert data == (tmp_path / "b.gz").read_bytes()
    assert data[3:8] == bytes(5)  # no flags (so no name), no time


def test_random_runs_come_back_bit_for_bit_in_any_block(tmp_path, monkeypatch):
    generator = np.random.default_rng(0)
    names = [f"p{i}" for i in generator.permutation(300)]
    queries, passages = Vocabulary(f"q{i}" for i in range(40)), Vocabulary(names)
    counts = generator.integers(1, 30, 40)
    rows = np.concatenate([generator.choice(300, n, replace=False) for n in counts]).astype(np.int32)
    scores = generator.choice(generator.normal(size=40), len(rows)).astype(np.float32)
    run = Run(np.arange(40, dtype=np.int32), offsets_of(counts), rows, scores)
    write_run(tmp_path / "whole", run, queries, passages)
    monkeypatch.setattr(trec, "_BLOCK", 50)
    monkeypatch.setattr(pair_table, "_BLOCK", 17)
    write_run(tmp_path / "blocks", run, queries, passages)
    assert (tmp_path / "whole").read_bytes() == (tmp_path / "blocks").read_bytes()
    back = read_run(tmp_path / "whole", queries, passages)
    assert back.offsets.tolist() == run.offsets.tolist()
    for i in range(40):
        expected = sorted(zip(*run.hits(i), strict=True), key=lambda hit: (hit[1], names[hit[0]]), reverse=True)
        assert list(zip(*back.hits(i), strict=True)) == expected


def random_lines(queries, hits, seed):
    rng = np.random.default_rng(seed)
    return [
        f"q{q} Q0 p{p} 1 {score:.6g} t\n"
        for q in rng.permutation(queries)
        for p, score in zip(rng.permutation(hits + 50)[:hits], rng.integers(0, 9, hits), strict=True)
    ]


@pytest.mark.parametrize("mixed", [False, True])
def test_a_run_is_the_same_however_many_queries_are_read_together(tmp_path, monkeypatch, mixed):
    lines = random_lines(40, 30, 1)
    if mixed:
        random.Random(0).shuffle(lines)
    queries, passages = Vocabulary.of([f"q{i}" for i in range(40)]), Vocabulary.of([f"p{i}" for i in range(80)])
    path = file(tmp_path, "".join(lines))
    whole = read_run(path, queries, passages)
    fields = [line.split() for line in lines]
    hits = sorted(((f[0], float(f[4]), f[2]) for f in fields), key=lambda hit: hit[1:], reverse=True)
    for i in range(40):
        expected = [(p, score) for q, score, p in hits if q == queries.take(np.array([i]))[0]]
        assert list(zip(passages.take(whole.hits(i)[0]), whole.hits(i)[1].tolist(), strict=True)) == expected
    lines[700:700] = ["", lines[3]]  # line 4 again, as line 701
    again = file(tmp_path, "".join(lines), "again.trec")
    for entries in (1, 100, 1 << 18):
        monkeypatch.setattr(pair_table, "ENTRIES", entries)
        assert read_run(path, queries, passages) == whole
        with pytest.raises(InputError, match=r"again.trec:701: DUPLICATE_HIT: .* already on line 4;"):
            read_run(again, queries, passages)


def test_reading_a_run_takes_some_thirty_bytes_a_hit(tmp_path, monkeypatch):
    monkeypatch.setattr(pair_table, "ENTRIES", 1 << 13)
    monkeypatch.setattr(line_reader, "CHUNK", 1 << 15)
    lines = random_lines(400, 500, 2)
    path = file(tmp_path, "".join(lines))
    queries, passages = Vocabulary.of([f"q{i}" for i in range(400)]), Vocabulary.of([f"p{i}" for i in range(550)])
    tracemalloc.start()
    run = read_run(path, queries, passages)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert len(run.scores) == len(lines)
    assert peak < 35 * len(lines)


def test_nan_and_blanks_are_refused_and_the_old_file_stays(tmp_path):
    path = tmp_path / "run.trec"
    write_run(path, example(), QUERIES, PASSAGES)
    before = {p.name: p.read_bytes() for p in tmp_path.iterdir()}
    scores = example().scores.copy()
    scores[3] = np.nan
    bad = Run(example().query_rows, example().offsets, example().passage_rows, scores)
    with pytest.raises(NumericError, match="NAN_SCORE: query q1"):
        write_run(path, bad, QUERIES, PASSAGES)
    with pytest.raises(InputError, match=r"BLANK_IN_ID.*'z 9'"):
        write_run(path, example(), QUERIES, Vocabulary(["a", "b", "c", "d", "e", "z 9"]))
    assert {p.name: p.read_bytes() for p in tmp_path.iterdir()} == before


# ---------------------------------------------------------------- sidecars


def test_sidecar_is_optional_and_checked(tmp_path):
    path = tmp_path / "run.trec"
    sidecar = tmp_path / "run.trec.manifest.json"
    write_run(path, example("one"), QUERIES, PASSAGES)
    assert json.loads(sidecar.read_text())["inputs"] == {"collection": "one"}
    assert read_run(path, QUERIES, PASSAGES).collection == "one"
    with pytest.raises(ArtifactError, match=r"OTHER_COLLECTION.*one.*two"):
        read_run(path, QUERIES, PASSAGES, collection="two")
    data = bytearray(path.read_bytes())
    data[-3] ^= 1
    path.write_bytes(data)
    with pytest.raises(ArtifactError, match="CORRUPT"):
        read_run(path, QUERIES, PASSAGES)
    path.write_bytes(bytes(data) + b"\n")
    with pytest.raises(ArtifactError, match="WRONG_SIZE"):
        read_run(path, QUERIES, PASSAGES)
    sidecar.write_text("{}")
    with pytest.raises(ArtifactError, match=r"BAD_MANIFEST.*remove it, or make the run again \(hardneg search, "):
        read_run(path, QUERIES, PASSAGES)
    path.write_bytes(bytes(data))
    sidecar.unlink()
    assert len(read_run(path, QUERIES, PASSAGES)) == 2


@pytest.mark.parametrize("name", ["run.trec", "run.trec.gz"])
def test_a_fault_leaves_a_run_with_its_sidecar_the_old_or_the_new(tmp_path, name):
    """Also where the disk gets full between the two files, and where a run stands there already."""
    path, found = tmp_path / name, []
    write_run(path, example(), QUERIES, PASSAGES)
    old = tree(tmp_path)
    for at in itertools.count():
        with fate(at, "enospc") as seen, contextlib.suppress(ResourceError):
            write_run(path, example(), QUERIES, PASSAGES, tag="other")
        verify_run(path)
        assert len(read_run(path, QUERIES, PASSAGES)) == 2
        found.append(tree(tmp_path) == old)
        write_run(path, example(), QUERIES, PASSAGES)
        if len(seen.points) <= at:
            break
    assert (found[0], found[-1]) == (True, False)


def test_sidecar_keeps_the_unit(tmp_path):
    run = example()
    run = Run(run.query_rows, run.offsets, run.passage_rows, run.scores, unit="document")
    write_run(tmp_path / "run", run, QUERIES, PASSAGES)
    assert read_run(tmp_path / "run", QUERIES, PASSAGES).unit == "document"


# ---------------------------------------------------------------- reading runs


def test_ranks_and_order_of_the_file_do_not_matter(tmp_path):
    text = "q2 Q0 a 1 1 t\nq1 Q0 a 9 0.5 t\nq1\tQ0\tz10   3 2.0 t\nq2 Q0 b 2 2 t\nq1 Q0 z9 1 2e0 t\n"
    run = read_run(file(tmp_path, text), QUERIES, PASSAGES)
    assert as_dict(run) == {"q1": [("z9", 2.0), ("z10", 2.0), ("a", 0.5)], "q2": [("b", 2.0), ("a", 1.0)]}


def test_ids_of_marco_runs_may_hold_blanks_that_are_not_of_ascii(tmp_path):
    passages = Vocabulary.of(["東京\u3000駅", "b"])
    run = read_run(file(tmp_path, "q1\t東京\u3000駅\t1\nq1\tb\t2\n"), QUERIES, passages)
    assert as_dict(run, passages=passages) == {"q1": [("東京\u3000駅", -1.0), ("b", -2.0)]}


def test_marco_runs_score_minus_the_rank(tmp_path):
    run = read_run(file(tmp_path, "q1\tb\t2\nq1\ta\t1\nq3\tc\t1\n"), QUERIES, PASSAGES)
    assert as_dict(run) == {"q1": [("a", -1.0), ("b", -2.0)], "q3": [("c", -1.0)]}


@pytest.mark.parametrize(
    "text",
    [
        b"\xef\xbb\xbfq1 Q0 \xc3\xa9 1 1 t\r\nq1 Q0 a 2 .5 t\r\n",
        b"q1 Q0 \xc3\xa9 1 1 t\nq1 Q0 a 2 .5 t",
        b"q1 Q0 \xc3\xa9 1 1 a tag of words\nq1 Q0 a 2 .5 t\n",
        b"  q1 Q0 \xc3\xa9 1 1 t  \nq1 Q0 a 2 .5 t\n",
        gzip.compress(b"q1 Q0 \xc3\xa9 1 1 t\nq1 Q0 a 2 .5 t\n", mtime=0),
    ],
)
def test_forms_of_the_same_run(tmp_path, text):
    run = read_run(file(tmp_path, text, "run.gz" if text[:2] == b"\x1f\x8b" else "run"), QUERIES, PASSAGES)
    assert as_dict(run) == {"q1": [("é", 1.0), ("a", 0.5)]}


def test_huge_scores_rank_as_infinite(tmp_path):
    run = read_run(file(tmp_path, "q1 Q0 a 1 1e300 t\nq1 Q0 b 2 -inf t\n"), QUERIES, PASSAGES)
    assert as_dict(run) == {"q1": [("a", np.inf), ("b", -np.inf)]}


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("q1 Q0 b 2 1.0", "WRONG_COLUMNS: 5 columns"),
        ("", "WRONG_COLUMNS: a blank line; remove it"),
        ("q1 Q0 b 2 nan t", "BAD_SCORE: the score 'nan'"),
        ("q1 Q0 b 2 abc t", "BAD_SCORE: the score 'abc'"),
        ("q1 Q0 b 2 1_0 t", "BAD_SCORE: the score '1_0'"),  # 10 in Python, and in no other tool
        (
            "q1 Q0 e\u0301 2 1.0 t",
            "UNKNOWN_ID: 1 passage ids are not in the collection: e\u0301 (1 passage",
        ),
        ("q1 Q0 a 2 0.5 t", "DUPLICATE_HIT: query q1, passage a: this hit is already on line 1"),
        ("q1 Q0 y 2 1.0 t", "UNKNOWN_ID: 1 passage ids are not in the collection: y"),
        ("q9 Q0 b 2 1.0 t", "UNKNOWN_ID: 1 query ids are not in the collection: q9"),
        (b"q1 Q0 \xff 2 1.0 t", "BAD_UTF8: not UTF-8 at byte 7"),
        (b"q1 Q0 \0 2 1.0 t", "NUL"),
    ],
)
@pytest.mark.parametrize("first", ["q1 Q0 a 1 3 t", "q1 Q0 a 1 3 a tag of words"])
def test_faults_name_the_line(tmp_path, first, line, message):
    data = line if isinstance(line, bytes) else line.encode()
    path = file(tmp_path, first.encode() + b"\nq1 Q0 c 2 2 t\n" + data + b"\nq2 Q0 a 1 1 t\n")
    with pytest.raises(InputError) as caught:
        read_run(path, QUERIES, PASSAGES)
    assert str(caught.value).startswith(f"{path}:3: {message}")


def test_a_long_line_does_not_make_up_for_a_short_one(tmp_path):
    with pytest.raises(InputError, match=r":2: WRONG_COLUMNS: 5 columns"):
        read_run(file(tmp_path, "q1 Q0 a 1 3 two words\nq1 Q0 b 2 2\n"), QUERIES, PASSAGES)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("q1\tQ0\tx 1\t1\t9.0\tt\n", r":1: BLANK_IN_ID: the column pid is 'x 1', but blanks divide columns"),
        ("q1 Q0 a 1 9.0 t\nq1\tQ0\tx 1\t2\t8.0\tt\nq1\tQ0\tx 2\t3\t7.0\tt\n", ":2: BLANK_IN_ID: the column pid"),
        ("q 1\tQ0\ta\t1\t9.0\tt\n", ":1: BLANK_IN_ID: the column qid is 'q 1'"),
        ("q1\tQ0\ta\t1 2\t9.0\tt\n", ":1: WRONG_COLUMNS: the column rank is '1 2'"),
        ("q1\ta\t1\nq1\tx 1\t2\n", ":2: BLANK_IN_ID: the column pid is 'x 1'"),
    ],
)
def test_tabs_around_an_id_with_a_blank_are_told(tmp_path, text, said):
    path = tmp_path / "run"
    path.write_text(text)
    with pytest.raises(InputError, match=said):
        read_run(path, QUERIES, PASSAGES)


def test_qrels_with_tabs_around_an_id_with_a_blank_are_told(tmp_path):
    path = tmp_path / "qrels"
    path.write_text("q1\t0\tdoc 1\t1\n")
    with pytest.raises(InputError, match=r":1: BLANK_IN_ID: the column pid is 'doc 1'"):
        open_qrels(path)


@pytest.mark.parametrize("tag", ["my tag", "my\ttag", "one two\tthree\tfour\tfive\tsix"])
def test_tabs_and_blanks_may_be_mixed_and_a_tag_may_hold_both(tmp_path, tag):
    path = tmp_path / "run"
    path.write_text(f"q1\tQ0\ta\t1\t9.0\t{tag}\nq1 Q0\tb\t 2 8.0 {tag}\n")
    assert read_run(path, QUERIES, PASSAGES).scores.tolist() == [9.0, 8.0]


def test_faults_of_the_whole_file(tmp_path):
    with pytest.raises(InputError, match="EMPTY_FILE"):
        read_run(file(tmp_path, ""), QUERIES, PASSAGES)
    with pytest.raises(InputError, match="NOT_FOUND"):
        read_run(tmp_path / "none", QUERIES, PASSAGES)
    with pytest.raises(InputError, match="TRUNCATED_GZIP"):
        read_run(file(tmp_path, gzip.compress(b"q1 Q0 a 1 1 t\n" * 99, mtime=0)[:-9], "r.gz"), QUERIES, PASSAGES)
    with pytest.raises(InputError, match=r":2: BAD_SCORE"):
        read_run(file(tmp_path, "q1\ta\t1\nq1\tb\tx\n"), QUERIES, PASSAGES)


@pytest.mark.parametrize("rank", ["9.5", "-1", "inf"])
def test_scores_where_an_marco_run_has_ranks_are_refused(tmp_path, rank):
    with pytest.raises(InputError, match=rf":2: BAD_SCORE: the rank '{rank}' is no whole number from 0 up"):
        read_run(file(tmp_path, f"q1\ta\t0\nq1\tb\t{rank}\n"), QUERIES, PASSAGES)


@pytest.mark.parametrize(
    ("read", "text"),
    [
        (open_qrels, "q1 0 a 1\rq2 0 a 1\r"),
        (lambda path: read_run(path, QUERIES, PASSAGES), "q1 Q0 a 1 3 t\rq2 Q0 a 1 3 t\r"),
        (lambda path: read_run(path, QUERIES, PASSAGES), "q1 a 1\rq2 a 1"),
    ],
)
def test_lines_that_end_in_cr_alone_are_not_taken_for_one(tmp_path, read, text):
    with pytest.raises(InputError, match=r":1: BAD_QUOTING: its lines end in CR alone"):
        read(file(tmp_path, text))


def test_ids_in_another_unicode_form_are_told(tmp_path, caplog):
    text = "q1 Q0 e\u0301 1 3 t\nq1 Q0 \u00e9 2 2 t\nq1 Q0 \u00fc 3 1 t\n"
    read_runs([file(tmp_path, text)], QUERIES, PASSAGES)
    told = r"1 passage id is known in another Unicode form (NFC, NFD), and not matched: 'e\u0301'"
    assert caplog.messages == [f"{tmp_path / 'run.trec'}: {told}"]
    caplog.clear()
    read_runs([file(tmp_path, text.replace("e\u0301", "a"))], QUERIES, PASSAGES)
    assert not caplog.messages


def test_many_unknown_ids_are_counted_and_ten_named(tmp_path):
    text = "".join(f"q1 Q0 u{i} 1 {i} t\n" for i in range(25))
    with pytest.raises(InputError) as caught:
        read_run(file(tmp_path, "q1 Q0 a 1 99 t\n" + text), QUERIES, PASSAGES)
    assert caught.value.line == 2
    assert "25 passage ids" in caught.value.what
    assert caught.value.what.endswith("u8, u9")


def test_a_very_long_line_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(pair_table, "CHUNK", 100)
    monkeypatch.setattr(line_reader, "CHUNK", 100)
    monkeypatch.setattr(line_reader, "MAX_LINE", 1000)
    with pytest.raises(InputError, match=r":2: LONG_LINE"):
        read_run(file(tmp_path, b"q1 Q0 a 1 1 t\n" + b"x" * 5000), QUERIES, PASSAGES)


@pytest.mark.parametrize("chunk", [7, 64, 1 << 20])
def test_blocks_split_anywhere(tmp_path, monkeypatch, chunk):
    monkeypatch.setattr(pair_table, "CHUNK", chunk)
    monkeypatch.setattr(line_reader, "CHUNK", chunk)
    lines = [f"q{i % 3 + 1} Q0 p{i} 1 {i / 7} {'a b' if i == 77 else 't'}" for i in range(100)]
    passages = Vocabulary(f"p{i}" for i in range(100))
    run = read_run(file(tmp_path, "\n".join(lines)), QUERIES, passages)
    for q in range(3):
        assert run.hits(q)[0].tolist() == [i for i in reversed(range(100)) if i % 3 == q]


def test_runs_for_evaluation_keep_unknown_ids(tmp_path):
    one = file(tmp_path, "q1 Q0 a 1 2 t\nq1 Q0 zz 2 2 t\nx Q0 a 1 1 t\n", "one")
    two = file(tmp_path, "q1 Q0 zz 1 2 t\nq1 Q0 aa 2 1 t\n", "two")
    runs, queries, passages = read_runs([one, two], QUERIES, PASSAGES)
    assert as_dict(runs[0], queries, passages) == {"q1": [("zz", 2.0), ("a", 2.0)], "x": [("a", 1.0)]}
    assert as_dict(runs[1], queries, passages) == {"q1": [("zz", 2.0), ("aa", 1.0)]}
    assert runs[0].passage_rows[0] == runs[1].passage_rows[0] == len(PASSAGES)


# ---------------------------------------------------------------- qrels


def qrels_dict(qrels, queries, passages):
    result = {}
    for i, query in enumerate(queries.take(qrels.query_rows)):
        span = slice(qrels.offsets[i], qrels.offsets[i + 1])
        ids = passages.take(qrels.passage_rows[span])
        result[query] = dict(zip(ids, qrels.grades[span].tolist(), strict=True))
    return result


EXPECTED = {"q1": {"c": 1, "a": 0}, "q2": {"b": 2, "z9": -1}}


@pytest.mark.parametrize(
    "text",
    [
        "q2 0 b 2\nq1 0 c 1\nq1 Q0 a 0\nq2 0 z9 -1\n",
        "# a comment\nq2\t0\tb\t2.0\nq1 0 c 1.0 \n#another\nq1 0 a 0\nq2 0 z9 -1",
        "q2 0 b 2\nq1 0 c 1\nq1 0 a 0\nq2 0 b 2\nq2 0 z9 -1\n",
        "query-id\tcorpus-id\tscore\nq2\tb\t2\nq1\tc\t1\nq1\ta\t0\nq2\tz9\t-1\n",
        "\ufeffquery-id\tcorpus-id\tscore\r\nq2\tb\t2\r\nq1\tc\t1\r\nq1\ta\t0\r\nq2\tz9\t-1",
        "q2\tb\t2\nq1\tc\t1\nq1\ta\t0\nq2\tz9\t-1\n",
    ],
)
def test_forms_of_the_same_qrels(tmp_path, text):
    path = file(tmp_path, text)
    qrels, queries, passages = open_qrels(path)
    assert qrels_dict(qrels, queries, passages) == EXPECTED
    assert qrels.query_rows.tolist() == [0, 1]
    assert all(np.all(np.diff(rows) > 0) for rows in np.split(qrels.passage_rows, qrels.offsets[1:-1]))
    assert {column.dtype for column in (qrels.query_rows, qrels.passage_rows, qrels.grades)} == {
        np.dtype(np.int32)
    }


def test_beir_ids_may_begin_with_a_hash(tmp_path):
    text = "query-id\tcorpus-id\tscore\n#1\ta\t1\n2\t#b\t1\n"
    assert qrels_dict(*open_qrels(file(tmp_path, text))) == {"#1": {"a": 1}, "2": {"#b": 1}}
    text = "#comment\nquery-id\tcorpus-id\tscore\n# more\n1\ta\t1\n#\n"
    assert qrels_dict(*open_qrels(file(tmp_path, text))) == {"1": {"a": 1}}
    assert qrels_dict(*open_qrels(file(tmp_path, "#a\tb\tc\nq1 0 a 1\n"))) == {"q1": {"a": 1}}


def test_beir_ids_may_have_blanks(tmp_path):
    qrels, queries, passages = open_qrels(file(tmp_path, "query-id\tcorpus-id\tscore\nq 1\tp 1\t1\n"))
    assert qrels_dict(qrels, queries, passages) == {"q 1": {"p 1": 1}}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("q1 0 a 1\nq1 0 b abc\n", ":2: BAD_GRADE: the relevance 'abc'"),
        ("q1 0 a 1\nq1 0 b 9223372036854775808\n", ":2: BAD_GRADE"),
        ("q1 0 a 1\nq1 0 b 1.5\n", ":2: BAD_GRADE"),
        ("q1 0 a 1\n# note\nq1 0 b\n", ":3: WRONG_COLUMNS: 3 columns"),
        (
            "q1 0 a 1\nq2 0 b 1\nq1 0 a 2\n",
            ":3: CONFLICTING_GRADES: query q1, passage a: judged otherwise on line 1",
        ),
        ("q1\ta\tabc\n", ":1: BAD_GRADE"),
        ("q1\ta\t1\nq1\t\t1\n", ":2: WRONG_COLUMNS"),
        ("q1\ta\t1\n\n", ":2: WRONG_COLUMNS: a blank line; remove it"),
        ("# nothing\n", ": EMPTY_FILE"),
    ],
)
def test_qrels_faults(tmp_path, text, message):
    path = file(tmp_path, text)
    with pytest.raises(InputError) as caught:
        open_qrels(path)
    assert str(caught.value).startswith(f"{path}{message}")


@pytest.mark.shared
def test_real_files(shared_data):
    qrels, queries, _ = open_qrels(shared_data / "msmarco_dl" / "qrels.dev-small.txt.gz")
    assert (len(queries), len(qrels.passage_rows)) == (6980, 7437)
    assert set(qrels.grades.tolist()) == {1}
    qrels, _, _ = open_qrels(shared_data / "msmarco_dl" / "qrels.dl20.txt.gz")
    assert np.bincount(qrels.grades).tolist() == [7780, 1940, 1020, 646]
    qrels, _, _ = open_qrels(shared_data / "scifact" / "qrels" / "test.tsv")
    assert len(qrels) == 300
    (run,), queries, _ = read_runs(
        [shared_data / "metric_checks" / "trec_eval" / "results.trunc"], Vocabulary([]), Vocabulary([])
    )
    assert len(run.scores) == 584
    assert queries.take(run.query_rows) == ["301", "303"]


def test_judgements_in_place_of_a_run_are_told_by_their_header(tmp_path):
    with pytest.raises(InputError, match=r"run:1: BAD_SCORE: .*; correct it, or give a run, which has no header$"):
        read_run(file(tmp_path, "query-id\tcorpus-id\tscore\n10\td9\t1\n", "run"), QUERIES, PASSAGES)
    with pytest.raises(InputError, match=r"run:2: BAD_SCORE: the score 'x' is no number; correct it$"):
        read_run(file(tmp_path, "10\td9\t1\n10\td8\tx\n", "run"), QUERIES, PASSAGES)
    for text in ("nan", "-NaN", "1_0"):  # no header has such a name
        with pytest.raises(InputError, match=rf"run:1: BAD_SCORE: the score '{text}' is no number; correct it$"):
            read_run(file(tmp_path, f"10 Q0 d9 1 {text} x\n", "run"), QUERIES, PASSAGES)


def test_reading_and_writing_a_run_tell_how_far_they_are(tmp_path, monkeypatch):
    told = []

    @contextlib.contextmanager
    def track(title, unit):
        yield lambda done, total: told.append((title, unit, done, total))

    monkeypatch.setattr(trec, "track", track)
    monkeypatch.setattr(trec, "_BLOCK", 2)
    write_run(tmp_path / "run.trec", example(), QUERIES, PASSAGES)
    assert told == [("writing", "queries", 1, 2), ("writing", "queries", 2, 2)]
    told.clear()
    monkeypatch.setattr(line_reader, "CHUNK", 30)
    monkeypatch.setattr(pair_table, "CHUNK", 30)
    read_run(tmp_path / "run.trec", QUERIES, PASSAGES)
    assert len(told) > 1
    assert told[-1] == ("reading", "lines", 5, 0)
    assert sorted(set(told)) == told
