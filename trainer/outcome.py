"""What has become of a run, as its directory tells. No TensorFlow."""

from __future__ import annotations

import enum
import fcntl
import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from trainer import provenance, rundir
from trainer.errors import ConfigError
from trainer.exitcodes import CRASHED
from trainer.files import write_atomically
from trainer.markers import committed, marker
from trainer.schema import Experiment

_FAILURE = "failure.json"
_LINES = ("metrics.jsonl", "evaluations.jsonl")
_NO_METRIC = {"step", "split", "epoch"}


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


def outcome_of(path: Path, experiment: Experiment | None = None) -> Outcome:
    """Reads what has become of the run in a directory, which need not exist.

    Args:
        path: the directory.
        experiment: tells the length for which the run is done or not; None: that of the last command that trained it.
    """
    if result := _result(path, experiment):
        return Outcome(State.DONE, result["step"], result["metrics"])
    steps = committed(path / "checkpoints")
    step, metrics = max(steps, default=0), _newest_metrics(path, steps)
    if _is_locked(path):
        return Outcome(State.RUNNING, step, metrics)
    if failure := _read(path / _FAILURE):
        return Outcome(State.FAILED, step, metrics, failure["error"])
    return Outcome(State.STOPPED if steps else State.WAITING, step, metrics)


def evaluations(path: Path) -> list[tuple[int, Mapping[str, float]]]:
    """Gives step and metrics of every evaluation of a run on the test split, the oldest first."""
    lines = [line for name in _LINES for line in _test_lines(path / name)]
    return [(line["step"], _metrics_of(line)) for line in sorted(lines, key=lambda line: line["step"])]


def main_metric(names: Collection[str]) -> str:
    """Gives the metric that runs are compared by unless another is named."""
    return "accuracy" if "accuracy" in names else "loss"


def smaller_is_better(metric: str, mode: str = "auto") -> bool:
    """Whether a smaller value of a metric is better; mode: max, min, or auto: of a loss or an error it is."""
    return mode == "min" or (mode == "auto" and ("loss" in metric or "error" in metric))


def record_failure(path: Path, why: str) -> None:
    """Writes failure.json: the run has crashed, and does not go on by itself.

    Args:
        path: the run directory, which must be locked.
        why: the first cause, in one line.

    Raises:
        StorageError: it cannot be written.
    """
    step = max(committed(path / "checkpoints"), default=0)
    write_atomically(path / _FAILURE, json.dumps({"error": why, "step": step, "exit": CRASHED}, indent=1))


def forget_failure(path: Path) -> None:
    """Removes failure.json: the run goes on."""
    (path / _FAILURE).unlink(missing_ok=True)


def _result(path: Path, experiment: Experiment | None) -> dict[str, Any] | None:
    """Gives result.json if the run is done."""
    if experiment is not None:
        return rundir.result_of(path, experiment)
    result = _read(path / "result.json")
    try:
        changed = provenance.changed(provenance.read(path))
    except ConfigError:
        changed = {}
    length = {f"train.{key}": value for key, value in (result or {}).get("train", {}).items()}
    return result if {**length, **changed}.items() >= length.items() else None


def _newest_metrics(path: Path, steps: Sequence[int]) -> Mapping[str, float]:
    lines = [line for name in _LINES if (line := next(_test_lines(path / name), None))]
    if lines:
        return _metrics_of(max(lines, key=lambda line: line["step"]))
    return next((metrics for step in reversed(steps) if (metrics := marker(path / "checkpoints", step)["metrics"])), {})


def _metrics_of(line: Mapping[str, Any]) -> Mapping[str, float]:
    return {name: value for name, value in line.items() if name not in _NO_METRIC}


def _test_lines(path: Path) -> Iterator[dict[str, Any]]:
    """Gives the lines of the test split, the newest first; one that is cut off, or being written, does not count."""
    if path.is_file():
        for text in reversed(path.read_text(encoding="utf-8").splitlines()):
            try:
                line = json.loads(text)
            except ValueError:
                continue
            if line["split"] == "test":
                yield line


def _is_locked(path: Path) -> bool:
    """Whether a process holds the run. Shared, so that two who ask do not take each other for one."""
    try:
        with (path / ".lock").open("rb") as opened:
            fcntl.flock(opened, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False  # there is none
    return False


def _read(path: Path) -> dict[str, Any] | None:
    try:
        content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return content
