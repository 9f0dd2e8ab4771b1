"""The command line: faults are one line each with their status, results stand alone, help shows examples."""

import errno
import inspect
import json
import logging
import re
import signal
import subprocess
import sys
import warnings
from pathlib import Path

import pytest
import torch
import typer

import hardneg as hn
from faults.injected import LINE
from hardneg import __version__, cli
from hardneg.cli.application import COMMANDS as BY_HEADING
from hardneg.cli.application import application
from hardneg.data.collection import Collection
from hardneg.data.training_data import Labels
from hardneg.errors import BusyError, Faults, InputError, NumericError, SettingsError
from hardneg.negatives.pool import SOURCES, load_pool
from hardneg.recipes.catalogue import CATALOGUE, RecipeFacts, RecipeOption
from hardneg.recipes.cost_model import work_of
from hardneg.recipes.settings import Episode, Recipe, TrainingSettings
from hardneg.recipes.usual import USUAL
from hardneg.search.ann_building import DEFAULTS, LEAST
from hardneg.storage.artifacts import read_manifest
from worlds.tiny_world import one_thread, tiny_collection, tiny_model  # noqa: F401

RECIPES = tuple(facts.name for facts in CATALOGUE)
COMMANDS = (
    *("import", "export", "mine", "inspect", "encode", "index", "search", "evaluate", "compare"),
    *("rerank", "fuse", "score", "audit", "show", "diagnose", "verify", "clean", "doctor"),
    *("presets", "settings", "completion"),
    *(f"train {recipe}" for recipe in RECIPES),
)


# ---------------------------------------------------------------- help


@pytest.mark.parametrize("command", ["", "train", *COMMANDS])
def test_help_shows_an_example_that_can_be_copied(hardneg, command):
    status, out, err = hardneg(*command.split(), "--help")
    assert (status, err) == (0, "")
    example = out[out.index("Example:") :].splitlines()[1:]
    joined = " ".join(" ".join(line.rstrip("\\").strip() for line in example).split())
    assert joined.startswith(f"hardneg {command or 'train ance-tele'}")
    assert all(len(line) <= 80 for line in out.splitlines())


@pytest.mark.parametrize("command", COMMANDS)
def test_every_option_says_what_it_is(hardneg, command):
    out = hardneg(*command.split(), "--help")[1]
    options = out[re.search(r"^(?:Options|Output):", out, re.MULTILINE).start() : out.index("Example:")]
    for option, said in re.findall(r"^  (--[\w-]+)([^\n]*(?:\n   [^\n]*)*)", options, re.MULTILINE):
        said = re.sub(r"\[(?!FORMAT)[^]]*\]", "", said)  # without defaults and ranges
        assert "<" not in said, option  # kinds of values have names
        assert len(re.findall(r"[A-Za-z]{2,}", said)) > 1, option
        assert "." in said, option


@pytest.mark.parametrize(
    ("command", "usage"),
    [
        ("import", "[OPTIONS] SOURCE"),
        ("doctor", "[OPTIONS] [DATA]"),
        ("compare", "[OPTIONS] RUN..."),
        ("show", "[OPTIONS] EXP..."),
    ],
)
def test_usage_names_arguments_as_people_write_them(hardneg, command, usage):
    out = hardneg(command, "--help")[1]
    assert out.startswith(f"Usage: hardneg {command} {usage}\n")
    name = usage.split()[-1]
    assert re.search(rf"^Arguments:\n  {re.escape(name)}  [A-Z\[]", out, re.MULTILINE)  # no kind between them


def test_help_says_the_options_of_an_index_that_do_not_follow_the_corpus(hardneg):
    out = " ".join(hardneg("index", "--help")[1].split())
    for name, value in {name: n for of_kind in DEFAULTS.values() for name, n in of_kind.items() if n}.items():
        assert re.search(
            rf"--{name.replace('_', '-')} N [^.]*by default {value}\. +\[x>={LEAST.get(name, 1)}\]", out
        )


