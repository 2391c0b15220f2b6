"""HTML of the report: its templates, and the parts that several sections share. No TensorFlow."""

from __future__ import annotations

import functools
import importlib.resources
from collections.abc import Iterable, Sequence
from html import escape
from string import Template

_TEMPLATES = importlib.resources.files(__package__).joinpath("templates")


@functools.cache
def text_of(name: str) -> str:
    """Return the text of a file among the templates."""
    return _TEMPLATES.joinpath(name).read_text(encoding="utf-8")


def fill(name: str, /, **values: object) -> str:
    """Return a template with its values, which are HTML."""
    return Template(text_of(f"{name}.html")).substitute(values).rstrip("\n")


def table(head: Iterable[str], rows: Iterable[Iterable[str]], kind: str = "") -> str:
    """Return a table, which scrolls sideways where it is too wide.

    Args:
        head: its header cells as HTML.
        rows: the cells of each row as HTML.
        kind: its class in the style.
    """
    body = "".join(f"<tr>{''.join(cells)}</tr>" for cells in rows)
    attribute = f' class="{kind}"' if kind else ""
    return fill("table", kind=attribute, head="".join(head), rows=body)


def number_cell(text: str, value: float | None = None) -> str:
    """Return a cell with a number.

    Args:
        text: its content as HTML.
        value: what it is sorted by; None: last.
    """
    return f'<td class="number" data-value="{"" if value is None else value}">{text}</td>'


def code(text: object) -> str:
    """Return a text as code."""
    return f"<code>{escape(str(text))}</code>"


def chip(color: str) -> str:
    """Return a small square in the color of a run."""
    return f'<span class="chip" style="background:{color}"></span>'


def legend(entries: Iterable[tuple[str, str]]) -> str:
    """Return what colors stand for, from pairs of color and text."""
    return "".join(f"<span>{chip(color)}{escape(text)}</span>" for color, text in entries)


def bar(parts: Sequence[tuple[float, str, str]]) -> str:
    """Return a bar.

    Args:
        parts: the width in percent, color and explanation of each part; one without width is left
            out.
    """
    spans = "".join(
        f'<span style="width:{width:.3f}%;background:{color}" title="{escape(text)}"></span>'
        for width, color, text in parts
        if width > 0
    )
    return f'<div class="bar">{spans}</div>'
