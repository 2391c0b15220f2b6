"""The points of a sweep: composed and checked, no two of them with the same run directory."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from random import Random

from hydra.core.override_parser.types import Override

from trainer.cli.compose import compose
from trainer.cluster import environment
from trainer.config import loading
from trainer.config.options.constraints import format_value
from trainer.config.schema import Experiment
from trainer.errors import ConfigError
from trainer.launch.run_context import resolve
from trainer.runs import identity
from trainer.runs.identity import digest, run_address, run_name, run_path
from trainer.runs.secret_masking import shown
from trainer.runs.status import RunStatus
from trainer.sweep.space import SearchSpace

_MAX_ATTEMPTS = 1000
"""Samples in a row without a new point after which the search space counts as exhausted."""
_MAX_WRONG = 20
"""After how many wrong points no further ones are composed: hundreds would take a minute."""

Compose = Callable[[list[str]], Experiment]
"""Composes and checks an experiment from overrides; raises ConfigError."""


@dataclass(frozen=True)
class Point:
    """One run of a sweep.

    Attributes:
        varied: key -> value of the overrides in which the points differ, as written on a
            command line.
        path: its run directory, which no other point has.
        origin: the point, and its step, from which it branches off: `3 at 200`; empty: from none.
    """

    number: int
    varied: Mapping[str, str]
    overrides: Sequence[str]
    experiment: Experiment
    path: Path
    origin: str = ""

    @property
    def shown(self) -> Mapping[str, str]:
        """The varied values without secrets, for people and records."""
        values: Mapping[str, str] = shown(self.varied)
        return values

    @property
    def label(self) -> str:
        """The varied values, `model=cnn seed=1`; the directory's name where nothing is varied."""
        return " ".join(f"{key}={value}" for key, value in self.shown.items()) or self.path.name

    @property
    def place(self) -> str:
        """Where its run is: the address in a store, or its directory."""
        return run_address(self.experiment) or str(self.path)

    @property
    def own_overrides(self) -> list[str]:
        """The overrides of its own command, without those of the sweep."""
        keys = (item.lstrip("+~").partition("=")[0] for item in self.overrides)
        groups = [re.split("[./]", key)[0] for key in keys]
        pairs = zip(self.overrides, groups, strict=True)
        return [item for item, group in pairs if group not in ("sweep", "search", "hydra")]


@dataclass(frozen=True)
class PointResult:
    """A point and its outcome."""

    point: Point
    outcome: RunStatus


def compose_point(overrides: Sequence[str], config_dir: str | None = None) -> Experiment:
    """Compose and check a point; refuse what a sweep cannot run."""
    experiment = compose(overrides, config_dir)
    launch = experiment.launch
    if not experiment.trains:
        raise ConfigError(f"mode ({experiment.mode}) is for one run; leave -m out")
    if launch.inline:
        raise ConfigError(
            "launch.inline (true) is for one run: each point has a separate process; "
            "leave -m or launch=inline out"
        )
    if launch.uses_ray and not (launch.ray.address or environment.ray_address()):
        raise ConfigError(
            "launch.ray.address (null) would start a Ray cluster for each point of the sweep; "
            "give the address of one, or set RAY_ADDRESS"
        )
    resolve(experiment)
    return experiment


class PointFactory:
    """Creates points, no two of them with the same run directory."""

    def __init__(self, space: SearchSpace, compose: Compose) -> None:
        self._space = space
        self._compose = compose
        self._points: dict[int, Point] = {}
        self._tried: set[tuple[str, ...]] = set()
        self._created: set[tuple[Path, str]] = set()

    def point(
        self, number: int, varied: Mapping[str, str], extra: Sequence[str] = (), origin: str = ""
    ) -> Point | None:
        """Return the point of this number, or None if the values are a duplicate or invalid.

        Args:
            extra: further overrides.
            origin: see `Point`.
        """
        if number in self._points:
            return self._points[number]
        values = (*varied.values(), *extra)
        if values in self._tried:
            return None
        self._tried.add(values)
        overrides = [*self._space.overrides(varied), *extra]
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
        self._points[number] = Point(number, varied, overrides, experiment, path, origin)
        return self._points[number]

    def sample(self, number: int, seed: int) -> Point | None:
        """Return a random new point, or None if the search space is exhausted.

        The point depends on the seed, its number, and the points created before.
        """
        for attempt in range(_MAX_ATTEMPTS):
            random = Random(f"{seed}:{number}:{attempt}")
            if point := self.point(number, self._space.sample(random)):
                return point
        return None


