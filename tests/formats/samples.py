"""Small sound inputs in every format that is read, for tests that damage them."""

import json


def files(contents):
    """Make files from a dictionary of name -> text."""

    def make(folder):
        for name, text in contents.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(text, "utf-8")

    return make


def objects(*records):
    return "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records)


PASSAGES = [(f"p{i}", f"Title {i}" if i % 2 else "", f'naïve "text" {i} ☃ of a passage') for i in range(6)]
QUERIES = [(f"q{i}", f"what passage is {i}?") for i in range(5)]
PAIRS = [(0, 1, 1), (0, 2, 0), (1, 3, 2), (2, 0, 1), (3, 5, 1)]
TSV = "".join(f"{id_}\t{title}\t{text}\n" for id_, title, text in PASSAGES)
QRELS = "".join(f"q{query} 0 p{passage} {grade}\n" for query, passage, grade in PAIRS)

BEIR = {
    "corpus.jsonl": objects(*({"_id": id_, "title": title, "text": text} for id_, title, text in PASSAGES)),
    "queries.jsonl": objects(*({"_id": id_, "text": text, "metadata": {}} for id_, text in QUERIES)),
    "qrels/train.tsv": "query-id\tcorpus-id\tscore\n" + "".join(f"q{q}\tp{p}\t{g}\n" for q, p, g in PAIRS),
    "qrels/test.tsv": "query-id\tcorpus-id\tscore\nq4\tp4\t1.0\n",
}
QUESTIONS = [
    {"qid": id_, "question": text, "answers": ["a", "b"], "positive_ctxs": [f"p{i}"]}
    for i, (id_, text) in enumerate(QUERIES)
]
QA = {
    "corpus.tsv": "psg_id\ttitle\ttext\n" + TSV,
    "train.jsonl": objects(*QUESTIONS[:3]),
    "dev.jsonl": objects(*QUESTIONS[3:]),
}
MSMARCO = {
    "corpus.tsv": TSV,
    "train.query.txt": "".join(f"{id_}\t{text}\n" for id_, text in QUERIES[:4]),
    "dev.query.txt": "".join(f"{id_}\t{text}\n" for id_, text in QUERIES[4:]),
    "qrels.train.tsv": QRELS,
    "qrels.dev.tsv": "q4\t0\tp4\t1\n",
}
DOCUMENTS = {
    "msmarco-docs.tsv": "".join(f"{id_}\thttp://x/{id_}\t{title}\t{text}\n" for id_, title, text in PASSAGES),
    "msmarco-doctrain-queries.tsv": "".join(f"{id_}\t{text}\n" for id_, text in QUERIES),
    "msmarco-doctrain-qrels.tsv": QRELS,
}


def quoted(text):
    return '"' + text.replace('"', '""') + '"'


DPR = {
    "psgs_w100.tsv": "id\ttext\ttitle\n"
    + "".join(f"{id_}\t{quoted(text)}\t{quoted(title)}\n" for id_, title, text in PASSAGES),
    "train.jsonl": QA["train.jsonl"],
    "dev.qa.csv": "".join(f"{text}\t['a', \"b\"]\n" for _, text in QUERIES),
}
CONTEXTS = [{"psg_id": id_, "title": title, "text": text} for id_, title, text in PASSAGES]
DPR_INLINE = {
    "biencoder-x-train.json": json.dumps(
        [
            {
                "question": text,
                "answers": ["a"],
                "positive_ctxs": [CONTEXTS[i]],
                "hard_negative_ctxs": [CONTEXTS[i + 1], {"title": "no id", "text": text}],
            }
            for i, (_, text) in enumerate(QUERIES)
        ],
        indent=1,
    ),
}
TEVATRON = {
    "corpus.jsonl": objects(*({"docid": id_, "title": title, "text": text} for id_, title, text in PASSAGES)),
    "train.jsonl": objects(
        *(
            {"query_id": id_, "query_text": text, "positive_document_ids": [f"p{i}"], "answers": "a"}
            for i, (id_, text) in enumerate(QUERIES)
        )
    ),
}
TEVATRON_INLINE = {
    "train.jsonl": objects(
        *(
            {
                "query_id": id_,
                "query": text,
                "positive_passages": [{"docid": f"p{i}", "title": "", "text": f"passage {i}"}],
                "negative_passages": [{"docid": f"n{i}", "title": "", "text": f"other {i}"}],
            }
            for i, (id_, text) in enumerate(QUERIES)
        )
    ),
}
TOPICS = {
    "corpus.jsonl": objects(*({"id": id_, "contents": text} for id_, _, text in PASSAGES)),
    "topics.dev.tsv": "".join(f"{id_}\t{text}\n" for id_, text in QUERIES),
    "qrels.dev.txt": "# judged by nobody\n" + QRELS,
}
TABLES = {
    "passages.jsonl": objects(*({"id": id_, "title": title, "text": text} for id_, title, text in PASSAGES)),
    "queries.tsv": "".join(f"{id_}\t{text}\n" for id_, text in QUERIES),
    "qrels.dev.tsv": QRELS.replace(" 0 ", " ").replace(" ", "\t"),
}
RUN = "".join(f"q{q} Q0 p{p} {p + 1} {9.5 - p} hardneg\n" for q in range(3) for p in range(4))
TREC = {
    "run.trec": RUN,
    "marco.run": "".join(f"q{q}\tp{p}\t{p + 1}\n" for q in range(3) for p in range(4)),
    "qrels.trec": "# judged by nobody\n" + QRELS,
    "qrels.tsv": BEIR["qrels/train.tsv"],
}
SETTINGS = {
    "settings.toml": """# of an experiment
episodes = 3
learning_rate = 1e-5
passages_reference = [16, 32, 32]
alpha = 0.5
precision = "float32"
query_prompt = 'query: "é" '
extra = ["bm25"]
dedup = true
measures = "RR@10"
"""
}
