"""How many steps go into one graph call. No TensorFlow."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

_TOO_SHORT_SECS, _TOO_LONG_SECS = 0.5, 2.0


class Pace:
    """A fixed number of steps, or (`auto`) about a second's worth.

    Long enough that the host costs nothing, short enough that a signal, the progress bar and the watchdog are served in time.

    Args:
        steps_per_loop: the number, or `auto`.

    Attributes:
        count: steps in the next call.
        started: whether a call has been made.
    """

    def __init__(self, steps_per_loop: int | str) -> None:
        self._auto = steps_per_loop == "auto"
        self.count = 1 if steps_per_loop == "auto" else int(steps_per_loop)
        self.started = False

    def took(self, count: int, secs: float) -> None:
        """Learns how long a call of `count` steps took. The first one is mostly compilation and teaches nothing."""
        if self._auto and self.started:
            if secs < _TOO_SHORT_SECS and count >= self.count:
                self.count *= 2
            elif secs > _TOO_LONG_SECS:
                self.count = max(1, self.count // 2)
        self.started = True

    @contextmanager
    def measured(self, count: int) -> Iterator[None]:
        """Learns from the time that the block takes."""
        began = time.monotonic()
        yield
        self.took(count, time.monotonic() - began)
