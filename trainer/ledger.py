"""ledger.jsonl: where the wall time of a run went, summed over all its attempts. No TensorFlow.

Each line is a mark, `{"does", "step", "waited", "at"}`: from the Unix time `at` on, this is what the run does. So a mark ends what
the one before it began, and the marks of a command cover its time whatever cuts it short:

    begin                          the parent: a command has been started
    start                          the chief: its process has been started
    compile, step, eval, save      the chief, after `step` updates
    end                            the chief: it has trained what was asked for, or has saved on request
    restart                        the parent: an attempt has failed, another one follows
    exit                           the parent: the command ends; if it was killed instead, the last mark stands for the end

`waited` says how many of the seconds that end here were spent waiting for input. What was lost shows afterwards: the steps beyond
the one from which a later mark goes on, and whatever an attempt did last before it failed.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

CATEGORIES = {
    "step": "steps",
    "input": "waiting for input",
    "start": "start",
    "compile": "compile",
    "eval": "evaluation",
    "save": "saving",
    "lost": "lost work",
    "restart": "restart",
    "end": "end",
}
"""What the time is divided into, in words."""

_OF_PHASE = {"train": "step", "evaluate": "eval"}
_PIECE_SECS = 5.0  # what lasts longer is marked anew: a kill of everything at once leaves no more than this unaccounted for


@dataclass(frozen=True)
class Mark:
    """One line of the file."""

    does: str
    step: int | None
    waited: float
    at: float


@dataclass(frozen=True)
class Summary:
    """Where the time went.

    Attributes:
        secs: seconds in each category.
        attempts: how many attempts there were.
    """

    secs: dict[str, float]
    attempts: int

    @property
    def wall_secs(self) -> float:
        return sum(self.secs.values())

    @property
    def goodput(self) -> float:
        """The share of the time that went into steps which count."""
        return self.secs["step"] / self.wall_secs if self.wall_secs else 0.0


class Ledger:
    """The marks of a run: reads those that are there, and makes more.

    Args:
        run_dir: the run directory.
        writes: whether this process makes marks; of those that train, the chief alone.
        clock: Unix time.
    """

    def __init__(self, run_dir: Path, *, writes: bool = True, clock: Callable[[], float] = time.time) -> None:
        self._path, self._writes, self._clock = run_dir / "ledger.jsonl", writes, clock
        self._tally, self._step, self._waited, self._running = _Tally(), 0, 0.0, False
        for line in self._path.read_bytes().splitlines() if self._path.exists() else []:
            with suppress(ValueError, TypeError):  # a kill has cut it off
                self._tally.add(Mark(**json.loads(line)))

    def enter(self, phase: str, step: int | None = None, *, at: float | None = None) -> None:
        """Marks what is done from now on, if that is something else than before or has been going on for some seconds.

        Args:
            phase: as in `trainer.channel`, or one of the marks above.
            step: number of updates made; None: not known here.
            at: since when; None: now.
        """
        if not self._writes:
            return
        does, last = _OF_PHASE.get(phase, phase), self._tally.last
        # A process may have been started before the mark that its own follows.
        now = self._clock() if at is None else max(at, last.at if last else at)
        if step is not None:
            if last and step < self._step:
                self._mark(last.does, self._step, now)  # how far it came before it was rolled back
            elif last and last.does == does and last.at <= now < last.at + _PIECE_SECS:
                return
            self._step = step
        self._mark(does, step, now)

    def ran(self, step: int, waited: float) -> None:
        """Notes that `step` updates have been made, and for how many seconds the last of them waited for input."""
        self._step, self._waited = step, self._waited + waited

    def _mark(self, does: str, step: int | None, now: float) -> None:
        mark = Mark(does, step, round(self._waited, 6), round(now, 6))
        self._waited, self._running = 0.0, True
        self._tally.add(mark)
        # That an account cannot be kept is no reason to stop training.
        with suppress(OSError), self._path.open("ab+") as file:
            file.write(b"\n" * _is_torn(file) + json.dumps(vars(mark)).encode() + b"\n")

    def summary(self) -> Summary:
        """Gives the account: up to now for who makes the marks, else up to the last of them."""
        secs, last = dict(self._tally.secs), self._tally.last
        if self._running and last is not None and last.does in secs:
            _share(secs, last.does, max(0.0, self._clock() - last.at), self._waited)
        return Summary(secs, self._tally.attempts)


def process_start() -> float:
    """Gives the Unix time when this process was started, before Python itself; now, where the system does not tell."""
    now = time.time()
    try:
        ticks = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
        age = time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError, AttributeError):
        return now
    return now - max(0.0, age)


class _Tally:
    """Adds up marks one by one.

    Attributes:
        secs: seconds in each category.
        attempts: how many attempts there were.
        last: the last mark; what follows it is not in `secs` yet.
    """

    def __init__(self) -> None:
        self.secs, self.attempts = dict.fromkeys(CATEGORIES, 0.0), 0
        self.last: Mark | None = None
        self._done: list[tuple[int, int, float, float]] = []  # of steps that count: first, last, secs, waited

    def add(self, mark: Mark) -> None:
        last, self.last = self.last, mark
        # Also one whose chief did not come as far as to say so.
        self.attempts += mark.does == "start" or (mark.does == "restart" and last is not None and last.does in ("begin", "restart"))
        if last is not None and last.does != "exit" and mark.does != "begin":
            self._ended(last, mark)
        if mark.step is not None:
            self._go_on_from(mark.step)

    def _ended(self, last: Mark, mark: Mark) -> None:
        secs, does = max(0.0, mark.at - last.at), "start" if last.does == "begin" else last.does
        if mark.does in ("restart", "exit") and does not in ("restart", "end"):
            does = "lost"
        waited = _share(self.secs, does, secs, mark.waited)
        if does == "step" and last.step is not None and mark.step is not None:
            self._done.append((last.step, max(last.step, mark.step), secs - waited, waited))

    def _go_on_from(self, step: int) -> None:
        """Takes what was done beyond `step` for lost."""
        while self._done and self._done[-1][1] > step:
            first, end, secs, waited = self._done.pop()
            kept = max(0, step - first) / (end - first) if end > first else 0.0
            if kept:
                self._done.append((first, step, secs * kept, waited * kept))
            self.secs["step"] -= secs * (1 - kept)
            self.secs["input"] -= waited * (1 - kept)
            self.secs["lost"] += (secs + waited) * (1 - kept)


def _share(secs: dict[str, float], does: str, more: float, waited: float) -> float:
    """Adds seconds to what they were spent on; those that steps waited for input, which are returned, to that."""
    waited = min(waited, more) if does == "step" else 0.0
    secs[does] += more - waited
    secs["input"] += waited
    return waited


def _is_torn(file: BinaryIO) -> bool:
    """Says whether a kill has cut off the last line: it must not swallow the next."""
    if file.seek(0, os.SEEK_END) == 0:
        return False
    file.seek(-1, os.SEEK_END)
    return file.read(1) != b"\n"