def test_only_what_works_is_listed(hardneg):
    out = hardneg("--help")[1]
    listed = re.findall(r"^  (\w+) ", out[out.index("Prepare:") : out.index("Options:")], re.MULTILINE)
    assert sorted(listed) == sorted({command.split()[0] for command in COMMANDS})
    out = hardneg("train", "--help")[1]
    assert re.findall(r"^  ([\w-]+)  ", out[out.index("Commands:") : out.index("Options:")], re.M) == [*RECIPES]


@pytest.mark.parametrize(("arguments", "expected"), [([], 0), (["train"], 2)])
def test_without_a_command_there_is_help(hardneg, arguments, expected):
    status, out, err = hardneg(*arguments)
    assert (status, err) == (expected, "")
    assert out.startswith("Usage: hardneg")


def test_the_version(hardneg):
    assert hardneg("--version") == (0, f"hardneg {__version__}\n", "")


# ---------------------------------------------------------------- faults


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["nonsense"], "USAGE: No such command 'nonsense'; see hardneg --help"),
        (["train", "str"], "USAGE: No such command 'str'. Did you mean 'star'?; see hardneg train --help"),
        (["mine", "--data", "x"], "USAGE: Missing option '--out'; see hardneg mine --help"),
        (["evaluate"], "USAGE: Missing argument 'RUN'; see hardneg evaluate --help"),
    ],
)
def test_usage_is_one_line_and_no_box(hardneg, arguments, line):
    assert hardneg(*arguments) == (2, "", line + "\n")


