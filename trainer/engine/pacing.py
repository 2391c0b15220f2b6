"""What follows the clock: how much goes into one graph call, and when to save. No TensorFlow."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from trainer.cluster.messages import Channel
from trainer.config.schema import Checkpoint
from trainer.engine.process_group import ProcessGroup
from trainer.runs.ledger import Ledger, TimeSummary
from trainer.text import format_duration

_TOO_SHORT_SECS = 0.5
_TOO_LONG_SECS = 2.0

_SHORTEST_SECS = 10.0
"""About what a command takes to start again, so that a shorter interval saves little; before the
first save too: what a save takes is unknown yet."""
_LONGEST_SECS = 3600.0
"""The most work that a failure may cost, however slow a save and however rare failures are."""
_MOST_COST = 0.01
"""The most time that saves may take, as a fraction of the time between them."""
_PRIOR_SECS, _PRIOR_FAILURES = 3600.0, 1 / 24
"""What counts as seen before the run began: one failure a day. It weighs as much as one hour of
training, so that a few failures in a row soon shorten the interval."""


class StepPacer:
    """Chooses the number of steps in a graph call: a fixed one, or (`auto`) about a second's worth.

    A second is long enough that the host's work costs nothing, and short enough that signals, the
    progress bar and the watchdog are served in time.
    """

    def __init__(self, steps_per_loop: int | str) -> None:
        self._auto = steps_per_loop == "auto"
        self.count = 1 if steps_per_loop == "auto" else int(steps_per_loop)
        self.started = False

    def record(self, count: int, secs: float) -> None:
        """Adapt to the seconds that a call of `count` steps took; the first one mostly compiles."""
        if self._auto and self.started:
            if secs < _TOO_SHORT_SECS and count >= self.count:
                self.count *= 2
            elif secs > _TOO_LONG_SECS:
                self.count = max(1, self.count // 2)
        self.started = True


class Stopped(Exception):
    """A stop was requested in the middle of a pass over a split."""


@dataclass(eq=False)
class PacedCalls:
    """Divides each pass over a split into graph calls; one pass sets the pace of the next."""

    num_steps: int
    process_group: ProcessGroup
    channel: Channel
    max_batches: int | None = None

    def __post_init__(self) -> None:
        self._pacer = StepPacer("auto")

    def batches(
        self, stop_requested: Callable[[], bool], enter: Callable[[str], None], start: int = 0
    ) -> Iterator[tuple[int, int]]:
        """Yield the first batch and the number of batches of each call, in order; collective.

        Raises:
            Stopped: a stop was requested of some process.
        """
        while start < self.num_steps:
            self.channel.beat()
            stopping, count = self.process_group.all_reduce_sum(
                stop_requested(), self._pacer.count if self.process_group.is_chief else 0
            )
            if stopping:
                raise Stopped
            enter("evaluate" if self._pacer.started else "compile")
            count = min(count, self.max_batches or count, self.num_steps - start)
            began = time.monotonic()
            yield start, count
            self._pacer.record(count, time.monotonic() - began)
            start += count


def failure_interval_secs(spent: TimeSummary) -> float:
    """Return the mean seconds between two failures, as a run has shown so far."""
    return (_PRIOR_SECS + spent.wall_secs) / (_PRIOR_FAILURES + spent.failures)


def optimal_secs(save_secs: float, failure_secs: float) -> float:
    """Return the seconds of training between two saves by which least time is lost.

    Young (1974) and Daly (2006), from the seconds that training waits for a save, and the mean
    seconds between two failures.
    """
    ratio = save_secs / (2 * failure_secs)
    if ratio >= 1:
        return failure_secs
    young = math.sqrt(2 * save_secs * failure_secs)
    return young * (1 + math.sqrt(ratio) / 3 + ratio / 9) - save_secs


class Timer:
    """Due when a number of seconds has passed since it was restarted; None: never."""

    def __init__(self, secs: float | None) -> None:
        self._secs = secs
        self._began = time.monotonic()

    def due(self) -> bool:
        """Return whether the seconds have passed since the last `restart`."""
        return self._secs is not None and time.monotonic() - self._began >= self._secs

    def restart(self) -> None:
        """Count from now on."""
        self._began = time.monotonic()


class AutoTimer(Timer):
    """A timer whose seconds follow what a save takes, and how often the run fails.

    Args:
        spent: returns how all attempts so far, this one included, have spent their time.
    """

    def __init__(self, spent: Callable[[], TimeSummary], log: Callable[[str], None]) -> None:
        super().__init__(_SHORTEST_SECS)
        self._spent = spent
        self._log: Callable[[str], None] | None = log
        self.restart()

    def restart(self) -> None:
        super().restart()
        spent = self._spent()
        if not spent.saves:
            return
        save_secs = spent.secs["save"] / spent.saves
        failure_secs = failure_interval_secs(spent)
        secs = max(optimal_secs(save_secs, failure_secs), save_secs / _MOST_COST)
        self._secs = min(max(secs, _SHORTEST_SECS), _LONGEST_SECS)
        if self._log is not None:
            self._log(
                f"Saving at least every {format_duration(self._secs)} (checkpoint.every_secs=auto):"
                f" a save takes {save_secs:.2g} s, and a failure is expected every "
                f"{failure_secs / 3600:.2g} h ({spent.failures} so far)."
            )
            self._log = None


def make_save_timer(checkpoint: Checkpoint, ledger: Ledger, channel: Channel) -> Timer:
    """Return the timer by which `checkpoint.every_secs` requests saves, by the chief's clock."""
    secs = checkpoint.every_secs
    if not isinstance(secs, str):
        return Timer(secs)
    return AutoTimer(ledger.summary, channel.log) if ledger.writes else Timer(None)
