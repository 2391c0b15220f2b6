"""What the scripts of the pictures share: trainings, drawings, and a browser."""

from __future__ import annotations

import html
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[2]
IMAGES = ROOT / "docs" / "images"
TRAIN = [sys.executable, str(ROOT / "train.py")]
TIMEOUT_SECS = 300

COLORS = {  # in the light and in the dark scheme of the reader
    "paper": ("#f6f8fa", "#22272e"),
    "ink": ("#1f2328", "#d4dbe2"),
    "faint": ("#59636e", "#96a0aa"),
    "line": ("#d1d9e0", "#444c56"),
    "blue": ("#0969da", "#539bf5"),
    "gray": ("#aeb6bf", "#6e7884"),
    "red": ("#cf222e", "#f47067"),
    "green": ("#1a7f37", "#57ab5a"),
    "yellow": ("#9a6700", "#c69026"),
}
FONT = "-apple-system, 'Segoe UI', 'Noto Sans', Helvetica, Arial, sans-serif"


def train(directory: Path, *arguments: str) -> Path:
    """Run `train.py` in a directory to its end; return the newest run directory there."""
    subprocess.run([*TRAIN, *arguments], cwd=directory, check=True, timeout=TIMEOUT_SECS)
    return max((directory / "runs").glob("*-*"), key=lambda path: path.stat().st_mtime)


class Picture(NamedTuple):
    """A picture: SVG, or PNG with the text that can be read in it."""

    name: str
    content: str | bytes
    text: str = ""

    def words(self) -> set[str]:
        """Return the words in it, without numbers and hashes, which differ from run to run."""
        text = self.text
        if isinstance(self.content, str):
            text = re.sub(r"(?s)<(style|title)>.*?</\1>|<[^>]*>", " ", self.content)
        return set(re.findall("[A-Za-z]{3,}", re.sub(r"\b[0-9a-f]{8,}\b", "", text)))


def save(picture: Picture) -> None:
    """Write a picture, and the words of a PNG next to it, for the test that compares them.

    One that a page shows goes to docs/images, any other to build/pictures.
    """
    name, content, text = picture
    pages = [ROOT / "README.md", ROOT / "benchmarks" / "README.md", *(ROOT / "docs").rglob("*.md")]
    is_shown = "/" in name or any(f"images/{name}" in page.read_text() for page in pages)
    path = (IMAGES if is_shown else ROOT / "build" / "pictures") / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    if text:
        path.with_suffix(".txt").write_text("\n".join(sorted(picture.words())) + "\n")
    print(f"{path}: {len(content) / 1000:.0f} kB")


def recorded_words(name: str) -> set[str]:
    """Return the words in a picture that a page shows."""
    path = IMAGES / name
    if path.suffix == ".svg":
        return Picture(name, path.read_text()).words()
    return set(path.with_suffix(".txt").read_text().split())


def card(width: int, height: int, title: str, body: list[str], style: str = "") -> str:
    """Return an SVG picture with a background; classes of its elements are `COLORS`."""
    light, dark = (
        "".join(
            f".{name} {{fill: {pair[scheme]}}} .stroke-{name} {{stroke: {pair[scheme]}}}\n"
            for name, pair in COLORS.items()
        )
        for scheme in (0, 1)
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        f'width="{width}" height="{height}" font-family="{FONT}" font-size="13" role="img">\n'
        f"<title>{html.escape(title)}</title>\n<style>\n{light}"
        f"@media (prefers-color-scheme: dark) {{\n{dark}}}\n{style}</style>\n"
        '<rect width="100%" height="100%" rx="8" class="paper"/>\n' + "\n".join(body) + "\n</svg>\n"
    )


def label(x: float, y: float, text: str, look: str = "ink", **attributes: Any) -> str:
    """Return a text of SVG; of the names of attributes `_` becomes `-`."""
    rest = "".join(f' {name.replace("_", "-")}="{value}"' for name, value in attributes.items())
    return f'<text x="{x:.1f}" y="{y:.1f}" class="{look}"{rest}>{html.escape(text)}</text>'


def line(points: list[tuple[float, float]], look: str, width: float = 1.5) -> str:
    """Return a line through points, in a color of `COLORS`; further classes may follow."""
    through = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    return (
        f'<polyline points="{through}" class="stroke-{look}" pathLength="1" fill="none" '
        f'stroke-width="{width}"/>'
    )


@contextmanager
def browser_page(width: int, height: int, *, dark: bool = False) -> Iterator[Any]:
    """Give a page of a headless Chromium (`apt-get install chromium`), as Playwright has it."""
    from playwright.sync_api import sync_playwright

    program = shutil.which("chromium") or shutil.which("google-chrome")
    assert program, "no Chromium is installed: apt-get install chromium"
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        scheme = "dark" if dark else "light"
        yield browser.new_page(viewport={"width": width, "height": height}, color_scheme=scheme)
        browser.close()
