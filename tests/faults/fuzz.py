"""Mutated inputs of every format: each must be read completely, or refused in one line.

    python -m faults.fuzz --cases 20000 --seed 1      (make fuzz)
    python -m faults.fuzz --only beir --case 1234     one case again, with its traceback

A case takes a small sound input, damages it (:mod:`mutations`), and reads it. It fails if an error is no
``HardnegError`` of whole lines, if it takes more than ten seconds, if a fault leaves files behind, or if records
are neither kept nor reported.
"""

import argparse
import contextlib
import csv
import gzip
import io
import json
import logging
import os
import re
import select
import shutil
import signal
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from random import Random

from faults.injected import LINE
from faults.mutations import mutate
from formats.samples import (
    BEIR,
    DOCUMENTS,
    DPR,
    DPR_INLINE,
    MSMARCO,
    PASSAGES,
    QA,
    SETTINGS,
    TABLES,
    TEVATRON,
    TEVATRON_INLINE,
    TOPICS,
    TREC,
    files,
)
from hardneg.errors import HardnegError
from hardneg.storage import artifacts, disk

SECONDS = 10  # seconds of computing; by the clock, six times as many
LONGEST = 2500  # the most characters of a fault's line; ten ids may be long


class Hang(BaseException):
    """Raised when a case takes too long; no handler of the package catches it."""


class Failure(AssertionError):
    """Raised when the records that were read are not those in the files."""


@dataclass(frozen=True)
class Format:
    """A format: how to make a sound input and how to read it, and its share of a hundred cases."""

    name: str
    make: Callable[[Path], None]
    read: Callable[[Path, Random], None]
    share: int


# ---------------------------------------------------------------- what the files hold, counted by other means


def lines_of(path):
    """The lines of a file or of its .gz, as any reader of text splits them; None if there is neither."""
    for place in (path, path.with_name(path.name + ".gz")):
        if place.is_file():
            data = place.read_bytes()
            data = gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data
            data = data.removeprefix(b"\xef\xbb\xbf")
            return data.removesuffix(b"\n").split(b"\n") if data else []
    return None


def check(condition, what):
    if not condition:
        raise Failure(what)


def check_passages(collection, corpus, header):
    """Every line of the corpus is a passage, or is counted among the reported duplicates."""
    found = len(lines_of(corpus)) - header
    kept, reported = collection.facts["passages"], collection.facts["counts"].get("passage_duplicates", 0)
    check(found == kept + reported, f"{found} lines of passages: {collection.facts}")


def check_queries(collection, ids):
    """The collection has every query of the files."""
    check(len(set(ids)) == collection.facts["queries"], f"queries {ids}: {collection.facts}")


def check_judgements(collection, found):
    """Every judgement is kept, or is counted among the reported ones."""
    facts, counts = collection.facts, Counter(collection.facts["counts"])
    kept = sum(split["judgements"] for split in facts["splits"].values())
    reported = counts["judgement_duplicates"] + counts["unknown_judgements"]
    check(found == kept + reported, f"{found} judgements: {facts}")


def split_files(folder, suffix):
    """The files of all splits, without .gz."""
    found = (path.with_name(path.name.removesuffix(".gz")) for path in folder.glob("*") if path.is_file())
    return sorted({path for path in found if re.search(suffix + "$", path.name)})


def rows_of(paths):
    return [json.loads(line) for path in paths for line in lines_of(path)]


def check_beir(collection, folder):
    check_passages(collection, folder / "corpus.jsonl", 0)
    check_queries(collection, [str(row["_id"]) for row in rows_of([folder / "queries.jsonl"])])
    check_judgements(collection, sum(len(lines_of(path)) - 1 for path in split_files(folder / "qrels", r"\.tsv")))


def check_qa(collection, folder):
    rows = rows_of(split_files(folder, r"\.jsonl"))
    check_passages(collection, folder / "corpus.tsv", 1)
    check_queries(collection, [str(row["qid"]) for row in rows])
    check_judgements(collection, sum(len(row.get("positive_ctxs") or ()) for row in rows))


