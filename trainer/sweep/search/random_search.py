"""Random search. It stores nothing: the points depend on the seed alone."""

from __future__ import annotations

from collections.abc import Mapping

from trainer.runs.status import RunStatus
from trainer.sweep.points.point_factory import PointFactory
from trainer.sweep.points.points import Point


class RandomSearch:
    """Samples each point from the seed and its number.

    Args:
        factory: creates the points.
        total: number of points in the sweep.
        seed: seed of all samples.
    """

    def __init__(self, factory: PointFactory, total: int, seed: int) -> None:
        self.total = total
        self._factory = factory
        self._seed = seed
        self._number = 0

    def next_point(self) -> Point | None:
        if self._number == self.total:
            return None
        point = self._factory.sample(self._number + 1, self._seed)
        if point is None:
            self.total = self._number
            return None
        self._number += 1
        return point

    def should_prune(self, point: Point, step: int, metrics: Mapping[str, float]) -> bool:
        return False

    def record_outcome(self, point: Point, outcome: RunStatus) -> None:
        pass
