"""`hardneg verify` and `hardneg doctor`: damaged files are found in every place, and named."""

import json
import os
import re
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from pydantic import Field

import hardneg as hn
from faults.injected import dead_pid, flip, rot, settle
from hardneg.api import doctor
from hardneg.config import Settings
from hardneg.data.formats.trec import sidecar_of, write_run
from hardneg.errors import ArtifactError, InputError, SettingsError
from hardneg.experiment.folder import open_experiment
from hardneg.experiment.layout import SEAL
from hardneg.process import control_groups, hardware
from hardneg.records import Run
from hardneg.search.runs import save_run
from hardneg.storage import digests
from hardneg.storage.artifacts import open_artifact, publish, write_json
from hardneg.storage.disk import NEW, TEMPORARY, temporary

IDS = ["a", "b", "c"]
INPUTS = {"collection": "c0ffee"}


class Ids(list):
    """Ids of rows, as the writers of runs ask for them."""

    def take(self, rows):
        return [self[row] for row in rows]


class Demo(Settings):
    episodes: int = Field(1)


def thing(path, kind="thing", text="one"):
    with publish(path, kind) as draft:
        draft.text("deep/text.txt", text)
    return path


def some_run():
    rows = np.arange(2, dtype=np.int32)
    return Run(
        rows, np.array([0, 2, 3]), np.array([0, 1, 2], np.int32), np.ones(3, np.float32), "passage", "c0ffee"
    )


def experiment(path, results):
    """A finished experiment with a pool."""
    with opened(path) as opening:
        if not (path / "episodes").exists():
            thing(opening / "episodes/1/negatives")
            thing(opening / "cache/tokens/ab")
            opening.metrics.append([{"episode": 1, "step": 1, "loss": 0.5}])
        opening.finish(results)
    return path


def opened(path):
    return open_experiment(path, recipe="demo", settings=Demo(), inputs=INPUTS)


def faults(*paths):
    """(path, code) of all that is wrong."""
    report = hn.verify(*paths)
    assert report["whole"] == (not report["faults"])
    assert report["whole"] == all(one["whole"] for one in report["checked"])
    return [(fault["path"], fault["code"]) for fault in report["faults"]]


# ---------------------------------------------------------------- artefacts


def test_an_artefact_is_checked_byte_by_byte(tmp_path, monkeypatch):
    monkeypatch.setattr(digests, "LARGE", 0)
    path = thing(tmp_path / "thing")
    file = path / "deep/text.txt"
    entry = {"path": str(path), "kind": "thing", "files": 1, "bytes": 3, "whole": True}
    assert hn.verify(path) == {"whole": True, "checked": [entry], "faults": [], "leftovers": []}
    settle(file)
    open_artifact(path, "thing")  # its digest is remembered
    rot(file, 1)
    open_artifact(path, "thing")
    assert faults(path) == [(str(file), "CORRUPT")]


def test_everything_in_a_folder_is_checked_and_all_faults_are_told(tmp_path):
    one, two, three = (thing(tmp_path / name) for name in ("one", "deep/er/two", "deep/three"))
    draft = temporary(tmp_path / "deep/four", NEW).with_name(f"{TEMPORARY}{NEW}-four-{dead_pid()}@elsewhere")
    thing(draft / "inside")
    (two / "deep/text.txt").write_text("two!")
    (three / "more.txt").write_text("mine")
    report = hn.verify(tmp_path)
    assert [place["path"] for place in report["checked"]] == [str(two), str(three), str(one)]
    assert report["leftovers"] == [str(draft)]
    expected = [(str(two / "deep/text.txt"), "WRONG_SIZE"), (str(three / "more.txt"), "EXTRA_FILE")]
    assert faults(tmp_path) == faults(tmp_path / "deep", one) == expected
    assert faults(one) == []


