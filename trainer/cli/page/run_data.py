"""Reads what a report shows of a run; a damaged file is noted and hides nothing else.

No TensorFlow.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

from trainer.config.directions import Directions
from trainer.errors import DamagedError
from trainer.files import read_bytes, read_json
from trainer.runs import (
    crash_report,
    identity,
    provenance,
)
from trainer.runs.directory import trained_config
from trainer.runs.ledger import Ledger, TimeSummary
from trainer.runs.recorded_metrics import read_directions, read_lines
from trainer.runs.status import RunStatus, State, run_status

Points: TypeAlias = Sequence[tuple[int, float]]
"""Steps, ascending, each with a value, which may be NaN or infinite."""

_Any = TypeVar("_Any")
_NO_CURVE = {"step", "split", "epoch"}
_MAX_CLASSES = 1000


@dataclass(frozen=True)
class Confusion:
    """A confusion matrix.

    Attributes:
        step: the step of its evaluation.
        classes: names of the C classes.
        matrix: [C, C] counts; rows are labels, columns are predictions.
    """

    step: int
    classes: Sequence[str]
    matrix: Sequence[Sequence[float]]


@dataclass
class Run:
    """A run.

    Attributes:
        place: its directory, or its address in a store.
        label: its name in the report.
        outcome: its status.
        record: the content of run.json.
        config: every leaf of its configuration, by dotted key.
        curves: the points of each metric, by split and name.
        directions: which direction of its metrics is better.
        time: the time spent by category; None: not known.
        confusion: the newest confusion matrix, if any.
        samples: the newest picture of generated examples, a PNG file, if any.
        crash: the text of crash.txt, or empty.
        problems: what could not be read, one line each.
    """

    place: str
    label: str
    outcome: RunStatus = field(default_factory=lambda: RunStatus(State.WAITING))
    record: Mapping[str, Any] = field(default_factory=dict)
    config: Mapping[str, Any] = field(default_factory=dict)
    curves: Mapping[tuple[str, str], Points] = field(default_factory=dict)
    directions: Directions = field(default_factory=Directions)
    time: TimeSummary | None = None
    confusion: Confusion | None = None
    samples: bytes | None = None
    crash: str = ""
    problems: list[str] = field(default_factory=list)

    def best(self, metric: str) -> tuple[int, float] | None:
        """Return step and value of the best evaluation by a metric, or None without one."""
        curve = self.curves.get(("validation", metric)) or self.curves.get(("test", metric), ())
        points = [(step, value) for step, value in curve if value == value]
        mode = self.directions.mode(metric)
        better = min if mode == "min" else max
        return None if mode is None else better(points, key=lambda point: point[1], default=None)


def read(path: Path, label: str, place: str | None = None) -> Run:
    """Read a run, which may still be running, or be damaged.

    Args:
        path: its directory.
        label: its name in the report.
        place: where it is, if that is not its directory.
    """
    run = Run(place or str(path), label)

    def attempt(name: str, make: Callable[[], _Any], default: _Any) -> _Any:
        try:
            return make()
        except Exception as error:  # the report is written whatever a file holds
            problem = f"{name} cannot be read: {type(error).__name__}: {error}"
            if isinstance(error, DamagedError):
                problem = str(error)
            run.problems.append(problem.splitlines()[0])
            return default

    run.outcome = attempt("its status", lambda: run_status(path), run.outcome)
    for name in ("result.json", "failure.json"):
        if (file := path / name).exists():
            attempt(name, partial(read_json, file), None)
    run.record = attempt("run.json", lambda: provenance.read(path), {})
    run.directions = attempt("run.json", lambda: read_directions(path), Directions())
    run.config = attempt("config.yaml", lambda: trained_config(path), {})
    run.curves = attempt("metrics", lambda: _curves(path, run.problems), {})
    run.time = attempt("ledger.jsonl", lambda: _time(path), None)
    run.confusion = attempt("confusion.json", lambda: _confusion(path / "confusion.json"), None)
    run.samples = attempt("samples.png", lambda: _picture(path / "samples.png"), None)
    run.crash = attempt("crash.txt", lambda: _text(crash_report.report_path(path)), "")
    return run


def main_metric(runs: Sequence[Run], names: Collection[str]) -> str:
    """Return the one of some metrics by which runs are compared: their primary one, or the loss."""
    return next((run.directions.primary for run in runs if run.directions.primary in names), "loss")


def differing(runs: Sequence[Run]) -> dict[str, list[Any]]:
    """Return each key that differs between the runs, with its value, or None, in each run."""
    configs = [run.config for run in runs if run.config]
    keys = dict.fromkeys(
        change.key for config in configs[1:] for change in identity.changes(configs[0], config)
    )
    order = {
        key: index
        for index, key in enumerate(dict.fromkeys(key for config in configs for key in config))
    }
    return {
        key: [_value(run.config.get(key)) for run in runs]
        for key in sorted(keys, key=order.__getitem__)
    }


def _value(value: Any) -> Any:
    return None if value == {} else value  # an empty section counts as missing


def _curves(path: Path, problems: list[str]) -> dict[tuple[str, str], Points]:
    """Return the points of each metric by split and name; of a step the last line counts."""
    curves: dict[tuple[str, str], dict[int, float]] = {}
    for name in ("metrics.jsonl", "evaluations.jsonl"):
        try:
            lines, damaged = read_lines(path / name)
        except DamagedError as error:
            problems.append(str(error))
            continue
        for line in lines:
            for key, value in line.items():
                if key not in _NO_CURVE and value is not None:
                    points = curves.setdefault((line["split"], key), {})
                    points[line["step"]] = float(value)
        if damaged:
            problems.append(f"{name}: {damaged} of {damaged + len(lines)} lines cannot be read")
    return {key: sorted(points.items()) for key, points in curves.items()}


def _time(path: Path) -> TimeSummary | None:
    summary = Ledger(path, writes=False).summary()
    return summary if summary.wall_secs else None


def _confusion(path: Path) -> Confusion | None:
    if not path.exists():
        return None
    content = read_json(path)
    matrix = [[float(count) for count in row] for row in content["matrix"]]
    classes = [str(name) for name in content["classes"]]
    if (
        not 0 < len(matrix) <= _MAX_CLASSES
        or any(len(row) != len(matrix) for row in matrix)
        or len(classes) != len(matrix)
    ):
        raise ValueError(f"no square matrix with a name for each of at most {_MAX_CLASSES} classes")
    return Confusion(int(content["step"]), classes, matrix)


def _picture(path: Path) -> bytes | None:
    return read_bytes(path) if path.exists() else None


def _text(path: Path) -> str:
    return read_bytes(path).decode(errors="replace") if path.exists() else ""
