"""When to save by the clock: every so many seconds, or at the interval that loses least time.

The interval of `checkpoint.every_secs=auto` follows Young (1974) and Daly (2006), from what a save
takes and how often the run has failed so far. No TensorFlow.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable

from trainer.cluster.messages import Channel
from trainer.config.schema import Checkpoint
from trainer.runs.ledger import Ledger, TimeSummary
from trainer.text import format_duration

_SHORTEST_SECS = 10.0
"""About what a command takes to start again, so that a shorter interval saves little; before the
first save too: what a save takes is not known yet."""
_LONGEST_SECS = 3600.0
"""The most work that a failure may cost, however slow a save and however rare failures are."""
_MOST_COST = 0.01
"""The most time that saves may take, as a share of the time between them."""
_PRIOR_SECS, _PRIOR_FAILURES = 3600.0, 1 / 24
"""What counts as seen before the run began: one failure a day. It weighs as much as one hour of
training, so that a few failures in a row soon shorten the interval."""


def failure_interval_secs(spent: TimeSummary) -> float:
    """Return the mean seconds between two failures, as a run has shown so far."""
    return (_PRIOR_SECS + spent.wall_secs) / (_PRIOR_FAILURES + spent.failures)


def optimal_secs(save_secs: float, failure_secs: float) -> float:
    """Return the seconds of training between two saves by which least time is lost, by Daly.

    Args:
        save_secs: seconds that training waits for a save.
        failure_secs: mean seconds between two failures.
    """
    ratio = save_secs / (2 * failure_secs)
    if ratio >= 1:
        return failure_secs
    young = math.sqrt(2 * save_secs * failure_secs)
    return young * (1 + math.sqrt(ratio) / 3 + ratio / 9) - save_secs


class Timer:
    """Due when a number of seconds has passed since it was restarted.

    Args:
        secs: the number of seconds; None: never due.
    """

    def __init__(self, secs: float | None, clock: Callable[[], float] = time.monotonic) -> None:
        self._secs = secs
        self._clock = clock
        self._began = clock()

    def due(self) -> bool:
        """Return whether the seconds have passed since the last `restart`."""
        return self._secs is not None and self._clock() - self._began >= self._secs

    def restart(self) -> None:
        """Count from now on."""
        self._began = self._clock()


class AutoTimer(Timer):
    """A timer whose seconds follow what a save takes, and how often the run fails.

    Args:
        spent: returns how all attempts so far, this one included, have spent their time.
        log: receives a line with the interval when it is first known.
    """

    def __init__(
        self,
        spent: Callable[[], TimeSummary],
        log: Callable[[str], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(_SHORTEST_SECS, clock)
        self._spent = spent
        self._log: Callable[[str], None] | None = log
        self._adapt()

    def restart(self) -> None:
        """Count from now on, to an interval that takes the save that has ended into account."""
        super().restart()
        self._adapt()

    def _adapt(self) -> None:
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
    """Return the timer by which the section `checkpoint` of a configuration asks to save.

    Args:
        checkpoint: the section.
        ledger: accounts for the wall time; that of the chief, whose clock decides, is up to date.
        channel: keeps the interval in the log.
    """
    secs = checkpoint.every_secs
    if not isinstance(secs, str):
        return Timer(secs)
    return AutoTimer(ledger.summary, channel.log) if ledger.writes else Timer(None)
