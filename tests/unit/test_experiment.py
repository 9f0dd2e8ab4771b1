"""The experiment folder: opened, resumed, extended, or refused."""

import contextlib
import logging
import os
import shlex
import subprocess
import sys
import time
from dataclasses import asdict
from types import SimpleNamespace

import pytest
from pydantic import Field

from hardneg import __version__
from hardneg.api import start as start_module
from hardneg.api.start import RULES
from hardneg.config import Settings, differences, operational
from hardneg.data.training_data import ChosenSplits
from hardneg.errors import ArtifactError, BusyError, InputError, ResourceError
from hardneg.experiment.folder import (
    as_before,
    complete,
    inputs_told,
    join_experiment,
    open_experiment,
    read_settings,
    splits_of,
    write_settings,
)
from hardneg.process.progress import log_file
from hardneg.storage import disk
from hardneg.storage.artifacts import digest_json, publish, read_json, remove, write_json

pytestmark = pytest.mark.usefixtures("flushes")

INPUTS = {"collection": "c0ffee", "model": "abad1dea"}


class Demo(Settings):
    episodes: int = 3
    alpha: float = 0.5
    extra: list[str] = Field([])
    log_every: int = operational(10)


def opened(path, settings=None, **options):
    options = {"recipe": "demo", "inputs": INPUTS, "grows": ("episodes",)} | options
    return open_experiment(path, settings=settings or Demo(), **options)


def start(path, settings=None, **options):
    with opened(path, settings, **options) as experiment:
        return experiment


def refused(path, settings=None, **options):
    """The line and the code of the refusal; nothing in the folder may have changed."""
    before = {p: p.read_bytes() for p in path.rglob("*") if p.is_file() and p.name != ".lock"}
    with pytest.raises(ArtifactError) as raised, opened(path, settings, **options):
        pytest.fail("opened")
    assert raised.value.status == 4
    assert raised.value.path in (path, path / "settings.json")
    assert {p: p.read_bytes() for p in path.rglob("*") if p.is_file() and p.name != ".lock"} == before
    return raised.value.code, str(raised.value)


# ---------------------------------------------------------------- open


def test_a_new_experiment_says_what_it_is(tmp_path):
    path = tmp_path / "new/exp"
    experiment = start(path, Demo(log_every=3))
    assert experiment.path == path
    assert experiment.cache == path / "cache"
    assert experiment / "episodes/1" == path / "episodes/1"
    assert experiment.results is None
    record = read_json(path / "settings.json")
    assert record.pop("digest") == digest_json(record)
    assert record == {
        "format": 3,
        "recipe": "demo",
        "settings": {"episodes": 3, "alpha": 0.5, "extra": [], "log_every": 3},
        "result_settings": {"episodes": 3, "alpha": 0.5, "extra": []},
        "inputs": INPUTS,
        "splits": None,
        "base_model": None,
        "hardneg": __version__,
    }


def test_derived_stores_may_live_elsewhere(tmp_path):
    assert start(tmp_path / "exp", cache=tmp_path / "stores").cache == tmp_path / "stores"


def test_settings_are_there_before_any_work(tmp_path):
    with opened(tmp_path / "exp") as experiment:
        assert read_json(experiment / "settings.json")["recipe"] == "demo"


def test_settings_that_do_not_hold_their_digest_are_refused(tmp_path):
    start(tmp_path)
    settings = read_json(tmp_path / "settings.json")
    del settings["digest"]
    write_json(tmp_path / "settings.json", settings)
    code, line = refused(tmp_path)
    assert code == "CORRUPT"
    assert "the settings are not as they were written" in line


def test_one_holder_at_a_time_and_the_first_is_unharmed(tmp_path):
    with opened(tmp_path / "exp") as experiment:
        before = (tmp_path / "exp/settings.json").read_bytes()
        with pytest.raises(BusyError), opened(tmp_path / "exp", Demo(log_every=99)):
            pytest.fail("opened twice")
        assert (tmp_path / "exp/settings.json").read_bytes() == before
        experiment.finish({"test": {}})
    start(tmp_path / "exp")


