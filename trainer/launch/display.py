"""What a command shows: plain lines, and on a terminal its processes and position below them."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple, Protocol, TextIO

from rich.console import Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Column, Table
from rich.text import Text

from trainer.cli.terminal import GAP, Terminal
from trainer.cluster.messages import (
    Crash,
    ErrorLine,
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
from trainer.runs.process_status import ProcessStatus
from trainer.text import format_duration

PLAIN_SECS = 30.0
"""The time between two progress lines where there is no terminal."""

_COLORS = {
    "done": "green",
    "lost": "red",
    "failed": "red",
    "stalled": "red",
    "left": "dim",
    "ended": "dim",
}
_LONG_PHASES = {"", "join", "start", "compile", "save"}
"""Phases in which a long silence is normal."""

_QUIET_SECS = 10.0  # a shorter silence is not shown
_ACTIVITY_WIDTH = 8  # so that lines keep their place when the activity changes
_MAX_LINES = 8  # of more processes only those are shown that need attention
_MAX_NAMES = 2  # of more processes only the number is shown
_BAR_WIDTH = 10


def is_attended() -> bool:
    """Return whether this process has a terminal, so that the user can press Ctrl-C."""
    return any(map(os.isatty, range(3)))


class Lines(Protocol):
    """Shows lines above what it draws: `Console`, or the table of a sweep."""

    def line(self, text: str) -> None: ...

    def error(self, text: str) -> None: ...


class Screen:
    """The standard output and error of a command; any thread may write.

    Attributes:
        is_live: whether there is a block: on a terminal whose cursor can be moved.
    """

    def __init__(
        self,
        out: TextIO | None = None,
        err: TextIO | None = None,
        block: RenderableType = "",
    ) -> None:
        self._out, self._err = Terminal(out or sys.stdout), Terminal(err or sys.stderr)
        self.is_live = self._out.is_interactive
        # The empty line keeps the cursor below the block: a command that is killed leaves it there.
        self._live = Live(
            Group(block, ""),
            console=self._out,
            transient=True,
            redirect_stdout=False,
            redirect_stderr=False,
            vertical_overflow="crop",
        )

    def start(self) -> None:
        """Show the block, if it is not shown yet."""
        if self.is_live:
            self._live.start()

    def close(self) -> None:
        """Remove the block."""
        self._live.stop()

    def line(self, text: str, *, is_whole: bool = False) -> None:
        """Show a line above the block.

        Args:
            is_whole: whether it is not wrapped where the terminal is too narrow: a command to copy,
                or what the user's code prints.
        """
        # Else a block that is being drawn with another height would erase the line.
        with self._live._lock:
            self._out.show_line(text, is_whole=is_whole)

    def error(self, text: str, *, is_whole: bool = False) -> None:
        if self.is_live and self._err.is_terminal:  # standard output has the block
            self.line(text, is_whole=is_whole)
        else:
            self._err.show_line(text, is_whole=is_whole)


@dataclass(frozen=True)
class _Member:
    """The last known state of a process and how it ended, by the clock; see `ProcessStatus`."""

    at: float
    is_restarted: bool
    host: str | None
    phase: str = ""
    step: int = 0
    end: str = ""
    detail: str = ""


class Row(NamedTuple):
    """A process as it is shown: what it does, its step, its silence or its end."""

    name: str
    activity: str
    position: str = ""
    detail: str = ""
    color: str = ""


class Console:
    """Shows the messages of a run's processes.

    Attributes:
        cause: the first error that was shown, in one line; empty while there is none.
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
        self._screen = Screen(out, err, self)
        self._members: dict[ProcessId, _Member] = {}
        self._progress: Progress | None = None
        self._printed_at = clock()
        self._openings: set[str] = set()
        self.cause = ""

    def begin(self, process_id: ProcessId, host: str | None = None) -> None:
        """Show that a process is being started, perhaps again, on another host if it has one."""
        self._members[process_id] = _Member(self._clock(), process_id in self._members, host)
        if process_id == next(iter(self._members)):
            self._progress = None  # it was of an earlier attempt
        self._screen.start()

    def update(self, process_id: ProcessId, message: Phase | Progress) -> None:
        """Show what a process does."""
        phase = message.phase if isinstance(message, Phase) else "train"
        self._members[process_id] = replace(
            self._members[process_id], at=self._clock(), phase=phase, step=message.step
        )

    def end(self, process_id: ProcessId, state: str, detail: str = "") -> None:
        """Show how a process ended: done, stopped, ended, left, lost, stalled or failed."""
        self._members[process_id] = replace(
            self._members[process_id], at=self._clock(), end=state, detail=detail
        )

    def statuses(self) -> list[ProcessStatus]:
        """Return what the processes do; any thread may call it."""
        now = self._clock()
        return [
            ProcessStatus(
                str(process_id),
                member.phase,
                member.step,
                round(max(0.0, now - member.at), 1),
                member.end,
                member.host,
            )
            for process_id, member in list(self._members.items())
        ]

    def show(self, message: Message, log: Path) -> None:
        """Show one message of the run as a whole; `log` is that of the sender."""
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
                self._progress = message
                if not self._screen.is_live and self._clock() - self._printed_at >= PLAIN_SECS:
                    self._printed_at = self._clock()
                    self.line(f"step {'  '.join(progress_parts(message))}")
            case ErrorLine(text):
                self.error(text)
            case Problem(lines):
                for line in lines:
                    self.error(line)
            case Crash(text, cause) if text == cause:  # such as a run that diverges
                self.error(text)
            case Crash(text, cause, name):
                self.cause = self.cause or cause
                self._screen.error(text, is_whole=True)
                self.error(f"{name} crashed; the whole log is {log}")

    def line(self, text: str, *, is_whole: bool = False) -> None:
        """Show a line above the live view; see `Screen.line`."""
        if not self._is_quiet or text.startswith("warning: "):
            self._screen.line(text, is_whole=is_whole)

    def error(self, text: str) -> None:
        self.cause = self.cause or text
        self._screen.error(f"error: {text}")

    def close(self) -> None:
        """Remove the live view."""
        self._screen.close()
        self._members.clear()
        self._progress = None

    def __rich__(self) -> RenderableType:
        """Return the live view: the progress, and a line for each of several processes."""
        members = {str(process_id): member for process_id, member in list(self._members.items())}
        silent = [name for name, member in members.items() if not member.phase and not member.end]
        rows = [self._row(name, member, silent) for name, member in members.items()]
        progress = self._progress
        if len(rows) != 1:
            return Group(*([_progress_line(progress)] if progress else []), process_table(rows))
        (row,) = rows
        if progress is None:
            return Text(f"{row.activity} ... {row.detail}".rstrip())
        activity = row.activity if row.activity != "train" else ""
        return _progress_line(progress, activity, row.detail)

    def _row(self, name: str, member: _Member, silent: list[str]) -> Row:
        if member.end:
            return Row(name, member.end, detail=member.detail, color=_COLORS.get(member.end, ""))
        activity = member.phase or "start"
        if activity == "start" and member.is_restarted:
            activity = "restart"
        elif activity == "join" and silent:
            more = ", ..." if len(silent) > _MAX_NAMES else ""
            activity = f"join (waits for {', '.join(silent[:_MAX_NAMES])}{more})"
        position = f"step {member.step}" if member.step else ""
        quiet_secs = self._clock() - member.at
        if quiet_secs < _QUIET_SECS:
            return Row(name, activity, position)
        if member.phase in _LONG_PHASES:
            return Row(name, activity, position, f"for {format_duration(quiet_secs)}")
        return Row(name, activity, position, f"no news for {format_duration(quiet_secs)}", "yellow")


