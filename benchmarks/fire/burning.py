"""Runs a contender while its processes are killed at random times. No TensorFlow."""

from __future__ import annotations

import contextlib
import itertools
import os
import random
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks.fire.contenders import Contender
from benchmarks.fire.job import Job
from tests.support.processes import descendants

_LOOK_SECS = 0.005


def kill_times(every_secs: float | None, seed: int) -> Iterator[float]:
    """Yield the seconds from the start to each kill.

    Args:
        every_secs: the mean time between two, which is half of it to one and a half; None: for
            ever.
    """
    numbers = random.Random(f"{seed} {every_secs}")
    mean = every_secs or float("inf")
    return itertools.accumulate(mean * numbers.uniform(0.5, 1.5) for _ in itertools.count())


def burn(
    contender: Contender, job: Job, processes: int, times: Iterator[float], limit_secs: float
) -> tuple[float, bool, int]:
    """Train to the end or the limit, and kill a random process at each of `times`.

    When a process has ended, all restart immediately. A kill that finds none waits for one.

    Returns:
        Seconds from the first start to the end, whether it is complete, and how many were killed.

    Raises:
        SystemExit: it fails by itself.
    """
    choices = random.Random(0)
    began = time.monotonic()
    next_kill, kills = next(times), 0
    path = Path(job.folder, "log")
    with path.open("ab") as log:
        started = contender.start(job, processes, log)
        try:
            while (secs := time.monotonic() - began) < limit_secs:
                codes = [process.poll() for process in started]
                if codes[0] == 0:
                    return secs, True, kills
                if any(codes):
                    if not kills:
                        raise SystemExit(f"{contender.title} fails:\n{path.read_text()[-3000:]}")
                    end(started)
                    started = contender.start(job, processes, log)
                elif secs >= next_kill and (pids := contender.victims(job, started)):
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(choices.choice(pids), signal.SIGKILL)
                        next_kill, kills = next(times), kills + 1
                time.sleep(_LOOK_SECS)
            return limit_secs, False, kills
        finally:
            end(started)


def end(started: Sequence[subprocess.Popen[bytes]]) -> None:
    """Kill what is left of some processes, and of those that they have started."""
    below = [pid for each in started if each.poll() is None for pid in descendants(each.pid)]
    for process in started:
        process.kill()
        process.wait()
    for pid in below:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