def test_a_file_in_the_way_is_told_in_one_line(tmp_path):
    (tmp_path / "exp").write_text("mine")
    with pytest.raises(ResourceError, match="NOT_WRITABLE"), opened(tmp_path / "exp"):
        pytest.fail("opened")
    assert (tmp_path / "exp").read_text() == "mine"


# ---------------------------------------------------------------- resume


def test_one_of_the_old_form_is_refused_in_one_line_and_left_as_it_is(tmp_path):
    path = tmp_path / "exp"
    start(path)
    old = {
        key: value for key, value in read_json(path / "settings.json").items() if key not in ("format", "digest")
    }
    write_json(path / "settings.json", {**old, "digest": digest_json(old)})
    before = (path / "settings.json").read_bytes()
    with pytest.raises(ArtifactError) as fault:
        start(path)
    (line,) = fault.value.lines
    what = "FORMAT_VERSION: this experiment has format version 1, this hardneg goes on with 3; give a new folder"
    assert line.startswith(f"{path}: {what}")
    assert fault.value.status == 4
    assert (path / "settings.json").read_bytes() == before


@pytest.mark.parametrize("left", ["results.json", "seal.json", "metrics.jsonl", "episodes"])
def test_lost_settings_are_not_written_anew(tmp_path, left):
    """They would say of what is there that it was made with them."""
    start(tmp_path / "exp")
    (tmp_path / "exp/settings.json").unlink()
    start(tmp_path / "exp")  # nothing was made yet
    (tmp_path / "exp/settings.json").unlink()
    place = tmp_path / "exp" / left
    place.mkdir() if left == "episodes" else place.write_text("{}")
    for open_it in (open_experiment, join_experiment):
        with pytest.raises(
            ArtifactError, match=r"settings\.json: MISSING_FILE: this experiment has lost its settings"
        ):
            open_it(tmp_path / "exp", recipe="demo", settings=Demo(), inputs=INPUTS).__enter__()
    assert not (tmp_path / "exp/settings.json").exists()


def test_the_same_again_resumes_and_a_finished_one_stays_finished(tmp_path):
    path = tmp_path / "exp"
    experiment = start(path)
    settings = (path / "settings.json").read_bytes()
    experiment.metrics.append([{"episode": 1, "step": 1, "model": "retriever"}])
    again = start(path)
    assert again.results is None
    assert again.metrics.read() == [{"episode": 1, "step": 1, "model": "retriever"}]
    again.finish({"test": {"final": {"RR@10": 0.5}}})
    assert start(path).results == {"test": {"final": {"RR@10": 0.5}}}
    assert (path / "settings.json").read_bytes() == settings


def test_operational_settings_may_change_and_are_noted(tmp_path):
    start(tmp_path / "exp").finish({})
    assert start(tmp_path / "exp", Demo(log_every=77)).results == {}
    assert read_json(tmp_path / "exp/settings.json")["settings"]["log_every"] == 77


def test_changed_result_settings_are_refused_with_the_keys_that_differ(tmp_path):
    start(tmp_path / "exp")
    code, line = refused(tmp_path / "exp", Demo(alpha=0.3, extra=["bm25"], log_every=3))
    assert code == "SETTINGS_CHANGED"
    assert line == (
        f"{tmp_path / 'exp'}: SETTINGS_CHANGED: this experiment was started with other settings:"
        ' alpha: 0.5 -> 0.3; extra: [] -> ["bm25"];'
        " use the old settings (--set alpha=0.5 --set 'extra=[]'), or give a new folder"
    )


def test_the_refusal_says_why_a_setting_may_not_grow(tmp_path):
    start(tmp_path / "exp").finish({})
    fixed = {"episodes": "it is a share"}
    _, line = refused(tmp_path / "exp", Demo(episodes=4), grows=(), fixed=fixed)
    assert (
        "episodes: 3 -> 4; episodes may not grow: it is a share; use the old settings (--set episodes=3)" in line
    )
    _, line = refused(tmp_path / "exp", Demo(episodes=2), grows=(), fixed=fixed)
    assert "may not grow" not in line


