"""Lines that are read by their quotes: the same records, counts and first fault as line by line."""

import json
from dataclasses import replace

import numpy as np
import pytest

from hardneg.data import helper
from hardneg.data.formats import beir, lines, moulds
from hardneg.data.formats.moulds import Mould
from hardneg.data.helper import ready_parts
from hardneg.data.importing import import_collection
from hardneg.data.record_source import PassageLines, PassageRecord
from hardneg.errors import HardnegError
from hardneg.storage.artifacts import read_manifest

TEXTS = [
    "plain",
    "caf\u00e9 \u2028 \U0001f600",
    'says "no", "title": "x"',
    "back\\slash\\",
    '\\"',
    "\\\\\\\\" * 3 + '"',
    "tab\tand\nline",
    "{}[]:,",
    "\x7f\x85 \u00a0",
    "",
    "/",
]
MORE = [{}, {"metadata": {}}, {"metadata": {"url": "http://a/\u00e9", "text": "no"}}, {"n": 1}]


def line(i, style, more):
    record = {"_id": f"p{i}", "title": TEXTS[i % len(TEXTS)], "text": TEXTS[i * 7 % len(TEXTS)] + f" {i}"} | more
    if style == "ascii":
        return json.dumps(record).encode()
    if style == "dense":
        return json.dumps(record, ensure_ascii=False, separators=(",", ":")).encode()
    if style == "crlf":
        return json.dumps(record).encode() + b"\r"
    if style == "tabs":
        return b"\t" + json.dumps(record, separators=("\t,", ":\t")).encode() + b" "
    del record["title"]
    return json.dumps(dict(reversed(record.items()))).encode()


STYLES = ("ascii", "dense", "crlf", "tabs", "backwards without title")


def folder_of(folder, data):
    (folder / "qrels").mkdir(parents=True, exist_ok=True)
    (folder / "corpus.jsonl").write_bytes(data)
    (folder / "queries.jsonl").write_text('{"_id": "q", "text": "what"}\n')
    (folder / "qrels" / "test.tsv").write_text("query-id\tcorpus-id\tscore\nq\tp0\t1\n")
    return folder


def drained(records, source):
    """The records of a stream up to the first fault, that fault, and what was ignored."""
    source.ignored.clear()
    found = []
    try:
        for record in records:
            found.append(record)
    except HardnegError as fault:
        return found, str(fault), dict(source.ignored)
    return found, None, dict(source.ignored)


def one_by_one(source, kinds):
    for part, found in ready_parts(source.passage_parts()):
        kinds.append(found is not None)
        if found is None:
            yield from part.records() if isinstance(part, PassageLines) else part
            continue
        columns = [
            [text.decode() for text in split(joined, np.frombuffer(lengths, np.int64))]
            for joined, lengths in zip(found.joined, found.lengths, strict=True)
        ]
        part.ignored.update(dict.fromkeys(found.ignored, found.n))
        for number, fields in enumerate(zip(*columns, strict=True), part.line):
            yield PassageRecord(*fields, part.path, number)


def split(joined, lengths):
    ends = np.cumsum(lengths)
    return [joined[end - length : end] for end, length in zip(ends.tolist(), lengths.tolist(), strict=True)]


def same(folder, data):
    """The kinds of the parts of a corpus, whose records are those of the slow reader."""
    source, kinds = beir.records(folder_of(folder, data)), []
    assert drained(one_by_one(source, kinds), source) == drained(source.passages(), source)
    return kinds


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("more", MORE)
@pytest.mark.parametrize("end", [b"", b"\n"])
@pytest.mark.parametrize("start", [b"", b"\xef\xbb\xbf"])
def test_alike_lines_are_read_as_one_by_one(tmp_path, monkeypatch, style, more, end, start):
    monkeypatch.setattr(lines, "CHUNK", 400)
    data = start + b"\n".join(line(i, style, more) for i in range(60)) + end
    kinds = same(tmp_path, data)
    assert len(kinds) > 4
    assert all(kinds)


