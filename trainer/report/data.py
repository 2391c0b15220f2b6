"""What a report tells of a run, read from its directory; what is missing or damaged is noted, and hides nothing else. No TensorFlow."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

from trainer import crash, identity, provenance
from trainer.ledger import Ledger, Summary
from trainer.outcome import Outcome, State, outcome_of, smaller_is_better
from trainer.rundir import trained_with

Points: TypeAlias = Sequence[tuple[int, float]]
"""Steps, ascending, each with a value; one that is no number is NaN or infinite."""

_Any = TypeVar("_Any")
_NO_CURVE = {"step", "split", "epoch"}
_MAX_CLASSES = 1000


@dataclass(frozen=True)
class Confusion:
    """How often each class was taken for which.

    Attributes:
        step: of which step.
        classes: names.
        matrix: [C, C] counts; rows are labels, columns are predictions.
    """

    step: int
    classes: Sequence[str]
    matrix: Sequence[Sequence[float]]


@dataclass
class Run:
    """A run.

    Attributes:
        path: its directory.
        label: what tells it from the others.
        outcome: what has become of it.
        record: run.json.
        config: every leaf of its configuration, by dotted key.
        curves: by split and name.
        time: where the time went; None: it is not known.
        confusion: None: there is none.
        crash: crash.txt; empty: there is none.
        problems: what could not be read, a line each.
    """

    path: Path
    label: str
    outcome: Outcome = field(default_factory=lambda: Outcome(State.WAITING))
    record: Mapping[str, Any] = field(default_factory=dict)
    config: Mapping[str, Any] = field(default_factory=dict)
    curves: Mapping[tuple[str, str], Points] = field(default_factory=dict)
    time: Summary | None = None
    confusion: Confusion | None = None
    crash: str = ""
    problems: list[str] = field(default_factory=list)

    def best(self, metric: str) -> tuple[int, float] | None:
        """Gives step and value of the best evaluation by a metric; None: there is none."""
        points = [(step, value) for step, value in self.curves.get(("test", metric), ()) if value == value]
        better = min if smaller_is_better(metric) else max
        return better(points, key=lambda point: point[1], default=None)


def read(path: Path, label: str) -> Run:
    """Reads a run, which may be running, or broken."""
    run = Run(path, label)

    def attempt(what: str, make: Callable[[], _Any], otherwise: _Any) -> _Any:
        try:
            return make()
        except Exception as error:  # whatever is in a file, the report comes about
            run.problems.append(f"{what} cannot be read: {type(error).__name__}: {error}".splitlines()[0])
            return otherwise

    run.outcome = attempt("what has become of it", lambda: outcome_of(path), run.outcome)
    run.record = attempt("run.json", lambda: provenance.read(path), {})
    run.config = attempt("config.yaml", lambda: trained_with(path), {})
    run.curves = attempt("metrics", lambda: _curves(path, run.problems), {})
    run.time = attempt("ledger.jsonl", lambda: _time(path), None)
    run.confusion = attempt("confusion.json", lambda: _confusion(path / "confusion.json"), None)
    run.crash = attempt("crash.txt", lambda: _text(crash.path_in(path)), "")
    return run


def differing(runs: Sequence[Run]) -> dict[str, list[Any]]:
    """Gives each key that is not the same in all configurations, with its value in each run; None where it is not there."""
    known = [run.config for run in runs if run.config]
    keys = dict.fromkeys(change.key for config in known[1:] for change in identity.changes(known[0], config))
    order = {key: place for place, key in enumerate(dict.fromkeys(key for config in known for key in config))}
    return {key: [_value(run.config.get(key)) for run in runs] for key in sorted(keys, key=order.__getitem__)}


def _value(value: Any) -> Any:
    return None if value == {} else value  # an empty section is as good as none


def _curves(path: Path, problems: list[str]) -> dict[tuple[str, str], Points]:
    found: dict[tuple[str, str], dict[int, float]] = {}
    for name in ("metrics.jsonl", "evaluations.jsonl"):
        texts = _text(path / name).splitlines()
        damaged = 0
        for text in texts:
            try:
                line = json.loads(text)
                split, step = str(line["split"]), int(line["step"])
                values = {str(key): float(value) for key, value in line.items() if key not in _NO_CURVE and value is not None}
            except (ValueError, KeyError, TypeError, AttributeError):
                damaged += 1
                continue
            for key, value in values.items():
                found.setdefault((split, key), {})[step] = value
        if damaged:
            problems.append(f"{name}: {damaged} of {len(texts)} lines cannot be read")
    return {key: sorted(points.items()) for key, points in found.items()}


def _time(path: Path) -> Summary | None:
    summary = Ledger(path, writes=False).summary()
    return summary if summary.wall_secs else None


def _confusion(path: Path) -> Confusion | None:
    if not path.exists():
        return None
    content = json.loads(path.read_text(encoding="utf-8"))
    matrix = [[float(count) for count in row] for row in content["matrix"]]
    classes = [str(name) for name in content["classes"]]
    if not 0 < len(matrix) <= _MAX_CLASSES or any(len(row) != len(matrix) for row in matrix) or len(classes) != len(matrix):
        raise ValueError(f"no square matrix with a name for each of at most {_MAX_CLASSES} classes")
    return Confusion(int(content["step"]), classes, matrix)


def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""
