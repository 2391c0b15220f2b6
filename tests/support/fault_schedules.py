"""Schedules of faults that a seed draws, and a callback that holds a run where they happen."""

from __future__ import annotations

import json
import os
import random
from dataclasses import dataclass

SEED = int(os.environ.get("STEADFAST_SCHEDULE_SEED", "1"))
_STEPS = (4, 8, 12, 16, 20)  # an evaluation follows each

HOLD = '''
import os, pathlib, threading, time

from trainer.cluster.signals import Signals

IS_CHIEF = '"index": 0}' in os.environ.get("TF_CONFIG", '"index": 0}')
requested, request = threading.Event(), Signals.request


def noticed(self, number):
    request(self, number)
    if self.number:
        requested.set()


Signals.request = noticed


class Hold:
    """Waits at some steps, each once in a run, until it is released, or a stop is requested."""

    def __init__(self, *, at: list[int], folder: str) -> None:
        self.at, self.folder = list(at), pathlib.Path(folder)

    def on_evaluate(self, step, metrics):
        reached, free = (self.folder / f"{name}-{step}" for name in ("reached", "free"))
        if IS_CHIEF and step in self.at and not reached.exists():
            reached.touch()
            end = time.monotonic() + 600
            while not free.exists() and not requested.wait(0.1):
                assert time.monotonic() < end, "nothing has happened"
        return False
'''


@dataclass(frozen=True)
class Fault:
    """One fault.

    Attributes:
        kind: what happens.
        step: where the run is held for it.
        delay_secs: how long the run has been going on from there when it happens.
        moment: draws the rest.
    """

    kind: str
    step: int
    delay_secs: float
    moment: random.Random

    def __str__(self):
        return f"{self.kind} {self.delay_secs:g} s after step {self.step}"


def schedules(kinds, num_faults):
    """Return a schedule for each kind; every kind is in as many of them as a schedule has faults.

    The last fault happens where the run is held: it could be over before a later one.
    """
    draw = random.Random(SEED)
    columns = [draw.sample(kinds, len(kinds)) for _ in range(num_faults)]
    found = []
    for row in zip(*columns, strict=True):
        steps = sorted(draw.sample(_STEPS, num_faults))
        delays = [draw.choice([0.0, round(draw.uniform(0, 0.5), 3)]) for _ in steps[1:]]
        found.append(
            [
                Fault(kind, step, delay, random.Random(draw.random()))
                for kind, step, delay in zip(row, steps, [*delays, 0.0], strict=True)
            ]
        )
    return found


def hold(directory, folder, at):
    """Put the callback into a user's project, and return the override that selects it."""
    (directory / "hold.py").write_text(HOLD)
    steps = json.dumps(list(at), separators=(",", ":"))
    return f"+callbacks.hold={{_target_:hold.Hold,at:{steps},folder:'{folder}'}}"


def free(folder, fault):
    """Release a run that is held for a fault."""
    (folder / f"free-{fault.step}").touch()
