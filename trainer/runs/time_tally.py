"""Adds up the marks of a ledger: seconds in each category, attempts, and what workers did."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from trainer.runs.worker_times import WorkerRecord, WorkerTime

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
"""The categories of time, with their names for people."""

_PHASES = {*CATEGORIES, "begin", "exit"}


@dataclass(frozen=True)
class Mark:
    """One line of the file.

    Attributes:
        phase: the phase that begins.
        step: number of updates made; None: unknown.
        input_secs: seconds that the phase before it waited for input.
        time: Unix time.
        workers: processes that train together from now on; None: as before.
        worker_times: how each worker spent the log interval before; None: unknown.
        staleness: histogram of the updates in it; None: unknown.
    """

    phase: str
    step: int | None
    input_secs: float
    time: float
    workers: int | None = None
    worker_times: Mapping[str, Sequence[float]] | None = None
    staleness: Sequence[int] | None = None

    def __post_init__(self) -> None:
        """Raise a Value-, Type- or AttributeError for a damaged line: no ledger has written it."""
        numbers = [self.input_secs, self.time, self.step or 0, self.workers or 0]
        for step_secs, wait_secs, steps in (self.worker_times or {}).values():
            numbers += [step_secs, wait_secs, steps]
        if self.phase not in _PHASES or not all(map(math.isfinite, numbers)):
            raise ValueError(f"no mark of a ledger: {self}")
        [*map(int, self.staleness or ())]

    def content(self) -> dict[str, Any]:
        """Return what the line says."""
        optional = ("workers", "worker_times", "staleness")
        values = asdict(self)
        return {name: values[name] for name in values if name not in optional or values[name]}


@dataclass(frozen=True)
class _Steps:
    """Steps that are not lost so far.

    Attributes:
        first: number of updates before them.
        end: number of updates after them.
        secs: seconds that they took, without the wait for input.
        input_secs: seconds that they waited for input.
    """

    first: int
    end: int
    secs: float
    input_secs: float


class Tally:
    """Adds up marks one by one.

    Attributes:
        secs: seconds in each category.
        attempts: number of attempts.
        last: the last mark; the time after it is not in `secs` yet.
        sizes: see `TimeSummary`.
        workers: see `TimeSummary`.
    """

    def __init__(self) -> None:
        self.secs = dict.fromkeys(CATEGORIES, 0.0)
        self.attempts = 0
        self.last: Mark | None = None
        self.sizes: list[tuple[int, int]] = []
        self.workers = WorkerRecord()
        self._workers: int | None = None
        self._steps: list[_Steps] = []

    def add(self, mark: Mark) -> None:
        """Add the mark that follows those added before."""
        last = self.last
        self.last = mark
        # An attempt whose chief died before its mark counts too.
        self.attempts += mark.phase == "start" or (
            mark.phase == "restart" and last is not None and last.phase in ("begin", "restart")
        )
        if last is not None and last.phase != "exit" and mark.phase != "begin":
            self._end_phase(last, mark)
        self._workers = mark.workers or self._workers
        times = {
            name: WorkerTime(step_secs, wait_secs, int(steps))
            for name, (step_secs, wait_secs, steps) in (mark.worker_times or {}).items()
        }
        self.workers = self.workers + WorkerRecord(times, mark.staleness or ())
        if mark.step is not None:
            self._continue_from(mark.step)
            self._add_size(mark.step)

    def _add_size(self, step: int) -> None:
        """Note from which step on there are so many workers; steps that were lost do not count."""
        while self.sizes and self.sizes[-1][0] > step:
            self.sizes.pop()
        if self._workers and (not self.sizes or self.sizes[-1][1] != self._workers):
            self.sizes.append((step, self._workers))

    def _end_phase(self, last: Mark, mark: Mark) -> None:
        secs = max(0.0, mark.time - last.time)
        category = "start" if last.phase == "begin" else last.phase
        if mark.phase in ("restart", "exit") and category not in ("restart", "end"):
            category = "lost"
        input_secs = spend(self.secs, category, secs, mark.input_secs)
        if category == "step" and last.step is not None and mark.step is not None:
            end = max(last.step, mark.step)
            self._steps.append(_Steps(last.step, end, secs - input_secs, input_secs))

    def _continue_from(self, step: int) -> None:
        """Count the steps after `step` as lost."""
        while self._steps and self._steps[-1].end > step:
            steps = self._steps.pop()
            length = steps.end - steps.first
            kept = max(0, step - steps.first) / length if length > 0 else 0.0
            if kept:
                rest = _Steps(steps.first, step, steps.secs * kept, steps.input_secs * kept)
                self._steps.append(rest)
            self.secs["step"] -= steps.secs * (1 - kept)
            self.secs["input"] -= steps.input_secs * (1 - kept)
            self.secs["lost"] += (steps.secs + steps.input_secs) * (1 - kept)


def spend(secs: dict[str, float], category: str, elapsed: float, input_secs: float) -> float:
    """Add elapsed seconds to a category, but the wait of steps to `input`; return that wait."""
    waited = min(input_secs, elapsed) if category == "step" else 0.0
    secs[category] += elapsed - waited
    secs["input"] += waited
    return waited
