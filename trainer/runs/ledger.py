"""ledger.jsonl: how the wall time of a run was spent, summed over all its attempts.

Each line is a mark, `{"phase", "step", "input_secs", "time"}`: at this Unix time a phase of the run
begins; that of `start` also has the number of workers. So a mark ends the phase before it, and the
marks of a command cover its time however it ends:

    begin                          the parent: a command has been started
    start                          the chief: its process has been started
    compile, step, eval, save      the chief, after `step` updates
    end                            the chief: training is complete, or saved on request
    restart                        the parent: an attempt has failed, another one follows
    exit                           the parent: the command ends; a kill leaves the last mark instead

`input_secs` is how long the phase that ends here waited for input. With several workers the mark
after a log interval also has `worker_times`, `{worker: [seconds of steps, seconds of waiting,
steps]}`, and in an asynchronous run `asynchronous`. The first mark after a state was restored from
memory has `repeated`, the steps that were made after it.

Lost work shows afterward: the steps after the one from which a later mark continues, and the last
phase of a failed attempt, without the steps of it that memory has kept.
"""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

from trainer.files import MAX_LINE_BYTES, regular_file

STRAGGLER_SHARE = 0.25
"""A worker is a straggler if the others wait for so much of the time."""
STRAGGLER_RATIO = 1.5
"""Without waiting: if its steps take so many times as long as those of the others."""
_JUDGED_SECS = 5.0
"""A shorter time depends more on the machine than on the worker."""
CATEGORIES = {
    "step": "train",
    "input": "input wait",
    "start": "start",
    "compile": "compile",
    "eval": "evaluate",
    "save": "save",
    "lost": "interrupted",
    "restart": "restart",
    "end": "end",
}
"""The categories of time, with their names for people: those of phases where they are phases."""

_PHASES = {*CATEGORIES, "begin", "exit"}

_NAMES = {"train": "step", "evaluate": "eval"}
"""Phases of `trainer.cluster.messages` that have another name in the file."""
_REPEAT_SECS = 5.0
"""A longer phase is marked again, so that a kill of all processes hides no more time than this."""


@dataclass(frozen=True)
class WorkerTime:
    """How a worker spent the time of an interval.

    Attributes:
        step_secs: seconds of its own work on steps, the wait for its input included.
        wait_secs: seconds in which it waited for other processes.
    """

    step_secs: float
    wait_secs: float
    steps: int

    @property
    def secs(self) -> float:
        """All seconds of the interval."""
        return self.step_secs + self.wait_secs

    def __add__(self, other: WorkerTime) -> WorkerTime:
        return WorkerTime(
            self.step_secs + other.step_secs,
            self.wait_secs + other.wait_secs,
            self.steps + other.steps,
        )


@dataclass(frozen=True)
class WorkerRecord:
    """What the workers of a run did in an interval; empty for a run of one process.

    Attributes:
        asynchronous: whether the workers update the variables without waiting for one another.
    """

    times: Mapping[str, WorkerTime] = field(default_factory=dict)
    asynchronous: bool = False

    @property
    def secs(self) -> float:
        """Seconds of the interval, the mean over the workers."""
        return _mean(time.secs for time in self.times.values())

    @property
    def wait_fraction(self) -> float:
        """The fraction of the workers' time that they waited for others."""
        waited = sum(time.wait_secs for time in self.times.values())
        total = sum(time.secs for time in self.times.values())
        return waited / total if total else 0.0

    def __add__(self, other: WorkerRecord) -> WorkerRecord:
        times = dict(self.times)
        for name, spent in other.times.items():
            times[name] = times[name] + spent if name in times else spent
        return WorkerRecord(times, self.asynchronous or other.asynchronous)

    def scalars(self) -> dict[str, float]:
        """Return the values for the log, by name."""
        values: dict[str, float] = {}
        for name, spent in self.times.items():
            prefix = name.replace("-", "_")
            values[f"{prefix}_step_secs"] = round(spent.step_secs, 6)
            values[f"{prefix}_wait_secs"] = round(spent.wait_secs, 6)
        return {**values, "wait_fraction": self.wait_fraction} if values else values

    def straggler(self) -> str | None:
        """Return a line on the slowest worker if it is much slower than the others."""
        if len(self.times) < 2 or not self.secs:
            return None
        return self._slowest_of_async() if self.asynchronous else self._slowest_of_sync()

    def _slowest_of_sync(self) -> str | None:
        name = min(self.times, key=lambda name: self.times[name].wait_secs)
        waited = _mean(time.wait_secs for other, time in self.times.items() if other != name)
        share = (waited - self.times[name].wait_secs) / self.secs
        if share < STRAGGLER_SHARE:
            return None
        return f"{name} is the slowest: the others wait {100 * share:.0f} % of the time for it"

    def _slowest_of_async(self) -> str | None:
        secs = {
            name: time.step_secs / time.steps for name, time in self.times.items() if time.steps
        }
        name = max(secs, key=secs.__getitem__, default="")
        others = _mean(value for other, value in secs.items() if other != name)
        if not others or secs[name] < STRAGGLER_RATIO * others:
            return None
        return (
            f"{name} is the slowest: {1000 * secs[name]:.0f} ms a step, the others "
            f"{1000 * others:.0f} ms; no process waits for it"
        )


