"""Random search. It stores nothing: the points depend on the seed alone."""

from __future__ import annotations

from typing import Annotated

from trainer.annotations import Ge, Le
from trainer.sweep.points.points import Point
from trainer.sweep.search.search import Search, SearchContext


class RandomSearch(Search):
    """Samples each point from the seed and its number.

    Args:
        context: the sweep.
        trials: total number of points, including those of earlier commands.
        seed: seed of the sampled values.
    """

    def __init__(
        self,
        context: SearchContext,
        *,
        trials: Annotated[int, Ge(1)] = 20,
        seed: Annotated[int, Ge(0), Le(4294967295)] = 0,
    ) -> None:
        space = context.space()
        self.total = int(min(trials, space.size))
        self._points = context.points(space)
        self._seed = seed
        self._number = 0

    def next_point(self) -> Point | None:
        if self._number == self.total:
            return None
        point = self._points.sample(self._number + 1, self._seed)
        if point is None:
            self.total = self._number
            return None
        self._number += 1
        return point
