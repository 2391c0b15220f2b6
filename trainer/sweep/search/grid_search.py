"""Grid search: every combination of the values on a command line, checked before any starts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product
from pathlib import Path

from hydra.core.override_parser.types import Override

from trainer.config import loading
from trainer.config.options.constraints import format_value
from trainer.config.schema import Experiment
from trainer.errors import ConfigError
from trainer.runs import normal_form
from trainer.runs.identity import digest, run_path
from trainer.sweep.points.points import Compose, Point
from trainer.sweep.search.search import Search, SearchContext

_MAX_WRONG = 20
"""After how many wrong points no further ones are composed: hundreds would take a minute."""


class GridSearch(Search):
    """Returns every combination of the listed values; nothing is pruned.

    Args:
        context: the sweep.

    Raises:
        ConfigError: with all problems of all points, or of the first that are wrong.
    """

    def __init__(self, context: SearchContext) -> None:
        self.points, self.notes = expand(context.overrides, context.compose)
        self.total = len(self.points)
        self._remaining = iter(self.points)

    def next_point(self) -> Point | None:
        return next(self._remaining, None)


def combinations(parsed: Sequence[Override]) -> Iterator[tuple[dict[str, str], list[str]]]:
    """Yield the varied values (key -> value) and all overrides of every combination.

    Raises:
        ConfigError: the values of an override cannot be listed, or there are none.
    """
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


def compose_first(parsed: Sequence[Override], compose: Compose) -> Experiment:
    """Return the first combination, without continuous ranges; it has all settings of the sweep.

    Raises:
        ConfigError: with all problems of this combination.
    """
    listed = [
        override
        for override in parsed
        if not override.is_sweep_override() or override.is_discrete_sweep()
    ]
    _, overrides = next(combinations(listed))
    return compose(overrides)


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
        dict(normal_form.flatten({name: content[name] for name in ("sweep", "search", "runs_dir")}))
        for content in contents
    ]
    for key in settings[0] if settings else ():
        values = dict.fromkeys(format_value(setting[key]) for setting in settings)
        if len(values) > 1:
            yield f"{key} ({', '.join(values)}) must be the same in all points; give it one value"
