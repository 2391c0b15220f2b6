"""Makes points of a search from the values that are drawn for them: each once, and none that is wrong. No TensorFlow."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from random import Random

from trainer.errors import ConfigError
from trainer.rundir import path_of
from trainer.schema import Experiment
from trainer.sweep.points import Point
from trainer.sweep.space import Space

Compose = Callable[[list[str]], Experiment]
"""Composes and checks an experiment from overrides; raises ConfigError."""

_DRAWS = 1000
"""How often values that were there before are drawn in a row before there are no others."""


class Candidates:
    """Makes points, no two of them in one run directory.

    Args:
        space: what is varied.
        compose: composes a point.
    """

    def __init__(self, space: Space, compose: Compose) -> None:
        self._space, self._compose = space, compose
        self._tried: set[tuple[str, ...]] = set()
        self._paths: set[Path] = set()

    def point(self, number: int, varied: Mapping[str, str]) -> Point | None:
        """Makes a point of values; None: they were there before, as another point's, or are refused."""
        values = tuple(varied.values())
        if values in self._tried:
            return None
        self._tried.add(values)
        overrides = self._space.overrides(varied)
        try:
            experiment = self._compose(overrides)
        except ConfigError:
            return None  # the edges have been told; within them, what cannot be trained is no part of the space
        path = path_of(experiment)
        if path in self._paths:
            return None
        self._paths.add(path)
        return Point(number, varied, overrides, experiment, path)

    def drawn(self, number: int, seed: int) -> Point | None:
        """Draws a point; it depends on the seed, its number, and the points before. None: there is no other."""
        for attempt in range(_DRAWS):
            if point := self.point(number, self._space.draw(Random(f"{seed}:{number}:{attempt}"))):
                return point
        return None
