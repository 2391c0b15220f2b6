"""What has become of a run, as its directory tells. No TensorFlow."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path


class State(enum.StrEnum):
    """What has become of a run."""

    WAITING = "waiting"
    RUNNING = "running"
    STOPPED = "stopped"
    PRUNED = "pruned"
    FAILED = "failed"
    DONE = "done"


@dataclass(frozen=True)
class Outcome:
    """What a run has come to.

    Attributes:
        state: what has become of it.
        step: updates in its newest checkpoint, or in its result.
        metrics: newest metrics of the test split, by name.
        why: for a failed run, one line that says what happened.
    """

    state: State
    step: int = 0
    metrics: Mapping[str, float] = field(default_factory=dict)
    why: str = ""


def outcome_of(path: Path) -> Outcome:
    """Reads what has become of the run in a directory, which need not exist."""
    raise NotImplementedError(path)