@pytest.mark.parametrize(
    "value",
    ["query: ", "5", "true", "2024-01-01", '"q"', "it's", "a = b", "", None, True, 0.5, ["a", "b"], []],
)
def test_the_options_that_are_shown_give_the_values_of_before(value):
    from hardneg.config import read_overrides

    record = {"settings": {"prompt": value}}
    words = shlex.split(as_before(record, {"settings": {"prompt": "other"}}, ["prompt"]).strip(" ()"))
    assert words[0] == "--set"
    found = read_overrides(words[1:])["prompt"]
    assert (None if found == "none" else found) == value


def test_splits_of_a_later_version_are_told_whole():
    assert complete({"train": "train", "dev": None, "test": "test", "newer": 1})["newer"] == 1


def test_splits_that_a_newer_version_tells_more_of_are_refused_in_one_line(tmp_path):
    from hardneg.api.judged_runs import devs_of, tested_on
    from hardneg.api.settings import begun_at

    start(tmp_path / "exp")
    record = read_settings(tmp_path / "exp")
    del record["hardneg"]
    record["result_settings"]["seed"] = 0
    newer = asdict(ChosenSplits("train", "dev", "test")) | {"folds": 5}
    (tmp_path / "newer").mkdir()
    path = tmp_path / "newer"
    write_settings(path, {**record, "splits": newer})
    before = (path / "settings.json").read_bytes()
    collection = SimpleNamespace(splits={"dev"})
    for read in (
        lambda: splits_of(read_settings(path), path),
        lambda: begun_at(path),
        lambda: tested_on([path]),
        lambda: devs_of(collection, [path]),
    ):
        with pytest.raises(ArtifactError) as fault:
            read()
        what = "a newer hardneg began this experiment: it has folds of splits, unknown here; upgrade hardneg"
        assert fault.value.lines == [f"{path}: FORMAT_VERSION: {what}"]
    assert (path / "settings.json").read_bytes() == before
    write_settings(path, {name: value for name, value in record.items() if name != "format"})  # an older one
    assert (tested_on([path]), devs_of(collection, [path])) == (None, {})


def test_a_setting_that_came_or_went_with_a_version_is_a_difference_too(tmp_path):
    class Later(Settings):
        episodes: int = 3
        beta: float = 0.1

    start(tmp_path / "exp")
    code, line = refused(tmp_path / "exp", Later())
    assert code == "SETTINGS_CHANGED"
    assert (
        "other settings: alpha: 0.5 -> none; beta: none -> 0.1; use the old settings, or" in line
    )  # extra is off


def test_a_setting_that_an_older_version_did_not_have_is_no_difference_where_it_is_off(tmp_path):
    class Later(Demo):
        top: int | None = None
        smooth: bool = False

    class Other(Demo):
        depth: int = 20

    start(tmp_path / "exp").finish({})
    assert start(tmp_path / "exp", Later()).results == {}
    code, line = refused(tmp_path / "exp", Later(top=3))
    assert (code, "top: none -> 3; use the old settings (--set top=none)" in line) == ("SETTINGS_CHANGED", True)
    assert start(tmp_path / "exp").results == {}  # nor where it was off and is gone
    start(tmp_path / "old")
    code, line = refused(tmp_path / "old", Other())
    assert "depth: none -> 20; go on with the hardneg that began it, which had no such settings, or" in line


def test_changed_inputs_are_refused_with_both_digests(tmp_path):
    start(tmp_path / "exp")
    code, line = refused(tmp_path / "exp", inputs={"collection": "decaf", "model": "abad1dea"})
    assert code == "INPUT_CHANGED"
    assert "started from something else: collection: 'c0ffee' -> 'decaf';" in line
    assert "model" not in line
    code, line = refused(tmp_path / "exp", inputs={**INPUTS, "negatives": "beef"})
    assert (code, "negatives: none -> 'beef'" in line) == ("INPUT_CHANGED", True)
    code, line = refused(tmp_path / "exp", inputs={"collection": "c0ffee"})
    assert (code, "model: 'abad1dea' -> none" in line) == ("INPUT_CHANGED", True)


