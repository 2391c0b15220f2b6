"""The processes of a run, a line each: what each one does, and since when."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import NamedTuple

from trainer.cluster.messages import Phase, Progress
from trainer.cluster.spec import ProcessId
from trainer.runs.process_status import ProcessStatus
from trainer.text import format_duration

ACTIVITIES = {
    "join": "waiting for the others",
    "serve": "serving",
    "wait": "waiting for a checkpoint",
    "connect": "waiting for the learner",
    "act": "acting",
    "start": "starting",
    "compile": "compiling",
    "train": "training",
    "evaluate": "evaluating",
    "save": "saving",
}
"""The phases of `trainer.cluster.messages.Phase`, for the user."""

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
_ACTIVITY_WIDTH = 10  # so that lines keep their place when the activity changes
_MAX_LINES = 8  # of more processes only those are shown that need attention
_MAX_NAMES = 2  # of more processes only the number is shown


@dataclass(frozen=True)
class Member:
    """The last known state of a process, by the clock; see `ProcessStatus`.

    Attributes:
        detail: more about its end.
        is_restarted: whether it was restarted.
    """

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


class ProcessTable:
    """The processes of a run.

    Args:
        clock: seconds, monotonic.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._members: dict[ProcessId, Member] = {}

    @property
    def first(self) -> ProcessId | None:
        """The process that was started first."""
        return next(iter(self._members), None)

    def begin(self, process_id: ProcessId, host: str | None = None) -> None:
        """Add a process that was started just now, perhaps again, on another host if it has one."""
        self._members[process_id] = Member(self._clock(), process_id in self._members, host)

    def update(self, process_id: ProcessId, message: Phase | Progress) -> None:
        """Take a sign of life."""
        phase = message.phase if isinstance(message, Phase) else "train"
        was = self._members[process_id]
        self._members[process_id] = Member(
            self._clock(), was.is_restarted, was.host, phase, message.step
        )

    def end(self, process_id: ProcessId, state: str, detail: str = "") -> None:
        """Take how a process ended.

        Args:
            process_id: the process.
            state: done, stopped, ended, left, lost, stalled or failed.
            detail: more about it.
        """
        self._members[process_id] = replace(
            self._members[process_id], at=self._clock(), end=state, detail=detail
        )

    def clear(self) -> None:
        """Remove all processes."""
        self._members.clear()

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

    def rows(self) -> list[Row]:
        """Return the processes, in the order in which they were started first."""
        members = {str(process_id): member for process_id, member in self._members.items()}
        silent = [name for name, member in members.items() if not member.phase and not member.end]
        return [self._row(name, member, silent) for name, member in members.items()]

    def _row(self, name: str, member: Member, silent: list[str]) -> Row:
        if member.end:
            return Row(name, member.end, detail=member.detail, color=_COLORS.get(member.end, ""))
        activity = ACTIVITIES.get(member.phase or "start", member.phase)
        if member.phase in ("", "start") and member.is_restarted:
            activity = "restarting"
        elif member.phase == "join" and silent:
            more = ", ..." if len(silent) > _MAX_NAMES else ""
            activity = f"waiting for {', '.join(silent[:_MAX_NAMES])}{more}"
        position = f"step {member.step}" if member.step else ""
        quiet_secs = self._clock() - member.at
        if quiet_secs < _QUIET_SECS:
            return Row(name, activity, position)
        if member.phase in _LONG_PHASES:
            return Row(name, activity, position, f"for {format_duration(quiet_secs)}")
        return Row(name, activity, position, f"no news for {format_duration(quiet_secs)}", "yellow")


def lines(rows: Iterable[Row]) -> list[tuple[str, str]]:
    """Return (text, color) of the lines to show.

    That is a line for each process. If there are many, it is a line that counts them, and one for
    each of those that need attention.
    """
    rows = list(rows)
    if len(rows) <= _MAX_LINES:
        return _aligned(rows)
    groups: dict[str, list[str]] = {}
    for row in rows:
        groups.setdefault(row.activity, []).append(row.name)
    largest, *others = sorted(groups.items(), key=lambda group: -len(group[1]))
    counts = [f"{len(largest[1])} {largest[0]}"]
    for activity, names in others:
        listed = f": {', '.join(names)}" if len(names) <= _MAX_NAMES else ""
        counts.append(f"{len(names)} {activity}{listed}")
    urgent = [row for row in rows if row.color in ("red", "yellow")]
    return [(", ".join(counts), ""), *_aligned(urgent[: _MAX_LINES - 1])]


def _aligned(rows: list[Row]) -> list[tuple[str, str]]:
    width = max((len(row.name) for row in rows), default=0)
    aligned = []
    for row in rows:
        cells = [f"{row.name:{width}}", f"{row.activity:{_ACTIVITY_WIDTH}}"]
        cells += filter(None, [row.position, row.detail])
        aligned.append(("  ".join(cells).rstrip(), row.color))
    return aligned
