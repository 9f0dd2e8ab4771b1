"""Blocks of lines are read as each line by itself would be: the same records, the same first fault."""

import json

import numpy as np
import pytest

from hardneg.data import building
from hardneg.data.checks import PlainPassages, SourceLines, plain_passages
from hardneg.data.formats import lines
from hardneg.data.formats.faults import collecting
from hardneg.data.importing import import_collection
from hardneg.data.record_source import PassageRecord
from hardneg.errors import HardnegError
from hardneg.storage.artifacts import read_manifest

ODD = [
    b'{"a": "caf\xc3\xa9"}',
    b'{"a": "\\ud83d\\ude00 \\u0041"}',
    b'{"a": "half \\ud800 of a pair"}',
    b'{"a": "\xff"}',
    b'{"a": "\xed\xa0\x80"}',
    b'{"a": "nul \x00"}',
    b'{"a": "escaped \\u0000"}',
    b'{"a": "tab\t"}',
    b'{"a": 1}\r',
    b'{"a": \r 1}',
    b"\r",
    b"",
    b"   ",
    b'{"a": 1, "a": 2}',
    b'{"a": -0, "b": NaN, "c": -Infinity, "d": 1e400}',
    b'{"a": 123456789012345678901234567890}',
    b'{"a": 1,}',
    b'{"a": 01}',
    b'{"a": [1}',
    b"2]}",
    b'{"a": [{}',
    b"{}]}",
    b'{"a": 1}, {"a": 2}',
    b"[1]",
    b"null",
    b'\xef\xbb\xbf{"a": 1}',
    b'{"a": ' + b"[" * 300 + b"]" * 300 + b"}",
    b'{"a": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    b'{"a": "x\xe2\x80\xa8y"}',
]


def one_by_one(data):
    """The objects and faults of a file's bytes, read by a slow loop as (line, what)."""
    rest = data.removeprefix(b"\xef\xbb\xbf").split(b"\n")
    found = []
    for number, line in enumerate(rest[:-1] if rest[-1] == b"" else rest, 1):
        line = line.removesuffix(b"\r")
        try:
            value = "NUL" if b"\0" in line else json.loads(line.decode())
            found.append((number, value if isinstance(value, dict | str) else "BAD_JSON"))
        except UnicodeDecodeError:
            found.append((number, "BAD_UTF8"))
        except (ValueError, RecursionError):
            found.append((number, "BAD_JSON"))
    return found


def read(path):
    faults, found = [], []
    with collecting(faults.append):
        found += lines.read_objects(path)
    told = [(fault.line, fault.code) for fault in faults]
    return sorted([*found, *told], key=lambda pair: pair[0])


@pytest.mark.parametrize("chunk", [1, 7, 64, 1 << 20])
@pytest.mark.parametrize("end", [b"", b"\n"])
def test_every_line_is_read_as_by_itself(tmp_path, monkeypatch, chunk, end):
    draw, good = np.random.default_rng(chunk), b'{"a": "good"}'
    several = [[odd for pair in zip(ODD, [good] * len(ODD), strict=True) for odd in pair]]
    several += [[ODD[i] for i in draw.permutation(len(ODD))] for _ in range(3)] + [[good] * 9, ODD[2:3], ODD[8:9]]
    for some in several:
        if chunk < 64:
            some = [line for line in some if len(line) < 1000]
        data = b"\n".join(some) + end
        if data in (b"", b"\n"):
            continue
        (tmp_path / "x.jsonl").write_bytes(data)
        monkeypatch.setattr(lines, "CHUNK", chunk)
        assert repr(read(tmp_path / "x.jsonl")) == repr(one_by_one(data))  # repr: NaN is not equal to itself


@pytest.mark.parametrize("chunk", [1, 5, 1 << 20])
def test_lines_of_text_are_numbered_alike(tmp_path, monkeypatch, chunk):
    texts = ["\u00e9ins", "zwei\r", "", "vier\x85", "f\u2028nf", "sechs\x0b", "\U0001f600"]
    for some in (texts, [text for text in texts if "\r" not in text]):
        (tmp_path / "x.txt").write_bytes("\n".join(some).encode())
        monkeypatch.setattr(lines, "CHUNK", chunk)
        assert list(lines.read_lines(tmp_path / "x.txt")) == [
            (i, text.removesuffix("\r")) for i, text in enumerate(some, 1)
        ]