def check_columns(corpus, queries, qrels, collection, folder):
    """Check files of columns without a header; ``queries`` and ``qrels`` are patterns of file names."""
    asked = [line for path in split_files(folder, queries) for line in lines_of(path)]
    judged = [line for path in split_files(folder, qrels) for line in lines_of(path)]
    check_passages(collection, folder / corpus, 0)
    check_queries(collection, [line.split(b"\t")[0] for line in asked])
    check_judgements(collection, len([line for line in judged if not line.startswith(b"#")]))


check_msmarco = partial(check_columns, "corpus.tsv", r"[\w-]\.query\.txt", r"^qrels\.[\w-]+\.tsv")
check_documents = partial(
    check_columns, "msmarco-docs.tsv", r"^msmarco-doc\w+-queries\.tsv", r"^msmarco-doc\w+-qrels\.tsv"
)
check_topics = partial(check_columns, "corpus.jsonl", r"^topics\.[\w.-]+\.tsv", r"^qrels\.[\w.-]+\.txt")


def check_tables(collection, folder):
    """Check a folder of three tables, which may have been renamed."""
    passages = split_files(folder, r"(?i)^(?:é )?passages\.jsonl")[0]
    patterns = r"(?i)^(?:é )?queries\.tsv", r"(?i)^(?:é )?qrels\.[\w.-]+\.tsv"
    check_columns(passages.name, *patterns, collection, folder)


def check_contents(what, kept, found, reported):
    """Everything kept is in the files, and everything in the files is kept, except for the reported number."""
    kept, found = set(kept), set(found)
    check(kept <= found, f"{what} of no file: {sorted(kept - found)!r:.500}")
    check(len(found - kept) <= reported, f"{what} lost: {sorted(found - kept)!r:.500}")


def records_of(paths):
    """The objects of files, which hold an array or one object a line."""
    found = []
    for path in paths:
        lines = lines_of(path)
        whole = b"\n".join(lines).strip()
        found += (
            json.loads(whole) if whole.startswith(b"[") else [json.loads(line) for line in lines if line.strip()]
        )
    return found


def one_of(record, *names):
    """The value of the first of these fields that the record has."""
    return next((record[name] for name in names if name in record), None)


def check_questions(collection, folder, suffix, texts, positives):
    """Check the questions, and the number of their positives, in records that hold both."""
    records = records_of(split_files(folder, suffix))
    check_contents("questions", collection.query_texts, [one_of(record, *texts) for record in records], 0)
    judged = 0
    for record in records:
        contexts = [context for name in positives for context in record.get(name) or ()]
        judged += len({identity(context) for context in contexts})
    check_judgements(collection, judged)
    return records


def identity(context):
    """The identity of a passage: its id, or its title and text if it has none."""
    if not isinstance(context, dict):
        return str(context)
    names = ("docid", "passage_id", "psg_id", "doc_id", "_id", "id")
    known = next((context[name] for name in names if context.get(name) is not None), None)
    return str(known) if known is not None else (context.get("title") or "", context.get("text"))


def check_dpr(collection, folder):
    check_passages(collection, folder / "psgs_w100.tsv", 1)
    header, *rows = csv.reader(
        io.StringIO(b"\n".join(lines_of(folder / "psgs_w100.tsv")).decode()), delimiter="\t"
    )
    texts = [row[header.index("text")] for row in rows]
    check_contents("texts", collection.texts, texts, collection.facts["counts"].get("passage_duplicates", 0))
    questions = records_of(split_files(folder, r"\.jsonl"))
    asked = [record["question"] for record in questions]
    for path in split_files(folder, r"\.qa\.csv"):
        asked += [line.decode().split("\t")[0] for line in lines_of(path)]
    check_contents("questions", collection.query_texts, asked, 0)
    check_judgements(collection, sum(len(set(map(str, row.get("positive_ctxs") or ()))) for row in questions))


def check_tevatron(collection, folder):
    check_passages(collection, folder / "corpus.jsonl", 0)
    texts = [one_of(record, "text", "document_text") for record in records_of([folder / "corpus.jsonl"])]
    check_contents("texts", collection.texts, texts, collection.facts["counts"].get("passage_duplicates", 0))
    names = ("positive_passages", "positive_document_ids")
    check_questions(collection, folder, r"^(?!corpus\.).*\.jsonl?", ("query", "query_text"), names)


