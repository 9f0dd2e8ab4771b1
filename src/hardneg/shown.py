"""How records show themselves: one line, a table in a notebook, and columns for pandas."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

import numpy as np

MOST = 20  # rows of a table in a notebook
Columns = Mapping[str, Sequence[Any] | np.ndarray[Any, Any]]


class Shown:
    """A record that prints as one line, and is a table in a notebook and in pandas."""

    def line(self) -> str:
        """The record in one line."""
        raise NotImplementedError

    def columns(self, most: int | None = None) -> Columns:
        """The record as columns of equal length, by name; ``most``: only its first rows, at least so many."""
        raise NotImplementedError

    def __repr__(self) -> str:
        return self.line()

    def _repr_html_(self) -> str:
        return html_table(self.line(), self.columns(MOST + 1))

    def to_pandas(self) -> Any:
        """All columns as a DataFrame; where pandas is not installed, a dict of arrays by name."""
        return frame(self.columns())


def frame(columns: Columns) -> Any:
    """Columns as a DataFrame; where pandas is not installed, a dict of arrays by name."""
    try:
        import pandas
    except ModuleNotFoundError:
        return {name: np.asarray(column) for name, column in columns.items()}
    return pandas.DataFrame({name: pandas.Series(column) for name, column in columns.items()})


def html_table(caption: str, columns: Columns, most: int = MOST) -> str:
    """A table of the first rows as HTML; all texts are escaped, and a last row says that there are more."""
    head = "".join(f"<th>{escape(name)}</th>" for name in columns)
    rows = [*zip(*columns.values(), strict=True)]
    body = "".join(
        f"<tr>{''.join(f'<td>{escape(cell(value))}</td>' for value in row)}</tr>" for row in rows[:most]
    )
    more = f'<tr><td colspan="{len(columns)}">…</td></tr>' if len(rows) > most else ""
    top = f"<table><caption>{escape(caption)}</caption>"
    return f"{top}<thead><tr>{head}</tr></thead><tbody>{body}{more}</tbody></table>"


def p_text(p: float) -> str:
    """A p value with three decimals, more where they would show 0.05 for another value, or in exponent form."""
    if p < 1e-3:
        return f"{p:.0e}"
    shown = (f"{p:.{places}f}" for places in range(3, 10))
    return next((text for text in shown if float(text) != 0.05), "0.05")


def decimals(value: float) -> str:
    """A number with four decimals; if they would all be 0, as of a small p-value, in exponent form."""
    return f"{value:.0e}" if 0 < abs(value) < 5e-5 else f"{value:.4f}"


def percent(share: float) -> str:
    """A share in whole per cent, as charts show it: a half in floats is rounded up, and not to the even number.

    The percentage 14.5 is no half there: floats make 14.499999999999998 of 100 · 0.145, and so charts show 14 %.
    """
    return f"{math.floor(share * 100 + 0.5)}%"


def cell(value: Any) -> str:
    """A value of a table as text."""
    if value is None:
        return ""
    if isinstance(value, float | np.floating):
        return decimals(float(value))
    if isinstance(value, int | np.integer) and not isinstance(value, bool):
        return f"{value:,}"
    text = str(value)
    return text if len(text) <= 200 else f"{text[:200]}…"


def counted(n: int, one: str, several: str = "") -> str:
    """A number with the word for one thing or for several; by default the plural ends in s, or ies for y."""
    plural = several or (f"{one[:-1]}ies" if one.endswith("y") else f"{one}s")
    return f"{n:,} {one if n == 1 else plural}"


def listed(names: Sequence[str]) -> str:
    """Names in a sentence: ``a, b and c``; "" without any."""
    return " and ".join([part for part in (", ".join(names[:-1]), *names[-1:]) if part])


def json_kind(value: Any) -> str:
    """The kind of a JSON value, as a sentence names it: ``a list``, ``an object``, ``a number``."""
    if value is None or isinstance(value, bool):
        return "null" if value is None else "a truth value"
    names = {dict: "an object", list: "a list", str: "a text", int: "a number", float: "a number"}
    names[bytes] = "binary data"
    return names.get(type(value), f"a value of the type {type(value).__name__}")


def columns_of(rows: Sequence[Mapping[str, Any]]) -> dict[str, list[Any]]:
    """Rows as columns; a value that a row lacks is None."""
    names = dict.fromkeys(name for row in rows for name in row)
    return {name: [row.get(name) for row in rows] for name in names}


def as_set(value: Any) -> str:
    """The value of a setting as a user writes it: truth values and lists as in TOML, and none."""
    if value is None:
        return "none"
    return json.dumps(value) if isinstance(value, bool | list) else str(value)


def markdown_code(text: str) -> str:
    """A text as code in a table of Markdown, where a ``|`` would end the cell, and a backtick the code."""
    fence = "`" * (max(map(len, re.findall("`+", text)), default=0) + 1)
    return f"{fence}{text}{fence}".replace("|", "\\|")