# ---------------------------------------------------------------- blocks of passages


def beir(folder, passages):
    (folder / "qrels").mkdir(parents=True)
    (folder / "corpus.jsonl").write_text("".join(f"{line}\n" for line in passages))
    (folder / "queries.jsonl").write_text('{"_id": "q", "text": "what"}\n')
    (folder / "qrels" / "test.tsv").write_text("query-id\tcorpus-id\tscore\nq\tp0\t1\n")
    return f"beir:{folder}"


def passage(i, **changes):
    return json.dumps({"_id": f"p{i}", "title": f"t{i}", "text": f"text {i} \u00e9"} | changes)


@pytest.mark.parametrize("many", [1, 3, 1024])
@pytest.mark.parametrize(
    ("wrong", "code"),
    [
        ({"text": " \u2003"}, "EMPTY_TEXT"),
        ({"text": ""}, "EMPTY_TEXT"),
        ({"_id": ""}, "EMPTY_ID"),
        ({"_id": " "}, "EMPTY_ID"),
        ({"title": "a\0b"}, "NUL"),
        ({"text": "\ud800"}, "BAD_UNICODE"),
        ({"title": 3}, "WRONG_TYPE"),
        ({"text": None}, "WRONG_TYPE"),
    ],
)
def test_the_first_fault_is_told(tmp_path, monkeypatch, many, wrong, code):
    """A fault of a record comes before one of a line that is read in the same block, and not after it."""
    monkeypatch.setattr(building, "FEW", many)
    monkeypatch.setattr(building, "MANY", many)
    source = beir(tmp_path / "a", [*map(passage, range(40)), passage(40, **wrong), passage(41), "{"])
    with pytest.raises(HardnegError) as fault:
        import_collection(source, tmp_path / "to")
    assert (fault.value.code, fault.value.line) == (code, 41)
    source = beir(tmp_path / "b", [*map(passage, range(40)), "{", passage(41, **wrong)])
    with pytest.raises(HardnegError) as fault:
        import_collection(source, tmp_path / "to")
    assert (fault.value.code, fault.value.line) == ("BAD_JSON", 41)


def test_blocks_change_no_bit(tmp_path, monkeypatch):
    given = [passage(i) for i in range(90)]
    for i in range(0, 90, 7):
        given[i] = passage(i, more=i, title=None)
    given[50] = passage(50, text="")
    digests = set()
    for many in (1, 4, 1024):
        monkeypatch.setattr(building, "FEW", many)
        monkeypatch.setattr(building, "MANY", many)
        made = import_collection(beir(tmp_path / f"in{many}", given), tmp_path / f"{many}", allow_empty=True)
        digests.add(made.digest)
        facts = read_manifest(tmp_path / f"{many}").facts
        assert facts["counts"] == {"empty_passage_texts": 1}
        assert facts["ignored_fields"] == {"more": 13}
        assert made.texts.take([3, 50, 89]) == ["text 3 \u00e9", "", "text 89 \u00e9"]
    assert len(digests) == 1


def test_long_texts_are_checked_few_at_a_time(monkeypatch):
    monkeypatch.setattr(building, "CHARACTERS", 100)
    records = [PassageRecord(str(i), "", "x" * 50) for i in range(40)]
    dealt = list(building.blocks(iter(records)))
    assert [record for block in dealt for record in block] == records
    assert [len(block) for block in dealt] == [building.FEW, *[1] * (40 - building.FEW)]


def test_places_of_blocks_and_of_records_are_the_same(tmp_path):
    paths, numbers = [tmp_path, tmp_path, None, tmp_path, tmp_path], [3, 4, None, 9, None]
    one, other = SourceLines(), SourceLines()
    for path, line in zip(paths, numbers, strict=True):
        one.add(path, line)
    for part in (slice(0, 2), slice(2, 3), slice(3, 5)):
        other.extend(paths[part], numbers[part])
    assert [one.of(i) for i in range(5)] == [other.of(i) for i in range(5)]


def test_what_needs_a_closer_look():
    good = PassageRecord("a", "", "b")
    assert plain_passages([good, good]) == PlainPassages([b"a", b"a"], [b"", b""], [b"b", b"b"])
    for other in ({"id": " "}, {"id": ""}, {"text": "\n"}, {"title": None}, {"text": b"x"}, {"id": "\0"}):
        assert plain_passages([good, good._replace(**other)]) is None
