"""Measures how long this process works on steps, and how long it waits for the others.

The wait has two parts. Between graph calls it is the time until all processes have agreed on the
next one. Within a call it is that of the exchange of gradients: in shared memory the time between
arriving and the arrival of the last, measured by the exchange itself. A ring of TensorFlow's tells
only when the gradient was ready and when the sum was there, and the travel of the gradient is in
between; the least such time of any process counts as travel, what is above it as waiting.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from trainer.engine.process_group import ProcessGroup
from trainer.runs.ledger import WorkerRecord, WorkerTime


@dataclass(frozen=True)
class ExchangeTime:
    """How long a process has spent in exchanges of gradients.

    Attributes:
        read: returns the seconds since its start.
        includes_travel: whether the travel of the gradients is in them, not only the wait.
    """

    read: Callable[[], float]
    includes_travel: bool = False


class WorkerClock:
    """Measures this process from one log interval to the next.

    Args:
        process_group: the processes that run every step together.
        names: their names, in order.
        exchange: their exchange of gradients; None: it is not measured.
    """

    def __init__(
        self,
        process_group: ProcessGroup,
        names: Sequence[str] = (),
        exchange: ExchangeTime | None = None,
    ) -> None:
        self._process_group = process_group
        self._names = names
        self._exchange = exchange or ExchangeTime(lambda: 0.0)
        self.begin(0)

    def begin(self, step: int) -> None:
        """Begin an interval after `step` updates; what was measured before is dropped."""
        self._step = step
        self._began = time.monotonic()
        self._busy_secs = 0.0
        self._agree_secs = 0.0
        self._exchanged = self._exchange.read()

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Count the block as a wait for the other processes."""
        began = time.monotonic()
        yield
        self._agree_secs += time.monotonic() - began

    @contextmanager
    def working(self) -> Iterator[None]:
        """Count the block as steps: as work, but for what the exchange says of it."""
        began = time.monotonic()
        yield
        # An interval that began within the block has only its end.
        self._busy_secs += time.monotonic() - max(began, self._began)

    def end(self, step: int) -> WorkerRecord:
        """Return what all processes did in the interval, and begin the next one; collective.

        Args:
            step: number of updates made.
        """
        exchange_secs = self._exchange.read() - self._exchanged
        own = (self._busy_secs, self._agree_secs, exchange_secs)
        num_steps = step - self._step
        self.begin(step)
        if self._process_group.count == 1:
            return WorkerRecord()
        gathered = self._process_group.gather(*(round(1e6 * secs) for secs in own))
        rows = [[value / 1e6 for value in row] for row in gathered]
        if not num_steps:  # after a stop within the evaluation of this step
            return WorkerRecord()
        travel = min(row[2] for row in rows) if self._exchange.includes_travel else 0.0
        return WorkerRecord(
            {
                name: WorkerTime(
                    max(0.0, busy - exchanged + travel), agreed + exchanged - travel, num_steps
                )
                for name, (busy, agreed, exchanged) in zip(self._names, rows, strict=True)
            }
        )
