"""``ir_datasets:`` and ``hf:``: with stand-ins for the packages, and with the packages on data of our own."""

import json
import sys
from collections import namedtuple
from types import SimpleNamespace

import pytest

from formats.conventions import Plain, beir, tevatron_1
from hardneg.data.collection import Collection
from hardneg.data.importing import import_collection, open_data
from hardneg.errors import InputError, SettingsError
from hardneg.process import progress

PASSAGES = [("a", "T", "one"), ("b", "", "two"), ("c", "U", "three")]
QUERIES = {"train": [("q1", "x", ["yes"])], "dev": [("q2", "y", [])]}
QRELS = {"train": {"q1": {"b": 1}}, "dev": {"q2": {"c": 1, "a": 1}}}


def plain(answers=True):
    queries = {s: [(i, text, given if answers else []) for i, text, given in each] for s, each in QUERIES.items()}
    return Plain(PASSAGES, queries, QRELS)


def expected(tmp_path, answers=True):
    queries = {i: text for each in QUERIES.values() for i, text, _ in each}
    given = {"q1": ["yes"]} if answers else {}
    return Collection.from_lists(PASSAGES, queries, QRELS, answers=given, to=tmp_path / "expected")


@pytest.mark.parametrize(("name", "package"), [("ir_datasets", "ir_datasets"), ("hf", "datasets")])
def test_a_missing_package_is_one_line_with_its_install_line(tmp_path, monkeypatch, name, package):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(SettingsError) as caught:
        open_data(f"{name}:some/thing", cache=tmp_path)
    extra = package.replace("_", "-")
    line = f"PACKAGE_MISSING: {name}: needs the package {package}; pip install 'hardneg[{extra}]'"
    assert (str(caught.value), caught.value.status) == (line, 2)


# ---------------------------------------------------------------- ir_datasets

Doc = namedtuple("Doc", "doc_id text title extra")
Query = namedtuple("Query", "query_id text answers")
Qrel = namedtuple("Qrel", "query_id doc_id relevance")
WebDoc = namedtuple("WebDoc", "doc_id url title body")
Topic = namedtuple("Topic", "query_id title description")
Topic.default_text = lambda self: self.title
Topic.__doc__ = "A topic without a field ``text``."


class Part:
    """A dataset of the catalogue."""

    def __init__(self, docs=(), queries=(), qrels=None):
        self.docs, self.queries, self.qrels = list(docs), list(queries), qrels

    has_docs = property(lambda self: lambda: bool(self.docs))
    has_queries = property(lambda self: lambda: bool(self.queries))
    has_qrels = property(lambda self: lambda: self.qrels is not None)
    docs_cls = property(lambda self: lambda: type(self.docs[0]))
    docs_iter = property(lambda self: lambda: iter(self.docs))
    queries_iter = property(lambda self: lambda: iter(self.queries))
    qrels_iter = property(lambda self: lambda: iter(self.qrels))


@pytest.fixture
def catalogue(monkeypatch):
    docs = [Doc(i, text, title, 0) for i, title, text in PASSAGES]
    parts = {
        f"lib/some/{split}": Part(
            docs,
            [Query(*query) for query in QUERIES[split]],
            [Qrel(q, p, g) for q, graded in QRELS[split].items() for p, g in graded.items()],
        )
        for split in QUERIES
    }
    parts["lib/some/dev/more"] = Part(
        docs, [Query("q2", "y", []), Query("q9", "unjudged", [])], [Qrel("q2", "a", 0)]
    )
    parts["web"] = Part(
        [WebDoc("D1", "http://x", "One", "body"), WebDoc("D2", "", "", "more")], [Topic("1", "t", "d")]
    )
    parts["empty"] = Part()

    def broken():
        raise ConnectionError("no\nnetwork")

    parts["far"] = Part(docs, [Query("q", "x", [])], [])
    parts["far"].__class__ = type("Far", (Part,), {"docs_iter": property(lambda self: broken)})
    fake = SimpleNamespace(
        load=parts.__getitem__, docs_parent_id=lambda name: "lib/some" if name.startswith("lib/some") else name
    )
    monkeypatch.setitem(sys.modules, "ir_datasets", fake)


@pytest.mark.usefixtures("catalogue")
def test_ids_of_one_corpus_are_splits_of_a_collection(tmp_path):
    c = import_collection("ir_datasets:lib/some/train,lib/some/dev", tmp_path / "c")
    assert c.digest == expected(tmp_path).digest
    assert c.facts["ignored_fields"] == {"extra": 3}
    assert open_data("ir_datasets:lib/some/train", cache=tmp_path / "k").splits == ("train",)