def test_a_folder_that_is_closed_is_not_called_whole(tmp_path, monkeypatch):
    one, two = thing(tmp_path / "one"), thing(tmp_path / "closed/two")

    def listed(folder, real):
        if Path(folder) == two.parent:
            raise PermissionError(13, "Permission denied", str(folder))
        return real(folder)

    for name in ("listdir", "scandir"):  # root may open all folders
        monkeypatch.setattr(os, name, partial(listed, real=getattr(os, name)))
    for place in (tmp_path, two.parent):
        assert faults(place) == [(str(two.parent), "UNREADABLE")]
    assert [place["whole"] for place in hn.verify(tmp_path)["checked"]] == [True, False]
    assert faults(one) == []
    flip(one / "deep/text.txt", 1)  # damage comes first, wherever it is: it decides the exit status
    assert [code for _, code in faults(two.parent, one)] == ["CORRUPT", "UNREADABLE"]


def test_a_folder_that_may_only_be_listed_does_not_end_the_check(tmp_path, monkeypatch):
    whole, part = thing(tmp_path / "one"), thing(tmp_path / "two")
    hidden = thing(tmp_path / "shut/three")
    shut = (f"{part / 'deep'}{os.sep}", f"{hidden.parent}{os.sep}")

    def refusing(path, *rest, real, **named):
        if isinstance(path, str | Path) and str(path).startswith(shut):
            raise PermissionError(13, "Permission denied", str(path))
        return real(path, *rest, **named)

    for name in ("stat", "listdir", "scandir"):  # root may enter all folders
        monkeypatch.setattr(os, name, partial(refusing, real=getattr(os, name)))
    expected = [(str(part / "deep/text.txt"), "UNREADABLE"), (str(hidden), "UNREADABLE")]
    assert faults(tmp_path) == expected
    report = hn.verify(tmp_path)
    assert [one["path"] for one in report["checked"] if one["whole"]] == [str(whole)]
    assert report["checked"][0]["files"] == 1


def test_links_to_folders_are_followed_once(tmp_path):
    here, there = tmp_path / "here", tmp_path / "there"
    thing(here / "one")
    corrupt = thing(there / "deep/two")
    flip(corrupt / "deep/text.txt", 1)
    (there / f"{TEMPORARY}-left").mkdir()
    for name, target in {"a": there, "b": there, "again": here, "up": tmp_path, "two": corrupt}.items():
        (here / name).symlink_to(target)
    report = hn.verify(here)
    assert [place["path"] for place in report["checked"]] == [str(here / "one"), str(here / "a/deep/two")]
    assert faults(here) == [(str(here / "a/deep/two/deep/text.txt"), "CORRUPT")]
    assert report["leftovers"] == [str(here / f"a/{TEMPORARY}-left")]


def test_what_the_hub_leaves_in_a_model_is_no_damage(tmp_path):
    model = thing(tmp_path / "model")
    for name in (".gitattributes", ".cache/huggingface/.gitignore", ".git/config"):
        (model / name).parent.mkdir(parents=True, exist_ok=True)
        (model / name).touch()
    assert faults(model) == []
    (model / "deep/.hidden").touch()
    assert faults(model) == [(str(model / "deep/.hidden"), "EXTRA_FILE")]


def test_a_link_that_cannot_be_followed_is_a_fault(tmp_path):
    here = tmp_path / "here"
    corrupt = thing(here / "one")
    (here / "a").symlink_to(tmp_path / "gone/pools")
    (here / "b").symlink_to("b")
    (here / ".#lock").symlink_to("somebody@host.1")  # of an editor
    links = [(str(here / "b"), "UNREADABLE"), (str(here / "a"), "NOT_FOUND")]
    assert faults(here) == links
    flip(corrupt / "deep/text.txt", 1)
    assert faults(here) == [(str(corrupt / "deep/text.txt"), "CORRUPT"), *links]


def test_what_a_kind_promises_is_checked_too(tmp_path):
    run = some_run()
    save_run(run, tmp_path / "run", inputs={}, settings={})
    assert faults(tmp_path / "run") == []
    wrong = Run(run.query_rows, np.array([0, 2, 9]), run.passage_rows, run.scores, "passage", "c0ffee")
    save_run(wrong, tmp_path / "run", inputs={}, settings={})
    assert faults(tmp_path) == [(str(tmp_path / "run"), "BAD_RUN")]


