"""Lines of text, and on a terminal a block of lines below them that is redrawn in place.

The cursor always rests at the start of the line below the block, and is never hidden: a process
that is killed leaves a clean terminal.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Sequence
from typing import TextIO

from trainer.cluster import environment
from trainer.text import printable, printable_lines

DRAW_SECS = 0.25  # between two drawings: more would be restless

_CODES = {"red": 31, "green": 32, "yellow": 33, "dim": 2}
_FIRST_WORDS = {"error:": "red", "warning:": "yellow", "Done:": "green"}
_BEST = "  best"
"""What the line of an evaluation ends with if it is the best so far."""
_INDENT = "      "
_ESCAPE = re.compile(r"(\x1b\[\d+m)")


def is_attended() -> bool:
    """Return whether this process has a terminal, so that a SIGINT is a key of a person's."""
    return any(map(os.isatty, range(3)))


class Screen:
    """The standard output and error of a command; any thread may write.

    Attributes:
        is_live: whether there is a block: on a terminal whose cursor can be moved.
        drawn_at: when the block was drawn last, by the clock.

    Args:
        out: the stream of lines and of the block.
        err: the stream of errors.
        clock: seconds, monotonic.
    """

    def __init__(
        self,
        out: TextIO | None = None,
        err: TextIO | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._out = out or sys.stdout
        self._err = err or sys.stderr
        self._clock = clock
        self.is_live = self._out.isatty() and environment.has_cursor()
        self._colored = [
            stream
            for stream in (self._out, self._err)
            if stream.isatty() and environment.wants_color()
        ]
        self._block: list[str] = []
        self._lock = threading.RLock()  # of the block, and of what stands on the screen
        self.drawn_at = clock()

    def size(self) -> tuple[int, int]:
        """Return the columns and lines of a block: a line that fills the last column would wrap."""
        size = shutil.get_terminal_size()
        return size.columns - 1, size.lines - 1

    def paint(self, text: str, color: str) -> str:
        """Return the text in a color (red, green, yellow, dim or ""), if the block has colors."""
        return self._painted(self._out, text, color)

    def line(self, text: str, *, is_whole: bool = False) -> None:
        """Show a line above the block; what would move the cursor in it is escaped.

        Args:
            text: the line.
            is_whole: whether it is not divided between words where the terminal is too narrow: a
                command to copy, or what the user's code prints.
        """
        self._show(self._out, text, is_whole)

    def error(self, text: str, *, is_whole: bool = False) -> None:
        """Show a line of an error; see `line`."""
        self._show(self._err, text, is_whole)

    def draw(self, lines: Sequence[str]) -> None:
        """Replace the block by these lines; cut what does not fit."""
        self.drawn_at = self._clock()
        if not self.is_live:
            return
        columns, rows = self.size()
        block = [cut(_colors_only(line), columns) for line in lines[:rows]]
        with self._lock:
            if block != self._block:
                # In one write: half a block would flicker.
                erasing = self._erasing()
                self._block = block
                self._write(self._out, erasing + self._drawing())

    def clear(self) -> None:
        """Remove the block."""
        self.draw([])

    def _show(self, stream: TextIO, text: str, is_whole: bool) -> None:
        text = printable_lines(text)
        word, _, _ = text.partition(" ")
        if not is_whole and stream.isatty():
            text = wrapped(text, self.size()[0])
        text = self._painted(stream, word, _FIRST_WORDS.get(word, "")) + text[len(word) :]
        if text.endswith(_BEST):
            text = text.removesuffix(_BEST) + self._painted(stream, _BEST, "green")
        text += "\n"
        with self._lock:
            if stream is self._out:
                self._write(stream, self._erasing() + text + self._drawing())
            else:
                self._write(self._out, self._erasing())
                self._write(stream, text)
                self._write(self._out, self._drawing())

    def _painted(self, stream: TextIO, text: str, color: str) -> str:
        if not color or not any(stream is colored for colored in self._colored):
            return text
        return f"\x1b[{_CODES[color]}m{text}\x1b[0m"

    def _drawing(self) -> str:
        return "".join(f"{line}\n" for line in self._block)

    def _erasing(self) -> str:
        """Return what erases the block, also if a narrower window wraps its lines by now."""
        columns = self.size()[0] + 1
        rows = sum(max(1, -(-len(_ESCAPE.sub("", line)) // columns)) for line in self._block)
        # The cursor is not in the first column when the terminal has shown ^C.
        return f"\r\x1b[{rows}A\x1b[J" if rows else ""

    def _write(self, stream: TextIO, text: str) -> None:
        if text:
            stream.write(text)
            stream.flush()


def wrapped(text: str, width: int) -> str:
    """Divide a line that is too long, but no word; all lines but the first are indented."""
    if len(text) <= width:
        return text
    return textwrap.fill(
        text,
        width,
        subsequent_indent=_INDENT,
        break_long_words=False,
        break_on_hyphens=False,
    )


def _colors_only(text: str) -> str:
    pieces = _ESCAPE.split(text)
    return "".join(piece if _ESCAPE.match(piece) else printable(piece) for piece in pieces)


def cut(text: str, width: int) -> str:
    """Cut a text to a width in columns; colors have no width."""
    if len(_ESCAPE.sub("", text)) <= width:
        return text
    kept = ""
    room = max(0, width - 1)
    for piece in _ESCAPE.split(text):
        kept += piece if _ESCAPE.match(piece) else piece[:room]
        room -= 0 if _ESCAPE.match(piece) else len(piece[:room])
    return f"{kept}…"
