"""Faults and notes name keywords to a caller in Python, and options to a command."""

import collections
import inspect
import logging
import re
import subprocess
import sys
import threading
import time
import typing
from types import SimpleNamespace

import pytest

import hardneg as hn
from hardneg.api import prepare
from hardneg.api.recipes import RECIPES
from hardneg.arguments import checked
from hardneg.callers import BOUNDS, SPLITS, Called, command_line, in_callers_words, in_python
from hardneg.errors import Faults, HardnegError, InputError, SettingsError
from hardneg.experiment.observers import Observers
from hardneg.process import progress
from hardneg.recipes.roles import supervision
from hardneg.recipes.roles.jobs import Job
from worlds.small_trainings import train_small
from worlds.tiny_world import one_thread  # noqa: F401

COMMAND = re.compile(r"\bhardneg [a-z][^;,)`]*")
OPTION = re.compile(r"(?<![\w-])--[a-z]")
KEYWORD = re.compile(r"(?<![\w.(])\(?([a-z]\w*)=(?!=)")
CALL = re.compile(r"[\w.]+\([^()]*\)")
INNER = re.compile(r"hn\.(Splits|Filters)\((\w+)=")
RUN = {"q1": {"p1": 1.0}}
TUNED = {"tuning_runs": [RUN, RUN]}
NO_RELEVANT = hn.Collection.from_lists(
    [(f"p{number}", "", f"text {number}") for number in range(4)],
    {"q1": "one", "q2": "two"},
    {"train": {"q1": ["p1"]}, "bare": {"q2": {"p2": 0}}},
)
HELD = hn.Splits(dev="none")


def training(function, words, **given):
    """A call that trains, and what its fault says."""
    return function, lambda w: ((w.data, w.model, w.out), given), words


CALLS = {
    "dev of a preset": training(
        hn.train_ance_tele,
        'give a dev split (splits=hn.Splits(dev=...)), or all of: keep="last"',
        splits=HELD,
        keep="best",
    ),
    "measure_every": training(
        hn.train_star, "measure_every=None", splits=HELD, keep="last", measure_every=2, steps=4
    ),
    "dev": training(hn.train_star, "did you mean the argument splits=hn.Splits(dev=...)?", dev="dev"),
    "test": training(hn.train_warmup, "did you mean the argument splits=hn.Splits(test=...)?", test="dev"),
    "train": training(hn.train_star, "did you mean the argument splits=hn.Splits(train=...)?", train="dev"),
    "pool": training(hn.train_star, "did you mean the argument negatives=?", pool="x"),
    "lr": training(hn.train_star, "did you mean 'learning_rate'?", lr=1e-3),
    "max_ram": training(hn.train_star, "hardneg.process.memory.limit_memory(max_ram=...)?", max_ram="8G"),
    "mixtures": training(hn.train_warmup, "; give negatives=", mixtures=["file"], steps=2),
    "start_episode": training(hn.train_ance_tele, "; give negatives=, or begin with", start_episode=2),
    "index": training(hn.train_adore, "; give index_folder=FOLDER, or set index =", index="given", cut=10),
    "adore": training(hn.train_adore, "adore has no negatives; ", negatives=3),
    "minutes": training(
        hn.train_ance, "set epochs; hn.plan(..., estimate=True) says how", minutes=5, mode="async-fixed"
    ),
    "no relevant": (
        hn.train_star,
        lambda w: ((NO_RELEVANT, w.model, w.out), {"splits": hn.Splits(test="bare")}),
        'name another one by splits=hn.Splits(test=...): train, or splits=hn.Splits(test="none")',
    ),
    "devices": (
        hn.plan,
        lambda w: (("star", w.data, w.model), {"devices": 4}),
        "ask for one, too: estimate=True",
    ),
    "inspect": (
        hn.inspect,
        lambda w: ((w.out, w.data), {"query_id": "q", "random": 2}),
        "leave query_id or random out",
    ),
    "audit": (
        hn.audit,
        lambda w: ((w.out, w.data), {"thresholds": {"foo": 1}}),
        "thresholds={\"foo\": 1}: there is no signal 'foo'",
    ),
    "most": (hn.audit, lambda w: ((w.out, w.data), {"most": 0}), "most = 0; "),
    "format": (hn.export_pool, lambda w: ((w.out, w.data, w.out), {"format": "st"}), "format = 'st'; "),
    "token ids": (hn.export_pool, lambda w: ((w.out, w.data, w.out), {"format": "token-ids"}), "; give model="),
    "texts": (
        hn.export_pool,
        lambda w: ((w.out, w.data, w.out), {"model": w.model, "format": "dpr"}),
        'leave model out, or give format="token-ids"',
    ),
    "shard": (
        hn.encode,
        lambda w: ((w.data, w.model, w.out), {"shard": "1/1"}),
        'write shard="i/n" with 0 <= i < n',
    ),
    "bounds": (
        hn.mine,
        lambda w: ((w.data,), {"model": w.model, "out": w.out, "filter_by": w.model}),
        "give filters=hn.Filters(relative_margin=...), hn.Filters(absolute_margin=...)",
    ),
    "no model": (
        hn.mine,
        lambda w: ((w.data, None, w.out), {"sources": ["query"]}),
        "query negatives need a model; give model=",
    ),
    "previous": (
        hn.mine,
        lambda w: ((w.data,), {"model": w.model, "out": w.out, "sources": ["bm25"], "previous": w.out}),
        "leave previous out",
    ),
    "margin": (
        hn.mine,
        lambda w: ((w.data, None, w.out), {"sources": ["bm25"], "filters": hn.Filters(relative_margin=0.1)}),
        "by the scores of a model (filter_by=)",
    ),
    "search": (hn.search_text, lambda w: ((w.data, "text"), {}), "give either model= or bm25=True"),
    "both": (
        hn.search_split,
        lambda w: ((w.data, w.out), {"bm25": True, "embeddings": w.out}),
        "give model= instead of bm25=True, or leave them out",
    ),
    "language": (
        hn.search_text,
        lambda w: ((w.data, "text"), {"model": w.model, "language": "de"}),
        "leave language out, or search with bm25=True",
    ),
    "judgements": (hn.evaluate, lambda w: ((RUN,), {}), "give either data= or qrels="),
    "tune": (hn.fuse, lambda w: (([RUN, RUN],), TUNED), 'give tune="dev" too, or leave them out'),
    "weights": (
        hn.fuse,
        lambda w: (([RUN, RUN],), {"method": "linear", "weights": [1, 1], "tune": "dev", **TUNED}),
        "give either weights= or tune=",
    ),
    "reading": (
        hn.search_text,
        lambda w: ((w.data, "text"), {"bm25": True, "query_length": 8}),
        "search with model=",
    ),
}


