"""Every combination of the values on a command line; all are composed and checked before any starts. No TensorFlow."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from pathlib import Path

from hydra.core.override_parser.types import Override

from trainer import config, identity, launch
from trainer.composition import Composer
from trainer.errors import ConfigError
from trainer.outcome import Outcome
from trainer.rules import shown
from trainer.rundir import path_of
from trainer.schema import Experiment
from trainer.sweep.points import Point


class Grid:
    """Proposes every point of a list, one after the other.

    Args:
        points: all there are.
    """

    def __init__(self, points: Sequence[Point]) -> None:
        self.total = len(points)
        self._waiting = iter(points)

    def next(self) -> Point | None:
        """Gives the next point; None: there are no more."""
        return next(self._waiting, None)

    def report(self, point: Point, step: int, metrics: Mapping[str, float]) -> bool:
        """Learns nothing: every point trains to its end."""
        return False

    def tell(self, point: Point, outcome: Outcome) -> None:
        """Learns nothing."""


def split(parsed: Sequence[Override]) -> Iterator[tuple[dict[str, str], list[str]]]:
    """Gives for each combination what is varied, key -> value, and all its overrides.

    Raises:
        ConfigError: what is varied cannot be listed, or is nothing.
    """
    values = []
    for item in parsed:
        if item.is_sweep_override() and not item.is_discrete_sweep():
            raise ConfigError(f"{item.input_line} has no end of values; add search=random or search=optuna, or list values")
        given = item.sweep_string_iterator() if item.is_sweep_override() else [item.get_value_element_as_str()]
        values.append([(item, value) for value in given])
        if not values[-1]:
            raise ConfigError(f"{item.input_line} matches nothing; list values")
    for chosen in product(*values):
        varied = {item.get_key_element(): value for item, value in chosen if item.is_sweep_override()}
        yield varied, [f"{item.get_key_element()}={value}" for item, value in chosen]


def first(parsed: Sequence[Override], composer: Composer) -> Experiment:
    """Composes the first combination, without ranges: what holds for the whole sweep is the same in all.

    Raises:
        ConfigError: with all problems that were found.
    """
    return composer.compose(next(split([item for item in parsed if not item.is_sweep_override() or item.is_discrete_sweep()]))[1])


def compose_point(overrides: list[str], composer: Composer) -> Experiment:
    """Composes a point and checks that it can be run as one.

    Raises:
        ConfigError: with all problems that were found.
    """
    experiment = composer.compose(overrides)
    if experiment.mode != "train":
        raise ConfigError(f"mode ({experiment.mode}) is for one run; leave -m out")
    if experiment.launch.inline:
        raise ConfigError("launch.inline (true) is for one run: a point has a process of its own; leave -m or launch=inline out")
    launch.resolve(experiment)
    return experiment


def expand(parsed: Sequence[Override], composer: Composer) -> tuple[list[Point], list[str]]:
    """Composes and checks every combination.

    Returns:
        The points, no two of them in one run directory, and what the user should know of them, a line each.

    Raises:
        ConfigError: with all problems of all points.
    """
    points: dict[Path, Point] = {}
    lines: list[str] = []
    problems: dict[str, None] = {}
    experiments = []
    for varied, overrides in split(parsed):
        try:
            experiments.append(experiment := compose_point(overrides, composer))
        except ConfigError as error:
            problems |= dict.fromkeys(error.problems)
            continue
        point = Point(len(points) + 1, varied, overrides, experiment, path_of(experiment))
        if (other := points.setdefault(point.path, point)) is not point:
            same = "is there twice" if point.label == other.label else f"is the same run as {other.label}"
            lines.append(f"{point.label} {same}; it is trained once")
    problems |= dict.fromkeys(_differences(experiments))
    if problems:
        raise ConfigError(*problems)
    return list(points.values()), lines


def _differences(experiments: Sequence[Experiment]) -> Iterator[str]:
    """Says what cannot differ between points, and does."""
    if len(experiments) > 1 and (resume := experiments[0].resume) not in ("auto", "never"):
        yield f"resume ({resume}) is one run, and there are several points; leave -m out, or resume=<run>"
    contents = [config.plain(experiment) for experiment in experiments]
    leaves = [dict(identity.flatten({name: content[name] for name in ("sweep", "search", "runs_dir")})) for content in contents]
    for key in leaves[0] if leaves else ():
        values = dict.fromkeys(shown(found[key]) for found in leaves)
        if len(values) > 1:
            yield f"{key} ({', '.join(values)}) must be the same in all points; give it one value"
