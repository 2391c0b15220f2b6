"""What people see while a run goes on: a progress bar on a terminal, plain lines elsewhere. No TensorFlow."""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TextIO

_BAR_WIDTH = 16
_PLAIN_SECS = 30.0  # between two progress lines where there is no terminal


class Console:
    """Shows a worker's messages.

    Attributes:
        cause: the first error that was shown, in one line; empty while there is none.

    Args:
        out: where lines and the bar go.
        err: where errors go.
        clock: seconds, monotonic.
    """

    def __init__(self, out: TextIO | None = None, err: TextIO | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self._out, self._err, self._clock = out or sys.stdout, err or sys.stderr, clock
        self._is_terminal = self._out.isatty()
        self._bar = ""
        self._shown_at = clock()
        self._phase = ""
        self.cause = ""

    def show(self, message: dict[str, Any], log: Path) -> None:
        """Shows one message of a worker; the forms are those of `trainer.channel`."""
        kind = message["kind"]
        if kind in ("line", "output", "fault", "evaluated"):
            self.line(message["text"])
        elif kind == "progress":
            self._progress(message)
        elif kind == "phase":
            self._show_phase(message["phase"])
        elif kind == "problem":
            for line in message["lines"]:
                self.error(line)
        elif kind == "crash":
            self.cause = self.cause or message["cause"]
            self._clear()
            print(message["text"], file=self._err)
            self.error(f"the worker crashed; the whole log is {log}")

    def line(self, text: str) -> None:
        """Shows a line above the bar."""
        self._clear()
        print(text, file=self._out, flush=True)
        self._draw()

    def error(self, text: str) -> None:
        """Shows an error, without the bar."""
        self.cause = self.cause or text
        self._clear()
        self._bar = ""
        print(f"error: {text}", file=self._err, flush=True)

    def close(self) -> None:
        """Removes the bar."""
        self._clear()
        self._bar = ""

    def _show_phase(self, phase: str) -> None:
        self._phase = phase
        if self._is_terminal and phase in ("start", "compile"):
            self._clear()
            self._bar = f"{'starting' if phase == 'start' else 'compiling'} ..."
            self._draw()

    def _progress(self, message: dict[str, Any]) -> None:
        text = progress_text(message)
        if self._is_terminal:
            self._clear()
            self._bar = f"{bar(message, _BAR_WIDTH)} {text}"
            self._draw()
        elif self._clock() - self._shown_at >= _PLAIN_SECS:
            self._shown_at = self._clock()
            print(f"step {text}", file=self._out, flush=True)

    def _clear(self) -> None:
        if self._is_terminal and self._bar:
            print("\r\x1b[2K", end="", file=self._out, flush=True)

    def _draw(self) -> None:
        if self._is_terminal and self._bar:
            columns = shutil.get_terminal_size().columns
            print(self._bar[: columns - 1], end="", file=self._out, flush=True)


def progress_text(message: dict[str, Any]) -> str:
    """Words a progress message: `120/337  0:12 left  loss 0.2113  accuracy 0.9375  1,520 examples/s`."""
    parts = [position_text(message)]
    parts += [f"{name} {value:.4f}" for name, value in message["metrics"].items()]
    if message["rate"]:
        parts.append(f"{message['rate']:,.0f} examples/s")
    return "  ".join(parts)


def position_text(message: Mapping[str, Any]) -> str:
    """Words how far a progress message is: `120/337  0:12 left`."""
    left = f"  {duration(message['secs_left'])} left" if message["secs_left"] is not None else ""
    return f"{message['step']}/{message['total']}{left}"


def bar(message: Mapping[str, Any], width: int) -> str:
    """Draws how far a progress message is: `[#####...........]`; `width` without the brackets."""
    done = int(width * message["step"] / max(1, message["total"]))
    return f"[{'#' * done}{'.' * (width - done)}]"


def duration(secs: float) -> str:
    """Words a duration: 0:12, 3:05, 1:02:03."""
    minutes, seconds = divmod(round(secs), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{seconds:02d}" if hours else f"{minutes}:{seconds:02d}"
