"""The actions of faults: `fault=[{action: kill, ...}]`. No TensorFlow.

What an action does, a process decides in `trainer.cluster.fault_injection`.
"""

from __future__ import annotations

import signal
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Action:
    """What a fault does.

    Attributes:
        effect: what the message reports of the process: `chief` `is killed` at step 50.
        signal: what the process is sent, which another process can do; None: it acts itself.
    """

    effect: str
    signal: int | None = None
    fixed: Mapping[str, Any] = field(default_factory=lambda: {"delay_secs": 0.0})
    needs_loop: bool = False


_IN_STEP = {"phase": "step", "delay_secs": 0.0}

ACTIONS = {
    "kill": Action("is killed", signal.SIGKILL, {}),
    "terminate": Action("gets SIGTERM", signal.SIGTERM, {}),
    "freeze": Action("is frozen", signal.SIGSTOP, {}),
    "crash": Action("crashes"),
    "slow": Action("sleeps {delay:g} s each time from now on,", fixed={}),
    "full_disk": Action(
        "finds the disk full", fixed={"process": "chief", "phase": "save", "delay_secs": 0.0}
    ),
    "corrupt": Action(
        "loses a bit of its newest checkpoint, and is killed",
        fixed={"process": "chief", "delay_secs": 0.0},
    ),
    "flip_bit": Action(
        "has a bit of a variable flipped in its memory", fixed=_IN_STEP, needs_loop=True
    ),
    "nan": Action("trains on a batch whose loss is NaN", fixed=_IN_STEP, needs_loop=True),
}


def action_of(kind: str) -> Action:
    """Return an action by its name, or `own`, a function of the user's."""
    return Action("calls {target}") if kind == "own" else ACTIONS[kind]
