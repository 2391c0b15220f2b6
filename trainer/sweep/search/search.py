"""What a search algorithm is, and what it is given: the `_target_` of a file in conf/search."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from hydra.core.override_parser.types import Override

from trainer.config.instantiate import instantiate
from trainer.config.options import targets
from trainer.config.schema import Experiment
from trainer.errors import ConfigError
from trainer.runs.identity import run_name
from trainer.runs.status import RunStatus
from trainer.sweep.points.points import Compose, Point, PointFactory
from trainer.sweep.search.search_space import SearchSpace, parse_search_space


class Search(Protocol):
    """Chooses the points of a sweep, perhaps by the results of earlier ones.

    A search of the user's own extends this class. Its first argument is a `SearchContext`, and the
    others are its options, as keys of `search`. A package that it needs and that may be missing is
    named by the constant `requires`, a pair of the package and what pip is to install.

    Attributes:
        total: number of points in the sweep.
        points: all points, if the results of earlier ones choose none.
        notes: lines for the user.
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
    """What a search knows of its sweep.

    Attributes:
        overrides: the overrides of the command line, one for each key.
        base: the composed experiment without continuous ranges; its sweep has a metric and a mode.
        compose: composes and checks a point.
        folder: the sweep's folder, for files of the search.
    """

    overrides: Sequence[Override]
    base: Experiment
    compose: Compose
    folder: Path

    def space(self) -> SearchSpace:
        """Return the ranges of the command line, their bounds checked.

        Raises:
            ConfigError: with all problems of all ranges.
        """
        if (resume := self.base.resume) not in ("auto", "never"):
            raise ConfigError(
                f"resume ({resume}) is one run, and a search has many; "
                "leave -m out, or resume=<run>"
            )
        space = parse_search_space(self.overrides)
        _check_ranges(space, self.compose)
        return space

    def points(self, space: SearchSpace) -> PointFactory:
        """Return what creates points with values of a space."""
        return PointFactory(space, self.compose)


def create_search(context: SearchContext) -> Search:
    """Return the search that the configuration names; nothing has been written.

    Raises:
        ConfigError: a package is missing, or with all problems of the points or ranges.
    """
    node = context.base.search
    if missing := targets.missing_package(node["_target_"]):
        raise ConfigError(
            f"search ({context.base.choices['search']}) needs the package {missing[0]}; "
            f"install it with: pip install '{missing[1]}'"
        )
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
