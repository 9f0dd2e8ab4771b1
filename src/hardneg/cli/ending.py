"""What ``hardneg train`` ends with: the verdict first, then a table or two, and where to read on."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hardneg.cli.colour import Style, painted
from hardneg.cli.tables import forgetting_table, pooled_table, states_table
from hardneg.errors import HardnegError
from hardneg.experiment.layout import Layout
from hardneg.experiment.names import BEFORE, FINAL, LAST, before_training, few_of_dev, shown
from hardneg.process.progress import size_text
from hardneg.shown import p_text

MOST_MEASURES = 6  # of the table
COLOURS: dict[str, Style] = {"beats": "green", "loses to": "red"}


def ending_text(results: Mapping[str, Any], out: Path) -> str:
    """The text that ends a training, for people."""
    from hardneg.diagnostics.kept import choice_sentence, rate_sentence
    from hardneg.report.verdict import first_rows, fused_row, split_of, verdict

    among = few_of_dev(results, None)
    judged = verdict(results, queries=judging(results), dev_passages=among, mined=has_negatives(out))
    if "seeds" in results:
        first = [judged.sentence, *(rate for rate in [rate_sentence(results)] if rate)]
        first += [f"next: {line}" for line in judged.advice]
        return "\n\n".join(["\n".join(first), f"{pooled_table(results, out)}\n{where(out)}"])
    rows = first_rows(results, among)
    split = split_of(results["compared_on"], among) if rows else ""
    first = [line_of(row, results, split) for row in rows] or [judged.sentence]
    if fused := fused_row(results):
        first.append(comparison_line(fused, results["compared_on"]))
    kept = [kept_text(results["kept"])] if results.get("kept", {}).get("of") else []
    kept = [line.replace("(dev ", f"({split_of('dev', among)} ", 1) for line in kept]
    kept += [rate for rate in [rate_sentence(results)] if rate]
    kept += [f"no test split: {chosen}" for chosen in [choice_sentence(results)] if chosen]
    kept += [f"next: {judged.advice[0]}"] if judged.advice else []
    return "\n\n".join(["\n".join([*first, *kept]), *tables(results), places(results, out)])


def judging(results: Mapping[str, Any]) -> int | None:
    """The number of queries that judge the final model, where its pairwise errors were counted; else None."""
    errors = results.get("pairwise_errors", {}).get(results.get("compared_on"), {})
    found = errors.get(FINAL, {}).get("queries")
    return None if found is None else int(found)


def has_negatives(out: Path) -> bool:
    """Whether the newest pool of an experiment has any: training on in-batch negatives alone mines none."""
    from hardneg.api.inspect import pool_at
    from hardneg.negatives.pool import load_pool

    try:
        place = pool_at(out)
        return place is None or len(load_pool(place).passage_rows) > 0
    except HardnegError:  # a damaged pool is reported where it is needed
        return True


def line_of(row: Mapping[str, Any], results: Mapping[str, Any], split: str) -> str:
    """A test of the final model in a line; or the verdict's sentence, if the untrained model was kept."""
    from hardneg.report.verdict import is_same, name_of_final, of_untrained

    if is_same(row, kept := results.get("kept", {})):  # it would be a test of the model against itself
        return of_untrained(kept, name_of_final(results))
    return comparison_line(row, split)


def comparison_line(row: Mapping[str, Any], split: str) -> str:
    """A test in a line, such as ``final beats untrained by 0.041 [0.020, 0.063], p 1e-04``."""
    from hardneg.report.verdict import SURE, corrected

    p = corrected(row)
    sure = p <= SURE
    word = ("beats" if row["difference"] > 0 else "loses to") if sure else "is not shown to differ from"
    low, high = row["interval"]
    sign = 1 if row["difference"] > 0 else -1
    low, high = sorted((sign * low, sign * high))
    size = f"by {abs(row['difference']):.3f} [{low:.3f}, {high:.3f}]"
    if not sure:
        low, high = row["interval"]
        size = f"(difference {row['difference']:+.3f} [{low:+.3f}, {high:+.3f}])"
    name = "p (Holm)" if "p_holm" in row else "p"
    said = f"{shown(row['a'])} {word} {shown(row['b'])}"
    told = painted(said, COLOURS[word]) if word in COLOURS else said
    return f"{told} {size}, {name} {p_text(p)} ({split} {row['measure']})"


def kept_text(kept: Mapping[str, Any]) -> str:
    """The state that was kept, with its value on dev; with ``keep=last`` it need not be the best one."""
    role = "best state" if kept["dev"] >= max(kept["of"].values()) else "kept state"
    name = f"the last, step {kept['step']}" if kept["state"] == "last" else shown(kept["state"])
    before = before_training(kept["of"])
    known = kept["state"] not in BEFORE and before in kept["of"]
    began = f", {shown(before)} {kept['of'][before]:.4f}" if known else ""
    return f"{role}: {name} (dev {kept['measure']} {kept['dev']:.4f}{began})"


def tables(results: Mapping[str, Any]) -> list[str]:
    """At most two tables: the states on the split that judges, and what was forgotten."""
    from hardneg.report.verdict import split_of

    found = []
    if split := next((split for split in ("test", "dev") if results.get(split)), None):
        states = {name: dict(list(values.items())[:MOST_MEASURES]) for name, values in results[split].items()}
        found.append(f"{split_of(split, few_of_dev(results, None))}\n{states_table(states)}")
    if results.get("forgetting"):
        found.append(forgetting_table(results["forgetting"]))
    elif gained := gains_of(results):
        found.append(gained)
    return found


def gains_of(results: Mapping[str, Any]) -> str:
    """What a ranker gained over what it re-ranked; "" for a retriever."""
    from hardneg.diagnostics.cards import gain_lines

    return "\n".join(gain_lines(results))


def places(results: Mapping[str, Any], out: Path) -> str:
    """Where the model is, what the experiment takes, and how to see more."""
    index = f"\nindex: {found['kind']} {found['digest'][:12]}" if (found := results.get("index")) else ""
    best = bool(results.get("kept", {}).get("of", {}).keys() - {*BEFORE, LAST})
    return f"model: {Layout(out).model}{index}\n{where(out, best=best)}"


def where(out: Path, *, best: bool = False) -> str:
    """What an experiment takes on the disk, and the commands that show more and free some of it.

    ``best``: the best of several states was kept, so the models of several states were stored.
    """
    from hardneg.api.clean import bytes_below, freeable_bytes

    size, free = size_text(bytes_below(out)), size_text(freeable_bytes(out))
    lines = [
        f"disk:  {size} in {out}, {free} of it checkpoints and caches: hardneg clean {out} --yes deletes them"
    ]
    lines += ["less:  --set keep=last stores only the last model"] if best else []
    return "\n".join([*lines, f"more:  hardneg show {out}"])
