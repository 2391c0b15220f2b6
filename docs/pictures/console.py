"""Takes the console from a pseudo-terminal while two processes train, at two widths.

`docs/images/console.svg` has 80 columns, `console-140.svg` 140; about a minute.
"""

from __future__ import annotations

import html
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path

from docs.pictures.support import TIMEOUT_SECS, TRAIN, Picture, card
from tests.support.terminal import in_terminal, screen_of

COMMAND = ["strategy=multi_worker", "train.epochs=12", "fault=kill_worker_1_at_50"]
WIDTHS = {"console.svg": 80, "console-140.svg": 140}
"""Name -> columns."""
ROWS = 28
CAPTURE_AT = re.compile(r"\b1\d\d/135\b.*worker-1 [^\n]*\n$", re.DOTALL)
"""The live view is taken when a whole frame first shows such a step."""

CLASSES = {"31": "red", "32": "green", "33": "yellow", "2": "faint", "90": "faint"}
LINE, CHARACTER, MARGIN = 18, 7.83, 16
STYLE = "text {font: 13px 'DejaVu Sans Mono', Menlo, Consolas, monospace}\n"


def screen(columns: int) -> list[str]:
    """Train on a cluster of this machine; return the lines of the terminal, with its colors."""
    screens: list[str] = []

    def capture(text: str) -> int:
        if not screens and CAPTURE_AT.search(text.rpartition("\x1b[2K")[2]):
            screens.append(text)
        return 0  # without a Ctrl-C

    with tempfile.TemporaryDirectory() as scratch:
        command = [*TRAIN, *COMMAND]
        code, text = in_terminal(
            command, Path(scratch), TIMEOUT_SECS, interrupt=capture, COLUMNS=str(columns)
        )
    assert code == 0, text
    assert screens, f"the live view never showed {CAPTURE_AT.pattern}\n{text}"
    lines = screen_of(screens[0], colors=True)
    return ["$ python train.py " + " ".join(COMMAND), *lines][-ROWS:]


def drawing(lines: list[str], columns: int) -> str:
    """Draw lines, with colors as `<32>`, as a terminal does."""
    # Browsers collapse spaces in each `text`, in spite of the elements around it.
    body = [
        f'<text x="{MARGIN}" y="{MARGIN + (number + 0.75) * LINE}" class="ink" '
        f'xml:space="preserve">{spans(text)}</text>'
        for number, text in enumerate(lines)
    ]
    size = round(columns * CHARACTER) + 2 * MARGIN, len(lines) * LINE + 2 * MARGIN
    return card(*size, "Two processes train, seen in a terminal", body, STYLE)


def spans(text: str) -> str:
    """Convert the colors of a line to `tspan` elements."""
    parts = []
    look = None
    for number, part in re.findall(r"<(\d*)>|([^<]+|<)", text):
        if part:
            escaped = html.escape(part)
            parts.append(f'<tspan class="{look}">{escaped}</tspan>' if look else escaped)
        else:
            look = CLASSES.get(number)
    return "".join(parts)


def pictures() -> Iterator[Picture]:
    """Draw both."""
    for name, columns in WIDTHS.items():
        yield Picture(name, drawing(screen(columns), columns))