class StragglerWatch:
    """Reports once that a worker is a straggler, when there is enough time to judge by."""

    def __init__(self) -> None:
        self._record = WorkerRecord()
        self._last: str | None = None

    def line(self, record: WorkerRecord) -> str | None:
        """Return a line if another worker than before is a straggler."""
        self._record = self._record + record
        if self._record.secs < _JUDGED_SECS:
            return None
        line = self._record.straggler()
        self._record = WorkerRecord()
        name = line and line.split(" ")[0]
        is_new = name != self._last
        self._last = name
        return line if is_new else None


def is_clock_name(name: str) -> bool:
    """Return whether a value of the log is one of `WorkerRecord.scalars`: it never repeats."""
    return name == "wait_fraction" or name.endswith(("_step_secs", "_wait_secs"))


def _mean(values: Iterable[float]) -> float:
    numbers = list(values)
    return sum(numbers) / len(numbers) if numbers else 0.0


def format_sizes(sizes: Sequence[tuple[int, int]]) -> str:
    """Return numbers of workers, if they changed: `4, 3 from step 40, 4 from step 120`."""
    if len(sizes) < 2:
        return ""
    (_, first), *rest = sizes
    return ", ".join([str(first), *(f"{size} from step {step}" for step, size in rest)])


@dataclass(frozen=True)
class Mark:
    """One line of the file.

    Attributes:
        step: number of updates made; None: unknown.
        input_secs: seconds that the phase before it waited for input.
        workers: processes that train together from now on; None: as before.
        worker_times: how each worker spent the log interval before; None: unknown.
        asynchronous: whether they did not wait for one another; None: they did, or unknown.
        repeated: steps that an attempt before this mark had made after `step`; None: unknown.
    """

    phase: str
    step: int | None
    input_secs: float
    time: float
    workers: int | None = None
    worker_times: Mapping[str, Sequence[float]] | None = None
    asynchronous: bool | None = None
    repeated: int | None = None

    def __post_init__(self) -> None:
        """Raise a Value-, Type- or AttributeError for a damaged line: no ledger has written it."""
        counts = (self.step, self.workers, self.repeated)
        numbers = [self.input_secs, self.time, *(count or 0 for count in counts)]
        for step_secs, wait_secs, steps in (self.worker_times or {}).values():
            numbers += [step_secs, wait_secs, steps]
        if self.phase not in _PHASES or not all(map(math.isfinite, numbers)):
            raise ValueError(f"no mark of a ledger: {self}")

    def content(self) -> dict[str, Any]:
        return {name: x for name, x in asdict(self).items() if x is not None or name == "step"}


@dataclass(frozen=True)
class _Steps:
    """Steps that are not lost so far."""

    first: int  # number of updates before them
    end: int
    secs: float  # without the wait for input
    input_secs: float


