"""One of the processes of a contestant: `python -m benchmarks.scaling.worker <contestant> <model> <steps> <folder> <descriptor>`."""

from __future__ import annotations

import signal
import sys
import time
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from benchmarks.scaling.contestants import CONTESTANTS, JOBS, STEPS_PER_LOOP
from benchmarks.scaling.team import bytes_sent


class LockStep:
    """The clock: lets all processes start at once when they are warm, and reports when the steps are done.

    Attributes:
        gradient_bytes: of one step's gradients in float32; the contestant says it.
    """

    def __init__(self, parent: Connection, steps: int) -> None:
        self._parent, self._steps, self.gradient_bytes = parent, steps, 0
        self._began: tuple[int, int | None, float, float] | None = None

    def __call__(self, step: int, loss: Any) -> None:
        if self._began is None and step >= STEPS_PER_LOOP:
            float(loss)  # all that was asked for is done
            sent = bytes_sent()
            self._parent.send("warm")
            self._parent.recv()
            self._began = step, sent, time.process_time(), time.perf_counter()
        elif self._began is not None and step >= self._began[0] + self._steps:
            self._report(step, float(loss))
            # The others may still take from this process what they need to end their step: it waits to be killed.
            signal.pause()

    def _report(self, step: int, loss: float) -> None:
        assert self._began is not None
        now, busy, sent = time.perf_counter(), time.process_time(), bytes_sent()
        first, sent_before, busy_before, before = self._began
        steps = step - first
        self._parent.send(
            {
                "ms": 1000 * (now - before) / steps,
                "cpu_ms": 1000 * (busy - busy_before) / steps,
                "sent": None if sent is None or sent_before is None else (sent - sent_before) / steps,
                "gradient_bytes": self.gradient_bytes,
                "loss": loss,
            }
        )


def main() -> None:
    name, model, steps, folder, descriptor = sys.argv[1:]
    CONTESTANTS[name].train(JOBS[model], Path(folder), LockStep(Connection(int(descriptor)), int(steps)))


if __name__ == "__main__":
    main()
