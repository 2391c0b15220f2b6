"""What people see while a run goes on: what each process does and how far it is on a terminal, plain lines elsewhere. No TensorFlow."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TextIO

from trainer.cluster import Task
from trainer.crew import Crew, Row, lines
from trainer.screen import DRAW_SECS, Screen
from trainer.tables import duration

_BAR_WIDTH = 16
_PLAIN_SECS = 30.0  # between two progress lines where there is no terminal
_TICK_SECS = 1.0  # between two drawings while nothing is heard: it is told for how long


class Console:
    """Shows the messages of a run's processes.

    Attributes:
        cause: the first error that was shown, in one line; empty while there is none.

    Args:
        out: where lines and the live view go.
        err: where errors go.
        clock: seconds, monotonic.
    """

    def __init__(self, out: TextIO | None = None, err: TextIO | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock, self._screen, self._crew = clock, Screen(out, err, clock), Crew(clock)
        self._progress: Mapping[str, Any] | None = None
        self._told_at = clock()
        self._is_stale = False
        self.cause = ""

    def begin(self, task: Task) -> None:
        """Shows that a process is being started, perhaps again; the first one tells how far the run is."""
        self._crew.begin(task)
        if task == self._crew.first:
            self._progress = None  # that of an earlier attempt
        self._changed()

    def heard(self, task: Task, message: Mapping[str, Any]) -> None:
        """Shows what a process does; takes messages of the kinds `phase` and `progress`."""
        self._crew.heard(task, message)
        self._changed()

    def ended(self, task: Task, end: str, why: str = "") -> None:
        """Shows how a process ended, see `Crew.ended`."""
        self._crew.ended(task, end, why)
        self._changed()

    def show(self, message: Mapping[str, Any], log: Path) -> None:
        """Shows one message of the run as a whole; the forms are those of `trainer.channel`."""
        kind = message["kind"]
        if kind in ("line", "output", "fault", "evaluated"):
            self.line(message["text"])
        elif kind == "progress":
            self._advance(message)
        elif kind == "problem":
            for line in message["lines"]:
                self.error(line)
        elif kind == "crash":
            self.cause = self.cause or message["cause"]
            self._screen.error(message["text"])
            self.error(f"the worker crashed; the whole log is {log}")

    def line(self, text: str) -> None:
        """Shows a line above the live view."""
        self._screen.line(text)

    def error(self, text: str) -> None:
        """Shows an error."""
        self.cause = self.cause or text
        self._screen.error(f"error: {text}")

    def refresh_at(self) -> float:
        """Gives when to call `refresh`, also if nothing has been heard until then."""
        if not self._screen.is_live:
            return float("inf")
        return self._screen.drawn_at + (DRAW_SECS if self._is_stale else _TICK_SECS)

    def refresh(self) -> None:
        """Brings the live view up to date."""
        self._is_stale = False
        self._screen.draw(self._lines())

    def close(self) -> None:
        """Removes the live view."""
        self._crew.clear()
        self._progress = None
        self._screen.clear()

    def _advance(self, message: Mapping[str, Any]) -> None:
        self._progress = message
        self._changed()
        if not self._screen.is_live and self._clock() - self._told_at >= _PLAIN_SECS:
            self._told_at = self._clock()
            self.line(f"step {progress_text(message)}")

    def _changed(self) -> None:
        self._is_stale = True
        if self._clock() >= self.refresh_at():
            self.refresh()

    def _lines(self) -> list[str]:
        rows = self._crew.rows()
        overall = f"{bar(self._progress, _BAR_WIDTH)} {progress_text(self._progress)}" if self._progress else ""
        if len(rows) == 1:
            return [self._alone(overall, rows[0])]
        return [*filter(None, [overall]), *(self._screen.paint(text, color) for text, color in lines(rows))]

    def _alone(self, overall: str, row: Row) -> str:
        """Gives the one line of a run of one process."""
        parts = [overall, row.word if row.word != "training" else "", self._screen.paint(row.news, row.color)]
        return "  ".join(filter(None, parts)) if overall else f"{row.word} ... {row.news}".rstrip()


def progress_text(message: Mapping[str, Any]) -> str:
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
