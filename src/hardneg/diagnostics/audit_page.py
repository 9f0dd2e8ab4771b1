"""The audit as HTML: a page, or a section of a report, in which a person labels suspected negatives by keyboard.

The page is a single file and uses no network. Texts are escaped. Characters that would hide the text after them or
reverse its direction are shown by their code.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from importlib import resources
from pathlib import Path
from typing import Any

from hardneg.data.judgements import COLUMNS, LABELS, MEANINGS, Judgements, can_hold
from hardneg.hidden import visible
from hardneg.negatives.pool import counted_by
from hardneg.shown import counted

LONGEST = 1500  # characters of a text
POLICY = (  # nothing is loaded from anywhere
    "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; base-uri 'none';"
    " form-action 'none'"
)
KEYS = {"positive": "p", "relevant": "r", "negative": "n", "unsure": "u"}


def audit_page(found: Mapping[str, Any], known: Judgements | None = None) -> bytes:
    """The page of an audit, as :func:`~hardneg.api.audit.audit` returns it, in UTF-8.

    Parameters
    ----------
    known : earlier judgements. Their pairs are not on the page, but the file that the page saves has them, too.
    """
    parts = [
        "<!doctype html>",
        '<html lang="en"><head><meta charset="utf-8">',
        f'<meta http-equiv="Content-Security-Policy" content="{escape(POLICY)}">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        '<meta name="color-scheme" content="light dark">',
        "<title>Suspected false negatives · hardneg</title></head><body>",
        "<main><h1>Suspected false negatives</h1>",
        audit_section(found, known),
        "</main></body></html>",
    ]
    return "\n".join(parts).encode("utf-8", "replace")


def audit_section(found: Mapping[str, Any], known: Judgements | None = None) -> str:
    """An audit as a part of a page: style, tables, pairs side by side, and the script that labels them.

    The section needs nothing from the page around it, and takes keys only while the focus is in its list. A page
    may have only one such section.
    """
    unit = counted_by(Path(found["pool"]))
    return _within(
        f"<p>{_summary(found)}</p>",
        _table("Signals", ("signal", "from", "negatives", "queries", "what it means"), _signal_rows(found)),
        *[f"<p>Not known: {text(name)}, because {text(why)}.</p>" for name, why in found["left_out"].items()],
        _table("Sources", ("source", "negatives", "suspected", "share"), _source_rows(found)),
        _listed(found["suspects"], known, unit),
    )


def labelling(
    suspects: Sequence[Mapping[str, Any]], known: Judgements | None = None, *, unit: str = "episode"
) -> str:
    """Suspected pairs side by side, with the controls to label them and save the labels, once in a page.

    Parameters
    ----------
    unit : what a pair's ``episode`` counts, see :func:`~hardneg.negatives.pool.counted_by`.
    """
    return _within(_listed(suspects, known, unit))


def _within(*parts: str) -> str:
    """Parts with their style and script."""
    style, script = f"<style>{_asset('audit.css')}</style>", f"<script>{_asset('audit.js')}</script>"
    return "\n".join([f'<div class="audit">{style}', *parts, f"{script}</div>"])


def _listed(suspects: Sequence[Mapping[str, Any]], known: Judgements | None, unit: str) -> str:
    held = [one for one in suspects if can_hold(one["query_id"], one["passage_id"])]
    pairs = [_pair(place, one, len(held), unit) for place, one in enumerate(held, 1)]
    before = "" if known is None else known.text.partition("\n")[2]  # without the header
    left = len(suspects) - len(held)
    said = (
        f"<p>{counted(left, 'pair')} with a tab or a line break in an id cannot be labelled.</p>" if left else ""
    )
    none = "" if left else "<p>No signal fires for any negative.</p>"
    return said + (_list_of(pairs, before) if pairs else none)


def text(value: Any, longest: int = LONGEST) -> str:
    """A foreign text as HTML: cut, escaped, and with hidden marks shown by their code."""
    cut = str(value) if len(str(value)) <= longest else f"{str(value)[: longest - 1]}…"
    return escape(visible(cut))


def _asset(name: str) -> str:
    return resources.files("hardneg.diagnostics").joinpath("assets", name).read_text("utf-8")


def _summary(found: Mapping[str, Any]) -> str:
    judged = f"; {found['judged']:,} are judged already and left out" if found["judged"] else ""
    shown = len(found["suspects"])
    return (
        f"{found['queries']:,} queries with {found['pairs']:,} negatives, of which {found['suspected']:,} are"
        f" suspected{judged}. The {shown:,} most suspected are below."
    )


def _signal_rows(found: Mapping[str, Any]) -> Iterable[Sequence[str]]:
    for one in found["signals"]:
        yield one["signal"], f"{one['threshold']:g}", f"{one['pairs']:,}", f"{one['queries']:,}", one["meaning"]


def _source_rows(found: Mapping[str, Any]) -> Iterable[Sequence[str]]:
    for one in found["sources"]:
        yield one["source"], f"{one['pairs']:,}", f"{one['suspected']:,}", f"{one['share']:.1%}"


def _table(caption: str, heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    top = "".join(f'<th scope="col">{text(head)}</th>' for head in heads)
    body = "".join("<tr>" + "".join(f"<td>{text(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    return (
        f'<div class="scroll" role="region" tabindex="0" aria-label="{text(caption)}"><table>'
        f"<caption>{text(caption)}</caption><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table></div>"
    )


def _list_of(pairs: Sequence[str], known: str) -> str:
    keys = "".join(f"<li><kbd>{KEYS[label]}</kbd> {label}: {text(MEANINGS[label])}</li>" for label in LABELS)
    return (
        '<details class="keys" open><summary>Label by keyboard</summary><ul>'
        "<li><kbd>j</kbd> and <kbd>k</kbd> or the arrows go to the next and the previous pair</li>"
        f"{keys}<li><kbd>x</kbd> takes a label back</li></ul></details>"
        '<p class="bar"><button type="button" class="save">Save judgements.tsv</button>'
        ' <output class="count" aria-live="polite">0 labelled</output></p>'
        f'<ol class="pairs" data-columns="{escape(" ".join(COLUMNS))}" data-known="{attribute(known)}">'
        f"{''.join(pairs)}</ol>"
    )


def _pair(place: int, one: Mapping[str, Any], total: int, unit: str) -> str:
    """A suspected pair as an item that takes the focus; its ids stand in attributes, for the script."""
    values = ", ".join(
        f"{name} {'–' if value is None else format(value, 'g')}{' ✓' if name in one['fired'] else ''}"
        for name, value in one["signals"].items()
    )
    positives = "".join(_passage("Positive", passage) for passage in one["positives"]) or "<p>No positive.</p>"
    buttons = "".join(
        f'<button type="button" data-label="{label}" aria-pressed="false">{label}'
        f" <kbd>{KEYS[label]}</kbd></button>"
        for label in LABELS
    )
    return (
        f'<li class="pair" tabindex="{0 if place == 1 else -1}" aria-label="Pair {place} of {total}"'
        f' data-query="{attribute(one["query_id"])}" data-passage="{attribute(one["passage_id"])}">'
        f'<p class="query"><bdi>{text(one["query"])}</bdi> <small>{text(one["query_id"])}</small></p>'
        f'<p class="signals">{text(values)}; {text(one["source"])}, {unit} {one["episode"]}</p>'
        f'<div class="sides"><div>{_passage("Negative", one)}</div><div>{positives}</div></div>'
        f'<p class="labels">{buttons}</p></li>'
    )


def _passage(name: str, passage: Mapping[str, Any]) -> str:
    named = passage["title"] not in ("", passage["passage_id"])
    title = f"<b><bdi>{text(passage['title'])}</bdi></b> " if named else ""
    return (
        f"<h4>{name} <small>{text(passage['passage_id'])}</small></h4>"
        f"<p>{title}<bdi>{text(passage['text'])}</bdi></p>"
    )


def attribute(value: str) -> str:
    """An id as the value of an attribute; it is not cut, because the script saves it with the label."""
    return escape(value, quote=True)
