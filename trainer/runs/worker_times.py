"""How long each worker worked and waited for others, and how stale updates were. No TensorFlow.

Of a synchronous run a worker waits for the slowest one in every step. Of an asynchronous one it
waits for the chief alone, but the variables may have moved between its read and its update.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

STALENESS_EDGES = (
    0, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024,
)  # fmt: skip
"""The smallest staleness in each bin of a histogram; the last bin has no end."""

STRAGGLER_SHARE = 0.25
"""A worker is a straggler if the others wait for so much of the time."""
STRAGGLER_RATIO = 1.5
"""Where nobody waits: if its steps take so many times as long as those of the others."""
_JUDGED_SECS = 5.0
"""A shorter time says more of the machine than of the worker."""


@dataclass(frozen=True)
class WorkerTime:
    """How a worker spent the time of an interval.

    Attributes:
        step_secs: seconds of its own work on steps, the wait for its input included.
        wait_secs: seconds in which it waited for other processes.
        steps: number of steps that it took part in.
    """

    step_secs: float
    wait_secs: float
    steps: int

    @property
    def secs(self) -> float:
        """All seconds of the interval."""
        return self.step_secs + self.wait_secs

    def __add__(self, other: WorkerTime) -> WorkerTime:
        """Return the time of two intervals."""
        return WorkerTime(
            self.step_secs + other.step_secs,
            self.wait_secs + other.wait_secs,
            self.steps + other.steps,
        )


@dataclass(frozen=True)
class WorkerRecord:
    """What the workers of a run did in an interval; empty for a run of one process.

    Attributes:
        times: the time of each worker, by its name, such as worker-0.
        staleness: number of updates in each bin of `STALENESS_EDGES`; empty: the run is
            synchronous, and no update is stale.
    """

    times: Mapping[str, WorkerTime] = field(default_factory=dict)
    staleness: Sequence[int] = ()

    @property
    def secs(self) -> float:
        """Seconds of the interval, the mean over the workers."""
        return _mean(time.secs for time in self.times.values())

    @property
    def wait_fraction(self) -> float:
        """The share of the workers' time that they waited for others."""
        waited = sum(time.wait_secs for time in self.times.values())
        total = sum(time.secs for time in self.times.values())
        return waited / total if total else 0.0

    def __add__(self, other: WorkerRecord) -> WorkerRecord:
        """Return the record of two intervals."""
        times = dict(self.times)
        for name, time in other.times.items():
            times[name] = times[name] + time if name in times else time
        return WorkerRecord(times, add_counts(self.staleness, other.staleness))

    def scalars(self) -> dict[str, float]:
        """Return the values for the log, by name."""
        values: dict[str, float] = {}
        for name, time in self.times.items():
            prefix = name.replace("-", "_")
            values[f"{prefix}_step_secs"] = round(time.step_secs, 6)
            values[f"{prefix}_wait_secs"] = round(time.wait_secs, 6)
        return {**values, "wait_fraction": self.wait_fraction} if values else values

    def straggler(self) -> str | None:
        """Return a line on the slowest worker if it is much slower than the others."""
        if len(self.times) < 2 or not self.secs:
            return None
        return self._slowest_of_async() if self.staleness else self._slowest_of_sync()

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
            f"{1000 * others:.0f} ms; nobody waits for it"
        )


class StragglerWatch:
    """Reports once that a worker is a straggler, when there is enough time to judge by."""

    def __init__(self) -> None:
        self._record = WorkerRecord()
        self._last: str | None = None

    def line(self, record: WorkerRecord) -> str | None:
        """Return a line if another worker than before is a straggler.

        Args:
            record: of the interval since the last call.
        """
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


def add_counts(first: Sequence[int], second: Sequence[int]) -> list[int]:
    """Return the sums of two histograms, either of which may be empty."""
    if not first or not second:
        return list(first or second)
    return [a + b for a, b in zip(first, second, strict=True)]


def staleness_bins() -> list[str]:
    """Return the names of the bins: `0`, `4-5`, `1024+`."""
    ends = [edge - 1 for edge in STALENESS_EDGES[1:]]
    names = [
        str(edge) if edge == end else f"{edge}-{end}"
        for edge, end in zip(STALENESS_EDGES, ends, strict=False)
    ]
    return [*names, f"{STALENESS_EDGES[-1]}+"]


def _mean(values: Iterable[float]) -> float:
    numbers = list(values)
    return sum(numbers) / len(numbers) if numbers else 0.0


def format_sizes(sizes: Sequence[tuple[int, int]]) -> str:
    """Return numbers of workers, if they changed: `4, 3 from step 40, 4 from step 120`."""
    if len(sizes) < 2:
        return ""
    (_, first), *rest = sizes
    return ", ".join([str(first), *(f"{size} from step {step}" for step, size in rest)])