@pytest.fixture
def place(world, tmp_path):
    return SimpleNamespace(data=world.collection, model=world.model, out=tmp_path / "out")


def keywords_of(function):
    """Every keyword that a public function takes."""
    names = set()
    for name, parameter in inspect.signature(function).parameters.items():
        hint = typing.get_type_hints(function.__wrapped__).get(name)
        if parameter.kind is not parameter.VAR_KEYWORD:
            names.add(name)
        elif typing.get_origin(hint) is typing.Unpack:
            names |= set(typing.get_type_hints(*typing.get_args(hint)))
        else:
            names |= set(inspect.signature(prepare.prepare).parameters)
            names = names.union(*(recipe.settings.model_fields for recipe in RECIPES.values()))
    return names


def check_words(said, function):
    """Refuse options outside a command, and keywords that the function does not take."""
    plain = COMMAND.sub("", said)
    assert not OPTION.search(plain), said
    assert set(KEYWORD.findall(CALL.sub("", plain))) <= keywords_of(function), said
    for kind, name in INNER.findall(plain):
        assert name in inspect.signature(getattr(hn, kind)).parameters, said


@pytest.mark.parametrize("name", CALLS)
def test_a_fault_names_keywords_to_python(place, name):
    function, arguments, words = CALLS[name]
    args, given = arguments(place)
    with pytest.raises(HardnegError) as caught:
        function(*args, **given)
    assert words in str(caught.value)
    check_words(str(caught.value), function)