def test_changed_splits_are_told_by_name():
    one, two = (asdict(ChosenSplits("train", *named)) for named in (("dev", None, 0, 7), (None, "dev", 9, 7)))
    record, other = ({"inputs": {"model": "abad1dea", "splits": name}} for name in "ab")
    record["splits"], other["splits"] = one, two
    told = differences(inputs_told(record, other), inputs_told(other, record))
    assert told == ["held_out: 0 -> 9", "split dev: 'dev' -> none", "split test: none -> 'dev'"]
    other["splits"] = record["splits"]
    assert differences(inputs_told(record, other), inputs_told(other, record)) == ["splits: 'a' -> 'b'"]


def test_judgements_that_an_older_record_of_the_same_splits_does_not_name_are_no_difference():
    old, new = ({"inputs": {"splits": "a"} | more} for more in ({}, {"judgements": "j"}))
    assert inputs_told(old, new) == inputs_told(new, old)
    new["inputs"]["splits"] = "b"
    assert inputs_told(old, new) != inputs_told(new, old)


def test_of_a_digest_the_beginning_is_told(tmp_path):
    start(tmp_path / "exp", inputs={"collection": "0a" * 32})
    _, line = refused(tmp_path / "exp", inputs={"collection": "0b" * 32})
    assert "collection: '0a0a0a0a0a0a…' -> '0b0b0b0b0b0b…';" in line


def test_another_recipe_is_refused(tmp_path):
    start(tmp_path / "exp")
    code, line = refused(tmp_path / "exp", recipe="other")
    assert code == "INPUT_CHANGED"
    assert "recipe: 'demo' -> 'other'" in line


# ---------------------------------------------------------------- extend


def test_more_episodes_reopen_a_finished_experiment(tmp_path):
    path = tmp_path / "exp"
    start(path).finish({"test": {}})
    experiment = start(path, Demo(episodes=4))
    assert experiment.results is None
    assert not (path / "results.json").exists()
    assert read_json(path / "settings.json")["result_settings"]["episodes"] == 4
    experiment.finish({"test": {"final": {}}})
    assert start(path, Demo(episodes=4)).results == {"test": {"final": {}}}


@pytest.mark.parametrize("at", range(4))
def test_a_model_that_is_gone_is_missed_wherever_the_reopening_is_killed(tmp_path, monkeypatch, at):
    path, left = tmp_path / "exp", [at]
    experiment = start(path)
    with publish(path / "model", "model"):
        pass
    experiment.finish({"test": {}})
    remove(path / "model")

    def watch(action, place, data):
        left[0] -= 1
        if left[0] < 0:
            raise KeyboardInterrupt

    experiment = start(path)
    with monkeypatch.context() as patched:
        patched.setattr(disk, "watch", watch)
        with contextlib.suppress(KeyboardInterrupt):
            experiment.reopen_without_models()
    experiment = start(path)
    experiment.reopen_without_models()
    assert experiment.results is None


def test_fewer_episodes_are_refused_also_after_it_grew(tmp_path):
    path = tmp_path / "exp"
    start(path)
    assert refused(path, Demo(episodes=2))[0] == "SETTINGS_CHANGED"
    start(path, Demo(episodes=4))
    code, line = refused(path, Demo(episodes=3))
    assert (code, "episodes: 4 -> 3" in line) == ("SETTINGS_CHANGED", True)


def test_growing_hides_no_other_change(tmp_path):
    start(tmp_path / "exp").finish({"test": {}})
    code, line = refused(tmp_path / "exp", Demo(episodes=4, alpha=0.3))
    assert code == "SETTINGS_CHANGED"
    assert "alpha: 0.5 -> 0.3" in line
    assert "episodes" not in line
    assert start(tmp_path / "exp").results == {"test": {}}