@pytest.mark.usefixtures("catalogue")
def test_a_query_is_in_the_parts_that_judge_it(tmp_path):
    c = import_collection("ir_datasets:lib/some/dev, lib/some/dev/more", tmp_path / "c")
    assert list(c.query_ids) == ["q2", "q9"]
    assert {split: c.qrels(split).query_rows.tolist() for split in c.splits} == {"dev": [0], "dev-more": [0]}


@pytest.mark.usefixtures("catalogue")
def test_documents_are_read_as_those_of_ms_marco_and_topics_by_their_title(tmp_path):
    c = import_collection("ir_datasets:web", tmp_path / "c")
    assert (list(c.titles), list(c.texts)) == (["http://x\nOne", ""], ["body", "more"])
    assert (list(c.query_texts), c.splits) == (["t"], ("test",))


@pytest.mark.usefixtures("catalogue")
@pytest.mark.parametrize(
    ("ids", "line"),
    [
        ("nope", "UNKNOWN_DATASET: ir_datasets has no 'nope'"),
        ("empty", "EMPTY_CORPUS: empty has no documents"),
        ("web,lib/some/dev", "TWO_CORPORA: web,lib/some/dev belong to different corpora: lib/some, web"),
        ("far", "NOT_LOADED: ir_datasets:docs cannot be loaded (ConnectionError: no network)"),
    ],
)
def test_faults_of_the_catalogue(tmp_path, ids, line):
    with pytest.raises((InputError, SettingsError)) as caught:
        import_collection(f"ir_datasets:{ids}", tmp_path / "c")
    assert str(caught.value).startswith(line)


def test_the_package_itself_reads_files_of_ours(tmp_path, monkeypatch):
    ir_datasets = pytest.importorskip("ir_datasets")
    monkeypatch.setenv("IR_DATASETS_HOME", str(tmp_path))
    (tmp_path / "docs.tsv").write_text("".join(f"{i}\t{text}\n" for i, _, text in PASSAGES))
    (tmp_path / "queries.tsv").write_text("q1\tx\n")
    (tmp_path / "qrels.txt").write_text("q1 0 b 1\n")
    name = f"hardneg-{tmp_path.name}"
    ir_datasets.registry.register(
        name,
        ir_datasets.create_dataset(
            docs_tsv=str(tmp_path / "docs.tsv"),
            queries_tsv=str(tmp_path / "queries.tsv"),
            qrels_trec=str(tmp_path / "qrels.txt"),
        ),
    )
    c = import_collection(f"ir_datasets:{name}", tmp_path / "c")
    assert (list(c.passage_ids), list(c.texts)) == (["a", "b", "c"], ["one", "two", "three"])
    assert c.qrels("test").passage_rows.tolist() == [1]


# ---------------------------------------------------------------- the Hugging Face hub


class Hub:
    """A stand-in for the package datasets: {dataset: {configuration: {split: rows}}}."""

    def __init__(self, content):
        self.content = content

    def get_dataset_config_names(self, name):
        if name not in self.content:
            raise FileNotFoundError(f"no dataset {name}")
        return list(self.content[name])

    def load_dataset_builder(self, name, config=None):
        splits = self.content[name][config or next(iter(self.content[name]))]
        return SimpleNamespace(hash="abc", download_and_prepare=lambda: None, as_dataset=lambda: splits)

    def are_progress_bars_disabled(self):
        return True


def rows_of(text):
    return [json.loads(line) for line in text.splitlines()]


def judged(split):
    return [
        {"query-id": q, "corpus-id": p, "score": float(g)}
        for q, each in QRELS[split].items()
        for p, g in each.items()
    ]


TRIPLETS = [
    {"anchor": "q", "positive": "a", "negative": "b"},
    {"anchor": "q", "positive": "c", "negative": "b"},
]


@pytest.fixture
def hub(monkeypatch):
    files = dict(beir(plain(answers=False)))
    corpus, queries = ({"any": rows_of(files[f"{name}.jsonl"])} for name in ("corpus", "queries"))
    qrels = {"train": judged("train"), "validation": judged("dev")}
    inline = dict(tevatron_1(plain()))
    content = {
        "mteb/some": {"corpus": corpus, "queries": queries, "default": qrels},
        "BeIR/some": {"corpus": corpus, "queries": queries},
        "BeIR/some-qrels": {"default": qrels},
        "Tevatron/some": {"default": {s: rows_of(inline[f"{s}.jsonl"]) for s in ("train", "dev")}},
        "prompts": {"default": {"train": [{"prompt": "a", "chosen": "b"}]}},
        "several": {"triplet": {"train": TRIPLETS, "validation": TRIPLETS[:1]}, "pair": {}},
        "corpus-of": {"default": {"train": [{"id": 7, "text": "one"}]}},
        "odd": {"corpus": {"any": [{"_id": "a", "text": None}]}, "queries": queries, "default": qrels},
    }
    monkeypatch.setitem(sys.modules, "datasets", Hub(content))


