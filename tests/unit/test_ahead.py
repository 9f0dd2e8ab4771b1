"""Items that a thread makes ahead: the same ones, in order, with their faults."""

import threading

import pytest

from hardneg.process import ahead as module
from hardneg.process.ahead import ahead


@pytest.fixture(params=[1, 2])
def threads(request, monkeypatch):
    monkeypatch.setattr(module, "usable_threads", lambda: request.param)
    return request.param


def test_all_items_come_in_order(threads):
    assert list(ahead(iter(range(1000)))) == list(range(1000))
    assert list(ahead(iter([]))) == []
    assert list(ahead(iter([None, None]))) == [None, None]


def test_the_next_item_is_made_while_one_is_used(monkeypatch):
    monkeypatch.setattr(module, "usable_threads", lambda: 2)
    made = threading.Event()

    def items():
        yield 1
        made.set()
        yield 2

    found = ahead(items())
    assert next(found) == 1
    assert made.wait(10)
    assert list(found) == [2]


def test_a_fault_comes_after_the_items_before_it(threads):
    def items():
        yield 1
        raise ValueError("bad")

    found = ahead(items())
    assert next(found) == 1
    with pytest.raises(ValueError, match="bad"):
        next(found)


def test_who_stops_early_leaves_no_thread(threads):
    before = threading.active_count()
    found = ahead(iter(range(100)))
    assert next(found) == 0
    found.close()
    assert threading.active_count() == before
