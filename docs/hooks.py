"""Hooks of MkDocs: generated pages, search words, diagrams, tabs of code, copies."""

from __future__ import annotations

import hashlib
import html
import posixpath
import re
from pathlib import Path
from textwrap import indent
from typing import Any

from mkdocs.structure.files import File, Files

import trainer

DOCS = Path(__file__).resolve().parent
CONFIGURATION = "reference/configuration"
GALLERY = "examples/gallery"

DIAGRAM = re.compile(r"^```mermaid\n(?P<text>.*?)^```$", re.DOTALL | re.MULTILINE)
SCHEMES = {"light": "neutral", "dark": "dark"}
"""The themes of Mermaid for the color schemes of the site."""

_GRID = re.compile(r'<div class="grid" markdown>\n(\n```.*?```\n\n)</div>', re.DOTALL)
_FENCE = re.compile(r'^```(\w+)(?: title="(.*?)")?\n(.*?)^```$', re.DOTALL | re.MULTILINE)
_PROGRAM = re.compile(r"\| \[([^\]]+)\]\((\w+)\.py\)")
_PAGE = re.compile(r"\(configuration/([\w-]+)\.md\)")
_HEADING = re.compile(r"^#+ (.*)$", re.MULTILINE)
_CONSOLE = re.compile(r'<div class="language-console highlight">.*?</div>', re.DOTALL)
_TAG = re.compile(r"<[^>]*>")


def on_config(config: Any) -> None:
    """Show the version in the header, and the generated pages in the navigation."""
    config.site_name += f" {trainer.__version__}"
    overview = f"{CONFIGURATION}.md"
    groups, sections = (DOCS / overview).read_text().split("| section |")
    programs = [f"{GALLERY}/{name}.md" for name in _programs()]
    inner = {
        "Configuration": [
            {"Overview": overview}, {"Groups": _entries(groups)}, {"Sections": _entries(sections)}
        ],
        "Gallery of Keras programs": [f"{GALLERY}/README.md", *programs],
    }  # fmt: skip
    for entry in (entry for tab in config.nav for entries in tab.values() for entry in entries):
        if isinstance(entry, dict):
            entry.update({name: inner[name] for name in entry if name in inner})


def on_files(files: Files, config: Any) -> None:
    """Add a page for each program of the gallery: what it is, how to train it, curve and code."""
    for name, title in _programs().items():
        path = f"{GALLERY}/{name}.md"
        files.append(File.generated(config, path, content=_program_page(name, title)))


def _programs() -> dict[str, str]:
    """Return the programs of the gallery with their titles."""
    page = (DOCS / GALLERY / "README.md").read_text()
    return {name: title for title, name in _PROGRAM.findall(page)}


def _program_page(name: str, title: str) -> str:
    code = (DOCS / GALLERY / f"{name}.py").read_text()
    _, about, code = code.split('"""', 2)
    recipes = sorted((DOCS / GALLERY / "conf" / "experiment").glob(f"{name}*.yaml"))
    run = "It has several recipes: [how to run them](README.md#run-one)."
    if len(recipes) == 1:
        run = f"```bash\nsteadfast experiment={name}\n```"
    picture = f"gallery-{name}.png"
    parts = [
        f"# {title}", about, run, f"![The curve of its run](../../images/gallery/{name}.svg)",
        f"![What it has learned](../../images/{picture})" * (DOCS / "images" / picture).exists(),
        f"## {name}.py\n\n```python\n{code.strip()}\n```",
        *(f"## {file.stem}.yaml\n\n```yaml\n{file.read_text()}```" for file in recipes),
    ]  # fmt: skip
    return "\n\n".join(parts)


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
    if path == f"{GALLERY}/README.md":
        markdown = re.sub(r"\]\((\w+)\.py\)", r"](\1.md)", markdown)
    title = markdown.partition("\n")[0].removeprefix("# From ")
    markdown = _GRID.sub(lambda match: _tabs(match[1], title), markdown)
    return DIAGRAM.sub(lambda match: _pictures(match, posixpath.dirname(path)), markdown)


def _tabs(blocks: str, title: str) -> str:
    """Show blocks of code in tabs, which have the titles of the blocks, or that of the page."""
    return "\n".join(
        f'==={"" if number else "!"} "{name or title}"\n\n'  # ! begins another set of tabs
        + indent(f"```{language}\n{code}```\n", "    ")
        for number, (language, name, code) in enumerate(_FENCE.findall(blocks))
    )


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