@pytest.mark.usefixtures("hub")
@pytest.mark.parametrize("name", ["mteb/some", "BeIR/some"])
def test_a_hub_dataset_in_the_layout_of_mteb_or_beir(tmp_path, name):
    c = import_collection(f"hf:{name}", tmp_path / "c")
    assert c.digest == expected(tmp_path, answers=False).digest
    assert c.splits == ("dev", "train")


@pytest.mark.usefixtures("hub")
def test_a_hub_dataset_in_the_layout_of_tevatron(tmp_path):
    c = import_collection("hf:Tevatron/some", tmp_path / "c")
    assert sorted(zip(c.passage_ids, c.titles, c.texts, strict=True)) == PASSAGES
    assert {c.passage_ids[row] for row in c.qrels("dev").passage_rows} == {"c", "a"}
    assert c.answers(0) == ["yes"]


@pytest.mark.usefixtures("hub")
def test_a_hub_dataset_of_pairs_by_the_names_of_its_columns(tmp_path):
    c = import_collection("hf:several:triplet", tmp_path / "c")
    assert (list(c.query_texts), list(c.texts), c.splits) == (["q"], ["a", "b", "c"], ("dev", "train"))
    assert c.qrels("train").passage_rows.tolist() == [0, 2]
    alone = import_collection("hf:corpus-of", tmp_path / "d")
    assert (list(alone.passage_ids), alone.n_queries) == (["7"], 0)


@pytest.mark.usefixtures("hub")
@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("nope", "NOT_LOADED: hf:nope cannot be loaded (FileNotFoundError: no dataset nope)"),
        ("odd", "hf:odd/corpus:1: WRONG_TYPE: the field 'text' is null, not a string"),
        (
            "prompts",
            "hf:prompts/train: UNKNOWN_COLUMNS: the columns are prompt, chosen; looked for a query (anchor,",
        ),
        (
            "several",
            "UNKNOWN_DATASET: hf:several has several configurations; name one as hf:several:CONFIGURATION: t",
        ),
        (
            "several:x",
            "UNKNOWN_DATASET: hf:several has no configuration 'x'; name one as hf:several:CONFIGURATION: t",
        ),
    ],
)
def test_faults_of_the_hub(tmp_path, name, line):
    with pytest.raises(InputError) as caught:
        import_collection(f"hf:{name}", tmp_path / "c")
    assert str(caught.value).startswith(line)


@pytest.mark.filterwarnings("ignore")
def test_the_package_itself_reads_a_folder_of_ours(tmp_path, monkeypatch):
    datasets = pytest.importorskip("datasets")
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    datasets.disable_progress_bars()
    folder = tmp_path / "some"
    folder.mkdir()
    for name, text in beir(plain(answers=False)):
        if name.endswith(".jsonl"):
            (folder / name).write_text(text)
    for split in QRELS:
        (folder / f"qrels-{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in judged(split)))
    (folder / "README.md").write_text(
        "---\nconfigs:\n"
        "- config_name: corpus\n  data_files: corpus.jsonl\n"
        "- config_name: queries\n  data_files: queries.jsonl\n"
        "- config_name: default\n  data_files:\n"
        "  - split: train\n    path: qrels-train.jsonl\n  - split: validation\n    path: qrels-dev.jsonl\n---\n"
    )
    assert import_collection(f"hf:{folder}", tmp_path / "c").digest == expected(tmp_path, answers=False).digest


@pytest.mark.filterwarnings("ignore")
def test_a_folder_of_columns_is_not_asked_of_the_hub_and_quiet_is_quiet(tmp_path, monkeypatch, hardneg):
    datasets = pytest.importorskip("datasets")
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    monkeypatch.setattr(progress, "_wanted", None)
    datasets.enable_progress_bars()
    folder = tmp_path / "some"
    folder.mkdir()
    (folder / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in TRIPLETS))
    asked = ("import", f"hf:{folder}", "--to")
    assert hardneg("--quiet", *asked, tmp_path / "quiet")[::2] == (0, "")
    assert datasets.are_progress_bars_disabled() is False
    status, _, err = hardneg(*asked, tmp_path / "loud")
    assert (status, err.splitlines()[0]) == (0, f"reading the data set in the folder {folder}")
    assert "Hugging Face" not in err
    quiet, loud = (Collection.open(tmp_path / name) for name in ("quiet", "loud"))
    assert quiet.digest == loud.digest
    assert (list(quiet.query_texts), quiet.qrels("train").passage_rows.tolist()) == (["q"], [0, 2])