def check_inline(suffix, asked, positives, negatives, collection, folder):
    """Check a format whose records of queries hold the passages, each passage in many records."""
    records = check_questions(collection, folder, suffix, asked, positives)
    contexts = [context for row in records for name in positives + negatives for context in row.get(name) or ()]
    found = {identity(context): (context.get("title") or "", context["text"]) for context in contexts[::-1]}
    kept = list(zip(collection.titles, collection.texts, strict=True))
    check_contents("passages", kept, found.values(), 0)
    check(len(kept) == len(found), f"{len(kept)} passages of {len(found)}: {collection.facts}")


check_dpr_inline = partial(
    check_inline,
    r"\.jsonl?",
    ("question",),
    ("positive_ctxs",),
    ("negative_ctxs", "hard_negative_ctxs"),
)
check_tevatron_inline = partial(
    check_inline,
    r"\.jsonl?",
    ("query", "query_text"),
    ("positive_passages", "positive_document_ids"),
    ("negative_passages", "negative_document_ids"),
)


# ---------------------------------------------------------------- sound inputs


@contextlib.contextmanager
def scratch():
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder)


def make_collection(folder):
    from hardneg.data.importing import import_collection

    with scratch() as source:
        files(BEIR)(source)
        shutil.copytree(import_collection(str(source), source / "made").path, folder, dirs_exist_ok=True)


def make_pool(folder):
    import numpy as np

    from hardneg.negatives.pool import DTYPES, NegativePool, save_pool

    arrays = {name: np.zeros(4, dtype) for name, dtype in DTYPES.items()}
    arrays |= {"query_rows": np.arange(2, dtype=np.int32), "positive_rows": np.arange(2, dtype=np.int32)}
    arrays |= {"positive_offsets": np.arange(3), "offsets": np.array([0, 2, 4])}
    with scratch() as place:
        save_pool(NegativePool(**arrays, episode=1, collection="c"), place / "pool", settings={}, inputs={})
        shutil.copytree(place / "pool", folder, dirs_exist_ok=True)


def make_model(folder):
    from worlds.tiny_models import tiny_bert

    tiny_bert(folder, [text for _, _, text in PASSAGES])
    (folder / "README.md").write_text("# A model\n")


