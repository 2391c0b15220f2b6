"""The display of a run: its processes and its position on a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import TextIO

from trainer.cluster.messages import (
    Crash,
    Evaluated,
    FaultNotice,
    Line,
    Message,
    Opening,
    Output,
    Phase,
    Problem,
    Progress,
)
from trainer.cluster.spec import Cluster, ProcessId
from trainer.config.schema import Launch
from trainer.launch.display.process_table import ProcessTable, Row, lines
from trainer.launch.display.terminal import DRAW_SECS, Screen
from trainer.runs.process_status import ProcessStatus
from trainer.text import format_duration

_MIN_BAR_WIDTH, _BAR_WIDTH = 8, 24
_PLAIN_SECS = 30.0  # between two progress lines where there is no terminal
_TICK_SECS = 1.0  # between two drawings without a message: they show how long there was none


class Console:
    """Shows the messages of a run's processes.

    Attributes:
        cause: the first error that was shown, in one line; empty while there is none.

    Args:
        out: the stream of lines and of the live view.
        err: the stream of errors.
        clock: seconds, monotonic.
        is_quiet: whether only warnings and errors are shown.
    """

    def __init__(
        self,
        out: TextIO | None = None,
        err: TextIO | None = None,
        clock: Callable[[], float] = time.monotonic,
        *,
        is_quiet: bool = False,
    ) -> None:
        self._is_quiet = is_quiet
        self._clock = clock
        self._screen = Screen(out, err, clock)
        self._process_table = ProcessTable(clock)
        self._progress: Progress | None = None
        self._printed_at = clock()
        self._is_stale = False
        self._openings: set[str] = set()
        self.cause = ""

    def begin(self, process_id: ProcessId, host: str | None = None) -> None:
        """Show that a process is being started, perhaps again; see `ProcessTable.begin`."""
        self._process_table.begin(process_id, host)
        if process_id == self._process_table.first:
            self._progress = None  # it was of an earlier attempt
        self._changed()

    def update(self, process_id: ProcessId, message: Phase | Progress) -> None:
        """Show what a process does."""
        self._process_table.update(process_id, message)
        self._changed()

    def end(self, process_id: ProcessId, state: str, detail: str = "") -> None:
        """Show how a process ended; see `ProcessTable.end`."""
        self._process_table.end(process_id, state, detail)
        self._changed()

    def statuses(self) -> list[ProcessStatus]:
        """Return what the processes do; any thread may call it."""
        return self._process_table.statuses()

    def show(self, message: Message, log: Path) -> None:
        """Show one message of the run as a whole.

        Args:
            message: the message.
            log: the log of the process that sent it.
        """
        match message:
            case Opening(text) if text in self._openings:
                return
            case Opening(text):
                self._openings.add(text)
                self.line(text)
            case Output(text):
                self.line(text, is_whole=True)
            case Line(text) | FaultNotice(text) | Evaluated(text=text):
                self.line(text)
            case Progress():
                self._show_progress(message)
            case Problem(lines):
                for line in lines:
                    self.error(line)
            case Crash(text, cause, name):
                self.cause = self.cause or cause
                self._screen.error(text, is_whole=True)
                self.error(f"{name} crashed; the whole log is {log}")

    def line(self, text: str, *, is_whole: bool = False) -> None:
        """Show a line above the live view; see `Screen.line`."""
        if not self._is_quiet or text.startswith("warning: "):
            self._screen.line(text, is_whole=is_whole)

    def error(self, text: str) -> None:
        """Show an error."""
        self.cause = self.cause or text
        self._screen.error(f"error: {text}")

    def refresh_at(self) -> float:
        """Return when to call `refresh` if no message comes before; by the clock."""
        if not self._screen.is_live:
            return float("inf")
        return self._screen.drawn_at + (DRAW_SECS if self._is_stale else _TICK_SECS)

    def refresh(self) -> None:
        """Bring the live view up to date."""
        self._is_stale = False
        self._screen.draw(self._lines())

    def close(self) -> None:
        """Remove the live view."""
        self._process_table.clear()
        self._progress = None
        self._screen.clear()

    def _show_progress(self, message: Progress) -> None:
        self._progress = message
        self._changed()
        if not self._screen.is_live and self._clock() - self._printed_at >= _PLAIN_SECS:
            self._printed_at = self._clock()
            self.line(f"step {'  '.join(progress_parts(message))}")

    def _changed(self) -> None:
        self._is_stale = True
        if self._clock() >= self.refresh_at():
            self.refresh()

    def _lines(self) -> list[str]:
        rows = self._process_table.rows()
        width = self._screen.size()[0]
        if len(rows) == 1:
            return [self._single_line(rows[0], width)]
        return [
            *([progress_line(self._progress, width)] if self._progress else []),
            *(self._screen.paint(text, color) for text, color in lines(rows)),
        ]

    def _single_line(self, row: Row, width: int) -> str:
        """Return the only line of a run of one process."""
        if self._progress is None:
            return f"{row.activity} ... {row.detail}".rstrip()
        activity = row.activity if row.activity != "training" else ""
        parts = [progress_line(self._progress, width, activity)]
        if row.detail:
            parts.append(self._screen.paint(row.detail, row.color))
        return "  ".join(parts)


def progress_parts(progress: Progress) -> list[str]:
    """Return `120/337  0:12 left`, `loss 0.2113`, `accuracy 0.9375`, `1,520 examples/s`."""
    parts = [position_text(progress)]
    parts += [f"{name} {value:.4f}" for name, value in progress.metrics.items()]
    if progress.rate:
        parts.append(f"{progress.rate:,.0f} examples/s")
    return parts


def progress_line(progress: Progress, width: int, activity: str = "") -> str:
    """Return the bar, and behind it as much of the progress as there is room for.

    The epoch is left out first, then metrics but the first two, and then the examples a second.

    Args:
        progress: what to show.
        width: columns of the line.
        activity: what the run does instead of training steps; shown in place of the examples.
    """
    position, *others = progress_parts(progress)
    metrics, rate = others[: len(progress.metrics)], others[len(progress.metrics) :]
    rate = [activity] if activity else rate
    epoch = [f"epoch {progress.epoch}"] if progress.epoch else []
    candidates = (
        [*epoch, f"step {position}", *metrics, *rate],
        [position, *metrics, *rate],
        [position, *metrics[:2], *rate],
        [position, *metrics[:2]],
    )
    texts = ["  ".join(parts) for parts in candidates]
    text = next((text for text in texts if len(text) + _MIN_BAR_WIDTH + 3 <= width), texts[-1])
    room = width - len(text) - 3
    return f"{bar(progress, max(_MIN_BAR_WIDTH, min(room, _BAR_WIDTH)))} {text}"


def position_text(progress: Progress) -> str:
    """Return `120/337  0:12 left`."""
    left = f"  {format_duration(progress.secs_left)} left" if progress.secs_left is not None else ""
    return f"{progress.step}/{progress.total}{left}"


def bar(progress: Progress, width: int) -> str:
    """Return `[#####...........]`; `width` columns without the brackets."""
    filled = int(width * progress.step / max(1, progress.total))
    return f"[{'#' * filled}{'.' * (width - filled)}]"


def is_quiet(cluster: Cluster, launch: Launch) -> bool:
    """Return whether a command prints nothing but warnings and errors.

    Of commands that a scheduler has started together the chief prints the progress of all.
    """
    return cluster.is_scheduled and not cluster.is_chief and launch.console == "chief"
