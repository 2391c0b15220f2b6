"""Takes the console from a pseudo-terminal while two processes train, at two widths.

`docs/images/console.svg` has 80 columns, `console-140.svg` 140; about a minute.
"""

from __future__ import annotations

import html
import re
import tempfile
from pathlib import Path

from docs.pictures.support import TIMEOUT_SECS, TRAIN, save
from tests.support.terminal import Emulator, in_terminal

COMMAND = ["strategy=multi_worker", "train.epochs=12", "fault=kill_worker_1_at_50"]
PICTURES = {"console.svg": 80, "console-140.svg": 140}
"""Name -> columns."""
ROWS = 28
CAPTURE_AT = re.compile(r"\b1\d\d/135\b.*worker-1 [^\n]*\n$", re.DOTALL)
"""The live view is taken when a whole frame first shows such a step."""

COLORS = {"31": "#f47067", "32": "#57ab5a", "33": "#c69026", "36": "#39c5cf", "2": "#96a0aa"}
BACKGROUND, FOREGROUND = "#22272e", "#d4dbe2"
FONT_SIZE, LINE_HEIGHT, CHARACTER_WIDTH, MARGIN = 13, 18, 7.83, 16


def screen(columns: int) -> list[str]:
    """Train on a cluster of this machine; return the lines of the terminal, with its colors."""
    screens: list[str] = []

    def capture(text: str) -> None:
        if not screens and CAPTURE_AT.search(text.rpartition("\x1b[J")[2]):
            screens.append(text)

    with tempfile.TemporaryDirectory() as scratch:
        command = [*TRAIN, *COMMAND]
        code, text = in_terminal(
            command, Path(scratch), TIMEOUT_SECS, columns=columns, seen=capture
        )
    assert code == 0, text
    assert screens, f"the live view never showed {CAPTURE_AT.pattern}\n{text}"
    lines = Emulator(columns, colors=True).feed(screens[0]).lines
    return ["$ python train.py " + " ".join(COMMAND), *lines][-ROWS:]


def drawing(lines: list[str], columns: int) -> str:
    """Draw lines, with colors as `<32>`, as a terminal does."""
    width = round(columns * CHARACTER_WIDTH) + 2 * MARGIN
    height = len(lines) * LINE_HEIGHT + 2 * MARGIN
    # Browsers collapse spaces in each `text`, whatever the elements around it say.
    rows = [
        f'<text x="{MARGIN}" y="{MARGIN + (number + 0.75) * LINE_HEIGHT}" '
        f'xml:space="preserve">{spans(line)}</text>'
        for number, line in enumerate(lines)
    ]
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
            f'width="{width}" height="{height}" font-family="DejaVu Sans Mono, Menlo, Consolas, '
            f'monospace" font-size="{FONT_SIZE}" fill="{FOREGROUND}">',
            f'<rect width="100%" height="100%" rx="8" fill="{BACKGROUND}"/>',
            *rows,
            "</svg>\n",
        ]
    )


def spans(line: str) -> str:
    """Convert the colors of a line to `tspan` elements."""
    parts = []
    color = None
    for number, text in re.findall(r"<(\d*)>|([^<]+|<)", line):
        if not text:
            color = COLORS.get(number)
            continue
        escaped = html.escape(text.rstrip() if text == line else text)
        parts.append(f'<tspan fill="{color}">{escaped}</tspan>' if color else escaped)
    return "".join(parts)


def main() -> None:
    """Write both pictures."""
    for name, columns in PICTURES.items():
        save(name, drawing(screen(columns), columns))


if __name__ == "__main__":
    main()