@pytest.mark.parametrize("name", ["run.trec", "run.trec.gz"])
def test_a_run_file_is_checked_against_its_manifest(tmp_path, name):
    path = tmp_path / name
    write_run(path, some_run(), Ids(IDS), Ids(IDS))
    assert hn.verify(path)["checked"][0]["kind"] == "run file"
    for place in (path, tmp_path):
        assert faults(place) == []
    flip(path, path.stat().st_size - 1)
    for place in (path, tmp_path):
        assert faults(place) == [(str(path), "CORRUPT")]
    sidecar_of(path).unlink()
    assert faults(path) == [(str(path), "NO_MANIFEST")]


def test_where_there_is_nothing_to_verify(tmp_path):
    with pytest.raises(InputError, match="NOT_FOUND: there is nothing here"):
        hn.verify(tmp_path / "nowhere")
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(ArtifactError, match="NO_MANIFEST: there is nothing here that has a manifest"):
        hn.verify(tmp_path)


# ---------------------------------------------------------------- experiments


def test_a_finished_experiment_vouches_for_all_that_it_made(tmp_path):
    path = experiment(tmp_path / "exp", {"test": {"final": 0.5}})
    kinds = {place["kind"] for place in hn.verify(path)["checked"]}
    assert kinds == {"experiment", "settings", "metrics", "results", "thing"}
    for name in ("settings.json", "metrics.jsonl", "results.json", SEAL):
        whole = (path / name).read_bytes()
        for position in range(0, len(whole), 7):
            flip(path / name, position, position % 8)
            assert str(path / name) in {place for place, _ in faults(path)}, (name, position)
            (path / name).write_bytes(whole)
        (path / name).write_bytes(whole[:-1])
        assert str(path / name) in {place for place, _ in faults(path)}
        (path / name).write_bytes(whole)
    assert faults(path) == []


def test_another_artefact_in_the_place_of_one_that_was_made(tmp_path):
    path = experiment(tmp_path / "exp", {})
    with publish(path / "episodes/1/negatives", "thing", replace=True) as draft:
        draft.text("deep/text.txt", "two")
    assert faults(path) == [(str(path / "episodes/1/negatives"), "CORRUPT")]
    (path / "episodes").rename(tmp_path / "moved")
    assert faults(path) == [(str(path / "episodes/1/negatives"), "MISSING_FILE")]


def test_damaged_results_are_not_returned(tmp_path):
    path = experiment(tmp_path / "exp", {"test": 1})
    (path / "results.json").write_text('{\n "test": 2\n}\n')
    told = r"results\.json: CORRUPT: .*; delete this file and run"
    with opened(path) as experiment_, pytest.raises(ArtifactError, match=told):
        _ = experiment_.results


def test_results_of_a_process_that_died_before_it_sealed_them(tmp_path):
    path = experiment(tmp_path / "exp", {"test": 1})
    (path / SEAL).unlink()
    with opened(path) as again:
        assert again.results == {"test": 1}
    assert faults(path) == []
    assert (path / SEAL).is_file()


def test_lost_settings_and_a_lost_seal_are_found(tmp_path):
    path = experiment(tmp_path / "exp", {"test": 1})
    settings = (path / "settings.json").read_bytes()
    (path / "settings.json").unlink()
    assert faults(path) == [(str(path / "settings.json"), "MISSING_FILE")]
    (path / "settings.json").write_bytes(settings)
    (path / SEAL).unlink()
    assert faults(path) == [(str(path / SEAL), "MISSING_FILE")]


def test_derived_stores_may_go(tmp_path):
    path = experiment(tmp_path / "exp", {})
    (path / "cache").rename(tmp_path / "moved")
    assert faults(path) == []


def test_settings_without_their_digest_are_not_whole(tmp_path):
    path = experiment(tmp_path / "exp", {})
    record = json.loads((path / "settings.json").read_text())
    del record["digest"]
    write_json(path / "settings.json", record)
    assert {code for _, code in faults(path)} == {"CORRUPT"}