@pytest.mark.parametrize(
    "arguments",
    [
        "search --data x --bm25 --k 0 --out r",
        "search --data x --bm25 --k -1 --out r",
        "search --data x --bm25",
        "search --data x --bm25 --query q --out r",
        "search --data x --bm25 --query q --split nope",
        "mine --data x --out p --count abc",
        "mine --data x --out p --depth 0",
        "mine --data x --out p --dept 3",
        "train ance-tele --data x --model m --out e --seeds 0",
        "inspect p --data x --random 0",
        "encode --data x --model m --out e --token-budget 1",
        "encode --data x --model m --out e --threads 0",
        "encode --data x --model m --out e --shard 2/2",
        "encode --data x --model m --out e --dtype float61",
        "evaluate r",
        "evaluate r --data x --qrels y",
        "evaluate r --data x --measures RRR@10",
        "compare a --data x",
        "import x --to c --on-duplicate last",
    ],
)
def test_bad_arguments_are_one_line_with_status_2(hardneg, arguments, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    status, out, err = hardneg(*arguments.split())
    assert (status, out) == (2, "")
    assert LINE.fullmatch(err.rstrip("\n")), err
    assert err.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_an_option_that_is_not_given_is_not_checked(hardneg, world, tmp_path):
    status, _, err = hardneg("search", "--data", world[0].path, "--bm25", "--out", tmp_path / "run")
    assert (status, err) == (0, "")


def test_all_settings_faults_come_at_once_with_the_nearest_key(hardneg, world, tmp_path):
    wrong = ["epizodes=3", "alpha=2", "nonsense", "measures=RX@10"]
    assignments = [word for text in wrong for word in ("--set", text)]
    arguments = ["train", "ance-tele", "--data", world[0].path, "--model", world[1], "--out", tmp_path / "exp"]
    status, out, err = hardneg(*arguments, "--preset", "dmo", *assignments)
    assert (status, out) == (2, "")
    lines = err.splitlines()
    assert [line.split(":")[0] for line in lines] == [
        "UNKNOWN_PRESET",
        "BAD_OVERRIDE",
        "BAD_SETTING",
        "UNKNOWN_SETTING",
    ]
    assert lines[0].endswith("did you mean 'demo'?")
    assert lines[3].endswith("did you mean 'episodes'?")
    assert not (tmp_path / "exp").exists()


def raising(monkeypatch, fault):
    """Let ``hardneg evaluate`` raise ``fault``."""
    from hardneg.api import evaluate as evaluation

    def evaluate(*_, **__):
        raise fault

    monkeypatch.setattr(evaluation, "evaluate", evaluate)


@pytest.mark.parametrize(
    ("fault", "status", "start"),
    [
        (
            InputError("NUL", "a NUL byte", "remove it", path="a.tsv", line=3),
            3,
            "a.tsv:3: NUL: a NUL byte; remove it",
        ),
        (BusyError("IN_USE", "in use by x", "wait"), 6, "IN_USE: in use by x; wait"),
        (NumericError("NOT_FINITE", "NaN", "lower it"), 7, "NOT_FINITE: NaN; lower it"),
        (KeyboardInterrupt(), 75, "STOPPED: "),
        (MemoryError(), 5, "OUT_OF_MEMORY: "),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory"), 5, "OUT_OF_MEMORY: "),
        (PermissionError(13, "Permission denied", "/x/y"), 5, "/x/y: SYSTEM: Permission denied; "),
        (ValueError("two\nlines"), 70, "BUG: ValueError: two lines; this is a bug"),
    ],
)
def test_every_fault_is_one_line_with_its_status(hardneg, monkeypatch, fault, status, start):
    raising(monkeypatch, fault)
    found, out, err = hardneg("evaluate", "run", "--data", "x")
    assert (found, out) == (status, "")
    assert err.startswith(start)
    assert err.count("\n") == 1


def test_sigterm_stops_like_ctrl_c(hardneg):
    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # who runs the tests may ignore it
    hardneg("--version")
    assert signal.getsignal(signal.SIGTERM) is signal.getsignal(signal.SIGHUP) is cli.interrupt
    with pytest.raises(KeyboardInterrupt):
        cli.interrupt(signal.SIGTERM, None)


def test_several_faults_are_a_line_each(hardneg, monkeypatch):
    faults = [SettingsError("BAD_SETTING", f"{name} = 0", "give more") for name in "ab"]
    raising(monkeypatch, Faults(faults))
    status, _, err = hardneg("evaluate", "run", "--data", "x")
    assert status == 2
    assert err.splitlines() == ["BAD_SETTING: a = 0; give more", "BAD_SETTING: b = 0; give more"]


@pytest.mark.parametrize("place", [0, 1, 4])
def test_debug_adds_the_traceback_wherever_it_stands(hardneg, monkeypatch, place):
    raising(monkeypatch, InputError("NUL", "a NUL byte", "remove it"))
    arguments = ["evaluate", "run", "--data", "x"]
    status, _, err = hardneg(*arguments[:place], "--debug", *arguments[place:])
    assert status == 3
    assert err.startswith("NUL: a NUL byte; remove it\nTraceback")


def test_a_reader_that_leaves_is_no_fault(hardneg, monkeypatch, tmp_path):
    class Gone:
        def write(self, text):
            raise BrokenPipeError

        def flush(self):
            pass

        def fileno(self):
            return self.stream.fileno()

    with open(tmp_path / "out", "w") as stream:
        Gone.stream = stream
        monkeypatch.setattr(sys, "stdout", Gone())
        assert cli.run(["--version"]) == 0


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_a_closed_stream_is_no_fault(tmp_path, closed):
    line = f'"{sys.executable}" -m hardneg import "{tmp_path / "one.jsonl"}" --to "{tmp_path / "to"}" {closed}'
    (tmp_path / "one.jsonl").write_text('{"id": "a", "text": "one"}\n')
    done = subprocess.run(line, shell=True, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("collection ") == (">&-" not in closed.replace("2>&-", ""))
    assert Collection.open(tmp_path / "to").n_passages == 1


def test_a_package_that_is_not_installed_is_no_bug(hardneg, monkeypatch):
    """As after ``pip install --no-deps``."""
    raising(monkeypatch, ModuleNotFoundError("No module named 'torch'", name="torch"))
    status, _, err = hardneg("evaluate", "run", "--data", "x")
    assert status == 2
    assert err.startswith(
        "PACKAGE_MISSING: the Python module torch is not installed; install it; pip install -U hardneg"
    )
    raising(monkeypatch, ModuleNotFoundError("No module named 'hardneg.x'", name="hardneg.x"))
    assert hardneg("evaluate", "run", "--data", "x")[0] == 70


def test_a_full_disk_behind_the_output_is_told(hardneg, monkeypatch):
    class Full:
        def write(self, text):
            raise OSError(errno.ENOSPC, "No space left on device")

        def flush(self):
            pass

    monkeypatch.setattr(sys, "stdout", Full())
    status, _, err = hardneg("presets")
    assert (status, err) == (
        5,
        "DISK_FULL: the disk of the output is full, so what was printed is lost; free some space\n",
    )


def test_a_home_folder_behind_an_equals_sign_is_found(hardneg, monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "one.jsonl").write_text('{"id": "a", "text": "~/one and more"}\n')
    assert hardneg("import", "one.jsonl", "--to=~/to")[0] == 0
    status, out, _ = hardneg("search", "--data=~/to", "--bm25", "--query=~/one", "--json", "--cache=~/cache")
    assert (status, len(json.loads(out))) == (0, 1)
    assert sorted(file.name for file in tmp_path.iterdir()) == ["cache", "one.jsonl", "to"]


def test_warnings_are_one_line(hardneg, monkeypatch):
    from hardneg.api import evaluate as evaluation

    def evaluate(*_, **__):
        logging.getLogger("hardneg.search").warning("nearly all alike")
        logging.getLogger("hardneg.search").info("not for the terminal")
        return {"measures": {"RR@10": 1.0}, "queries": 1, "missing": 0, "unjudged": 0}

    monkeypatch.setattr(evaluation, "evaluate", evaluate)
    status, out, err = hardneg("evaluate", "run", "--data", "x", "--json")
    assert status == 0
    assert json.loads(out)["queries"] == 1
    assert err == "WARNING: nearly all alike\n"
    shown = warnings.formatwarning("an old driver", UserWarning, "/some/where.py", 7, "code")
    assert shown == "WARNING: UserWarning: an old driver\n"


def test_no_id_or_name_controls_the_terminal(hardneg, tmp_path, monkeypatch, capsys):
    from hardneg.process import progress

    evil = "q\x1b]0;owned\x07\x1b[31m\u202e"
    shown = r"q\x1b]0;owned\x07\x1b[31m\u202e"
    (tmp_path / "a.trec").write_text(f"{evil} Q0 p 1 2 t\n{evil} Q0 p 2 1 t\n")
    (tmp_path / "qrels.txt").write_text(f"{evil} 0 p 1\n")
    status, out, err = hardneg("evaluate", tmp_path / "a.trec", "--qrels", tmp_path / "qrels.txt", "--debug")
    assert (status, out) == (3, "")
    assert shown in err.splitlines()[0]
    assert "\x1b" not in err
    logging.getLogger("hardneg.search").warning("the query %s\nis blank", evil)
    monkeypatch.setattr(progress, "enabled", True)
    progress.note(f"reading {evil}")
    assert capsys.readouterr().err == f"WARNING: the query {shown}\nis blank\nreading {shown}\n"
    assert warnings.formatwarning(evil, UserWarning, "/some/where.py", 7) == f"WARNING: UserWarning: {shown}\n"


# ---------------------------------------------------------------- options reach what they are for


def test_json_stands_alone_on_stdout(hardneg, world, tmp_path):
    collection, _ = world
    run = tmp_path / "run.trec"
    status, out, err = hardneg("search", "--data", collection.path, "--bm25", "--k", 5, "--out", run, "--json")
    assert (status, err) == (0, "")
    facts = json.loads(out)
    assert (facts["run"], facts["queries"]) == (str(run), 16)
    err = hardneg("search", "--data", collection.path, "--bm25", "--k", 5, "--out", run)[2]
    assert f"{run} is there already and will be replaced" in err
    status, out, _ = hardneg("evaluate", run, "--data", collection.path, "--measures", "RR@10 R@5", "--json")
    found = json.loads(out)
    assert list(found) == ["measures", "queries", "missing", "unjudged"]
    assert list(found["measures"]) == ["RR@10", "R@5"]
    status, out, _ = hardneg("compare", run, run, "--data", collection.path, "--measures", "RR@10", "--json")
    assert json.loads(out)[0]["ties"] == 16


@pytest.fixture
def process(monkeypatch):
    """What a command sets for the whole process, instead of setting it."""
    from hardneg.models import code
    from hardneg.process import cpu, memory

    seen = {}
    monkeypatch.setattr(cpu, "tune", lambda threads: seen.update(threads=threads))
    monkeypatch.setattr(
        memory, "limit_memory", lambda ram, vram=None, **shares: seen.update(max_ram=ram, max_vram=vram)
    )
    monkeypatch.setattr(code, "allow_code", lambda *revisions: seen.update(allow_code=revisions))
    return seen


def written(options):
    """Options as they are typed; True: a switch."""
    return [
        word for name, value in options.items() for word in ([f"--{name}"] + ([] if value is True else [value]))
    ]


def left_out(command, options):
    """The options of a command that are not among these."""
    found = typer.main.get_command(cli.app)
    for word in command.split():
        found = found.commands[word]
    return {one.opts[0] for one in found.params} - {f"--{name}" for name in options}


def test_every_option_of_mining_is_passed_on(hardneg, monkeypatch, process, tmp_path):
    from hardneg.api import inspect as inspection
    from hardneg.api import mine as pools

    seen = {}
    monkeypatch.setattr(pools, "mine", lambda *args, **named: seen.update(named, args=args))
    monkeypatch.setattr(inspection, "pool_stats", lambda pool: {"queries": 1})
    texts = {"passage-model": "pm", "split": "dev", "device": "cpu", "cache": "c", "previous": "p", "file": "f"}
    texts |= {"prompts": "e5", "query-prompt": "q: ", "passage-prompt": "", "judgements": "j", "filter-by": "r"}
    numbers = {"depth": 7, "count": 3, "alpha": 0.25, "beta": 0.75, "seed": 9}
    numbers |= {"query-length": 33, "passage-length": 44}
    filters = {"rank-from": 2, "rank-to": 5, "max-score": 1.5, "absolute-margin": 0.5, "relative-margin": 0.25}
    filters |= {"top": 4}
    others = {"data": "d", "model": "m", "out": tmp_path / "o", "sources": " query, bm25 ", "labels": "answers"}
    others |= {"allow-bin": True, "json": True}
    of_process = {"threads": 2, "max-ram": "3G", "max-vram": "2G", "allow-code": "abc"}
    options = {**texts, **numbers, **filters, **others, **of_process}
    assert left_out("mine", options) <= {"--help"}
    status, out, err = hardneg("mine", *written(options))
    assert (status, err) == (0, "")
    assert json.loads(out) == {"pool": str(tmp_path / "o"), "queries": 1}
    assert seen.pop("args") == ("d", "m", tmp_path / "o")
    assert seen.pop("sources") == ["query", "bm25"]
    assert seen.pop("allow_bin") is True
    assert seen.pop("labels") == Labels("answers")
    assert vars(seen.pop("filters")) == {name.replace("-", "_"): value for name, value in filters.items()}
    found = {name: str(value) if isinstance(value, Path) else value for name, value in seen.items()}
    assert found == {name.replace("-", "_"): value for name, value in {**texts, **numbers}.items()}
    assert process == {"threads": 2, "max_ram": "3G", "max_vram": "2G", "allow_code": ("abc",)}


@pytest.mark.parametrize(
    ("command", "module", "function"),
    [
        ("encode --data d --model m --out o", "search", "encode"),
        ("search --data d --model m --out o", "search", "search_split"),
        ("search --data d --model m --query q", "search", "search_text"),
        ("index e --data d --model m --out o", "index", "index"),
        ("mine --data d --model m --out o", "mine", "mine"),
        ("rerank --data d --run r --ranker m --out o", "rank", "rerank"),
    ],
)
def test_how_a_model_is_read_is_passed_on(hardneg, monkeypatch, process, command, module, function):
    seen = {}

    def stands_in(*args, **named):
        seen.update(named)
        raise SettingsError("NO_MODEL", "this is far enough", "go back")

    monkeypatch.setattr(f"hardneg.api.{module}.{function}", stands_in)
    read = {"passage-model": "pm", "prompts": "e5", "query-length": 33, "passage-length": 44, "allow-bin": True}
    read |= {"query-prompt": "q: ", "passage-prompt": ""}
    status, _, err = hardneg(*command.split(), *written(read), "--allow-code", "abc")
    assert (status, err) == (2, "NO_MODEL: this is far enough; go back\n")
    expected = {name.replace("-", "_"): value for name, value in read.items()}
    assert {name: value for name, value in seen.items() if name in expected} == expected
    assert "allow_code" not in seen
    assert process["allow_code"] == ("abc",)


def defaults_of(function):
    found = inspect.signature(function).parameters.values()
    return {one.name: one.default for one in found if one.default is not inspect.Parameter.empty}


IN_ANOTHER_FORM = {"mine": {"sources", "labels"}}  # than texts


@pytest.mark.parametrize(
    ("command", "function"),
    [
        *((name, name) for name in ("encode", "index", "rerank", "fuse", "mine", "score", "audit", "inspect")),
        *((name, name) for name in ("evaluate", "compare", "diagnose")),
        *(("export", "export_pool"), ("doctor", "examine")),
    ],
)
def test_an_option_has_the_default_of_the_function(command, function):
    commands = {name: made for entries in BY_HEADING.values() for name, made, _ in entries}
    typed, called = defaults_of(commands[command]), defaults_of(getattr(hn, function))
    if "filters" in called:
        called |= vars(called["filters"])
    both = (typed.keys() & called.keys()) - IN_ANOTHER_FORM.get(command, set())
    assert both
    assert {name: typed[name] for name in both} == {name: called[name] for name in both}


def test_what_mining_was_asked_for_is_in_the_pool(hardneg, world, tmp_path):
    """The real thing, with nothing in place of what it calls."""
    options = {"data": world[0].path, "model": world[1], "out": tmp_path / "pool", "split": "dev", "depth": 9}
    options |= {"sources": "query,random", "count": 3, "beta": 0.0, "rank-from": 2, "rank-to": 6, "seed": 11}
    assert hardneg("mine", *written(options), "--threads", torch.get_num_threads())[0] == 0
    pool = load_pool(tmp_path / "pool")
    dev = world[0].qrels("dev").positives()
    assert pool.query_rows.tolist() == dev.query_rows.tolist()
    sources = [SOURCES[source] for source in pool.sources]
    assert set(sources) == {"query", "random"}
    ranks = pool.ranks[pool.sources == SOURCES.index("query")]
    assert (ranks.min(), ranks.max()) == (2, 6)
    assert sources.count("random") == 3 * len(dev)
    settings = read_manifest(tmp_path / "pool").settings
    expected = {"depth": 9, "count": 3, "seed": 11, "beta": 0.0}
    assert {name: settings[name] for name in expected} == expected


def test_every_option_of_training_is_passed_on(hardneg, monkeypatch, process, tmp_path):
    from hardneg.api import recipes

    seen = {}

    def train(*args, **named):
        seen.update(named, args=args)
        return {"forgetting": []}

    monkeypatch.setattr(recipes, "train", train)
    (tmp_path / "s.toml").write_text("steps = 7\n")
    options = {"data": "d", "model": "m", "out": tmp_path / "e", "preset": "demo", "config": tmp_path / "s.toml"}
    options |= {"set": "depth=9", "seeds": 3, "minutes": 1.5, "start-episode": 2}
    options |= {"train": "a", "dev": "b", "test": "c"}
    options |= {"pool": "n", "passage-model": "pm", "allow-bin": True, "cache": "k", "device": "cpu"}
    options |= {
        "reinit-layers": 2,
        "reinit-seed": 5,
        "prompts": "e5",
        "judgements": "j",
        "filter-by": "f",
        "teacher": "t",
    }
    options |= {"threads": 2, "max-ram": "3G", "max-vram": "2G", "allow-code": "abc"}
    usual = {option.flag for option in USUAL}  # see test_cli_settings
    assert left_out("train ance-tele", options) - usual <= {
        "--help",
        "--dry-run",
        "--estimate",
        "--devices",
        "--json",
    }
    words = [word for one in ("alpha=0.25", "relative_margin=0.1", "distill=kl") for word in ("--set", one)]
    status, out, _ = hardneg("train", "ance-tele", *written(options), *words)
    assert status == 0
    assert str(tmp_path / "e/model") in out
    settings = seen["settings"]
    assert (settings.steps, settings.depth, settings.alpha, settings.start_episode) == (7, 9, 0.25, 2)
    assert settings.queries_per_step == 16  # the preset's
    assert (settings.reinit_layers, settings.reinit_seed, settings.prompts) == (2, 5, "e5")
    assert vars(seen["splits"]) == {"train": "a", "dev": "b", "test": "c"}
    assert seen["args"][-3:] == ("d", "m", tmp_path / "e")
    assert seen["minutes"] == 1.5
    assert (seen["seeds"], str(seen["negatives"]), seen["passage_model"]) == (3, "n", "pm")
    assert (seen["allow_bin"], str(seen["cache"]), seen["device"]) == (True, "k", "cpu")
    assert (str(seen["judgements"]), str(seen["filter_by"]), str(seen["teacher"])) == ("j", "f", "t")
    assert process == {"threads": 2, "max_ram": "3G", "max_vram": "2G", "allow_code": ("abc",)}


# ---------------------------------------------------------------- commands made from recipes

REINIT = ("--reinit-layers", "--reinit-seed")
TWO_MODELS = {"--passage-model", "--prompts"}  # not for a ranker, which reads both sides in one
ROLES = ("--role", "--trainer-devices", "--inferencer-devices")
OWN = {  # beside the options that all recipes have
    "ance-tele": {"--start-episode", "--pool", "--filter-by", "--teacher", *REINIT},
    "warmup": {"--pool", "--filter-by", "--teacher", *REINIT},
    "ance": {"--filter-by", "--teacher", *ROLES, *REINIT},
    "star": {"--pool", "--filter-by", "--teacher", *REINIT},
    "adore": {"--index"},
    "ranker": {"--pool", "--retriever", "--filter-by", *REINIT},
    "ar2": {"--ranker", "--filter-by", *ROLES, *REINIT},
}


def test_each_recipe_has_its_own_options_beside_those_of_all():
    found = {recipe: left_out(f"train {recipe}", {}) for recipe in RECIPES}
    shared = set.intersection(*found.values())
    assert {recipe: options - shared - TWO_MODELS for recipe, options in found.items()} == OWN
    assert [recipe for recipe, options in found.items() if not options >= TWO_MODELS] == ["ranker"]
    assert not TWO_MODELS & found["ranker"]
    assert {"--data", "--model", "--out", "--preset", "--set", "--seeds", "--allow-bin", "--json"} < shared


def test_the_catalogue_says_what_the_recipes_are():
    from hardneg.api import recipes
    from hardneg.config import read_presets

    trained = recipes.RECIPES
    assert {facts.name: facts for facts in CATALOGUE} == {name: one.facts for name, one in trained.items()}
    for name, recipe in trained.items():
        assert sorted(recipe.facts.presets) == sorted(read_presets(name))
        assert set(recipe.facts.notes) <= set(recipe.facts.presets)
        own = {option.name for option in (*recipe.facts.options, *recipe.facts.model_options)}
        assert ("role" in own) == bool(recipe.roles)
        for option in (*recipe.facts.options, *recipe.facts.model_options):
            assert not option.is_setting or option.name in recipe.settings.model_fields, option


def test_the_help_of_a_recipe_loads_nothing_heavy():
    # pydantic is typer's own
    command = (
        "import json, sys\nfrom hardneg.cli import run\n"
        "sys.stdout, out = sys.stderr, sys.stdout\nstatus = run(['train', 'ance', '--help'])\nsys.stdout = out\n"
        "heavy = {'torch', 'transformers', 'tokenizers', 'numpy', 'scipy', 'matplotlib', 'bm25s'}\n"
        "print(json.dumps([status, sorted(heavy & set(sys.modules))]))"
    )
    done = subprocess.run([sys.executable, "-c", command], capture_output=True, text=True, check=True, timeout=300)
    assert json.loads(done.stdout) == [0, []]
    assert "--role" in done.stderr


def test_a_sixth_recipe_is_a_command_without_a_line_of_the_command_line(hardneg, world, tmp_path, monkeypatch):
    """It stands in the catalogue and among the recipes, and has an option of its own of each sort."""
    from hardneg.api import recipes

    class Idle(TrainingSettings):
        idle_steps: int = 0

    steps = RecipeOption("idle_steps", int, "Steps to do nothing in.", least=1, is_setting=True)
    pool = RecipeOption("negatives", Path, "A pool to leave alone.", flag="--pool")
    example = ("hardneg train idle --data DATA --model M --out EXP",)
    facts = RecipeFacts("idle", "Idle: nothing at all.", example, (steps, pool), ())
    asked = []

    def plan(settings, data, encoder):
        asked.append(settings.idle_steps)
        return work_of(settings, data, [Episode(1, len(data.train), 1, 8, 2)], states=1, entries=1)

    monkeypatch.setitem(
        recipes.RECIPES, "idle", Recipe(facts, Idle, lambda *_, **__: iter(()), plan, about="Idle")
    )
    monkeypatch.setattr(cli, "app", application([*CATALOGUE, facts]))
    listed = hardneg("train", "--help")[1]
    assert re.search(r"^  ranker .*\n  idle +Idle: nothing at all\.$", listed, re.MULTILINE)
    shown = hardneg("train", "idle", "--help")[1]
    assert "Presets" not in shown
    assert example[0] in shown
    own = left_out("train idle", {}) - left_out("train adore", {})
    assert own == {"--idle-steps", "--pool"}
    options = {"data": world[0].path, "model": world[1], "out": tmp_path / "exp", "idle-steps": 3}
    status, out, err = hardneg("train", "idle", *written(options), "--dry-run")
    assert (status, set(asked)) == (0, {3}), err
    assert re.search(r"^idle_steps = 3\b", out, re.MULTILINE)
    assert re.search(r"^# training queries +60$", out, re.MULTILINE)
    status, _, err = hardneg("train", "idle", *written(options | {"pool": tmp_path}), "--dry-run")
    assert status == 2  # the option arrives, and such a recipe takes no pool
    assert "idle mines its own negatives" in err
    assert hardneg("train", "idle", *written(options | {"idle-steps": 0}))[0] == 2


def test_a_plan_is_printed_and_nothing_is_made(hardneg, world, tmp_path):
    arguments = ["train", "ance-tele", "--data", world[0].path, "--model", world[1], "--out", tmp_path / "exp"]
    status, out, err = hardneg(*arguments, "--set", "episodes=1", "--set", "steps=3", "--dry-run")
    assert (status, err) == (0, "splits: train 'train' (60 queries); dev 'dev' (16); test 'test' (16)\n")
    assert re.search(r"^steps = 3\b", out, re.MULTILINE)
    assert "# episode 1: 60 queries, 3 steps of 8 queries, 16 passages a query" in out.splitlines()
    assert not (tmp_path / "exp").exists()


def test_importing_the_entry_point_runs_nothing():
    import hardneg.__main__

    assert hardneg.__main__.main is not cli.main  # it loads the other one
    with pytest.raises(SystemExit) as left:
        cli.main(["--version"])
    assert left.value.code == 0


def test_examples_name_commands_that_exist():
    [train] = cli.app.registered_groups
    infos = [*cli.app.registered_commands, *train.typer_instance.registered_commands]
    names = {info.name for info in cli.app.registered_commands} | {"train"}
    assert {"mine", "doctor", "star"} < {info.name for info in infos}
    for info in infos:
        assert info.hidden or re.search(r"hardneg (\w+)", info.epilog)[1] in names


def test_the_wrong_settings_of_mine_are_told_all_at_once(hardneg, tmp_path):
    wrong = ("--sources", "qwery,file", "--alpha", "2", "--beta", "-1", "--max-score", "nan", "--previous", "p")
    status, _, said = hardneg("mine", "--data", "nowhere", "--out", tmp_path / "pool", *wrong)
    lines = said.splitlines()
    assert status == 2
    expected = ("did you mean 'query'", "alpha = 2", "beta = -1", "max_score = nan", "NO_MOMENTUM", "NO_FILE")
    assert [word for word in expected if not any(word in line for line in lines)] == []
    assert len(lines) == len(expected)
