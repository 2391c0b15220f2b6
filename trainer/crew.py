"""What each process of a run is doing, in a line each: as it told last, and how long ago. No TensorFlow."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from trainer.cluster import Task
from trainer.tables import duration

WORDS = {
    "join": "waiting for the others",
    "serve": "serving",
    "wait": "waiting for a checkpoint",
    "start": "starting",
    "compile": "compiling",
    "train": "training",
    "evaluate": "evaluating",
    "save": "saving",
}
"""The phases of `trainer.channel` for people."""

_COLORS = {"done": "green", "lost": "red", "failed": "red", "stalled": "red", "left": "dim", "ended": "dim"}
_LONG = {"", "join", "start", "compile", "save"}  # nothing is heard for long of who does that, and all is well
_QUIET_SECS = 10.0  # what is no news before
_WORD_WIDTH = 10  # the lines do not move when another word stands there
_MANY = 8  # more are counted, and those alone shown that stand out
_FEW = 2  # so few of many are named


@dataclass(frozen=True)
class Member:
    """What is known of a process.

    Attributes:
        phase: what it told that it does; empty until then.
        step: how many steps it had made.
        at: when that was, by the clock.
        is_again: whether it was started again.
        end: how it ended, in a word, if it has.
        why: more about its end.
    """

    phase: str
    step: int
    at: float
    is_again: bool
    end: str = ""
    why: str = ""


@dataclass(frozen=True)
class Row:
    """A process in words.

    Attributes:
        name: its name.
        word: what it does.
        place: its step.
        news: what more there is to say of it.
        color: how it is shown.
    """

    name: str
    word: str
    place: str = ""
    news: str = ""
    color: str = ""


class Crew:
    """The processes of a run.

    Args:
        clock: seconds, monotonic.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._members: dict[Task, Member] = {}

    @property
    def first(self) -> Task | None:
        """The process that was started first."""
        return next(iter(self._members), None)

    def begin(self, task: Task) -> None:
        """Takes in a process that was started just now, perhaps again."""
        self._members[task] = Member("", 0, self._clock(), task in self._members)

    def heard(self, task: Task, message: Mapping[str, Any]) -> None:
        """Takes a message of the kinds `phase` and `progress`."""
        phase = message["phase"] if message["kind"] == "phase" else "train"
        self._members[task] = Member(phase, message["step"], self._clock(), self._members[task].is_again)

    def ended(self, task: Task, end: str, why: str = "") -> None:
        """Takes how a process ended: done, stopped, ended, left, lost, stalled or failed."""
        known = self._members[task]
        self._members[task] = Member(known.phase, known.step, self._clock(), known.is_again, end, why)

    def clear(self) -> None:
        """Forgets all."""
        self._members.clear()

    def rows(self) -> list[Row]:
        """Gives the processes in words, in the order in which they were started first."""
        silent = [str(task) for task, member in self._members.items() if not member.phase and not member.end]
        return [self._row(str(task), member, silent) for task, member in self._members.items()]

    def _row(self, name: str, member: Member, silent: list[str]) -> Row:
        if member.end:
            return Row(name, member.end, news=member.why, color=_COLORS.get(member.end, ""))
        word = WORDS.get(member.phase or "start", member.phase)
        if member.phase in ("", "start") and member.is_again:
            word = "restarting"
        elif member.phase == "join" and silent:
            word = f"waiting for {', '.join(silent[:_FEW])}{', ...' if len(silent) > _FEW else ''}"
        place = f"step {member.step}" if member.step else ""
        quiet = self._clock() - member.at
        if quiet < _QUIET_SECS:
            return Row(name, word, place)
        if member.phase in _LONG:
            return Row(name, word, place, f"for {duration(quiet)}")
        return Row(name, word, place, f"no news for {duration(quiet)}", "yellow")


def lines(rows: Iterable[Row]) -> list[tuple[str, str]]:
    """Gives (text, color) of a line for each process, or where they are many a line that counts them, and those that stand out."""
    rows = list(rows)
    if len(rows) <= _MANY:
        return _listed(rows)
    groups: dict[str, list[str]] = {}
    for row in rows:
        groups.setdefault(row.word, []).append(row.name)
    most, *others = sorted(groups.items(), key=lambda group: -len(group[1]))
    counts = [f"{len(most[1])} {most[0]}"]
    for word, names in others:
        counts.append(f"{len(names)} {word}" + (f": {', '.join(names)}" if len(names) <= _FEW else ""))
    return [(", ".join(counts), ""), *_listed([row for row in rows if row.color in ("red", "yellow")][: _MANY - 1])]


def _listed(rows: list[Row]) -> list[tuple[str, str]]:
    width = max((len(row.name) for row in rows), default=0)
    words = [[f"{row.name:{width}}", f"{row.word:{_WORD_WIDTH}}", *filter(None, [row.place, row.news])] for row in rows]
    return [("  ".join(line).rstrip(), row.color) for line, row in zip(words, rows, strict=True)]
