"""What a sweep is made of: points, and who proposes them. No TensorFlow."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from trainer.outcome import Outcome
from trainer.schema import Experiment


@dataclass(frozen=True)
class Point:
    """One run of a sweep.

    Attributes:
        number: from 1, in the order in which points are proposed.
        varied: the overrides in which the points differ, key -> value, as they are written on a command line.
        overrides: all overrides of this point, as for a command of its own.
        experiment: the checked configuration.
        path: its run directory, which no other point has.
        pruned: what it had come to when it was found not worth going on; None: it was not.
    """

    number: int
    varied: Mapping[str, str]
    overrides: Sequence[str]
    experiment: Experiment
    path: Path
    pruned: Outcome | None = None

    @property
    def label(self) -> str:
        """Names the point: `model=cnn optimizer.learning_rate=0.1`; by its directory where nothing is varied."""
        return " ".join(f"{key}={value}" for key, value in self.varied.items()) or self.path.name


class Proposals(Protocol):
    """Proposes points and learns what they came to: a grid, or a search.

    Attributes:
        total: how many points there are in all.
    """

    total: int

    def next(self) -> Point | None:
        """Gives the next point; None: there are no more."""

    def report(self, point: Point, step: int, metrics: Mapping[str, float]) -> bool:
        """Tells metrics of the test split while a point trains; gives whether it is not worth going on (pruned)."""

    def tell(self, point: Point, outcome: Outcome) -> None:
        """Tells what a point came to. A point that was stopped is told nothing of: it is proposed again."""
