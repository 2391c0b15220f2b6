"""What MkDocs does besides: the navigation of generated pages, search words, copies of commands."""

from __future__ import annotations

import html
import re
from pathlib import Path
from typing import Any

DOCS = Path(__file__).resolve().parent
CONFIGURATION = "reference/configuration"
_DECISIONS_BOOST = 0.2
"""How much a decision counts in the search, compared with other pages."""

_CONSOLE = re.compile(r'<div class="language-console highlight">.*?</div>', re.DOTALL)
_TAG = re.compile(r"<[^>]*>")


def on_config(config: Any) -> None:
    """Put the generated pages below the entry of the configuration in the navigation."""
    for entries in (entries for tab in config.nav for entries in tab.values()):
        for entry in entries:
            if isinstance(entry, dict) and entry.get("Configuration") == f"{CONFIGURATION}.md":
                entry["Configuration"] = [{"Overview": f"{CONFIGURATION}.md"}, *_configuration()]


def _configuration() -> list[Any]:
    pages: list[Any] = []
    for file in sorted((DOCS / CONFIGURATION).glob("*.md")):
        pages.append(f"{CONFIGURATION}/{file.name}")
        choices = sorted((DOCS / CONFIGURATION / file.stem).glob("*.md"))
        if choices:
            names = [{choice.stem: str(choice.relative_to(DOCS))} for choice in choices]
            pages.append({f"{file.stem}=": names})
    return pages


def on_page_markdown(markdown: str, page: Any, config: Any, **_: Any) -> None:
    """Set what MkDocs takes from a front matter, which GitHub would show as a table."""
    path = page.file.src_uri
    if words := config.extra["search_words"].get(path):
        page.meta["tags"] = words
    if path == "index.md":
        page.meta["hide"] = ["navigation", "toc"]
    if path.startswith("adr/"):
        page.meta["search"] = {"boost": _DECISIONS_BOOST}


def on_page_content(content: str, **_: Any) -> str:
    """Let the button of a console block copy its commands, without prompts and output."""
    return _CONSOLE.sub(_add_copy, content)


def _add_copy(block: re.Match[str]) -> str:
    lines = html.unescape(_TAG.sub("", block[0])).splitlines()
    commands = "\n".join(line[2:] for line in lines if line.startswith("$ "))
    return block[0].replace("<div ", f'<div data-copy="{html.escape(commands)}" ', 1)