def combinations(parsed: Sequence[Override]) -> Iterator[tuple[dict[str, str], list[str]]]:
    """Yield the varied values (key -> value) and all overrides of every combination."""
    alternatives = []
    for override in parsed:
        is_varied = override.is_sweep_override()
        if is_varied and not override.is_discrete_sweep():
            raise ConfigError(
                f"{override.input_line} has infinitely many values; "
                "add search=random or search=optuna, or list values"
            )
        values = (
            override.sweep_string_iterator() if is_varied else [override.get_value_element_as_str()]
        )
        alternatives.append([(override, value) for value in values])
        if not alternatives[-1]:
            raise ConfigError(f"{override.input_line} matches nothing; list values")
    for combination in product(*alternatives):
        varied = {
            override.get_key_element(): value
            for override, value in combination
            if override.is_sweep_override()
        }
        yield varied, [f"{override.get_key_element()}={value}" for override, value in combination]


def expand(parsed: Sequence[Override], compose: Compose) -> tuple[list[Point], list[str]]:
    """Compose and check every combination.

    Returns:
        The points, no two with the same run directory, and one line for the user about each
        duplicate that was dropped.

    Raises:
        ConfigError: with all problems of all points, or of the first that are wrong.
    """
    points: dict[tuple[Path, str], Point] = {}
    notes: list[str] = []
    problems: dict[str, None] = {}
    experiments = []
    num_wrong = 0
    for varied, overrides in combinations(parsed):
        try:
            experiments.append(experiment := compose(overrides))
        except ConfigError as error:
            problems |= dict.fromkeys(error.problems)
            num_wrong += 1
            if num_wrong == _MAX_WRONG:
                raise ConfigError(
                    *problems, f"these are the problems of {_MAX_WRONG} points; there may be more"
                ) from error
            continue
        point = Point(len(points) + 1, varied, overrides, experiment, run_path(experiment))
        key = point.path, digest(experiment)  # two runs may have one hash in their names
        if (other := points.setdefault(key, point)) is not point:
            reason = (
                "appears twice"
                if point.label == other.label
                else f"is the same run as {other.label}"
            )
            notes.append(f"{point.label} {reason}; it is trained once")
    problems |= dict.fromkeys(_differing_settings(experiments))
    if problems:
        raise ConfigError(*problems)
    return list(points.values()), notes


def _differing_settings(experiments: Sequence[Experiment]) -> Iterator[str]:
    """Yield a problem for each setting of the whole sweep in which points differ."""
    if len(experiments) > 1 and (resume := experiments[0].resume) not in ("auto", "never"):
        yield (
            f"resume ({resume}) is one run, and there are several points; "
            "leave -m out, or resume=<run>"
        )
    contents = [loading.plain(experiment) for experiment in experiments]
    settings = [
        dict(identity.flatten({name: content[name] for name in ("sweep", "search", "runs_dir")}))
        for content in contents
    ]
    for key in settings[0] if settings else ():
        values = dict.fromkeys(format_value(setting[key]) for setting in settings)
        if len(values) > 1:
            several = f", or several: {key}=[{','.join(values)}]" * (key == "sweep.metric")
            yield (
                f"{key} ({', '.join(values)}) must be the same in all points; "
                f"give it one value{several}"
            )


def check_ranges(space: SearchSpace, compose: Compose) -> None:
    """Compose the bounds of every range, so that an invalid one fails before any point starts."""
    if not space.ranges:
        raise ConfigError(
            "search needs something to vary; "
            "write e.g. optimizer.learning_rate='tag(log,interval(1e-4,1e-1))'"
        )
    experiments: dict[tuple[str, ...], Experiment] = {}
    run_names: dict[str, set[str]] = {key: set() for key in space.ranges}
    problems: dict[str, None] = {}
    for key, varied in space.points_to_check():
        values = tuple(varied.values())
        try:
            if values not in experiments:
                experiments[values] = compose(space.overrides(varied))
            run_names[key].add(run_name(experiments[values]))
        except ConfigError as error:
            problems |= dict.fromkeys(error.problems)
    if not problems:
        problems = {
            f"{key} ({space.ranges[key]}) changes nothing that is trained, and all its points "
            "would be one run; give it one value": None
            for key, names in run_names.items()
            if len(names) == 1 and space.ranges[key].size > 1
        }
    if problems:
        raise ConfigError(*problems)
