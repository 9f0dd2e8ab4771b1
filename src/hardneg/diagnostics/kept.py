"""Puts into words which state was kept, and whether training made the model better on dev."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hardneg.experiment.names import BEFORE, FINAL, LAST, STARTED, UNTRAINED, before_training
from hardneg.shown import counted

TRAINED_START = "the model that it started from"
AS_KEPT = {
    UNTRAINED: "the untrained model as it came",
    STARTED: "the untrained model with the settings of training",
}


def of_trained_start(line: str) -> str:
    """A line about a training that started from a trained model, with another name for that model."""
    for name in ("the untrained model", "the untrained one"):
        line = line.replace(name, TRAINED_START).replace(name.upper(), TRAINED_START.upper())
    return line


def trained_before(name: str, shows: str) -> str:
    """The sentence that says that the model ``name`` was trained before; ``shows`` still calls it untrained."""
    return f"The model that it started from, {name}, was trained before; {shows} call it {UNTRAINED}."


def sentence(kept: Mapping[str, Any]) -> str:
    """One line that says which state ``model/`` holds."""
    names = {**AS_KEPT, LAST: f"the last state (step {kept['step']:,})"}
    said = f"model/ is {names.get(kept['state'], kept['state'])}"
    if "dev" not in kept:
        return said
    others = [f"{name} {kept['of'][name]:.4f}" for name in (*BEFORE, LAST) if name in kept["of"]]
    compared = ", ".join(one for one in others if not one.startswith(f"{kept['state']} "))
    return f"{said}: dev {kept['measure']} {kept['dev']:.4f} ({compared})"


def choice_sentence(results: Mapping[str, Any]) -> str | None:
    """One line of caution where the queries that measure the final model also chose it; None: they did not."""
    kept = results.get("kept", {})
    of = kept.get("of", {})
    # results of earlier versions do not say what was asked for
    keep = kept.get("keep", "last" if kept.get("state") == LAST else "best")
    if results.get("compared_on") != "dev" or len(of) < 2 or keep == "last":
        return None
    return (
        f"dev chose the best of {counted(len(of), 'state')} and measures it, too, so its figures are a little too"
        " high and p is too low"
    )


def rate_sentence(results: Mapping[str, Any]) -> str | None:
    """One line that says which of several learning rates training went on with, and why; None: one was given."""
    if (tried := results.get("tried")) is None:
        return None
    if "seeds" in results:
        return _of_seeds(tried)
    values = {rate: "not finite" if value is None else f"{value:.4f}" for rate, value in tried["of"].items()}
    best = f"{tried['learning_rate']:g}"
    others = ", ".join(f"{rate}: {value}" for rate, value in values.items() if rate != best)
    after = f"after {counted(tried['step'], 'step')}"
    return f"learning rate {best} was the best on dev {after}: {tried['measure']} {values[best]} ({others})"


def _of_seeds(tried: Mapping[str, Mapping[str, Any]]) -> str:
    """The same of several seeds, each of which chose for itself."""
    by_rate: dict[float, list[str]] = {}
    for seed, one in tried.items():
        by_rate.setdefault(one["learning_rate"], []).append(seed)
    if len(by_rate) == 1:
        return f"learning rate {next(iter(by_rate)):g} was the best on dev with every seed"
    told = [f"{rate:g} with seed{'s' * (len(seeds) > 1)} {', '.join(seeds)}" for rate, seeds in by_rate.items()]
    return f"learning rate {told[0]} was the best on dev, {', '.join(told[1:])}"


def cost_of_settings(results: Mapping[str, Any]) -> tuple[float, float, float] | None:
    """Dev of the model as it came, before the first step and at its best, if settings cost more than was gained.

    Settings, such as short lengths, change the model before training. None: they did not, or training gained
    nothing, or more than they cost. Where an index decides which state is the best, too, all three are without it,
    as there is none of the model as it came.
    """
    kept, dev = results.get("kept", {}), results.get("dev", {})
    of: Mapping[str, float] = kept.get("of", {})
    trained = [name for name in of if name != UNTRAINED]
    began = dev.get(STARTED, {}).get(kept.get("measure"))
    if began is None or not trained:
        return None

    def exact(name: str) -> float:
        return dev.get(name, {}).get(kept["measure"], of.get(name, began))

    best = max(trained, key=lambda name: of[name])
    before, reached = exact(UNTRAINED), exact(FINAL if best == LAST and LAST not in dev and FINAL in dev else best)
    return (before, began, reached) if began < reached <= before else None


def since_start(of: Mapping[str, float]) -> dict[str, float]:
    """The values on dev without that of the model as it came, if training started from a changed model."""
    return {name: value for name, value in of.items() if name != UNTRAINED or STARTED not in of}


def warning(results: Mapping[str, Any]) -> str | None:
    """A warning if training has not made the model better on dev; else None."""
    kept = results["kept"]
    if kept.get("beats_untrained", True):
        return None
    before = before_training(kept["of"])
    best = kept["of"][before]
    if kept["state"] in BEFORE:
        values = [*since_start(kept["of"]).values()]
        unchanged = len(values) > 1 and len(set(values)) == 1 and best < 1
        fix = (
            "train longer, or at a higher rate"
            if unchanged
            else "try a lower learning rate, other negatives or more data"
        )
        if cost := cost_of_settings(results):
            _, began, reached = cost
            fix = (
                f"its settings, such as lengths, took it to {began:.4f}, and training raised it to {reached:.4f};"
                " try settings nearer to the model's own"
            )
        return (
            f"NOTHING BEAT THE UNTRAINED MODEL on dev ({kept['measure']} {best:.4f}): model/ is"
            f" {AS_KEPT[kept['state']]}; {fix}"
        )
    return (
        f"THE TRAINED MODEL IS NOT BETTER THAN THE UNTRAINED ONE on dev ({kept['measure']} {kept['dev']:.4f},"
        f" {before} {best:.4f}); with --set keep=best, model/ would be the better one"
    )
