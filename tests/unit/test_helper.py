"""The second process that helps to read a large corpus: only the time depends on it."""

import contextlib
import json
import os
import sys

import pytest

from hardneg.data import helper
from hardneg.data.formats import beir, lines
from hardneg.data.helper import Helper, ready_parts
from hardneg.data.importing import import_collection
from hardneg.errors import HardnegError
from hardneg.storage.artifacts import read_manifest


@pytest.fixture
def helped(monkeypatch):
    """Blocks of a few lines, and a helper from the second on; the answers that it gave."""
    monkeypatch.setattr(lines, "CHUNK", 2000)
    monkeypatch.setattr(helper, "ALONE", 1)
    monkeypatch.setattr(helper, "usable_cpus", lambda: 2)
    monkeypatch.setattr(helper, "AHEAD", 3)
    given, result = [], Helper.result

    def kept(self):
        given.append(result(self))
        return given[-1]

    monkeypatch.setattr(Helper, "result", kept)
    return given


def passages(n, **changed):
    found = [
        {"_id": f"p{i}", "title": f"t{i}", "text": f"caf\u00e9 {i} " * (i % 9 + 1), "more": ""} for i in range(n)
    ]
    for i, fields in changed.items():
        found[int(i[1:])] |= fields
    return [json.dumps(fields, ensure_ascii=i % 2 == 0) for i, fields in enumerate(found)]


def folder_of(folder, given):
    (folder / "qrels").mkdir(parents=True)
    (folder / "corpus.jsonl").write_text("\n".join(given))
    (folder / "queries.jsonl").write_text('{"_id": "q", "text": "what"}\n')
    (folder / "qrels" / "test.tsv").write_text("query-id\tcorpus-id\tscore\nq\tp0\t1\n")
    return folder


def alone(monkeypatch):
    monkeypatch.setattr(helper, "usable_cpus", lambda: 1)


def content(path):
    manifest = read_manifest(path)
    return manifest.facts, manifest.files


def test_a_helped_import_is_the_same(tmp_path, monkeypatch, helped):
    given = passages(600, p77={"text": " \u2003"}, p300={"title": None}, p301={"_id": "p1"}, p302={"n": 1})
    source = f"beir:{folder_of(tmp_path / 'in', given)}"
    options = {"allow_empty": True, "on_duplicate": "first"}
    import_collection(source, tmp_path / "helped", **options)
    assert len([block for block in helped if block is not None]) > 3
    alone(monkeypatch)
    import_collection(source, tmp_path / "alone", **options)
    assert content(tmp_path / "helped") == content(tmp_path / "alone")


@pytest.mark.parametrize("after", [0, 1, 5])
def test_a_helper_that_ends_is_not_missed(tmp_path, monkeypatch, helped, after):
    source = f"beir:{folder_of(tmp_path / 'in', passages(600))}"
    take, taken = Helper.take, []

    def killing(self, part):
        found = take(self, part)
        taken.append(found)
        if found and sum(taken) == after + 1:
            self.process.kill()
            self.process.wait()
        return found

    monkeypatch.setattr(Helper, "take", killing)
    import_collection(source, tmp_path / "helped")
    assert sum(taken) >= after + 1
    alone(monkeypatch)
    import_collection(source, tmp_path / "alone")
    assert content(tmp_path / "helped") == content(tmp_path / "alone")


@pytest.mark.parametrize("command", ["/no/such/python", "/bin/false", "/bin/cat", ""])
def test_no_helper_comes(tmp_path, monkeypatch, helped, command):
    monkeypatch.setattr(sys, "executable", command)
    made = import_collection(f"beir:{folder_of(tmp_path / 'in', passages(200))}", tmp_path / "to")
    assert made.n_passages == 200


@pytest.mark.parametrize(
    "wrong", ["{", '{"_id": "x", "text": ""}', '{"_id": "x", "title": "t", "text": "a\\ud800"}']
)
@pytest.mark.parametrize("at", [0, 40, 199])
def test_the_first_fault_is_told(tmp_path, monkeypatch, helped, wrong, at):
    given = passages(200)
    given[at] = wrong
    given.append("]")
    source, told = f"beir:{folder_of(tmp_path / 'in', given)}", []
    for _ in range(2):
        with pytest.raises(HardnegError) as fault:
            import_collection(source, tmp_path / "to")
        told.append(str(fault.value))
        assert fault.value.line == at + 1
        alone(monkeypatch)
    assert told[0] == told[1]


def test_what_was_read_before_a_fault_of_the_file_comes_before_it(tmp_path, monkeypatch, helped):
    monkeypatch.setattr(lines, "MAX_LINE", 3000)
    source = beir.records(folder_of(tmp_path / "in", [*passages(100), "x" * 9000]))
    found = []
    with pytest.raises(HardnegError) as fault:
        found.extend(block.n for _, block in ready_parts(source.passage_parts()))
    assert fault.value.code == "LONG_LINE"
    assert 80 < sum(found) <= 100


def test_no_helper_stays(tmp_path, monkeypatch, helped):
    begun, start = [], Helper._start

    def seen(self):
        begun.append(start(self))
        return begun[-1]

    monkeypatch.setattr(Helper, "_start", seen)
    folder = folder_of(tmp_path / "in", passages(300))
    for stop in (2, 9, None):
        with contextlib.closing(ready_parts(beir.records(folder).passage_parts())) as parts:
            for number, _ in enumerate(parts):
                if number == stop:
                    break
    import_collection(f"beir:{folder}", tmp_path / "to")
    assert len(begun) == 4
    for process in begun:
        assert process.returncode is not None
        with pytest.raises(ProcessLookupError):
            os.kill(process.pid, 0)


def test_a_small_corpus_needs_no_helper(tmp_path, monkeypatch):
    monkeypatch.setattr(helper, "usable_cpus", lambda: 2)
    monkeypatch.setattr(Helper, "_start", lambda self: pytest.fail("started"))
    import_collection(f"beir:{folder_of(tmp_path / 'in', passages(300))}", tmp_path / "to")
