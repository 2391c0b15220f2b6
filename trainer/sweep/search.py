"""Chooses who proposes the points of a search, and checks its ranges before anything starts. No TensorFlow."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

from hydra.core.override_parser.types import Override

from trainer.errors import ConfigError
from trainer.identity import run_name
from trainer.schema import Experiment
from trainer.sweep.candidates import Candidates, Compose
from trainer.sweep.points import Proposals
from trainer.sweep.random_search import RandomSearch
from trainer.sweep.space import Space, space_of


def propose(parsed: Sequence[Override], base: Experiment, compose: Compose, folder: Path) -> Proposals:
    """Makes the search of a sweep.

    Args:
        parsed: overrides, one for each key.
        base: what all points share, composed.
        compose: composes and checks a point.
        folder: the sweep's, where a study is kept.

    Raises:
        ConfigError: with all problems of all ranges; nothing has been written.
    """
    if base.search.method == "optuna" and find_spec("optuna") is None:
        raise ConfigError("search (optuna) needs the package optuna; install it with: pip install 'steadfast[optuna]'")
    if base.resume not in ("auto", "never"):
        raise ConfigError(f"resume ({base.resume}) is one run, and a search has many; leave -m out, or resume=<run>")
    space = space_of(parsed)
    _check_edges(space, compose)
    candidates, total = Candidates(space, compose), int(min(base.search.trials, space.size))
    if base.search.method == "random":
        return RandomSearch(candidates, total, base.search.seed)
    from trainer.sweep.optuna_search import OptunaSearch  # an extra

    return OptunaSearch(space, candidates, base, folder)


def _check_edges(space: Space, compose: Compose) -> None:
    """Composes every edge of every range, so that a wrong one is told before anything starts.

    Raises:
        ConfigError: nothing is varied, an edge is refused, or a key is varied that makes no other run; all problems.
    """
    if not space.ranges:
        raise ConfigError("search needs something to vary; write e.g. optimizer.learning_rate='tag(log,interval(1e-4,1e-1))'")
    composed: dict[tuple[str, ...], Experiment] = {}
    names: dict[str, set[str]] = {key: set() for key in space.ranges}
    problems: dict[str, None] = {}
    for key, varied in space.edges():
        try:
            edge = tuple(varied.values())
            composed[edge] = composed.get(edge) or compose(space.overrides(varied))
            names[key].add(run_name(composed[edge]))
        except ConfigError as error:
            problems |= dict.fromkeys(error.problems)
    problems |= {
        f"{key} ({space.ranges[key]}) changes nothing that is trained, and all its points would be one run; give it one value": None
        for key, found in names.items()
        if len(found) == 1 and space.ranges[key].size > 1 and not problems
    }
    if problems:
        raise ConfigError(*problems)
