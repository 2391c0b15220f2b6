"""Reads what the page shows of a run; a damaged file is noted and hides nothing else.

No TensorFlow.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from trainer.errors import DamagedError
from trainer.files import read_bytes, read_json
from trainer.runs import crash_report, process_status, provenance
from trainer.runs.checkpoint_marker import committed_steps
from trainer.runs.directory import trained_config
from trainer.runs.ledger import Ledger, TimeSummary
from trainer.runs.process_status import HostStatus
from trainer.runs.status import RunStatus, State, run_status

_Any = TypeVar("_Any")
_MAX_CLASSES = 1000
_PICTURES = ("samples.png", "masks.png")
_TEXTS = ("samples.txt",)


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
        outcome: its status.
        record: the content of run.json.
        config: every leaf of its configuration, by dotted key.
        time: the time spent by category; None: not known.
        saves: the steps of its checkpoints.
        hosts: what the processes of each command do, with the seconds since it was written.
        confusion: the newest confusion matrix, if any.
        pictures: the newest pictures of its evaluations, PNG files, by name.
        texts: the newest texts of its evaluations, by name.
        crash: the text of crash.txt, or empty.
        problems: what could not be read, one line each.
    """

    place: str
    outcome: RunStatus = field(default_factory=lambda: RunStatus(State.WAITING))
    record: Mapping[str, Any] = field(default_factory=dict)
    config: Mapping[str, Any] = field(default_factory=dict)
    time: TimeSummary | None = None
    saves: Sequence[int] = ()
    hosts: Sequence[tuple[HostStatus, float]] = ()
    confusion: Confusion | None = None
    pictures: Mapping[str, bytes] = field(default_factory=dict)
    texts: Mapping[str, str] = field(default_factory=dict)
    crash: str = ""
    problems: list[str] = field(default_factory=list)

    def attempt(self, name: str, make: Callable[[], _Any], default: _Any) -> _Any:
        """Return what `make` returns; if it fails, note why, and return the default."""
        try:
            return make()
        except Exception as error:  # the page is shown whatever a file holds
            problem = f"{name} cannot be read: {type(error).__name__}: {error}"
            if isinstance(error, DamagedError):
                problem = str(error)
            self.problems.append(problem.splitlines()[0])
            return default


def read(path: Path, place: str | None = None) -> Run:
    """Read a run, which may still be running, or be damaged.

    Args:
        path: its directory.
        place: where it is, if that is not its directory.
    """
    run = Run(place or str(path))
    attempt = run.attempt
    run.outcome = attempt("its status", lambda: run_status(path), run.outcome)
    for name in ("result.json", "failure.json"):
        if (file := path / name).exists():
            attempt(name, partial(read_json, file), None)
    run.record = attempt("run.json", lambda: provenance.read(path), {})
    run.config = attempt("config.yaml", lambda: trained_config(path), {})
    run.time = attempt("ledger.jsonl", lambda: _time(path), None)
    run.saves = attempt("checkpoints", lambda: committed_steps(path / "checkpoints"), ())
    run.hosts = attempt("logs", lambda: _hosts(path), ())
    run.confusion = attempt("confusion.json", lambda: _confusion(path / "confusion.json"), None)
    run.pictures = {
        name: content
        for name in _PICTURES
        if (content := attempt(name, partial(_content, path / name), None))
    }
    run.texts = {
        name: text for name in _TEXTS if (text := attempt(name, partial(_text, path / name), ""))
    }
    run.crash = attempt("crash.txt", lambda: _text(crash_report.report_path(path)), "")
    return run


def _time(path: Path) -> TimeSummary | None:
    summary = Ledger(path, writes=False).summary()
    return summary if summary.wall_secs else None


def _hosts(path: Path) -> Sequence[tuple[HostStatus, float]]:
    now = time.time()
    records = process_status.without_earlier(process_status.read(path), ())
    return [(record, process_status.age_secs(path, name, now)) for name, record in records.items()]


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


def _content(path: Path) -> bytes | None:
    return read_bytes(path) if path.exists() else None


def _text(path: Path) -> str:
    return (_content(path) or b"").decode(errors="replace")
