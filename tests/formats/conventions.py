"""One collection written in every convention, for tests that read it back."""

import csv
import gzip
import io
import json
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Plain:
    """A collection: passages (id, title, text); for each split, queries (id, text, answers) and qrels."""

    passages: list[tuple[str, str, str]]
    queries: dict[str, list[tuple[str, str, list[str]]]]
    qrels: dict[str, dict[str, dict[str, int]]]

    @property
    def has_answers(self):
        return any(answers for queries in self.queries.values() for *_, answers in queries)

    @property
    def binary(self):
        return all(g == 1 for judged in self.qrels.values() for graded in judged.values() for g in graded.values())


def jsonl(records):
    return "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records)


def tsv(rows):
    return "".join("\t".join(map(str, row)) + "\n" for row in rows)


def quoted(rows):
    """Rows as the csv module quotes them."""
    stream = io.StringIO()
    csv.writer(stream, delimiter="\t", lineterminator="\n").writerows(rows)
    return stream.getvalue()


def distinct_queries(plain):
    return {query_id: text for queries in plain.queries.values() for query_id, text, _ in queries}


def trec_qrels(plain, split):
    return "".join(f"{q} 0 {p} {g}\n" for q, graded in plain.qrels[split].items() for p, g in graded.items())


def beir(plain):
    yield "corpus.jsonl", jsonl({"_id": i, "title": title, "text": text} for i, title, text in plain.passages)
    yield "queries.jsonl", jsonl({"_id": i, "text": text} for i, text in distinct_queries(plain).items())
    for split, judged in plain.qrels.items():
        rows = [(q, p, g) for q, graded in judged.items() for p, g in graded.items()]
        yield f"qrels/{split}.tsv", tsv([("query-id", "corpus-id", "score"), *rows])


def msmarco(plain):
    yield "corpus.tsv", tsv(plain.passages)
    for split, queries in plain.queries.items():
        yield f"{split}.query.txt", tsv(row[:2] for row in queries)
        yield f"qrels.{split}.tsv", trec_qrels(plain, split).replace(" ", "\t")


def trec(plain):
    yield "collection.tsv", tsv(plain.passages)
    for split, queries in plain.queries.items():
        yield f"topics.{split}.tsv", tsv(row[:2] for row in queries)
        yield f"qrels.{split}.txt", "# judged\n" + trec_qrels(plain, split)


def trec_objects(plain):
    yield "corpus.jsonl", jsonl({"id": i, "title": title, "contents": text} for i, title, text in plain.passages)
    for split, queries in plain.queries.items():
        yield f"topics.{split}.txt", tsv(row[:2] for row in queries)
        yield f"qrels.{split}.tsv", trec_qrels(plain, split)


def qa(plain):
    yield "corpus.tsv", tsv([("psg_id", "title", "text"), *plain.passages])
    for split, queries in plain.queries.items():
        yield (
            f"{split}.jsonl",
            jsonl(
                {
                    "qid": i,
                    "question": text,
                    "answers": answers,
                    "positive_ctxs": list(plain.qrels[split].get(i, {})),
                }
                for i, text, answers in queries
            ),
        )


def psgs(plain):
    rows = [("id", "text", "title"), *((i, text, title) for i, title, text in plain.passages)]
    return "psgs_w100.tsv", quoted(rows)


def dpr(plain):
    yield psgs(plain)
    yield from ((name, text) for name, text in qa(plain) if name.endswith(".jsonl"))


def dpr_inline(plain):
    """DPR's training files, which are arrays over many lines with inline contexts."""
    yield psgs(plain)
    by_id = {i: {"passage_id": i, "title": title, "text": text} for i, title, text in plain.passages}
    for split, queries in plain.queries.items():
        records = [
            {
                "dataset": "some",
                "qid": i,
                "question": text,
                "answers": answers,
                "positive_ctxs": [by_id[p] for p in plain.qrels[split].get(i, {})],
                "negative_ctxs": [],
                "hard_negative_ctxs": [by_id[plain.passages[0][0]]],
            }
            for i, text, answers in queries
        ]
        yield f"biencoder-some-{split}.json", json.dumps(records, ensure_ascii=False, indent=2)


def tevatron_1(plain):
    yield (
        "corpus.jsonl",
        jsonl({"docid": i, "title": title, "text": text} for i, title, text in plain.passages),
    )
    by_id = {i: {"docid": i, "title": title, "text": text} for i, title, text in plain.passages}
    for split, queries in plain.queries.items():
        yield (
            f"{split}.jsonl",
            jsonl(
                {
                    "query_id": i,
                    "query": text,
                    "answers": answers,
                    "positive_passages": [by_id[p] for p in plain.qrels[split].get(i, {})],
                    "negative_passages": [by_id[plain.passages[-1][0]]],
                }
                for i, text, answers in queries
            ),
        )


def tevatron_2(plain):
    yield (
        "corpus.jsonl",
        jsonl({"docid": i, "title": title, "document_text": text} for i, title, text in plain.passages),
    )
    for split, queries in plain.queries.items():
        yield (
            f"{split}.jsonl",
            jsonl(
                {
                    "query_id": i,
                    "query_text": text,
                    "query_image": None,
                    "answers": answers,
                    "positive_document_ids": list(plain.qrels[split].get(i, {})),
                    "negative_document_ids": [plain.passages[-1][0]],
                }
                for i, text, answers in queries
            ),
        )


GRADED = {"beir": beir, "msmarco": msmarco, "trec": trec, "trec objects": trec_objects}
ANSWERED = {
    "qa": qa,
    "dpr": dpr,
    "dpr inline": dpr_inline,
    "tevatron 1": tevatron_1,
    "tevatron 2": tevatron_2,
}
ALL = GRADED | ANSWERED


def able(plain):
    """The conventions that can hold all of a collection."""
    return [name for name in ALL if not (plain.has_answers and name in GRADED)] if plain.binary else list(GRADED)


def write(name, plain, folder, change=lambda data: data, end=""):
    """Write the collection as a folder in a convention; ``change`` is applied to the bytes of each file."""
    for file, text in ALL[name](plain):
        path = Path(folder) / f"{file}{end}"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(change(text.encode()))
    return folder


def otherwise(data):
    """The bytes of the same file with a byte-order mark, CRLF and no last newline, compressed."""
    return gzip.compress(b"\xef\xbb\xbf" + data.replace(b"\n", b"\r\n").removesuffix(b"\r\n"), mtime=0)
