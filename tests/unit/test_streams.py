"""Streams as machines have them: nobody reads them, or their encoding lacks characters."""

import json
import os
import signal
import subprocess
import sys

import pytest

from hardneg.data.collection import Collection


def without_reader(*arguments, of):
    """Run a command whose stream ``of`` nobody reads; its exit status and what it wrote to the other one."""
    reads, writes = os.pipe()
    os.close(reads)
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, of: writes}
    done = subprocess.run([sys.executable, "-m", "hardneg", *arguments], check=False, text=True, **streams)
    os.close(writes)
    return done.returncode, done.stderr if of == "stdout" else done.stdout


def test_a_reader_that_leaves_changes_no_exit_status():
    """Long outputs are written in several pieces, and Python writes again what was refused when it ends."""
    assert without_reader("settings", "star", "--json", of="stdout") == (0, "")
    assert without_reader("settings", "nothing", of="stderr") == (2, "")


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "utf-8"])
def test_what_the_encoding_of_the_output_lacks_is_escaped(tmp_path, encoding):
    Collection.from_lists(
        [("é", "", "naïve 日本 😀")], {"q": "naïve"}, {"test": {"q": ["é"]}}, to=tmp_path / "data"
    )
    line = [
        sys.executable,
        "-m",
        "hardneg",
        "search",
        "--data",
        str(tmp_path / "data"),
        "--bm25",
        "--query",
        "日本",
    ]
    environment = os.environ | {"PYTHONIOENCODING": encoding, "HARDNEG_CACHE": str(tmp_path / "cache")}
    done = subprocess.run([*line, "--json"], capture_output=True, encoding=encoding, env=environment, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout)[0].items() >= {"passage_id": "é", "text": "naïve 日本 😀"}.items()
    assert ("ï" in done.stdout, "日" in done.stdout) == (encoding != "ascii", encoding == "utf-8")


EARLY = """
import os, signal, sys

class Signalled:  # a signal comes while the command line is loaded
    def find_spec(self, name, path, target=None):
        if name == "hardneg.cli":
            os.kill(os.getpid(), int(sys.argv.pop(1)))

number = int(sys.argv[2])  # what starts the tests may ignore signals
usual = signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL
signal.signal(number, signal.SIG_IGN if sys.argv[1] == "ignored" else usual)
del sys.argv[1]
sys.meta_path.insert(0, Signalled())
from hardneg.__main__ import main
main()
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_while_the_command_line_is_loaded_is_one_line(number):
    command = [sys.executable, "-c", EARLY]
    done = subprocess.run([*command, "heard", str(number), "presets"], check=False, text=True, capture_output=True)
    line = "STOPPED: stopped by a signal; run the same command again\n"
    assert (done.returncode, done.stdout, done.stderr) == (75, "", line)
    done = subprocess.run(
        [*command, "ignored", str(number), "presets"], check=False, text=True, capture_output=True
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "demo" in done.stdout
