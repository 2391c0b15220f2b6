"""A process of a contestant.

python -m benchmarks.scaling.worker <contestant> <model> <steps> <folder> <descriptor>
"""

from __future__ import annotations

import signal
import sys
import time
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from benchmarks.scaling.contestants import CONTESTANTS, JOBS, STEPS_PER_LOOP
from trainer.cluster.network_namespace import loopback_bytes


class LockStep:
    """The clock: starts all processes at once when they are warm, and reports when they are done.

    Attributes:
        gradient_bytes: of one step's gradients in float32; the contestant says it.
    """

    def __init__(self, parent: Connection, steps: int) -> None:
        self._parent = parent
        self._steps = steps
        self.gradient_bytes = 0
        self._began: tuple[int, int | None, float, float] | None = None

    def __call__(self, step: int, loss: Any) -> None:
        if self._began is None and step >= STEPS_PER_LOOP:
            float(loss)  # waits until it is computed
            sent = loopback_bytes()
            self._parent.send("warm")
            self._parent.recv()
            self._began = step, sent, time.process_time(), time.perf_counter()
        elif self._began is not None and step >= self._began[0] + self._steps:
            self._report(step, float(loss))
            # The others may still need this process to end their step, so it waits to be killed.
            signal.pause()

    def _report(self, step: int, loss: float) -> None:
        assert self._began is not None
        now = time.perf_counter()
        busy = time.process_time()
        sent = loopback_bytes()
        first, sent_before, busy_before, before = self._began
        steps = step - first
        self._parent.send(
            {
                "ms": 1000 * (now - before) / steps,
                "cpu_ms": 1000 * (busy - busy_before) / steps,
                "sent": None
                if sent is None or sent_before is None
                else (sent - sent_before) / steps,
                "gradient_bytes": self.gradient_bytes,
                "loss": loss,
            }
        )


def main() -> None:
    name, model, steps, folder, descriptor = sys.argv[1:]
    CONTESTANTS[name].train(
        JOBS[model], Path(folder), LockStep(Connection(int(descriptor)), int(steps))
    )


if __name__ == "__main__":
    main()
