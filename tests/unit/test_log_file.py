"""A disk that refuses the log of an experiment neither stops the experiment nor causes a message."""

import logging
import os

import pytest

from hardneg.process.progress import log_file


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
