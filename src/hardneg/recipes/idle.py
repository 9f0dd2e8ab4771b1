"""Lines on values that somebody gave and that others leave without the effect that they seem to have.

They are no faults, as those of ``check_idle`` are: with them an experiment that was begun so still goes on.
"""

from __future__ import annotations

from hardneg.recipes.settings import TrainingSettings
from hardneg.shown import as_set, counted


def idle_lines(settings: TrainingSettings) -> list[str]:
    """The values among settings that do not do what they seem to, a line for each; a preset's are passed over."""
    low, most, rise = settings.min_steps, settings.max_steps, settings.warmup
    found = []
    steps_given = bool(getattr(settings, "steps", None))  # they win over both bounds
    if settings.is_given("min_steps") and low and most and low > most and not steps_given:
        found.append(f"min_steps = {low} is more than max_steps = {most}, which wins")
    if settings.is_given("warmup") and rise > 1 and rise != int(rise):
        steps = counted(int(rise), "step")
        found.append(f"warmup = {rise:g} is {steps}: only below 1 it is a share of the schedule")
    if settings.is_given("title_join") and settings.use_titles is False:
        found.append(f"no effect of title_join = {settings.title_join}: use_titles = false")
    return [*found, *idle_stop(settings), *idle_momentum(settings)]


def idle_stop(settings: TrainingSettings) -> list[str]:
    """A line on an early stop after the end; where it stands in for ``stop_fraction``, it has an effect."""
    stop, steps = getattr(settings, "stop_step", None), getattr(settings, "steps", None)
    if stop is None or steps is None or hasattr(settings, "stop_fraction") or not settings.is_given("stop_step"):
        return []
    late = stop > (max(steps) if isinstance(steps, list) else steps)
    return [f"no effect of stop_step = {stop}: steps = {as_set(steps)}"] if late else []


def idle_momentum(settings: TrainingSettings) -> list[str]:
    """A line on a share of negatives of the pool before, where no episode has one and none can be added."""
    begins, last = settings.course.momentum_from, getattr(settings, "episodes", 0)
    alpha = getattr(settings, "alpha", 0)  # 0 asks for none of them
    if not alpha or begins is None or "episodes" in settings.may_grow or not settings.is_given("alpha"):
        return []
    if last - settings.first_episode >= max(begins, 1):  # the pool that training begins with is not mixed
        return []
    return [f"no effect of alpha = {alpha}: no episode has a pool before it"]
