"""The searches that choose the points of a sweep: the `_target_` of conf/search.

A search decides by its study alone, and its study is in a log; see `trainer.sweep.study`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Protocol

from hydra.core.override_parser.types import Override

from trainer.annotations import Ge, Le
from trainer.config.directions import metrics_and_modes, rank
from trainer.config.instantiate import instantiate
from trainer.config.options import targets
from trainer.config.options.constraints import format_plain
from trainer.config.schema import Experiment, Sweep
from trainer.errors import ConfigError
from trainer.runs.identity import run_name
from trainer.sweep.points import Compose, Point, PointFactory, check_ranges, expand
from trainer.sweep.space import SearchSpace, parse_search_space
from trainer.sweep.study import Proposal, Study, Trial


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

    @cached_property
    def space(self) -> SearchSpace:
        """The ranges of the command line; a ConfigError names all wrong bounds."""
        if (resume := self.base.resume) not in ("auto", "never"):
            raise ConfigError(
                f"resume ({resume}) is one run, and a search has many; "
                "leave -m out, or resume=<run>"
            )
        space = parse_search_space(self.overrides)
        check_ranges(space, self.compose)
        return space

    @cached_property
    def factory(self) -> PointFactory:
        """What creates the points within these ranges."""
        return PointFactory(self.space, self.compose)


@dataclass(frozen=True)
class Sample:
    """The values of a new point, and what the sampler wants to find again in `Trial.state`."""

    values: Mapping[str, str]
    state: Any = None


class Sampler(Protocol):
    """Chooses the values of new points.

    Attributes:
        total: the number of points; it becomes smaller if the search space is exhausted.
        points: all points, if they are known from the start.
    """

    total: int
    points: Sequence[Point]
    notes: Sequence[str]

    def sample(self, study: Study, number: int) -> Sample | None:
        """Return the values of a new point, or None if the search space is exhausted."""

    def point(self, trial: Trial) -> Point | None:
        """Return a point of the study, or None if its configuration is wrong by now."""


class Grid:
    """Every combination of the listed values, in order."""

    points: Sequence[Point]
    notes: Sequence[str]

    def __init__(self, context: SearchContext) -> None:
        self.points, self.notes = expand(context.overrides, context.compose)
        self.total = len(self.points)

    def sample(self, study: Study, number: int) -> Sample | None:
        return Sample(self.points[number - 1].varied)

    def point(self, trial: Trial) -> Point | None:
        points = self.points[trial.number - 1 : trial.number]
        return next((point for point in points if point.varied == trial.values), None)


class Random:
    """Samples each point from the seed and its number."""

    points: Sequence[Point] = ()
    notes: Sequence[str] = ()

    def __init__(self, context: SearchContext, max_points: int, seed: int) -> None:
        self.total = int(min(max_points, context.space.size))
        self._factory = context.factory
        self._seed = seed

    def sample(self, study: Study, number: int) -> Sample | None:
        point = self._factory.sample(number, self._seed)
        return Sample(point.varied) if point else None

    def point(self, trial: Trial) -> Point | None:
        return self._factory.point(trial.number, trial.values)


class Search:
    """Trains the points of a sampler to their end, in order.

    A search of the user's own extends this class, or another search. The first argument of its
    constructor is a `SearchContext`, and the others are its options, as keys of `search`. A package
    that it needs and that may be missing is named by the constant `requires`, a pair of the package
    and what pip is to install.

    Attributes:
        remembers: whether its results decide what is trained: its study then has a log, and the
            same command continues it.
        unit: the unit of the budgets in its proposals: `steps` or `epochs`.
        extends: options that may differ when the search is continued.
        compares_several: whether it can decide by several metrics.
        goal: the metric by which it decides; of several, the first.
    """

    remembers = False
    compares_several = False
    unit = "steps"
    extends: Sequence[str] = ("max_points",)

    def __init__(self, context: SearchContext, sampler: Sampler) -> None:
        self.context = context
        self.sampler = sampler
        self.goals = Goal.all_of(context.base.sweep)
        self.goal = self.goals[0]
        if len(self.goals) > 1 and self.remembers and not self.compares_several:
            metrics = format_plain(context.base.sweep.metric)
            raise ConfigError(
                f"sweep.metric ({metrics}) must be one metric, because "
                f"search={context.base.choices['search']} decides by one; "
                f"add sweep.metric={self.goal.metric}"
            )

    @property
    def total(self) -> int:
        """The number of points."""
        return self.sampler.total

    @property
    def points(self) -> Sequence[Point]:
        """All points, if results choose none of them; else empty."""
        return () if self.remembers else self.sampler.points

    @property
    def notes(self) -> Sequence[str]:
        """Lines for the user."""
        return self.sampler.notes

    @property
    def definition(self) -> dict[str, Any]:
        """What must be the same when the search is continued."""
        base = self.context.base
        options = {key: value for key, value in base.search.items() if key not in self.extends}
        ranges = {key: str(values) for key, values in self.context.space.ranges.items()}
        return {
            "fixed configuration": run_name(base),
            "goal": ", ".join(f"{goal.mode} {goal.metric}" for goal in self.goals),
            "unit": self.unit,
            **options,
            **ranges,
        }

    def propose(self, study: Study) -> Proposal | None:
        """Return what to train next, if anything; called whenever there is room for a point.

        None: nothing now, as long as points train, and nothing more if none does.
        """
        return self.new_point(study)

    def prunes(self, study: Study, trial: Trial) -> bool:
        """Return whether to stop a point for good; called after each report of it."""
        return False

    def prepare(self, study: Study, trial: Trial) -> None:
        """Prepare what a new point needs; called when its start was recorded, perhaps twice."""

    def point(self, trial: Trial) -> Point | None:
        """Return a point of the study, or None if its configuration is wrong by now."""
        return self.sampler.point(trial)

    def new_point(self, study: Study, until: float | None = None) -> Proposal | None:
        """Propose a new point, or return None if there are no more."""
        number = len(study.trials) + 1
        if number > self.total:
            return None
        sample = self.sampler.sample(study, number)
        if sample is None:
            self.sampler.total = number - 1
            return None
        return Proposal(number, sample.values, until, sample.state)


@dataclass(frozen=True)
class Goal:
    """A metric by which a search decides and a summary is sorted."""

    metric: str
    mode: str

    @classmethod
    def all_of(cls, sweep: Sweep) -> list[Goal]:
        """Return the goal of each metric of a sweep."""
        pairs = zip(*metrics_and_modes(sweep), strict=True)
        return [cls(metric, "min" if mode == "min" else "max") for metric, mode in pairs]

    def value(self, metrics: Mapping[str, float]) -> float:
        """Return the value of the metric, or raise a ConfigError if it is not among these."""
        if self.metric not in metrics:
            raise ConfigError(
                f"sweep.metric ({self.metric}) must be a metric of the evaluation, "
                f"which has {', '.join(metrics) or 'none'}; add sweep.metric=<one of them>"
            )
        return metrics[self.metric]

    def rank(self, metrics: Mapping[str, float]) -> float:
        """Return a number that is smaller for better metrics; inf without the metric, or NaN."""
        return rank(metrics.get(self.metric, math.nan), self.mode)


class GridSearch(Search):
    """Trains every combination of the listed values."""

    def __init__(self, context: SearchContext) -> None:
        super().__init__(context, Grid(context))


class RandomSearch(Search):
    """Samples points independently."""

    def __init__(
        self,
        context: SearchContext,
        *,
        max_points: Annotated[int, Ge(1)] = 20,
        seed: Annotated[int, Ge(0), Le(4294967295)] = 0,
    ) -> None:
        super().__init__(context, Random(context, max_points, seed))


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
