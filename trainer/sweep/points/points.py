"""The points of a sweep, and the interface of the search methods that choose them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from trainer.config.schema import Experiment
from trainer.runs.status import RunStatus


@dataclass(frozen=True)
class Point:
    """One run of a sweep.

    Attributes:
        number: position in the sweep, from 1.
        varied: key -> value of the overrides in which the points differ, as written on a
            command line.
        overrides: all overrides of this point, as for a command of its own.
        experiment: the checked configuration.
        path: its run directory, which no other point has.
        pruned: its outcome, if an earlier command has pruned it.
    """

    number: int
    varied: Mapping[str, str]
    overrides: Sequence[str]
    experiment: Experiment
    path: Path
    pruned: RunStatus | None = None

    @property
    def label(self) -> str:
        """The varied values, `model=cnn seed=1`; the directory's name where nothing is varied."""
        return " ".join(f"{key}={value}" for key, value in self.varied.items()) or self.path.name


@dataclass(frozen=True)
class PointResult:
    """A point and its outcome."""

    point: Point
    outcome: RunStatus


class SearchMethod(Protocol):
    """Chooses the points of a sweep, perhaps by the results of earlier ones.

    Attributes:
        total: number of points in the sweep.
    """

    total: int

    def next_point(self) -> Point | None:
        """Return the next point, or None if there are no more."""

    def should_prune(self, point: Point, step: int, metrics: Mapping[str, float]) -> bool:
        """Record an evaluation on the test split; return whether to stop the point early."""

    def record_outcome(self, point: Point, outcome: RunStatus) -> None:
        """Record the outcome of a point; not of a stopped one, which is chosen again."""
