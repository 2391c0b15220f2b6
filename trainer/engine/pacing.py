"""How many steps or batches go into one graph call. No TensorFlow."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from trainer.cluster.messages import Channel
from trainer.engine.process_group import ProcessGroup

_TOO_SHORT_SECS = 0.5
_TOO_LONG_SECS = 2.0


class StepPacer:
    """Chooses the number of steps in a graph call: a fixed one, or (`auto`) about a second's worth.

    A second is long enough that the host's work costs nothing, and short enough that signals, the
    progress bar and the watchdog are served in time.

    Attributes:
        count: steps in the next call.
        started: whether a call has been made.

    Args:
        steps_per_loop: the number of steps, or `auto`.
    """

    def __init__(self, steps_per_loop: int | str) -> None:
        self._auto = steps_per_loop == "auto"
        self.count = 1 if steps_per_loop == "auto" else int(steps_per_loop)
        self.started = False

    def record(self, count: int, secs: float) -> None:
        """Adapt to the duration of a call; the first one, mostly compilation, is ignored.

        Args:
            count: steps in the call.
            secs: its duration.
        """
        if self._auto and self.started:
            if secs < _TOO_SHORT_SECS and count >= self.count:
                self.count *= 2
            elif secs > _TOO_LONG_SECS:
                self.count = max(1, self.count // 2)
        self.started = True

    @contextmanager
    def measure(self, count: int) -> Iterator[None]:
        """Record the duration of the block as that of a call of `count` steps."""
        began = time.monotonic()
        yield
        self.record(count, time.monotonic() - began)


class Stopped(Exception):
    """A stop was requested in the middle of a pass over a split."""


class PacedCalls:
    """Divides each pass over a split into graph calls; one pass sets the pace of the next.

    Args:
        num_steps: batches in the split.
        process_group: the processes that make the same calls.
        channel: receives a heartbeat before each call.
        max_batches: the most batches in one call; None: no limit.
    """

    def __init__(
        self,
        num_steps: int,
        process_group: ProcessGroup,
        channel: Channel,
        max_batches: int | None = None,
    ) -> None:
        self._num_steps = num_steps
        self._process_group = process_group
        self._channel = channel
        self._max_batches = max_batches or num_steps
        self._pacer = StepPacer("auto")

    def batches(
        self, stop_requested: Callable[[], bool], enter: Callable[[str], None], start: int = 0
    ) -> Iterator[tuple[int, int]]:
        """Yield the first batch and the number of batches of each call, in order; collective.

        Args:
            stop_requested: whether a stop was requested of this process.
            enter: called before each graph call with its phase, `compile` or `evaluate`.
            start: the first batch.

        Raises:
            Stopped: a stop was requested of some process.
        """
        while start < self._num_steps:
            self._channel.beat()
            stopping, count = self._process_group.all_reduce_sum(
                stop_requested(), self._pacer.count if self._process_group.is_chief else 0
            )
            if stopping:
                raise Stopped
            enter("evaluate" if self._pacer.started else "compile")
            count = min(count, self._max_batches, self._num_steps - start)
            with self._pacer.measure(count):
                yield start, count
            start += count