@dataclass
class TimeSummary:
    """How the wall time was spent.

    Attributes:
        sizes: numbers of workers, each with the step from which on there were so many.
        failures: attempts that neither ended nor saved on request, and were followed by another.
    """

    secs: dict[str, float] = field(default_factory=lambda: dict.fromkeys(CATEGORIES, 0.0))
    attempts: int = 0
    sizes: list[tuple[int, int]] = field(default_factory=list)
    workers: WorkerRecord = field(default_factory=WorkerRecord)
    restarts: list[int] = field(default_factory=list)
    failures: int = 0
    saves: int = 0

    @property
    def wall_secs(self) -> float:
        """The sum over all categories."""
        return sum(self.secs.values())

    @property
    def goodput(self) -> float:
        """The fraction of the time that was spent on steps that were not lost."""
        return self.secs["step"] / self.wall_secs if self.wall_secs else 0.0

    def result(self) -> dict[str, Any]:
        """Return its part of result.json."""
        workers = {
            name: {
                "step_secs": round(time.step_secs, 3),
                "wait_secs": round(time.wait_secs, 3),
                "steps": time.steps,
            }
            for name, time in self.workers.times.items()
        }
        return {
            "wall_secs": round(self.wall_secs, 3),
            "attempts": self.attempts,
            "workers": self.sizes,
            "goodput": round(self.goodput, 4),
            "time": {name: round(secs, 3) for name, secs in self.secs.items()},
            **({"worker_times": workers} if workers else {}),
        }


class Tally(TimeSummary):
    """Adds up the marks of a ledger one by one."""

    def __init__(self) -> None:
        super().__init__()
        self.last: Mark | None = None
        self._restarts = False
        self._workers: int | None = None
        self._steps: list[_Steps] = []
        self._interrupted: _Steps | None = None

    def add(self, mark: Mark) -> None:
        """Add the mark that follows those added before."""
        last = self.last
        self.last = mark
        # An attempt whose chief died before its mark counts too.
        self.attempts += mark.phase == "start" or (
            mark.phase == "restart" and last is not None and last.phase in ("begin", "restart")
        )
        self.saves += mark.phase == "save"
        if last is not None and last.phase not in ("end", "exit"):
            # A kill of the whole command leaves no mark.
            self.failures += mark.phase in ("restart", "begin")
        if last is not None and last.phase != "exit" and mark.phase != "begin":
            self._end_phase(last, mark)
        self._workers = mark.workers or self._workers
        times = {
            name: WorkerTime(step_secs, wait_secs, int(steps))
            for name, (step_secs, wait_secs, steps) in (mark.worker_times or {}).items()
        }
        self.workers = self.workers + WorkerRecord(times, bool(mark.asynchronous))
        if mark.step is not None:
            if self._restarts:
                self.restarts.append(mark.step)
            self._continue_from(mark.step, mark.repeated)
            self._add_size(mark.step)
        self._restarts = mark.phase == "restart" or (
            self._restarts and mark.step is None and mark.phase != "exit"
        )

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
            if category == "step" and last.step is not None:
                self._interrupted = _Steps(last.step, last.step, secs, 0.0)
            category = "lost"
        input_secs = spend(self.secs, category, secs, mark.input_secs)
        if category == "step" and last.step is not None and mark.step is not None:
            end = max(last.step, mark.step)
            self._steps.append(_Steps(last.step, end, secs - input_secs, input_secs))

    def _continue_from(self, step: int, repeated: int | None) -> None:
        """Count the steps after `step` as lost, and no others of the phase that was interrupted."""
        if self._interrupted is not None and repeated is not None:
            first, secs = self._interrupted.first, self._interrupted.secs
            if step > first:
                kept = secs * (step - first) / (step - first + repeated)
                self.secs["lost"] -= kept
                self.secs["step"] += kept
                self._steps.append(_Steps(first, step, kept, 0.0))
        self._interrupted = None
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


