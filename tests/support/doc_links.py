"""Finds links that lead nowhere: of Markdown pages as GitHub shows them, and of the built site."""

from __future__ import annotations

import re
from collections import Counter
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

_SPAN = re.compile(r"`[^`\n]+`")
_LINK = re.compile(r"\]\(<?([^)>\s]+)>?\)|\b(?:src|href)=\"([^\"]+)\"")
_HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)
_FENCE = re.compile(r"^( *)```.*?^\1```$", re.MULTILINE | re.DOTALL)


def broken_links(page: Path) -> list[str]:
    """Return the links of a Markdown page that lead nowhere."""
    links = [link for pair in _LINK.findall(_SPAN.sub("", _prose(page))) for link in pair]
    return [link for link in links if link and not _leads_somewhere(link, page)]


def _prose(page: Path) -> str:
    return _FENCE.sub("", page.read_text())


def _leads_somewhere(link: str, page: Path) -> bool:
    url = urlsplit(link)
    if url.scheme:
        return url.scheme == "https" and re.fullmatch(r"[\w-]+(\.[\w-]+)+", url.netloc) is not None
    target = page.parent / unquote(url.path) if url.path else page
    if not target.exists():
        return False
    return not url.fragment or url.fragment in _headings(target)


@cache
def _headings(page: Path) -> set[str]:
    """Return the anchors that GitHub gives the headings of a page."""
    counts: Counter[str] = Counter()
    anchors = set()
    for title in _HEADING.findall(_prose(page)):
        words = re.sub(r"\]\([^)]*\)", "", title).lower()
        anchor = re.sub(r"[^\w -]", "", words).replace(" ", "-")
        anchors.add(f"{anchor}-{counts[anchor]}" if counts[anchor] else anchor)
        counts[anchor] += 1
    return anchors


class _Html(HTMLParser):
    """A page of the site: its links, its anchors, and what it fetches when it is opened."""

    def __init__(self, page: Path) -> None:
        super().__init__()
        self.links: list[str] = []
        self.anchors: set[str] = set()
        self.fetched: list[str] = []
        self.feed(page.read_text())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {name: value for name, value in attrs if value}
        self.anchors |= {values[name] for name in ("id", "name") if name in values}
        link = values.get("href") or values.get("src")
        if link and tag == "a":
            self.links.append(link)
        elif link:
            self.fetched.append(link)


def broken_links_of_site(site: Path) -> list[str]:
    """Return the links that lead nowhere, and what is not fetched from the site itself."""
    pages = {page: _Html(page) for page in site.rglob("*.html") if page.name != "404.html"}
    broken = []
    for page, html in pages.items():
        for link in (*html.links, *html.fetched):
            url = urlsplit(link)
            target = (page.parent / unquote(url.path)).resolve() if url.path else page
            if url.scheme or url.netloc:
                is_good = link in html.links
            else:
                anchors = pages[target].anchors | {""} if target in pages else {url.fragment}
                is_good = target.exists() and (url.fragment in anchors or url.fragment == "__top")
            if not is_good:
                broken.append(f"{page.relative_to(site)}: {link}")
    return broken
