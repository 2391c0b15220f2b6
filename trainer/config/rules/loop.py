"""A loop of the user's own, `loop._target_`: what of the configuration it leaves unused.

Such a loop makes its models, data and updates itself. A key of the built-in loop that it would
silently ignore is refused, and none of them names its run. No TensorFlow.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import fields, is_dataclass
from typing import Any

from trainer.config.modes import MODES
from trainer.config.schema import GROUPS, ONE_CHOICE, Experiment


def name_of(experiment: Experiment) -> str | None:
    """Return the dotted path of the user's loop; None: the built-in one trains."""
    return (experiment.loop or {}).get("_target_")


def check(experiment: Experiment, overrides: Iterable[tuple[str, str]]) -> list[str]:
    """Return what of a configuration does not go with a loop of the user's own, a line each.

    Args:
        experiment: the configuration.
        overrides: key and value of each override of the command line.
    """
    name = name_of(experiment)
    if name is None:
        return []
    sections = tuple(f"{name}." for name in _unused_keys(Experiment))
    unused = dict.fromkeys(
        key for key, value in overrides if value != "null" and f"{key}.".startswith(sections)
    )
    problems = [
        f"{key} is a key of the built-in loop, and loop ({name}) replaces that; remove it"
        for key in unused
    ]
    modes = [name for name, mode in MODES.items() if mode.with_loop]
    if experiment.mode not in modes:
        problems.append(
            f"mode ({experiment.mode}) needs the built-in loop, and loop is {name}; "
            f"use one of {', '.join(modes)}"
        )
    if experiment.train.steps is None:
        problems.append(f"train.steps (null) must be set with loop ({name}); add train.steps=<int>")
    if experiment.precision == "mixed_float16":
        problems.append(
            f"precision (mixed_float16) needs a loss scale, which loop ({name}) has not; "
            "add precision=mixed_bfloat16"
        )
    if (count := (experiment.strategy or {}).get("devices_per_replica", 1)) != 1:
        problems.append(
            f"strategy.devices_per_replica ({count}) needs the built-in loop, which knows the "
            f"task's models and places their gradients, and loop is {name}; remove it"
        )
    return problems


def remove_unused(experiment: Experiment) -> None:
    """Remove the groups that a loop of the user's own leaves unused: they do not name its run."""
    if name_of(experiment) is None:
        return
    for group in set(_unused_keys(Experiment)).intersection(GROUPS):
        setattr(experiment, group, None if group in ONE_CHOICE else {})
        experiment.choices[group] = None


def _unused_keys(schema: Any, path: str = "") -> Iterator[str]:
    """Yield the keys and sections of the built-in loop."""
    for item in fields(schema):
        section: Any = item.default_factory
        if item.metadata["built_in"]:
            yield f"{path}{item.name}"
        elif is_dataclass(section):
            yield from _unused_keys(section, f"{path}{item.name}.")
