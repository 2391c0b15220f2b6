"""Exit codes of processes: what they mean, and how to say it."""

from __future__ import annotations

import signal
from pathlib import Path

from trainer.errors import CRASHED, DONE, RESTARTABLE
from trainer.runs.checkpoint_marker import committed_steps


def reported(code: int, outcome: int | None) -> int:
    """Return how a process has ended.

    Args:
        code: its exit code; negative for the signal that killed it.
        outcome: what it has reported; None: nothing, so that another exit is a crash.
    """
    if outcome is not None:
        return outcome
    return code if code < 0 else CRASHED


def is_success(code: int) -> bool:
    """Return whether an exit code says that the process was done, or has saved and stopped."""
    return code == DONE or code > 128


def is_restartable(code: int) -> bool:
    """Return whether a process was killed or lost its peers, which a restart may repair."""
    return code < 0 or code == RESTARTABLE


def describe(code: int) -> str:
    """Return how a process failed: `was killed by SIGKILL`."""
    if code < 0:
        return f"was killed by {signal.Signals(-code).name}"
    return "lost its peers" if code == RESTARTABLE else "failed"


def console_state(code: int) -> tuple[str, str]:
    """Return the state of a process that has ended, and a detail, for `ProcessTable.end`."""
    if is_success(code):
        return ("done" if code == DONE else "stopped"), ""
    if code == RESTARTABLE:
        return "left", describe(code)
    return ("lost", describe(code)) if code < 0 else ("failed", "")


def left_without_saving(run_dir: Path) -> str:
    """Return the error of a stop that could not save."""
    steps = committed_steps(run_dir / "checkpoints")
    if not steps:
        return "left without saving; there is no checkpoint yet"
    return f"left without saving; the newest checkpoint is that of step {steps[-1]}"
