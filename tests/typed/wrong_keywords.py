"""Calls that mypy must refuse: it complains about each comment here that hides no error."""

import hardneg as hn

hn.train("star", "d", "m", "o", learning_rate=1e-5, on_step=print, progress=False)
hn.train("star", "d", "m", "o", learning_rat=1e-5)  # type: ignore[call-overload]
hn.train("star", "d", "m", "o", learning_rate="high")  # type: ignore[call-overload]
hn.train_adore("d", "m", "o", episodes=3)  # type: ignore[call-arg]
