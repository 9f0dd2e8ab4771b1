"""A disk that refuses the log of an experiment neither stops the experiment nor causes a message."""

import logging
import os

import pytest

from hardneg.process.progress import log_file, say


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="only Linux has a device that is always full")
def test_a_full_disk_costs_the_log_and_nothing_else(tmp_path, capsys):
    (tmp_path / "log.txt").symlink_to("/dev/full")
    log = logging.getLogger("hardneg.something")
    with log_file(tmp_path / "log.txt"):
        log.warning("said while the disk is full")
        log.warning("and again")
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize("place", ["absent/log.txt", "folder"])
def test_a_log_that_cannot_be_opened_is_left_out(tmp_path, capsys, place):
    (tmp_path / "folder").mkdir()
    with log_file(tmp_path / place):
        logging.getLogger("hardneg.something").warning("nobody reads this")
    assert capsys.readouterr() == ("", "")


def test_the_fault_of_the_block_is_the_one_that_is_raised(tmp_path):
    (tmp_path / "log.txt").symlink_to("/dev/full")
    with pytest.raises(KeyError, match="its own"):
        fail_while_logging(tmp_path / "log.txt")


def fail_while_logging(path):
    with log_file(path):
        logging.getLogger("hardneg.something").warning("lost")
        raise KeyError("its own")


def test_notes_reach_the_log_of_an_experiment_and_nothing_else_that_listens(tmp_path, caplog):
    library, own = logging.getLogger("hardneg"), logging.getLogger("another.library")
    caplog.set_level(logging.WARNING)
    caplog.set_level(logging.NOTSET, logger="hardneg")  # as in a program, which has set nothing
    with log_file(tmp_path / "log.txt"):
        say("goes on where it ended")
        library.warning("look")
        own.setLevel(logging.INFO)
        own.info("of the program itself")
    own.setLevel(logging.NOTSET)
    say("too late")
    lines = (tmp_path / "log.txt").read_text().splitlines()
    assert [line.partition(": ")[2] for line in lines] == ["goes on where it ended", "look"]
    assert caplog.messages == ["look", "of the program itself"]
    assert library.level == logging.NOTSET


def test_a_part_of_the_library_whose_level_a_program_has_set_is_heard_as_before(tmp_path, caplog):
    caplog.set_level(logging.WARNING)
    caplog.set_level(logging.NOTSET, logger="hardneg")
    caplog.set_level(logging.INFO, logger="hardneg.recipes")
    with log_file(tmp_path / "log.txt"):
        logging.getLogger("hardneg.recipes.star").info("asked for")
        logging.getLogger("hardneg.search").info("not asked for")
    assert "asked for" in caplog.messages
    assert "not asked for" not in caplog.messages


def test_a_level_that_a_program_has_set_stays(tmp_path, caplog):
    caplog.set_level(logging.ERROR, logger="hardneg")
    with log_file(tmp_path / "log.txt"):
        say("nobody asked for this")
    assert not (tmp_path / "log.txt").exists()
