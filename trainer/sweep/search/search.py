"""Creates the search method of a sweep, after its ranges have been checked."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

from hydra.core.override_parser.types import Override

from trainer.config.schema import Experiment
from trainer.errors import ConfigError
from trainer.runs.identity import run_name
from trainer.sweep.points.point_factory import Compose, PointFactory
from trainer.sweep.points.points import SearchMethod
from trainer.sweep.search.random_search import RandomSearch
from trainer.sweep.search.search_space import SearchSpace, parse_search_space


def create_search(
    parsed: Sequence[Override], base: Experiment, compose: Compose, folder: Path
) -> SearchMethod:
    """Return the random or Optuna search of a sweep.

    Args:
        parsed: overrides, one for each key.
        base: the composed experiment without the varied values.
        compose: composes and checks a point.
        folder: the sweep's folder, where a study is kept.

    Raises:
        ConfigError: with all problems of all ranges; nothing has been written.
    """
    if base.search.method == "optuna" and find_spec("optuna") is None:
        raise ConfigError(
            "search (optuna) needs the package optuna; "
            "install it with: pip install 'steadfast[optuna]'"
        )
    if base.resume not in ("auto", "never"):
        raise ConfigError(
            f"resume ({base.resume}) is one run, and a search has many; "
            "leave -m out, or resume=<run>"
        )
    space = parse_search_space(parsed)
    _check_ranges(space, compose)
    factory = PointFactory(space, compose)
    total = int(min(base.search.trials, space.size))
    if base.search.method == "random":
        return RandomSearch(factory, total, base.search.seed)
    from trainer.sweep.search.optuna_search import OptunaSearch  # needs an optional package

    return OptunaSearch(space, factory, base, folder)


def _check_ranges(space: SearchSpace, compose: Compose) -> None:
    """Compose the bounds of every range, so that an invalid one fails before any point starts.

    Raises:
        ConfigError: with all problems: nothing is varied, a bound is invalid, or a key does not
            change the run.
    """
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
