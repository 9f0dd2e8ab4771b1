"""Checks that code does not call a function, which fail if code moves, so that a test cannot become void.

A test could replace the function by one that raises. That shows nothing once the code under test calls the
function by another name. So here a control follows, which must reach the replaced function.
"""

import inspect
from contextlib import ExitStack, contextmanager

import pytest


@contextmanager
def spied(owner, name):
    """List the calls of ``owner.name`` in the block, by their arguments; the function still does its work."""
    held, calls = inspect.getattr_static(owner, name), []  # an unknown name raises an AttributeError
    real = held.__func__ if isinstance(held, (staticmethod, classmethod)) else held

    def spy(*args, **named):
        calls.append(args)
        return real(*args, **named)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(owner, name, type(held)(spy) if real is not held else spy)
        yield calls


@contextmanager
def uncalled(owner, *names, control):
    """Fail unless the block calls none of these functions of ``owner``, and ``control()`` after it calls them all.

    A forbidden call also raises at once, because the function may do harm.
    """
    called = []

    def forbidden(name):
        def stands_in(*args, **named):
            called.append(name)
            raise AssertionError(f"{name} was called")

        return staticmethod(stands_in) if isinstance(owner, type) else stands_in

    with pytest.MonkeyPatch.context() as patch:
        for name in names:
            patch.setattr(owner, name, forbidden(name))
        yield
    assert not called, f"called: {', '.join(called)}"
    with ExitStack() as stack:
        calls = {name: stack.enter_context(spied(owner, name)) for name in names}
        control()
    for name in names:
        assert calls[name], f"the control did not call {name} either: this shows nothing"