# ---------------------------------------------------------------- the commands


def test_the_command_shows_what_it_checked_and_ends_with_the_faults(hardneg, tmp_path):
    one, two = thing(tmp_path / "one"), thing(tmp_path / "two")
    status, out, err = hardneg("verify", one, two)
    assert (status, err) == (0, "")
    assert re.search(rf"thing +1 +3 +whole +{re.escape(str(two))}\n2 checked, all whole", out)
    flip(two / "deep/text.txt", 0)
    status, out, err = hardneg("verify", tmp_path)
    assert status == 4
    assert "DAMAGED" in out
    assert err.startswith(f"{two / 'deep/text.txt'}: CORRUPT: SHA-256 ")
    assert len(err.splitlines()) == 1
    status, out, err = hardneg("verify", tmp_path, "--json")
    assert (status, json.loads(out)) == (4, hn.verify(tmp_path))


def test_a_diagnosis_names_versions_devices_and_what_is_missing(hardneg):
    status, out, err = hardneg("doctor", "--json")
    assert (status, err) == (0, "")
    found = json.loads(out)
    assert list(found) == ["versions", "processor", "devices", "memory", "cache", "extras", "missing"]
    assert "unknown" not in {key for chapter in found.values() for key in chapter}
    assert found["versions"]["hardneg"] == hn.__version__
    assert found["processor"]["usable_cpus"] >= 1
    assert re.fullmatch(r"\d+\.\d GiB", found["memory"]["available"])
    assert found["cache"]["writable"] is True
    assert all(line == f"pip install 'hardneg[{extra}]'" for extra, line in found["missing"].items())
    status, out, err = hardneg("doctor")
    assert (status, err) == (0, "")
    assert re.search(r"versions\nhardneg +\d", out)


def test_hardware_is_named_with_the_instructions_that_torch_uses(monkeypatch):
    monkeypatch.setattr(hardware, "cpu_flags", lambda: {"avx2", "amx_bf16"})
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "AVX512")
    assert hardware.name_of("cpu") == f"{doctor.processor()['name']} (AVX512, amx_bf16)"
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "NVIDIA H200")
    assert hardware.name_of("cuda") == "NVIDIA H200"


def test_a_diagnosis_needs_no_healthy_machine(monkeypatch, tmp_path):
    monkeypatch.setattr(control_groups, "CGROUP", tmp_path)
    (tmp_path / "cpu.max").write_text("150000 100000\n")
    (tmp_path / "memory.max").write_text("1073741824\n")
    assert doctor.processor()["cpu_quota"] == 1.5
    assert doctor.memory()["container_limit"] == "1.0 GiB"
    (tmp_path / "cpu.max").write_text("nonsense")  # says nothing
    assert "cpu_quota" not in doctor.processor()
    monkeypatch.setattr(doctor, "installed", lambda name: None)
    monkeypatch.setattr(doctor, "usable_cpus", lambda: [][0])
    found = hn.doctor()
    assert found["processor"] == {"unknown": "IndexError: list index out of range"}
    assert found["versions"]["torch"] == "not installed"
    assert found["missing"]["dev"] == "pip install 'hardneg[dev]'"


def test_an_extra_lacks_what_the_extras_in_it_lack(monkeypatch):
    lines = [
        'numpy>=2; extra == "arrays"',
        'absent-one[more]>=1; extra == "report"',
        'hardneg[arrays,report]; extra == "dev"',
        'absent-two; extra == "dev"',
        'hardneg[dev]; extra == "bench"',
    ]
    monkeypatch.setattr(doctor.importlib.metadata, "requires", lambda name: lines)
    lacked = {"report": "lacks absent-one"} | dict.fromkeys(("dev", "bench"), "lacks absent-one, absent-two")
    assert doctor.extras() == {"arrays": "complete"} | lacked


def test_nothing_to_verify_is_not_called_whole():
    with pytest.raises(SettingsError, match="nothing is given to verify"):
        hn.verify()
