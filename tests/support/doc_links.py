"""Finds links of Markdown pages that lead nowhere, as GitHub shows them."""

import re
from collections import Counter
from functools import cache
from urllib.parse import unquote, urlsplit

_SPAN = re.compile(r"`[^`\n]+`")
_LINK = re.compile(r"\]\(<?([^)>\s]+)>?\)|\b(?:src|href)=\"([^\"]+)\"")
_HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)
_FENCE = re.compile(r"^( *)```.*?^\1```$", re.MULTILINE | re.DOTALL)


def broken_links(page):
    """Return the links of a Markdown page that lead nowhere."""
    links = [link for pair in _LINK.findall(_SPAN.sub("", _prose(page))) for link in pair]
    return [link for link in links if link and not _leads_somewhere(link, page)]


def _prose(page):
    return _FENCE.sub("", page.read_text())


def _leads_somewhere(link, page):
    url = urlsplit(link)
    if url.scheme:
        return url.scheme == "https" and re.fullmatch(r"[\w-]+(\.[\w-]+)+", url.netloc) is not None
    target = page.parent / unquote(url.path) if url.path else page
    if not target.exists():
        return False
    return not url.fragment or url.fragment in _headings(target)


@cache
def _headings(page):
    """Return the anchors that GitHub gives the headings of a page."""
    counts = Counter()
    anchors = set()
    for title in _HEADING.findall(_prose(page)):
        words = re.sub(r"\]\([^)]*\)", "", title).lower()
        anchor = re.sub(r"[^\w -]", "", words).replace(" ", "-")
        anchors.add(f"{anchor}-{counts[anchor]}" if counts[anchor] else anchor)
        counts[anchor] += 1
    return anchors
