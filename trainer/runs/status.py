"""The status of a run, read from its directory."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from trainer.config.schema import Experiment
from trainer.errors import CRASHED, DamagedError
from trainer.files import is_locked, read_json, write_json
from trainer.runs import directory, provenance
from trainer.runs.checkpoint_marker import committed_steps
from trainer.runs.recorded_metrics import newest_metrics

_FAILURE = "failure.json"


class State(enum.StrEnum):
    """The state of a run."""

    WAITING = "waiting"
    RUNNING = "running"
    STOPPED = "stopped"
    PAUSED = "paused"
    PRUNED = "pruned"
    FAILED = "failed"
    DONE = "done"


@dataclass(frozen=True)
class RunStatus:
    """The status of a run.

    Attributes:
        test: with a validation split those of the test split; empty before the first.
    """

    state: State
    step: int = 0
    metrics: Mapping[str, float] = field(default_factory=dict)
    error: str = ""
    split: str = "test"
    test: Mapping[str, float] = field(default_factory=dict)


def run_status(path: Path, experiment: Experiment | None = None) -> RunStatus:
    """Return the status of the run in a directory, which need not exist.

    Args:
        experiment: the configuration whose length decides whether the run is done; None: that of
            the last command that trained it.
    """
    if result := _result(path, experiment):
        done = RunStatus(State.DONE, result.get("step", 0), result["metrics"])
        if not (validation := result.get("validation")):
            return done
        return replace(done, metrics=validation, split="validation", test=result["metrics"])
    steps = committed_steps(path / "checkpoints")
    step = max(steps, default=0)
    split, metrics = newest_metrics(path, steps)
    status = RunStatus(State.STOPPED if steps else State.WAITING, step, metrics, split=split)
    if is_locked(directory.lock_file(path)):
        return replace(status, state=State.RUNNING)
    try:
        error = str(read_json(path / _FAILURE).get("error", ""))
    except FileNotFoundError:
        return status
    except DamagedError as damage:
        error = str(damage)
    return replace(status, state=State.FAILED, error=error)


def record_failure(path: Path, error: str) -> None:
    """Write failure.json: the run has crashed and does not continue by itself."""
    step = max(committed_steps(path / "checkpoints"), default=0)
    write_json(path / _FAILURE, {"error": error, "step": step, "exit": CRASHED})


def clear_failure(path: Path) -> None:
    """Remove failure.json: the run continues."""
    (path / _FAILURE).unlink(missing_ok=True)


def _result(path: Path, experiment: Experiment | None) -> dict[str, Any] | None:
    if experiment is not None:
        return directory.read_result(path, experiment)
    result = directory.recorded_result(path)
    if result is None:
        return None
    try:
        changed = provenance.changed_values(provenance.read(path))
    except DamagedError:
        changed = {}
    length = {f"train.{key}": value for key, value in result["train"].items()}
    # Not by the order of views: the values of other keys may be lists.
    return (
        result if all(changed.get(key, value) == value for key, value in length.items()) else None
    )
