"""What a function must not do, shown so that the test cannot go void: when code moves, it fails.

A function replaced by one that raises shows nothing once the code that called it has another name for it. So here
a control follows, and must reach what was replaced.
"""

import inspect
from contextlib import ExitStack, contextmanager

import pytest


@contextmanager
def spied(owner, name):
    """In the block ``owner.name`` does what it does, and its calls are listed: the arguments of each."""
    held, calls = inspect.getattr_static(owner, name), []  # a name that is not there is an AttributeError
    real = held.__func__ if isinstance(held, (staticmethod, classmethod)) else held

    def spy(*args, **named):
        calls.append(args)
        return real(*args, **named)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(owner, name, type(held)(spy) if real is not held else spy)
        yield calls


@contextmanager
def uncalled(owner, *names, control):
    """Nothing in the block calls these of ``owner``; ``control()``, done after it, does: or the test fails.

    What is called in spite of this is also stopped, as it may do harm.
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
        assert calls[name], f"nothing reaches {name} there any more: that it was not called shows nothing"