def test_nothing_grows_unless_it_may(tmp_path):
    start(tmp_path / "exp")
    code, line = refused(tmp_path / "exp", Demo(episodes=4), grows=())
    assert (code, "episodes: 3 -> 4" in line) == ("SETTINGS_CHANGED", True)


# ---------------------------------------------------------------- damage


@pytest.mark.parametrize("text", ['{"tokenizer": 1}', "[]", "null", '{"recipe": "demo", "inputs": {}}'])
def test_the_settings_of_something_else_are_no_experiment(tmp_path, text):
    (tmp_path / "settings.json").write_text(text)
    code, line = refused(tmp_path)
    assert code == "NOT_EXPERIMENT"
    assert line.startswith(f"{tmp_path / 'settings.json'}: ")


def test_damaged_settings_or_results_name_the_file(tmp_path):
    start(tmp_path).finish({})
    (tmp_path / "results.json").write_text('{"test": ')
    with pytest.raises(ArtifactError, match=r"results\.json: WRONG_SIZE"), opened(tmp_path) as experiment:
        _ = experiment.results
    (tmp_path / "settings.json").write_text("{")
    with pytest.raises(ArtifactError, match=r"settings\.json: BAD_JSON"), opened(tmp_path):
        pytest.fail("opened")


# ---------------------------------------------------------------- telemetry


def test_stages_are_timed(tmp_path):
    with opened(tmp_path) as experiment:
        with experiment.timed("encode", side="query") as facts:
            facts["tokens"] = 7
        with pytest.raises(InputError), experiment.timed("search"):
            raise InputError("NUL", "a", "b")
    row, failed = experiment.timing
    assert 0 <= row.pop("seconds") < 5
    assert 0 <= time.time() - row.pop("begun") < 60
    assert 10 < row.pop("own_peak_mib") <= row.pop("peak_mib") < 1 << 20
    assert row == {"stage": "encode", "side": "query", "tokens": 7}
    assert failed["stage"] == "search"  # what fails took time too
    with open(tmp_path / "timing.jsonl", "a") as stream:
        stream.write('{"stage": "tor')
    assert len(experiment.timing) == 2


ROUNDED = "figures will agree but for rounding, so files will not have the same bytes"
DRAWN = "dropout may be drawn otherwise, so figures may differ as those of two seeds do"


@pytest.fixture
def goes_on(tmp_path, monkeypatch):
    """Let the experiment go on somewhere, and return what is said of it; what is not named is as on a CPU."""
    said = []
    monkeypatch.setattr(start_module, "say", said.append)

    def go_on(device="cpu", processes=1, hardware="a CPU (AVX2)", threads=1, torch="2.11.0", transformers="5.0"):
        monkeypatch.setattr(start_module, "name_of", lambda device: hardware)
        monkeypatch.setattr(start_module.torch, "get_num_threads", lambda: threads)
        monkeypatch.setattr(start_module.torch, "__version__", torch)
        monkeypatch.setattr(start_module, "version", lambda name: transformers)
        with opened(tmp_path) as experiment:
            start_module.say_what_differs(experiment, device, processes)
        return [line.removeprefix(f"{tmp_path}: ") for line in said]

    return go_on


@pytest.mark.parametrize(
    ("there", "said"),
    [
        ({"threads": 2}, f"threads 1 before, 2 now; {ROUNDED}"),
        ({"hardware": "another (AVX512)"}, f"hardware a CPU (AVX2) before, another (AVX512) now; {ROUNDED}"),
        ({"threads": 2, "processes": 2}, f"threads 1 before, 2 now, processes 1 before, 2 now; {DRAWN}"),
        (
            {"device": "cuda", "hardware": "a GPU"},
            f"device cpu before, cuda now, hardware a CPU (AVX2) before, a GPU now; {DRAWN}",
        ),
        ({"torch": "2.13.0"}, f"torch 2.11.0 before, 2.13.0 now; {DRAWN}"),
        ({"transformers": "5.1"}, f"transformers 5.0 before, 5.1 now; {DRAWN}"),
    ],
)
def test_what_changed_elsewhere_is_told_with_what_it_does(goes_on, there, said):
    assert goes_on() == goes_on() == []
    assert goes_on(**there) == [said]


