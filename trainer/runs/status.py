"""The status of a run, read from its directory."""

from __future__ import annotations

import enum
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from trainer.config.schema import Experiment
from trainer.errors import CRASHED, DamagedError
from trainer.files import is_locked, read_json, write_json
from trainer.runs import directory, provenance
from trainer.runs.checkpoint_marker import committed_steps, read_marker
from trainer.runs.metric_lines import read_lines

_FAILURE = "failure.json"
_METRIC_FILES = ("metrics.jsonl", "evaluations.jsonl")
_SPLITS = ("validation", "test")
"""What selects uses the first of them that is evaluated."""

_NO_METRIC = {"step", "split", "epoch"}


class State(enum.StrEnum):
    """The state of a run."""

    WAITING = "waiting"
    RUNNING = "running"
    STOPPED = "stopped"
    PRUNED = "pruned"
    FAILED = "failed"
    DONE = "done"


@dataclass(frozen=True)
class RunStatus:
    """The status of a run.

    Attributes:
        state: its state.
        step: updates in its newest checkpoint, or in its result.
        metrics: the newest metrics of the split by which is selected, by name.
        error: what happened to a failed run, one line.
        split: that split: `validation`, or `test`.
        test: with a validation split those of the test split; empty: there are none yet.
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
        path: the directory.
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
    split, metrics = _newest_metrics(path, steps)
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


def read_evaluations(path: Path, *splits: str) -> list[tuple[int, Mapping[str, float]]]:
    """Return step and metrics of every evaluation, ascending by step.

    Args:
        path: the run directory.
        *splits: that of the first of these splits which has any; none: the one that selects.
    """
    for split in splits or _SPLITS:
        if lines := [line for name in _METRIC_FILES for line in _lines(path / name, split)]:
            break
    return [
        (line["step"], _metrics_of(line)) for line in sorted(lines, key=lambda line: line["step"])
    ]


def record_failure(path: Path, error: str) -> None:
    """Write failure.json: the run has crashed and does not continue by itself.

    Args:
        path: the run directory, which must be locked.
        error: the first cause, in one line.

    Raises:
        StorageError: it cannot be written.
    """
    step = max(committed_steps(path / "checkpoints"), default=0)
    write_json(path / _FAILURE, {"error": error, "step": step, "exit": CRASHED})


def clear_failure(path: Path) -> None:
    """Remove failure.json: the run continues."""
    (path / _FAILURE).unlink(missing_ok=True)


def _result(path: Path, experiment: Experiment | None) -> dict[str, Any] | None:
    """Return result.json if the run is done."""
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


def _newest_metrics(path: Path, steps: Sequence[int]) -> tuple[str, Mapping[str, float]]:
    for split in _SPLITS:
        lines = [line for name in _METRIC_FILES if (line := next(_lines(path / name, split), None))]
        if lines:
            return split, _metrics_of(max(lines, key=lambda line: line["step"]))
    markers = (read_marker(path / "checkpoints", step) for step in reversed(steps))
    return "test", next((marker["metrics"] for marker in markers if marker["metrics"]), {})


def _metrics_of(line: Mapping[str, Any]) -> Mapping[str, float]:
    return {name: value for name, value in line.items() if name not in _NO_METRIC}


def _lines(path: Path, split: str) -> Iterator[dict[str, Any]]:
    """Yield the lines of a split, the newest first; a damaged file has none."""
    try:
        lines, _ = read_lines(path)
    except DamagedError:
        return
    yield from (line for line in reversed(lines) if line["split"] == split)
