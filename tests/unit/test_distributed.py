"""Ranks, shards and the flag that asks to stop."""

import signal

import pytest

from hardneg.distributed import StopFlag, rank, shard_of, world_size
from hardneg.errors import Interrupted, SettingsError


def test_alone_there_is_one_shard(monkeypatch):
    monkeypatch.delenv("RANK", raising=False)
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    assert (rank(), world_size(), shard_of(None)) == (0, 1, (0, 1))


def test_the_launcher_says_which_shard_and_the_option_wins(monkeypatch):
    monkeypatch.setenv("RANK", "2")
    monkeypatch.setenv("WORLD_SIZE", "4")
    assert (rank(), world_size(), shard_of(None), shard_of("1/3")) == (2, 4, (2, 4), (1, 3))


@pytest.mark.parametrize(
    "text", ["", "1", "/", "1/", "/2", "2/2", "3/2", "0/0", "-1/2", "a/b", "1/2/3", "²/³", "0.5/2"]
)
def test_what_is_no_shard_is_refused(text):
    with pytest.raises(SettingsError) as raised:
        shard_of(text)
    assert (raised.value.code, raised.value.status) == ("BAD_SHARD", 2)


def test_the_first_signal_asks_and_the_second_aborts():
    flag = StopFlag()
    assert not flag
    flag.check()
    flag._receive(signal.SIGINT, None)
    assert flag
    with pytest.raises(Interrupted) as raised:
        flag.check()
    assert raised.value.status == 75
    assert str(raised.value) == "STOPPED: stopped by SIGINT; run the same command again to resume"
    with pytest.raises(KeyboardInterrupt):
        flag._receive(signal.SIGINT, None)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_installed_flag_hears_signals(number):
    before = {each: signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)}
    flag = StopFlag()
    try:
        flag.install()
        signal.raise_signal(number)
        assert flag.signal == number
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(number)
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)
