"""Points drawn at random. What was drawn need not be stored: it depends on the seed alone. No TensorFlow."""

from __future__ import annotations

from collections.abc import Mapping

from trainer.outcome import Outcome
from trainer.sweep.candidates import Candidates
from trainer.sweep.points import Point


class RandomSearch:
    """Draws each point from a seed and its number.

    Args:
        candidates: makes the points.
        total: how many points there are in all.
        seed: of what is drawn.
    """

    def __init__(self, candidates: Candidates, total: int, seed: int) -> None:
        self.total = total
        self._candidates, self._seed, self._number = candidates, seed, 0

    def next(self) -> Point | None:
        if self._number == self.total:
            return None
        point = self._candidates.drawn(self._number + 1, self._seed)
        if point is None:
            self.total = self._number
            return None
        self._number += 1
        return point

    def report(self, point: Point, step: int, metrics: Mapping[str, float]) -> bool:
        return False

    def tell(self, point: Point, outcome: Outcome) -> None:
        pass
