"""The status of a run, read from its directory."""

from __future__ import annotations

import enum
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from trainer.config.schema import Experiment
from trainer.errors import CRASHED, ConfigError
from trainer.files import is_locked, write_atomically
from trainer.runs import directory, provenance
from trainer.runs.checkpoint_marker import committed_steps, read_marker

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
        done = RunStatus(State.DONE, result["step"], result["metrics"])
        if not (validation := result.get("validation")):
            return done
        return replace(done, metrics=validation, split="validation", test=result["metrics"])
    steps = committed_steps(path / "checkpoints")
    step = max(steps, default=0)
    split, metrics = _newest_metrics(path, steps)
    status = RunStatus(State.STOPPED if steps else State.WAITING, step, metrics, split=split)
    if is_locked(directory.lock_file(path)):
        return replace(status, state=State.RUNNING)
    if failure := _read_json(path / _FAILURE):
        return replace(status, state=State.FAILED, error=failure["error"])
    return status


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
    write_atomically(
        path / _FAILURE, json.dumps({"error": error, "step": step, "exit": CRASHED}, indent=1)
    )


def clear_failure(path: Path) -> None:
    """Remove failure.json: the run continues."""
    (path / _FAILURE).unlink(missing_ok=True)


def _result(path: Path, experiment: Experiment | None) -> dict[str, Any] | None:
    """Return result.json if the run is done."""
    if experiment is not None:
        return directory.read_result(path, experiment)
    result = _read_json(path / "result.json")
    try:
        changed = provenance.changed_values(provenance.read(path))
    except ConfigError:
        changed = {}
    length = {f"train.{key}": value for key, value in (result or {}).get("train", {}).items()}
    return result if {**length, **changed}.items() >= length.items() else None


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
    """Yield the lines of a split, the newest first; an incomplete line is ignored."""
    if path.is_file():
        for text in reversed(path.read_text(encoding="utf-8").splitlines()):
            if f'"{split}"' not in text:
                continue  # of long files few lines are parsed
            try:
                line = json.loads(text)
            except ValueError:
                continue
            if line["split"] == split:
                yield line


def _read_json(path: Path) -> dict[str, Any] | None:
    try:
        content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return content