def test_another_shape_is_a_new_mould(tmp_path, monkeypatch):
    monkeypatch.setattr(lines, "CHUNK", 400)
    data = b"\n".join(line(i, STYLES[i // 40], MORE[i // 40 % 3]) for i in range(200))
    kinds = same(tmp_path, data)
    assert not all(kinds)  # where the shape changes within a block
    assert sum(kinds) > len(kinds) * 0.6


ODD = [
    b"",
    b"  ",
    b"[]",
    b'{"_id": "a", "title": "t", "text": "half \\ud800"}',
    b'{"_id": "a", "title": "t", "text": "nul \\u0000"}',
    b'{"_id": "a", "title": "t", "text": "nul \x00"}',
    b'{"_id": "a", "title": "t", "text": "bad \\x"}',
    b'{"_id": "a", "title": "t", "text": "bad \\u12"}',
    b'{"_id": "a", "title": "t", "text": "tab\t"}',
    b'{"_id": "a", "title": "t", "text": "\xff"}',
    b'{"_id": "a", "title": "t", "text": "\xed\xa0\x80"}',
    b'{"_id": "a", "title": "t", "text": "open}',
    b'{"_id": "a", "title": "t", "text": "open\\"}',
    b'{"_id": "a", "title": "t", "text": "\\\\\\"}',
    b'{"_id": "a", "title": "t", "text": ' + b'"' + b"\\" * 200 + b'"}',
    b'{"_id": "a", "title": "t", "text": ' + b'"' + b"\\" * 201 + b'""}',
    b'{"_id": "a", "title": "t", "text": "x"} {"_id": "a", "title": "t", "text": "x"}',
    b'{"_id": "a", "title": "t", "text": "x", "text": "y"}',
    b'{"_id": "a", "title": "t", "Text": "x"}',
    b'{"_id": "a", "text": "t", "title": "x"}',
    b'{"_id": "a", "title": null, "text": "x"}',
    b'{"_id": 7, "title": "t", "text": "x"}',
    b'{"_id": "a", "title": 7, "text": "x"}',
    b'{"_id" "a", "title": "t", "text": "x"}',
    b'{"_id": "a", "title": "t", "text": "x"}}',
    b'\\{"_id": "a", "title": "t", "text": "x"}',
    b'"{"_id": "a", "title": "t", "text": "x"}',
    b'{"\\u005fid": "a", "title": "t", "text": "x"}',
    b'{"_id": "a", "metadata": {"_id": "b"}, "text": "x"}',
    b'{"_id": "a", "metadata": [{"_id": "b"}, "c"], "text": "x"}',
]


@pytest.mark.parametrize("odd", ODD)
@pytest.mark.parametrize("at", [0, 3, 9])
def test_one_odd_line(tmp_path, odd, at):
    some = [line(i, "dense" if b"," in odd and b" " not in odd else "ascii", {}) for i in range(9)]
    some.insert(at, odd)
    same(tmp_path, b"\n".join(some) + b"\n")
    same(tmp_path, b"\n".join([odd] * 5))


@pytest.mark.parametrize("seed", range(6))
def test_damaged_bytes(tmp_path, seed):
    draw = np.random.default_rng(seed)
    whole = b"\n".join(line(i, STYLES[seed % 5], MORE[seed % 3]) for i in range(6))
    marks = b'"\\\n\r\0{}[],: \xc3\xa9aut0'
    for _ in range(60):
        data = bytearray(whole)
        for _ in range(draw.integers(1, 4)):
            at = int(draw.integers(len(data)))
            put = marks[draw.integers(len(marks))]
            match draw.integers(3):
                case 0:
                    data[at] = put
                case 1:
                    data.insert(at, put)
                case _:
                    del data[at]
        same(tmp_path, bytes(data))


def test_lines_that_are_wrong_together_are_not_right(tmp_path):
    two, half = b'{"_id": "a", "text": "x"}{"_id": "b", "text": "y"}', [b'{"_id": "c", "text": "z', b'z"}']
    for some in ([two, *half], [*half, two], [two, b""], [b"", two]):
        for before in ([], [b'{"_id": "0", "text": "0"}']):
            data = b"\n".join([*before, *some])
            same(tmp_path, data)
            mould = Mould.of(b'{"_id": "a", "text": "x"}')
            assert mould.fit(data) is None


@pytest.mark.parametrize("most", [40, 1 << 20])
def test_long_lines_are_left_to_the_slow_reader(tmp_path, monkeypatch, most):
    monkeypatch.setattr(moulds, "MOST", 40)
    monkeypatch.setattr(helper, "MOST", most)
    assert not any(same(tmp_path, line(0, "ascii", {})))


def test_digests_and_facts_are_those_of_single_records(tmp_path, monkeypatch):
    monkeypatch.setattr(lines, "CHUNK", 2000)
    given = [line(i, STYLES[i // 100], MORE[i // 100 % 4]) for i in range(400)]
    blank = [b'{"_id": "e", "text": " \\u2003"}', b'{"_id": "f", "title": "", "text": ""}']
    given[33:33] = [line(7, "ascii", {}), *blank]
    given += [line(i, "ascii", {}) for i in range(390, 420)]
    source = beir.records(folder_of(tmp_path / "in", b"\n".join(given)))
    assert source.parts is not None
    found = []
    for name, one in (("fast", source), ("slow", replace(source, parts=None))):
        made = import_collection(one, tmp_path / name, allow_empty=True, on_duplicate="first")
        manifest = read_manifest(tmp_path / name)
        assert manifest.facts["counts"] == {"empty_passage_texts": 2, "passage_duplicates": 11}
        found.append((made.digest, manifest.facts, manifest.files))
    assert found[0] == found[1]


@pytest.mark.parametrize(("changed", "code"), [({"_id": "\u2003"}, "EMPTY_ID"), ({"text": "\n"}, "EMPTY_TEXT")])
def test_faults_of_a_block_have_their_lines(tmp_path, changed, code):
    given = [{"_id": f"p{i}", "title": "t", "text": "x"} for i in range(30)]
    given[17] |= changed
    source = beir.records(folder_of(tmp_path / "in", "\n".join(map(json.dumps, given)).encode()))
    for one in (source, replace(source, parts=None)):
        with pytest.raises(HardnegError) as fault:
            import_collection(one, tmp_path / "to")
        assert (fault.value.code, fault.value.line) == (code, 18)
