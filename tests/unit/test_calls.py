"""Tests that forbid calls: a forbidden call is noticed, and so is a name that no call reaches."""

import contextlib

import pytest

from calls import spied, uncalled


class House:
    """A name with a function behind it, which another calls."""

    @staticmethod
    def door(way):
        return f"{way}!"

    def leave(self):
        return self.door("out")

    @classmethod
    def enter(cls):
        return cls.door("in")


def test_calls_are_listed_and_made():
    with spied(House, "door") as ways, spied(House, "enter") as visits, spied(House, "leave") as left:
        assert (House().leave(), House.enter()) == ("out!", "in!")
    assert (ways, len(visits), len(left)) == ([("out",), ("in",)], 1, 1)
    assert isinstance(vars(House)["door"], staticmethod)


def test_a_call_is_noticed_even_if_its_fault_is_swallowed():
    with pytest.raises(AssertionError, match="door was called"), uncalled(House, "door", control=House.enter):
        House().leave()
    quietly, closed = contextlib.suppress(AssertionError), uncalled(House, "door", control=House.enter)
    with pytest.raises(AssertionError, match="called: door"), closed, quietly:
        House().leave()


def test_so_are_a_name_that_is_gone_and_one_that_nothing_reaches():
    with uncalled(House, "door", control=House.enter):
        pass
    with (
        pytest.raises(AssertionError, match="the control did not call door"),
        uncalled(House, "door", control=list),
    ):
        pass
    with pytest.raises(AttributeError), uncalled(House, "window", control=House.enter):
        pass