def test_an_option_and_a_wrong_keyword_would_be_seen():
    for said in ("give --pool", "X: y; give pool=", "X (pool=)", "give splits=hn.Splits(pool=...)"):
        with pytest.raises(AssertionError):
            check_words(said, hn.train_star)
    check_words("give negatives=, or run hardneg mine --out POOL", hn.train_star)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("train", "warmup", "--set", "mixtures=file"), "; give --pool"),
        (("train", "ance-tele", "--set", "start_episode=2"), "; give --pool, or begin with"),
        (("train", "ance-tele", "--dev", "none", "--set", "keep=best"), "(--dev), or all of: --set keep=last"),
        (("train", "adore", "--set", "index=given", "--set", "cut=10"), "; give --index FOLDER, or set index"),
        (("train", "star", "--set", "pool=x"), "give it by the option --pool"),
        (("train", "star", "--set", "dev=x"), "give it by the option --dev"),
        (("train", "star", "--devices", "4", "--dry-run"), "ask for one, too: --estimate"),
        (("encode", "--shard", "1/1"), "write --shard i/n with 0 <= i < n"),
        (("mine", "--filter-by", "M"), "give --relative-margin, --absolute-margin, --max-score or --top"),
        (("mine", "--sources", "bm25", "--previous", "p"), "leave --previous out"),
    ],
)
def test_the_same_fault_names_options_to_a_command(place, hardneg, words, said):
    given = ["--data", place.data.path, "--model", place.model, "--out", place.out]
    status, _, err = hardneg(*words, *given)
    assert status == 2
    assert said in err
    assert "=hn." not in err


def test_the_command_line_names_options_in_all_of_its_threads_and_no_longer_than_it_runs():
    @checked
    def refuse(pool: int = 0, negatives: int = 0) -> None:
        raise SettingsError("NO_POOL", "none", f"give --pool; {in_callers_words('or --pool')}")

    def said():
        with pytest.raises(SettingsError) as caught:
            refuse()
        return caught.value.fix

    found = []
    with command_line():
        worker = threading.Thread(target=lambda: found.append(said()))
        worker.start()
        worker.join()
        assert [said(), *found] == 2 * ["give --pool; or --pool"]
    assert said() == "give pool=; or pool="
    assert in_callers_words("give --pool") == "give --pool"  # no public function is called


def test_a_fault_keeps_all_else(tmp_path):
    cause = ValueError("cause")

    class Own(InputError):
        def __init__(self):
            super().__init__("NO_DATA", "--data = ''", "give it with --data", path=tmp_path, line=3)
            self.more = 7

    @checked
    def refuse(data: str = "") -> None:
        raise Own from cause

    with pytest.raises(Own) as caught:
        refuse()
    fault = caught.value
    assert (fault.code, fault.path, fault.line, fault.more) == ("NO_DATA", tmp_path, 3, 7)
    assert fault.__cause__ is cause
    assert fault.args == ("NO_DATA", "data = ''", "give it with data=")
    assert str(fault) == f"{tmp_path}:3: NO_DATA: data = ''; give it with data="


def test_each_of_several_faults_names_keywords():
    @checked
    def refuse(one: int = 0, two: bool = False) -> None:
        raise Faults([SettingsError("BAD_SETTING", "a", f"give --{name}") for name in ("one", "two")])

    with pytest.raises(Faults) as caught:
        refuse()
    assert caught.value.lines == ["BAD_SETTING: a; give one=", "BAD_SETTING: a; give two=True"]
    assert caught.value.fix == "give one="


def test_the_outer_function_is_the_one_that_was_called():
    @checked
    def inner(folder: str = "") -> None:
        raise SettingsError("NO_POOL", "none", "give --query Q or --folder F")

    @checked
    def outer(query_id: str = "", folder: str = "") -> None:
        inner()

    with pytest.raises(SettingsError, match="give query_id=Q or folder=F"):
        outer()


def test_what_a_function_of_the_users_calls_answers_to_it():
    @checked
    def inner(folder: str = "") -> None:
        raise SettingsError("NO_POOL", "none", "give --folder F")

    told = []

    def callback(record):
        try:
            inner()
        except SettingsError as fault:
            told.append(fault.fix)

    @checked
    def outer() -> None:
        Observers(on_step=callback).tell_steps([{}])

    outer()
    assert told == ["give folder=F"]


