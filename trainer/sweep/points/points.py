"""The points of a sweep, composed and checked; no two are the same run."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random

from trainer.cli.compose import Composer
from trainer.cluster import environment
from trainer.config.schema import Experiment
from trainer.errors import ConfigError
from trainer.launch.run_context import resolve
from trainer.runs.identity import digest, run_path
from trainer.runs.secret_masking import shown
from trainer.runs.status import RunStatus
from trainer.sweep.search.search_space import SearchSpace

Compose = Callable[[list[str]], Experiment]
"""Composes and checks an experiment from overrides; raises ConfigError."""

_MAX_ATTEMPTS = 1000
"""Samples in a row without a new point after which the search space counts as exhausted."""


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
    def shown(self) -> Mapping[str, str]:
        """The varied values without secrets, for people and records."""
        values: Mapping[str, str] = shown(self.varied)
        return values

    @property
    def label(self) -> str:
        """The varied values, `model=cnn seed=1`; the directory's name where nothing is varied."""
        return " ".join(f"{key}={value}" for key, value in self.shown.items()) or self.path.name


@dataclass(frozen=True)
class PointResult:
    """A point and its outcome."""

    point: Point
    outcome: RunStatus


def point_composer(composer: Composer) -> Compose:
    """Return what composes and checks a point, and refuses what a sweep cannot run."""

    def compose(overrides: list[str]) -> Experiment:
        experiment = composer.compose(overrides)
        launch = experiment.launch
        if not experiment.trains:
            raise ConfigError(f"mode ({experiment.mode}) is for one run; leave -m out")
        if launch.inline:
            raise ConfigError(
                "launch.inline (true) is for one run: a point has a process of its own; "
                "leave -m or launch=inline out"
            )
        if launch.uses_ray and not (launch.ray.address or environment.ray_address()):
            raise ConfigError(
                "launch.ray.address (null) would start a Ray cluster for each point of the sweep; "
                "give the address of one, or set RAY_ADDRESS"
            )
        resolve(experiment)
        return experiment

    return compose


class PointFactory:
    """Creates points, no two of them with the same run directory.

    Args:
        space: the values that may be sampled.
        compose: composes the experiment of a point.
    """

    def __init__(self, space: SearchSpace, compose: Compose) -> None:
        self._space = space
        self._compose = compose
        self._tried: set[tuple[str, ...]] = set()
        self._created: set[tuple[Path, str]] = set()

    def create(self, number: int, varied: Mapping[str, str]) -> Point | None:
        """Return the point with the given values, or None if it is a duplicate or invalid."""
        values = tuple(varied.values())
        if values in self._tried:
            return None
        self._tried.add(values)
        overrides = self._space.overrides(varied)
        try:
            experiment = self._compose(overrides)
        except ConfigError:
            # The bounds of every range were valid: an invalid combination within them is no
            # mistake of the user.
            return None
        path = run_path(experiment)
        if (key := (path, digest(experiment))) in self._created:
            return None
        self._created.add(key)
        return Point(number, varied, overrides, experiment, path)

    def sample(self, number: int, seed: int) -> Point | None:
        """Return a random new point, or None if the search space is exhausted.

        The point depends on the seed, its number, and the points created before.
        """
        for attempt in range(_MAX_ATTEMPTS):
            random = Random(f"{seed}:{number}:{attempt}")
            if point := self.create(number, self._space.sample(random)):
                return point
        return None
