"""Makes the pictures of the README: `python docs/make_pictures.py`, in the repository's root.

It trains a few small runs in a temporary directory, takes the console from a pseudo-terminal
(`docs/images/console.svg`), and the report from a headless Chromium (`docs/images/report.png`;
`apt-get install chromium`). It takes about three minutes.
"""

from __future__ import annotations

import html
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tests.support.terminal import Emulator, in_terminal  # noqa: E402

IMAGES = ROOT / "docs" / "images"
TRAIN = [sys.executable, str(ROOT / "train.py")]
TIMEOUT_SECS = 300

CLUSTER = ["strategy=multi_worker", "train.epochs=12", "fault=kill_worker_1_at_50"]
COLUMNS = 110
ROWS = 24
CAPTURE_AT = re.compile(r"\] (?:epoch \S+  step )?1\d\d/135 .*worker-1 [^\n]*\n$", re.DOTALL)
"""The live view is taken when a whole frame first shows such a step."""

SWEEP = ["-m", "model=cnn", "optimizer.learning_rate=0.01,0.003,0.001", "train.epochs=10"]
SWEEP += ["summary.every_steps=10"]
PAGE_WIDTH = 1100
PAGE_HEIGHT = 860

_COLORS = {"31": "#f47067", "32": "#57ab5a", "33": "#c69026", "36": "#39c5cf", "2": "#768390"}
_BACKGROUND = "#22272e"
_FOREGROUND = "#d4dbe2"
_FONT_SIZE = 13
_LINE_HEIGHT = 18
_CHARACTER_WIDTH = 7.83
_MARGIN = 16


def console(directory: Path) -> str:
    """Train on a cluster of this machine in a terminal; return the screen as an SVG picture."""
    screens: list[str] = []

    def capture(text: str) -> None:
        if not screens and CAPTURE_AT.search(text.rpartition("\x1b[J")[2]):
            screens.append(text)

    command = [*TRAIN, *CLUSTER]
    code, text = in_terminal(command, directory, TIMEOUT_SECS, columns=COLUMNS, seen=capture)
    assert code == 0, text
    assert screens, f"the live view never showed {CAPTURE_AT.pattern}\n{text}"
    lines = Emulator(COLUMNS, colors=True).feed(screens[0])._lines[:-1]  # the cursor is in the last
    return _svg(["$ python train.py " + " ".join(CLUSTER), *lines[-ROWS:]])


def _svg(lines: list[str]) -> str:
    """Draw lines, with colors as `<32>`, as a terminal does."""
    width = round(COLUMNS * _CHARACTER_WIDTH) + 2 * _MARGIN
    height = len(lines) * _LINE_HEIGHT + 2 * _MARGIN
    # Browsers collapse spaces in each `text`, whatever the elements around it say.
    rows = [
        f'<text x="{_MARGIN}" y="{_MARGIN + (number + 0.75) * _LINE_HEIGHT}" '
        f'xml:space="preserve">{_spans(line)}</text>'
        for number, line in enumerate(lines)
    ]
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
            f'width="{width}" height="{height}" font-family="DejaVu Sans Mono, Menlo, Consolas, '
            f'monospace" font-size="{_FONT_SIZE}" fill="{_FOREGROUND}">',
            f'<rect width="100%" height="100%" rx="8" fill="{_BACKGROUND}"/>',
            *rows,
            "</svg>\n",
        ]
    )


def _spans(line: str) -> str:
    """Convert the colors of a line to `tspan` elements."""
    spans = []
    color = None
    for number, text in re.findall(r"<(\d*)>|([^<]+|<)", line):
        if not text:
            color = _COLORS.get(number)
            continue
        escaped = html.escape(text.rstrip() if text == line else text)
        spans.append(f'<tspan fill="{color}">{escaped}</tspan>' if color else escaped)
    return "".join(spans)


def report(directory: Path) -> bytes:
    """Train a sweep; return its report as a PNG picture."""
    from playwright.sync_api import sync_playwright

    browser_path = next(
        filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
    )
    assert browser_path, "no Chromium is installed: apt-get install chromium"
    subprocess.run([*TRAIN, *SWEEP], cwd=directory, check=True, timeout=TIMEOUT_SECS)
    (sweep,) = (directory / "runs" / "sweeps").iterdir()
    subprocess.run([*TRAIN, "report", sweep], cwd=directory, check=True, timeout=TIMEOUT_SECS)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=browser_path, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": PAGE_WIDTH, "height": PAGE_HEIGHT})
        page.goto((directory / "report.html").as_uri())
        picture = page.screenshot()
        browser.close()
    return picture


def main() -> None:
    """Write both pictures."""
    IMAGES.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        (IMAGES / "console.svg").write_text(console(Path(scratch)))
    with tempfile.TemporaryDirectory() as scratch:
        (IMAGES / "report.png").write_bytes(report(Path(scratch)))


if __name__ == "__main__":
    main()