def test_what_a_role_writes_names_keywords_to_the_python_that_started_it(monkeypatch):
    told = []
    program = [sys.executable, "-c", "import sys; sys.stderr.write('WARNING: give --pool')"]
    popen = subprocess.Popen
    monkeypatch.setattr(supervision.subprocess, "Popen", lambda command, **given: popen(program, **given))
    monkeypatch.setattr(supervision, "note", lambda line: told.append(in_callers_words(line)))

    @checked
    def start(negatives: int = 0) -> None:
        job = Job("ance", "trainer", "e", "d", {}, {}, {}, 0, {}, None, supervised=True)
        worker = object.__new__(supervision.Worker)
        worker.job, worker.beat, worker.tail = job, SimpleNamespace(read=lambda: ""), collections.deque()
        worker._start()
        worker.process.stdin.close()
        worker.process.wait()
        while not worker.process.stderr.closed:
            time.sleep(0.01)

    start()
    assert told == ["trainer: WARNING: give negatives="]
    with command_line():
        start()
    assert told[1:] == ["trainer: WARNING: give --pool"]


TRAINING = Called("train", None, {"allow_bin"})
MINING = Called("mine", ["filters", "filter_by", "k"])


@pytest.mark.parametrize(
    ("text", "said", "called"),
    [
        ("leave --dev out", "leave dev of hn.Splits out", TRAINING),
        ("(--dev none to keep them)", '(splits=hn.Splits(dev="none") to keep them)', TRAINING),
        ("--lr with one rate", "learning_rate= with one rate", TRAINING),
        ("give it: --set count=...", "give it: count=...", TRAINING),
        ("--set a=0.5 --set b=none, --set c=x.", 'a=0.5, b=None, c="x".', TRAINING),
        ("(--set 'p=query: ' --set 'e=[]' --set 'q=\"5\"')", '(p="query: ", e=[], q="5")', TRAINING),
        ("is given 2 times by --set", "is given 2 times by overrides", TRAINING),
        ("write --set key=value", "write key=value", TRAINING),
        (
            "no query 'a --dev b' in the model's run; give --k",
            "no query 'a --dev b' in the model's run; give k=",
            MINING,
        ),
        ("no such folder (/my --k model)", "no such folder (/my --k model)", MINING),
        (
            "by hardneg import --allow-empty",
            "by allow_empty=True",
            Called("import_collection", ["x"], {"allow_empty"}),
        ),
        ("(--seed 3: in the same)", "(seed=3: in the same)", TRAINING),
        ("set --set seed=N, another --out", "set seed=N, another out=", TRAINING),
        ("(--role trainer, --role inferencer)", '(role="trainer", role="inferencer")', TRAINING),
        ("pass --allow-bin (allow_bin=True) to read", "pass allow_bin=True to read", TRAINING),
        ("allow it by --allow-code abc", 'allow it by hn.allow_code("abc")', TRAINING),
        ("`hardneg score` made (--pool SCORED)", "`hardneg score` made (negatives=SCORED)", TRAINING),
        ("by hardneg import --language, or --set a=1", "by hardneg import --language, or a=1", TRAINING),
        ("the code (other/model--modeling.Model)", "the code (other/model--modeling.Model)", TRAINING),
        ("'lr' (option --lr)? More", "'lr'? More", TRAINING),
        ("give --max-ram 8G", 'give hardneg.process.memory.limit_memory(max_ram="8G")', TRAINING),
        ("--max-score or --top 3", "filters=hn.Filters(max_score=...) or hn.Filters(top=3)", MINING),
        ("give --k; leave --filter-by or --top out", "give k=; leave filter_by or top out", MINING),
        ("or give a new folder with --out", "or give a new folder with out=", TRAINING),
        ("no option at all", "no option at all", MINING),
    ],
)
def test_options_become_keywords(text, said, called):
    assert in_python(text, called) == said


def test_the_tables_name_what_there_is():
    assert list(inspect.signature(hn.Splits).parameters) == list(SPLITS)
    assert list(inspect.signature(hn.Filters).parameters) == list(BOUNDS)


def test_notes_and_warnings_name_keywords_to_python_and_options_to_a_command(
    world, tmp_path, hardneg, caplog, monkeypatch
):
    monkeypatch.setattr(progress, "enabled", True)
    with caplog.at_level(logging.INFO, logger="hardneg"):
        splits = hn.Splits(train="dev", dev="dev", test="none")
        train_small("star", world, tmp_path / "exp", splits=splits)
    assert "figures are too good; leave dev of hn.Splits out" in caplog.text
    caplog.clear()
    words = ["--train", "dev", "--dev", "dev", "--test", "none", "--data", world.collection.path, "--dry-run"]
    status, _, err = hardneg("train", "star", *words, "--model", world.model, "--out", tmp_path / "new")
    assert status == 0, err
    assert "figures are too good; leave --dev out" in err
