"""The Python of pages that show callbacks and runs by ids does what the pages say; trackers are stand-ins."""

import json
import re
import sys
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from http.server import ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from types import SimpleNamespace
from urllib.parse import quote

import pytest

import hardneg as hn
from worlds.tiny_world import COMMON, one_thread, tiny_world  # noqa: F401

HOW_TO = Path(__file__).resolve().parents[2] / "docs/how-to"
SMALL = COMMON | {"measures": "RR@10", "device": "cpu", "mixtures": ["in_batch"], "steps": [3]}


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    return tiny_world(tmp_path_factory.mktemp("world"))


@pytest.fixture
def trains(world, tmp_path, monkeypatch):
    """Training as a page calls it, of the tiny world; the arguments that say where and how are the page's."""
    train, kept = hn.train, []

    def small(recipe, data, model, out, *, preset, **told):
        assert (recipe, data, model, out, preset) == ("warmup", "my-folder", "MODEL", "exp", "finetune")
        kept.append(told)
        return train(recipe, world.collection, world.model, tmp_path / f"exp-{len(kept)}", **SMALL, **told)

    monkeypatch.setattr(hn, "train", small, raising=False)
    return kept


def blocks_of(page):
    return re.findall(r"^```python\n(.*?)^```", (HOW_TO / page).read_text("utf-8"), re.MULTILINE | re.DOTALL)


def lines_of(block):
    return [line for line in block.splitlines() if line.strip()]


class Run:
    def __init__(self):
        self.logged, self.finished = [], False

    def log(self, row):
        self.logged.append(row)

    def finish(self):
        self.finished = True


class Mlflow:
    def __init__(self):
        self.logged = []

    def start_run(self, run_name):
        assert run_name == "exp"
        return self

    def __enter__(self):
        return self

    def __exit__(self, *fault):
        pass

    def log_metrics(self, metrics, step=None):
        assert all(re.fullmatch(r"[\w\-. :/]+", name) for name in metrics)  # what MLflow takes
        assert all(isinstance(value, float) for value in metrics.values())
        self.logged.append((step, metrics))


@pytest.mark.slow
def test_trackers_are_told_by_the_blocks_of_the_page(trains, monkeypatch, capsys):
    plain, with_wandb, with_mlflow = blocks_of("watch.md")
    run, mlflow = Run(), Mlflow()
    monkeypatch.setitem(sys.modules, "wandb", SimpleNamespace(init=lambda project, name: run))
    monkeypatch.setitem(sys.modules, "mlflow", mlflow)
    exec(plain, {})
    told = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in told] == ["untrained", "final"]
    assert "RR@10" in told[0]
    exec(with_wandb, {})
    assert [row["step"] for row in run.logged if "step" in row] == [1, 2, 3]
    assert {"test/RR@10", "dev/RR@10"} in [row.keys() for row in run.logged]
    assert run.finished
    exec(with_mlflow, {})
    assert [step for step, _ in mlflow.logged] == [None, 1, 2, 3, None]
    assert mlflow.logged[0][1].keys() == {"RR-10"}


@pytest.mark.parametrize("number", [1, 2])
def test_a_tracker_takes_about_ten_lines(number):
    assert len(lines_of(blocks_of("watch.md")[number])) <= 12


def test_runs_by_ids_do_what_the_page_says(world, monkeypatch, tmp_path, capsys):
    (block,) = blocks_of("search-and-compare.md")
    monkeypatch.setenv("HARDNEG_CACHE", str(tmp_path))
    names = {}
    exec(block.replace('"my-folder"', repr(str(world.collection.path))).replace("EXP/model", world.model), names)
    assert capsys.readouterr().out.startswith("RR@10 ")
    assert len(names["tests"]) == 6
    assert len(names["table"]) == 6


@pytest.fixture
def service(world, monkeypatch, tmp_path):
    """A function that asks the service of the page for its status and answer, and the searcher behind it."""
    (block,) = (block for block in blocks_of("serve.md") if "ThreadingHTTPServer" in block)
    block, start = block.strip().rsplit("\n", 1)
    assert start == 'ThreadingHTTPServer(("127.0.0.1", 8000), Answer).serve_forever()'
    monkeypatch.setenv("HARDNEG_CACHE", str(tmp_path))
    names = {}
    exec(block.replace('"my-folder"', repr(str(world.collection.path))).replace("EXP/model", world.model), names)
    monkeypatch.setattr(names["Answer"], "log_message", lambda *told: None)
    server = ThreadingHTTPServer(("127.0.0.1", 0), names["Answer"])
    Thread(target=server.serve_forever, daemon=True).start()

    def ask(path):
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{server.server_port}{path}", timeout=60) as answer:
                return answer.status, json.load(answer)
        except urllib.error.HTTPError as fault:
            return fault.code, json.load(fault)

    yield ask, names["searcher"]
    server.shutdown()
    server.server_close()
    names["searcher"].close()


def test_the_service_answers_as_a_searcher_does_many_at_once(world, service):
    ask, searcher = service
    texts = world.collection.query_texts.take(range(12))
    with ThreadPoolExecutor(12) as many:
        found = [*many.map(lambda text: ask(f"/?q={quote(text)}"), texts)]
    assert found == [(200, [*map(dict, searcher.search(text, k=10))]) for text in texts]


@pytest.mark.parametrize("path", ["/", "/?q=", "/?q=%20", "/favicon.ico", "/?text=word"])
def test_the_service_says_what_is_wrong_with_a_request(service, path):
    ask, _ = service
    status, told = ask(path)
    assert (status, told["error"].partition(":")[0]) == (400, "NO_TEXT")
