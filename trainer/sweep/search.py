"""The points of a sweep and the searches that choose them: the `_target_` of conf/search.

Values are in Hydra's sweep syntax: lists, ranges and intervals. Every value of a grid, and both
bounds of every range, are composed and checked before the first point starts.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from random import Random
from typing import Annotated, Any, Protocol, cast

from hydra.core.override_parser.types import IntervalSweep, Override, RangeSweep

from trainer.annotations import Ge, Le
from trainer.cli.compose import compose
from trainer.cluster import environment
from trainer.config import loading
from trainer.config.instantiate import instantiate
from trainer.config.options import targets
from trainer.config.options.constraints import format_value
from trainer.config.schema import Experiment
from trainer.errors import ConfigError
from trainer.launch.run_context import resolve
from trainer.runs import identity
from trainer.runs.identity import digest, run_name, run_path
from trainer.runs.secret_masking import shown
from trainer.runs.status import RunStatus

_MAX_ATTEMPTS = 1000
"""Samples in a row without a new point after which the search space counts as exhausted."""
_SIGNIFICANT_DIGITS = 4
"""Of a sampled number: enough to search, few enough to read."""
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


@dataclass(frozen=True)
class Choice:
    """Values without an order, as on a command line: `a,b`, `choice(a,b)`."""

    values: tuple[str, ...]

    def __str__(self) -> str:
        return f"choice({','.join(self.values)})"

    @property
    def values_to_check(self) -> tuple[str, ...]:
        """The values that are composed before a search starts: all."""
        return self.values

    @property
    def size(self) -> float:
        return len(self.values)

    def sample(self, random: Random) -> str:
        """Return a value from the uniform distribution."""
        return self.values[int(random.random() * len(self.values))]


@dataclass(frozen=True)
class NumberRange:
    """Numbers from low to high: `interval(0,1)`, `int(interval(1,9))`, `range(1,10,2)`.

    Attributes:
        step: distance of neighbors; None for a continuous range of floats.
    """

    low: float
    high: float
    step: int | None = None
    log: bool = False

    def __str__(self) -> str:
        if self.step not in (None, 1):
            return f"range({self.low},{int(self.high) + 1},{self.step})"
        text = f"interval({self.low},{self.high})"
        text = f"int({text})" if self.step else text
        return f"tag(log,{text})" if self.log else text

    @property
    def values_to_check(self) -> tuple[str, ...]:
        """The values that are composed before a search starts: both bounds.

        Of whole numbers also the second, which fails where a number must be divisible by
        another, such as a batch size.
        """
        inner = [self.low + self.step] if self.step else []
        return tuple(dict.fromkeys(map(self.format, [self.low, *inner, self.high])))

    @property
    def size(self) -> float:
        """Number of values; inf for a continuous range."""
        return (self.high - self.low) // self.step + 1 if self.step else math.inf

    def sample(self, random: Random) -> str:
        """Return a number from the uniform or log-uniform distribution."""
        fraction = random.random()
        if self.step and not self.log:
            return self.format(self.low + self.step * int(fraction * self.size))
        margin = 0.5 if self.step else 0.0  # so that a bound is as likely as its neighbor
        low, high = (
            math.log(bound) if self.log else bound
            for bound in (self.low - margin, self.high + margin)
        )
        value = low + fraction * (high - low)
        return self.format(math.exp(value) if self.log else value)

    def format(self, value: float) -> str:
        """Return the nearest whole number, or a float of few digits, as on a command line.

        It is within the bounds, and equal numbers give equal texts.
        """
        if self.step:
            value = round(value)
        else:
            scale = abs(value) if self.log else self.high - self.low
            value = round(value, _SIGNIFICANT_DIGITS - 1 - math.floor(math.log10(scale)))
        return repr(min(max(value, self.low), self.high))


ParameterRange = Choice | NumberRange


@dataclass(frozen=True)
class SearchSpace:
    """The points that a search may choose."""

    fixed: Sequence[str]
    ranges: Mapping[str, ParameterRange]

    @property
    def size(self) -> float:
        """Number of points; inf if a range is continuous."""
        return math.prod(values.size for values in self.ranges.values())

    def overrides(self, varied: Mapping[str, str]) -> list[str]:
        return [*self.fixed, *(f"{key}={value}" for key, value in varied.items())]

    def sample(self, random: Random) -> dict[str, str]:
        """Return a random value for each key."""
        return {key: values.sample(random) for key, values in self.ranges.items()}

    def points_to_check(self) -> Iterator[tuple[str, dict[str, str]]]:
        """Yield each key with each value to check, the other keys at their first value."""
        first = {key: values.values_to_check[0] for key, values in self.ranges.items()}
        for key, values in self.ranges.items():
            for value in values.values_to_check:
                yield key, {**first, key: value}


def parse_search_space(parsed: Sequence[Override]) -> SearchSpace:
    """Return the search space of a command line.

    Raises:
        ConfigError: with all problems: ranges without a value, or that cannot be sampled.
    """
    problems = [problem for override in parsed if (problem := _range_problem(override))]
    if problems:
        raise ConfigError(*problems)
    ranges = {
        override.get_key_element(): _parse_range(override)
        for override in parsed
        if override.is_sweep_override()
    }
    fixed = [override.input_line or "" for override in parsed if not override.is_sweep_override()]
    return SearchSpace(fixed, ranges)


def _range_problem(override: Override) -> str | None:
    value: Any = override.value()
    if override.is_discrete_sweep() and next(override.sweep_string_iterator(), None) is None:
        return f"{override.input_line} matches nothing; list values"
    if not isinstance(value, IntervalSweep | RangeSweep):
        return None
    key = f"{override.get_key_element()} ({(override.input_line or '').partition('=')[2]})"
    if unknown := value.tags - {"log"}:
        return (
            f"{key} must be tagged log, or not at all, got {', '.join(sorted(unknown))}; "
            "write tag(log,interval(1e-4,1e-1))"
        )
    if isinstance(value, RangeSweep):
        if not value.tags:
            return None
        return (
            f"{key} must be an interval to be sampled on a log scale; "
            "write tag(log,int(interval(1,100)))"
        )
    low = float(value.start or 0)
    high = float(value.end or 0)
    if not (math.isfinite(low) and math.isfinite(high) and low < high):
        return f"{key} must have finite bounds, the smaller first; write interval(low,high)"
    if value.tags and low <= 0:
        return f"{key} must be > 0 to be sampled on a log scale; raise its lower bound"
    return None


def _parse_range(override: Override) -> ParameterRange:
    value: Any = override.value()
    if isinstance(value, IntervalSweep):
        low = cast(float, value.start)
        high = cast(float, value.end)
        step = 1 if {type(low), type(high)} == {int} else None
        return NumberRange(low, high, step, log="log" in value.tags)
    if isinstance(value, RangeSweep) and isinstance(numbers := value.range(), range):
        return NumberRange(min(numbers), max(numbers), abs(numbers.step))
    return Choice(tuple(dict.fromkeys(override.sweep_string_iterator())))


class PointFactory:
    """Creates points, no two of them with the same run directory."""

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


class Search(Protocol):
    """Chooses the points of a sweep, perhaps by the results of earlier ones.

    A search of the user's own extends this class. Its first argument is a `SearchContext`, and the
    others are its options, as keys of `search`. A package that it needs and that may be missing is
    named by the constant `requires`, a pair of the package and what pip is to install.

    Attributes:
        points: all points, if the results of earlier ones choose none.
    """

    total: int
    points: Sequence[Point] = ()
    notes: Sequence[str] = ()

    def begin(self) -> None:
        """Prepare for the first point: files may be written from now on."""

    def next_point(self) -> Point | None:
        """Return the next point, or None if there are no more."""

    def should_prune(self, point: Point, step: int, metrics: Mapping[str, float]) -> bool:
        """Record an evaluation of a point that trains; return whether to stop the point early."""
        return False

    def record_outcome(self, point: Point, outcome: RunStatus) -> None:
        """Record the outcome of a point; not of a stopped one, which is chosen again."""


@dataclass(frozen=True)
class SearchContext:
    """What a search gets of its sweep.

    Attributes:
        overrides: the overrides of the command line, one for each key.
        base: the composed experiment without continuous ranges; its sweep has a metric and a mode.
    """

    overrides: Sequence[Override]
    base: Experiment
    compose: Compose
    folder: Path

    def space(self) -> SearchSpace:
        """Return the ranges of the command line, or raise a ConfigError for all wrong bounds."""
        if (resume := self.base.resume) not in ("auto", "never"):
            raise ConfigError(
                f"resume ({resume}) is one run, and a search has many; "
                "leave -m out, or resume=<run>"
            )
        space = parse_search_space(self.overrides)
        _check_ranges(space, self.compose)
        return space


def create_search(context: SearchContext) -> Search:
    """Return the search that the configuration names; nothing has been written.

    Raises:
        ConfigError: a package is missing, or with all problems of the points or ranges.
    """
    node = context.base.search
    if missing := targets.missing_package(node["_target_"]):
        raise ConfigError(f"search ({context.base.choices['search']}) {missing}")
    search: Search = instantiate(node, "search", context)
    return search


def _check_ranges(space: SearchSpace, compose: Compose) -> None:
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


class GridSearch(Search):
    """Returns every combination of the listed values; nothing is pruned."""

    def __init__(self, context: SearchContext) -> None:
        self.points, self.notes = expand(context.overrides, context.compose)
        self.total = len(self.points)
        self._remaining = iter(self.points)

    def next_point(self) -> Point | None:
        return next(self._remaining, None)


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
            yield f"{key} ({', '.join(values)}) must be the same in all points; give it one value"


class RandomSearch(Search):
    """Samples each point from the seed and its number."""

    def __init__(
        self,
        context: SearchContext,
        *,
        trials: Annotated[int, Ge(1)] = 20,
        seed: Annotated[int, Ge(0), Le(4294967295)] = 0,
    ) -> None:
        space = context.space()
        self.total = int(min(trials, space.size))
        self._points = PointFactory(space, context.compose)
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