class Ledger:
    """The marks of a run: reads those in the file, and adds more.

    Attributes:
        writes: whether this process adds marks; of the processes that train, the chief alone.
    """

    def __init__(
        self, run_dir: Path, *, writes: bool = True, clock: Callable[[], float] = time.time
    ) -> None:
        self._path = run_dir / "ledger.jsonl"
        self.writes = writes
        self._clock = clock
        self._tally = Tally()
        self._step = 0
        self._input_secs = 0.0
        self._workers = WorkerRecord()
        self._repeated: int | None = None
        self._running = False
        self._offset = 0
        self.refresh()

    def refresh(self) -> None:
        """Add the marks that others have written since the last reading."""
        with suppress(OSError), open(self._path, "rb", opener=regular_file) as file:
            file.seek(self._offset)
            while line := file.readline(MAX_LINE_BYTES):
                try:
                    self._tally.add(Mark(**json.loads(line.decode())))
                except (ValueError, TypeError, AttributeError, RecursionError):
                    if not line.endswith(b"\n") and len(line) < MAX_LINE_BYTES:
                        break  # it is being written, or a kill has cut it off
                self._offset += len(line)

    def mark(
        self,
        phase: str,
        step: int | None = None,
        *,
        at: float | None = None,
        workers: int | None = None,
    ) -> None:
        """Mark the beginning of a phase; one that has only just begun is not marked again."""
        if not self.writes:
            return
        phase = _NAMES.get(phase, phase)
        last = self._tally.last
        # A process may have been started before the last mark was made.
        now = self._clock() if at is None else max(at, last.time if last else at)
        if step is not None:
            if last and step < self._step:
                self._add(last.phase, self._step, now)  # the last step before the rollback
            elif last and last.phase == phase and last.time <= now < last.time + _REPEAT_SECS:
                return
            self._step = step
        self._add(phase, step, now, workers)

    def record_step(self, step: int, input_secs: float) -> None:
        """Record the number of updates made and how long the last one waited for input."""
        self._step = step
        self._input_secs = self._input_secs + input_secs

    def record_workers(self, record: WorkerRecord) -> None:
        """Record what the workers did since the last such record; the next mark has it."""
        self._workers = self._workers + record

    def record_repeated(self, steps: int) -> None:
        """Record how many steps are repeated from here on; the next mark has it."""
        self._repeated = steps

    def _add(self, phase: str, step: int | None, now: float, workers: int | None = None) -> None:
        times = {
            name: (round(time.step_secs, 6), round(time.wait_secs, 6), time.steps)
            for name, time in self._workers.times.items()
        }
        mark = Mark(
            phase,
            step,
            round(self._input_secs, 6),
            round(now, 6),
            workers,
            times or None,
            self._workers.asynchronous or None,
            self._repeated,
        )
        self._input_secs, self._repeated = 0.0, None
        self._workers = WorkerRecord()
        self._running = True
        self._tally.add(mark)
        # A ledger that cannot be written must not stop the training.
        with suppress(OSError), open(self._path, "ab+", opener=regular_file) as file:
            file.write(b"\n" * _is_torn(file) + json.dumps(mark.content()).encode() + b"\n")

    def summary(self) -> TimeSummary:
        """Return how the time was spent: up to now if this process adds marks, else to the last."""
        # Not its history of the steps, which grows with the run.
        tally = self._tally
        summary = TimeSummary(
            dict(tally.secs),
            tally.attempts,
            list(tally.sizes),
            tally.workers + self._workers,
            list(tally.restarts),
            tally.failures,
            tally.saves,
        )
        last = tally.last
        if self._running and last is not None and last.phase in summary.secs:
            elapsed = max(0.0, self._clock() - last.time)
            spend(summary.secs, last.phase, elapsed, self._input_secs)
        return summary


def _is_torn(file: BinaryIO) -> bool:
    """Return whether a kill has cut off the last line: it must not swallow the next one."""
    if file.seek(0, os.SEEK_END) == 0:
        return False
    file.seek(-1, os.SEEK_END)
    return file.read(1) != b"\n"
