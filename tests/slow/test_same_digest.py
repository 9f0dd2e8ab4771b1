"""Real collections, rewritten into every convention that can hold them, are one and the same collection."""

import csv
import gzip
import json
import shutil

import pytest

from formats import conventions
from formats.conventions import Plain, otherwise, write
from hardneg.data.importing import import_collection

pytestmark = [pytest.mark.slow, pytest.mark.shared]


def opened(folder, name):
    """A text file, plain or as gzip."""
    plain = folder / name
    return plain.open(newline="") if plain.exists() else gzip.open(folder / f"{name}.gz", "rt", newline="")


def objects(folder, name):
    with opened(folder, name) as stream:
        return [json.loads(line) for line in stream]


def plain_beir(folder):
    """The collection of a BEIR folder, read without the code under test; queries are where they are judged."""
    passages = [(d["_id"], d.get("title", ""), d["text"]) for d in objects(folder, "corpus.jsonl")]
    texts = {d["_id"]: d["text"] for d in objects(folder, "queries.jsonl")}
    qrels = {}
    for path in sorted((folder / "qrels").iterdir()):
        split = path.name.split(".")[0]
        with opened(folder / "qrels", f"{split}.tsv") as stream:
            for query, passage, grade in csv.reader(list(stream)[1:], delimiter="\t", quoting=csv.QUOTE_NONE):
                qrels.setdefault(split, {}).setdefault(query, {})[passage] = int(grade)
    queries = {split: [(i, texts[i], []) for i in texts if i in judged] for split, judged in qrels.items()}
    assert sum(map(len, queries.values())) == len(texts)
    return Plain(passages, queries, qrels)


def plain_qa(folder):
    """The collection of a folder of questions, read without the code under test."""
    with opened(folder, "corpus.tsv") as stream:
        passages = [tuple(line.rstrip("\n").split("\t")) for line in stream][1:]
    splits = {split: objects(folder, f"{split}.jsonl") for split in ("train", "dev", "test")}
    queries = {split: [(d["qid"], d["question"], d["answers"]) for d in some] for split, some in splits.items()}
    qrels = {
        split: {d["qid"]: dict.fromkeys(d["positive_ctxs"], 1) for d in some} for split, some in splits.items()
    }
    return Plain(passages, queries, qrels)


@pytest.mark.parametrize("name", ["cacm", "cranfield", "scifact", "wiki_openqa"])
def test_every_convention_gives_one_digest(shared_data, tmp_path, name):
    folder = shared_data / name
    plain = plain_qa(folder) if name == "wiki_openqa" else plain_beir(folder)
    expected = import_collection(str(folder), tmp_path / "as it is")
    assert (expected.n_passages, expected.splits) == (len(plain.passages), tuple(sorted(plain.queries)))
    able = conventions.able(plain)
    assert len(able) == {"cacm": 9, "cranfield": 4, "scifact": 9, "wiki_openqa": 5}[name]
    for i, convention in enumerate(able):  # every second one spelled otherwise
        change, end = ((lambda data: data), "") if i % 2 else (otherwise, ".gz")
        found = import_collection(
            str(write(convention, plain, tmp_path / convention, change, end)), tmp_path / f"c{i}"
        )
        assert found.digest == expected.digest, convention
        assert found.facts["counts"] == {}


def test_published_topics_are_in_the_split_that_judges_them(shared_data, tmp_path):
    """The topics and qrels of TREC DL as they were published, with a stand-in for their passages."""
    folder, copies = shared_data / "msmarco_dl", tmp_path / "in"
    copies.mkdir()
    judged = set()
    for year in ("dl19", "dl20"):
        for name in (f"queries.{year}.tsv.gz", f"qrels.{year}.txt.gz"):
            shutil.copy(folder / name, copies / name)
        with opened(folder, f"qrels.{year}.txt") as stream:
            judged |= {line.split()[2] for line in stream}
    (copies / "corpus.tsv").write_text("".join(f"{i}\ttext of {i}\n" for i in sorted(judged)))
    c = import_collection(f"trec:{copies}", tmp_path / "c")
    stats = json.loads((folder / "stats.json").read_text())
    for year in ("dl19", "dl20"):
        assert len(c.qrels(year)) == stats[year]["judged_topics"]
        assert len(c.qrels(year).grades) == stats[year]["judgements"]
    assert c.n_queries == stats["dl19"]["topics"] + stats["dl20"]["topics"]