def process_table(rows: Sequence[Row]) -> RenderableType:
    """Return a line for each process.

    If there are many, it is a line that counts them, and one for each that needs attention.
    """
    head = []
    if len(rows) > _MAX_LINES:
        groups: dict[str, list[str]] = {}
        for row in rows:
            groups.setdefault(row.activity, []).append(row.name)
        largest, *others = sorted(groups.items(), key=lambda group: -len(group[1]))
        counts = [f"{len(largest[1])} {largest[0]}"]
        for activity, names in others:
            listed = f": {', '.join(names)}" if len(names) <= _MAX_NAMES else ""
            counts.append(f"{len(names)} {activity}{listed}")
        head = [Text(", ".join(counts))]
        urgent = [row for row in rows if row.color in ("red", "yellow")]
        rows = urgent[: _MAX_LINES - 1]
    grid = Table.grid("", Column(min_width=_ACTIVITY_WIDTH), padding=(0, GAP, 0, 0))
    for name, activity, position, detail, color in rows:
        grid.add_row(name, activity, "  ".join(filter(None, [position, detail])), style=color)
    return Group(*head, grid)


def _progress_line(progress: Progress, activity: str = "", detail: str = "") -> Table:
    """Return the bar, and behind it as much of the progress as there is room for.

    Args:
        activity: what the run does instead of training steps; shown in place of the examples.
        detail: how long it has been silent.
    """
    position, *others = progress_parts(progress)
    metrics, rate = others[: len(progress.metrics)], others[len(progress.metrics) :]
    epoch = [f"epoch {progress.epoch}"] if progress.epoch else []
    parts = [position, *metrics, *([activity] if activity else rate), *epoch]
    grid = Table.grid(Column(width=_BAR_WIDTH), "", padding=(0, GAP, 0, 0))
    text = "  ".join(filter(None, [*parts, detail]))
    grid.add_row(progress_bar(progress), Text(text, no_wrap=True, overflow="ellipsis"))
    return grid


def progress_parts(progress: Progress) -> list[str]:
    """Return `120/337  12 s left`, `loss 0.2113`, `accuracy 0.9375`, `1,520 examples/s`."""
    parts = [position_text(progress)]
    parts += [f"{name} {value:.4f}" for name, value in progress.metrics.items()]
    if progress.rate:
        parts.append(f"{progress.rate:,.0f} examples/s")
    return parts


def position_text(progress: Progress) -> str:
    """Return `120/337  12 s left`."""
    left = f"  {format_duration(progress.secs_left)} left" if progress.secs_left is not None else ""
    return f"{progress.step}/{progress.total}{left}"


def progress_bar(progress: Progress) -> ProgressBar:
    """Return the bar of the steps that are done."""
    total = max(1, progress.total)
    green = "green"
    return ProgressBar(total, progress.step, _BAR_WIDTH, complete_style=green, finished_style=green)


def is_quiet(cluster: Cluster, launch: Launch) -> bool:
    """Return whether a command prints nothing but warnings and errors.

    Of commands that a scheduler has started together the chief prints the progress of all.
    """
    return cluster.is_scheduled and not cluster.is_chief and launch.console == "chief"