def make_bin_model(folder):
    import torch
    from safetensors.torch import load_file

    make_model(folder)
    torch.save(load_file(folder / "model.safetensors"), folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()


def make_st_model(folder):
    from hardneg.models.loading import load_encoder
    from hardneg.models.saving import save_encoder

    with scratch() as place:
        make_model(place / "plain")
        save_encoder(load_encoder(str(place / "plain"), normalize=True), place / "saved")
        shutil.copytree(place / "saved", folder, dirs_exist_ok=True)
    (folder / "manifest.json").unlink()  # with a manifest, any change is found before a file is read


# ---------------------------------------------------------------- reading


def read_source(format, check_records, folder, random):
    """Import a folder; an import that fails must leave nothing behind."""
    from hardneg.data.importing import import_collection

    target = folder.with_name("imported")
    rules = {"allow_empty": random.random() < 0.5, "allow_unjudged": random.random() < 0.5}
    rules["on_duplicate"] = random.choice(("error", "first"))
    before = sorted(folder.parent.iterdir())
    try:
        collection = import_collection(f"{format}:{folder}", target, **rules)
    except BaseException:
        check(sorted(folder.parent.iterdir()) == before, "an import that failed left something behind")
        raise
    check_records(collection, folder)


def read_trec(folder, random):
    """Runs and judgements, without a collection."""
    import numpy as np

    from hardneg.data.formats.trec import open_qrels, read_runs
    from hardneg.evaluation.measures import evaluate, parse_measures

    name = random.choice(("run.trec", "marco.run"))
    judged, *spaces = open_qrels(folder / random.choice(("qrels.trec", "qrels.tsv")))
    (run,), _, _ = read_runs([folder / name], *spaces)
    found = [line.split() for line in lines_of(folder / name)]
    check(len(run.scores) == len(found), "hits are lost")
    if name == "run.trec":  # the other file holds ranks only
        scores = np.array([float(hit[4]) for hit in found], np.float32)
        check(np.array_equal(np.sort(run.scores), np.sort(scores)), "other scores")
    evaluate(run, judged, parse_measures("RR@10 nDCG@10 AP"), id_rank=None)


def read_settings(folder, random):
    """Read a settings file, sometimes with its own lines as overrides."""
    from hardneg.config import build, read_overrides, read_toml
    from hardneg.recipes.ance_tele import AnceTele

    path = folder / "settings.toml"
    layers = []
    if random.random() < 0.3:
        text = path.read_bytes().decode(errors="surrogateescape") if path.is_file() else ""
        layers = [read_overrides([line for line in text.split("\n") if line])]
    build(AnceTele, read_toml(path), *layers).check()


def read_collection(folder, random):
    """Open a collection; if it opens, it must be the published one."""
    from hardneg.data.importing import open_data

    collection = open_data(str(folder), cache=folder.with_name("cache"))
    check(collection.n_passages == len(PASSAGES), "another collection")
    check(list(collection.texts) == [text for _, _, text in PASSAGES], "other texts")


def read_pool(folder, random):
    """Read a pool; sometimes its manifest is first made to fit the broken arrays."""
    from hardneg.negatives.facts import entries_of, stats
    from hardneg.negatives.pool import load_pool

    if random.random() < 0.7:
        seal_again(folder)
    pool = load_pool(folder, n_passages=len(PASSAGES))
    stats(pool)
    [entries_of(pool, i) for i in range(len(pool))]


def seal_again(folder):
    """Give the files of a folder a manifest that fits them."""
    path = folder / artifacts.MANIFEST
    with contextlib.suppress(HardnegError, OSError):
        old = artifacts.read_manifest(folder)
        found = {name: folder / name for name in old.files if (folder / name).is_file()}
        sizes = {name: (file.stat().st_size, artifacts.digest_file(file)) for name, file in found.items()}
        new = artifacts.Manifest(old.kind, old.settings, old.inputs, old.facts, {**old.files, **sizes})
        path.write_text(json.dumps(new.as_json()))


def read_model(folder, random):
    """Load a model, and encode a text with it."""
    import torch

    from hardneg.data.tokens import token_batch
    from hardneg.models.loading import load_encoder

    encoder = load_encoder(str(folder), allow_bin=True)
    with torch.no_grad():
        batch = token_batch(["some text of a query"], [""], encoder.template("query"), encoder.tokenizer("query"))
        encoder.encode(batch, "query")


def source(name, format, contents, check_records, share):
    """The format of a convention that is imported."""
    return Format(name, files(contents), partial(read_source, format, check_records), share)


FORMATS = (
    source("beir", "beir", BEIR, check_beir, 14),
    source("qa", "qa", QA, check_qa, 10),
    source("msmarco", "msmarco", MSMARCO, check_msmarco, 9),
    source("msmarco-docs", "msmarco", DOCUMENTS, check_documents, 4),
    source("dpr", "dpr", DPR, check_dpr, 8),
    source("dpr-inline", "dpr", DPR_INLINE, check_dpr_inline, 6),
    source("tevatron", "tevatron", TEVATRON, check_tevatron, 6),
    source("tevatron-inline", "tevatron", TEVATRON_INLINE, check_tevatron_inline, 5),
    source("topics", "trec", TOPICS, check_topics, 6),
    source("tables", "tables", TABLES, check_tables, 6),
    Format("trec", files(TREC), read_trec, 13),
    Format("settings", files(SETTINGS), read_settings, 8),
    Format("collection", make_collection, read_collection, 2),
    Format("pool", make_pool, read_pool, 4),
    Format("model", make_model, read_model, 2),
    Format("model-bin", make_bin_model, read_model, 1),
    Format("model-st", make_st_model, read_model, 2),
)


# ---------------------------------------------------------------- cases


def stop(number, frame):
    raise Hang(f"more than {SECONDS} s")


def run_case(format, sound, place, seed, case):
    """Run one case; returns the code of its fault, or "read" without one. Raises if the case fails."""
    random = Random(f"{seed} {format.name} {case}")
    folder = place / format.name
    for old in place.iterdir():
        shutil.rmtree(old)
    shutil.copytree(sound, folder, copy_function=shutil.copyfile)
    done = mutate(random, folder)
    signal.setitimer(signal.ITIMER_PROF, SECONDS)
    try:
        format.read(folder, random)
        return "read"
    except HardnegError as fault:
        for line in fault.lines:
            check(LINE.fullmatch(line) and len(line.splitlines()) == 1, f"not one line of a fault: {line!r:.500}")
            check(len(line) <= LONGEST, f"a line of {len(line)} characters: {line!r:.500}")
        return fault.code
    except BaseException as fault:
        fault.add_note(", ".join(done))
        raise
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)