def test_another_gpu_draws_dropout_otherwise(goes_on):
    goes_on("cuda", hardware="a GPU")
    assert goes_on("cuda", hardware="another GPU") == [f"hardware a GPU before, another GPU now; {DRAWN}"]


def test_what_older_rows_do_not_say_tells_of_an_earlier_hardneg_once(goes_on, tmp_path):
    with opened(tmp_path) as experiment:
        experiment.begin({"threads": 1, "processes": 1, "device": "cpu"})
    earlier = f"an earlier hardneg before, {__version__} now; {start_module.RULED}"
    assert goes_on() == [earlier]
    assert goes_on(threads=2) == [earlier, f"threads 1 before, 2 now; {ROUNDED}"]


def test_other_rules_of_the_same_version_are_told(goes_on, monkeypatch):
    assert goes_on() == []
    monkeypatch.setattr(start_module, "RULES", 99)
    assert goes_on() == [f"rules {RULES} before, 99 now; {start_module.RULED}"]


def test_what_the_library_logs_is_kept(tmp_path):
    log = logging.getLogger("hardneg.somewhere")
    before = list(logging.getLogger("hardneg").handlers)
    with opened(tmp_path):
        log.warning("für %s", "alle")
    log.warning("too late")
    (line,) = (tmp_path / "log.txt").read_text(encoding="utf-8").splitlines()
    assert line.endswith("WARNING hardneg.somewhere: für alle")
    assert logging.getLogger("hardneg").handlers == before


ASCII = """
import logging, sys
from pathlib import Path
from hardneg.storage.artifacts import publish, read_json
from hardneg.config import Settings, read_presets, read_toml
from hardneg.experiment.folder import open_experiment

class Demo(Settings):
    prompt: str = ""

folder = Path(sys.argv[1])
settings = Demo(**read_toml(folder / "a.toml"))
with open_experiment(folder / "exp", recipe="demo", settings=settings, inputs={}) as experiment:
    logging.getLogger("hardneg.x").warning(settings.prompt)
    experiment.metrics.append([{"episode": 1, "step": 1, "text": settings.prompt}])
    with publish(experiment / "pool", "pool") as draft:
        draft.json("a.json", settings.prompt)
    experiment.finish({"prompt": settings.prompt})
read_presets("ance-tele")
assert read_json(folder / "exp/pool/a.json") == experiment.results["prompt"] == settings.prompt
"""


def test_everything_is_utf_8_whatever_the_locale(tmp_path):
    (tmp_path / "a.toml").write_bytes('prompt = "für ☃"'.encode())
    ascii_only = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    command = [sys.executable, "-W", "error", "-c", ASCII, str(tmp_path)]
    done = subprocess.run(command, env=os.environ | ascii_only, capture_output=True, timeout=300, check=False)
    assert (done.returncode, done.stderr) == (0, b"")
    assert "für ☃".encode() in (tmp_path / "exp/log.txt").read_bytes()
    assert (tmp_path / "exp/pool/a.json").read_bytes() == '"für ☃"\n'.encode()


def test_a_log_that_cannot_be_written_is_no_reason_to_stop(tmp_path, capsys, monkeypatch):
    log = logging.getLogger("hardneg.test")
    with log_file(tmp_path / "folder-in-the-way"):
        (tmp_path / "folder-in-the-way").mkdir()
        log.warning("lost")
    with log_file(tmp_path / "log.txt"):
        log.warning("kept")
        handler = next(h for h in logging.getLogger("hardneg").handlers if isinstance(h, logging.FileHandler))
        monkeypatch.setattr(handler.stream, "flush", lambda: os.fsync(-1))  # as on a full disk
        log.warning("lost")
        monkeypatch.undo()
    assert "Traceback" not in capsys.readouterr().err
    assert "kept" in (tmp_path / "log.txt").read_text()
