"""Hooks of MkDocs: generated pages in the navigation, search words, diagrams, copies."""

from __future__ import annotations

import hashlib
import html
import posixpath
import re
from pathlib import Path
from typing import Any

import trainer

DOCS = Path(__file__).resolve().parent
CONFIGURATION = "reference/configuration"

DIAGRAM = re.compile(r"^```mermaid\n(?P<text>.*?)^```$", re.DOTALL | re.MULTILINE)
SCHEMES = {"light": "neutral", "dark": "dark"}
"""The themes of Mermaid for the color schemes of the site."""

_PAGE = re.compile(r"\(configuration/([\w-]+)\.md\)")
_HEADING = re.compile(r"^#+ (.*)$", re.MULTILINE)
_CONSOLE = re.compile(r'<div class="language-console highlight">.*?</div>', re.DOTALL)
_TAG = re.compile(r"<[^>]*>")


def on_config(config: Any) -> None:
    """Show the version in the header, and the generated pages in the navigation."""
    config.site_name += f" {trainer.__version__}"
    overview = f"{CONFIGURATION}.md"
    groups, sections = (DOCS / overview).read_text().split("| section |")
    for entry in (entry for tab in config.nav for entries in tab.values() for entry in entries):
        if isinstance(entry, dict) and entry.get("Configuration") == overview:
            parts = [{"Groups": _entries(groups)}, {"Sections": _entries(sections)}]
            entry["Configuration"] = [{"Overview": overview}, *parts]


def _entries(table: str) -> list[str]:
    return [f"{CONFIGURATION}/{name}.md" for name in _PAGE.findall(table)]


def on_page_markdown(markdown: str, page: Any, config: Any, **_: Any) -> str:
    """Draw diagrams, and set what a front matter would, which GitHub shows as a table."""
    path = page.file.src_uri
    if words := config.extra["search_words"].get(path):
        page.meta["tags"] = words
    if path == "index.md":
        page.meta["hide"] = ["navigation", "toc"]
    if path.startswith("adr/"):
        page.meta["search"] = {"exclude": True}
    return DIAGRAM.sub(lambda match: _pictures(match, posixpath.dirname(path)), markdown)


def diagram_name(text: str, scheme: str) -> str:
    """Return the name of the file that shows a diagram, which another text does not have."""
    return f"{hashlib.sha256(text.encode()).hexdigest()[:12]}-{scheme}.svg"


def _pictures(match: re.Match[str], folder: str) -> str:
    images = posixpath.relpath("images/diagrams", folder or ".")
    heading = _HEADING.findall(match.string[: match.start()])[-1]
    return "\n".join(
        f"![Diagram: {heading}]({images}/{diagram_name(match['text'], scheme)}#only-{scheme})"
        for scheme in SCHEMES
    )


def on_page_content(content: str, **_: Any) -> str:
    """Let the button of a console block copy its commands, without prompts and output."""
    return _CONSOLE.sub(_add_copy, content)


def _add_copy(block: re.Match[str]) -> str:
    lines = html.unescape(_TAG.sub("", block[0])).splitlines()
    commands = "\n".join(line[2:] for line in lines if line.startswith("$ "))
    return block[0].replace("<div ", f'<div data-copy="{html.escape(commands)}" ', 1)