def quieten():
    """Turn off flushing to the disk, which takes most of the time, and warnings, which are many."""
    disk.sync = lambda path: None
    logging.disable(logging.WARNING)
    warnings.simplefilter("ignore")
    signal.signal(signal.SIGPROF, stop)


def work(format, root, cases, seed, tell):
    """Run cases in this process; ``tell`` gets the number of each case before it, and the outcome after it."""
    quieten()
    for case in cases:
        tell({"case": case})
        try:
            tell({"code": run_case(format, root / "sound", root / "case", seed, case)})
        except BaseException as fault:
            text = "".join(traceback.format_exception(fault))
            tell({"code": "FAILED", "kind": f"{type(fault).__name__}: {fault!s:.80}", "text": text[-4000:]})


def start(format, root, cases, seed):
    """Start a process that runs cases and may die or hang; returns it and the source of its messages."""
    ours, theirs = os.pipe()
    child = os.fork()
    if not child:
        os.close(ours)
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # discards the output of libraries
        with open(theirs, "w", buffering=1) as stream:
            work(format, root, cases, seed, lambda told: stream.write(json.dumps(told) + "\n"))
        os._exit(0)
    os.close(theirs)
    return child, open(ours)


def run_format(format, cases, seed):
    """Run the cases of a format; returns outcomes by code, and failures as (case, kind, text)."""
    outcomes, failures = Counter(), []
    with scratch() as root:
        (root / "case").mkdir()
        (root / "sound").mkdir()
        with contextlib.redirect_stderr(io.StringIO()):
            format.make(root / "sound")
        format.read(shutil.copytree(root / "sound", root / "first" / format.name), Random(0))  # it is sound
        while cases:
            last = None
            child, messages = start(format, root, cases, seed)
            while select.select([messages], [], [], 6 * SECONDS)[0] and (line := messages.readline()):
                told = json.loads(line)
                last = told.get("case")
                if last is None:
                    outcomes[told["code"]] += 1
                    cases = cases[1:]
                if told.get("code") == "FAILED":
                    failures.append((cases.start - 1, told["kind"], told["text"]))
            messages.close()
            os.kill(child, signal.SIGKILL)
            status = os.waitpid(child, 0)[1]
            if last is not None:
                outcomes["FAILED"] += 1
                failures.append((last, "Lost", f"the process hung, or ended with status {status}"))
                cases = cases[1:]
    return outcomes, failures


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", choices=[format.name for format in FORMATS], action="append")
    parser.add_argument("--case", type=int, help="run this case alone")
    asked = parser.parse_args()
    chosen = [format for format in FORMATS if not asked.only or format.name in asked.only]
    shares, begun, total, failed = sum(format.share for format in chosen), time.monotonic(), 0, 0
    for format in chosen:
        count = max(1, round(asked.cases * format.share / shares))
        cases = range(count) if asked.case is None else range(asked.case, asked.case + 1)
        outcomes, failures = run_format(format, cases, asked.seed)
        total, failed = total + len(cases), failed + len(failures)
        say(f"{format.name}: {len(cases)} cases: {', '.join(f'{n} {code}' for code, n in outcomes.most_common())}")
        for case, kind, text in {kind: failure for failure in failures[::-1] for kind in [failure[1]]}.values():
            say(f"\n{format.name} case {case}: {kind}\n{text}")
    say(f"{total} cases of seed {asked.seed}: {failed} failed, {time.monotonic() - begun:.0f} s")
    sys.exit(bool(failed))


def say(text):
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
