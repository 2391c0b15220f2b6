"""The frame of a page: one HTML file that needs no network. No TensorFlow."""

from __future__ import annotations

import html
import time

from trainer import __version__
from trainer.cli.report.style import CSS, SCRIPT

_POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:"


def document(title: str, *parts: str) -> str:
    """Return a whole page.

    Args:
        title: of the page, as text.
        parts: its content as HTML.
    """
    footer = (
        f"<footer>Steadfast {html.escape(__version__)}, {time.strftime('%Y-%m-%d %H:%M')}. "
        "This page needs no network.</footer>"
    )
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f"<title>{html.escape(title)}: report</title>\n"
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<style>\n{CSS}</style>\n</head>\n"
        f"<body>\n{''.join(parts)}{footer}\n<script>\n{SCRIPT}</script>\n</body>\n</html>\n"
    )


def section(title: str, content: str) -> str:
    """Return a section with its heading; nothing without content."""
    return f"<section><h2>{title}</h2>{content}</section>" if content else ""
