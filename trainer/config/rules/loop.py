"""A loop of the user's own, `loop._target_`: it makes its models, data and updates itself.

Which keys it leaves unused, `trainer.config.rules.unused` knows. No TensorFlow.
"""

from __future__ import annotations

from collections.abc import Iterator

from trainer.config.modes import MODES
from trainer.config.schema import Experiment


def name_of(experiment: Experiment) -> str | None:
    """Return the dotted path of the user's loop; None: the built-in one trains."""
    return (experiment.loop or {}).get("_target_")


def check(experiment: Experiment) -> Iterator[str]:
    """Yield the problems of an experiment, one line each."""
    name = name_of(experiment)
    if name is None:
        return
    modes = [name for name, mode in MODES.items() if mode.with_loop]
    if experiment.mode not in modes:
        yield (
            f"mode ({experiment.mode}) needs the built-in loop, and loop is {name}; "
            f"use one of {', '.join(modes)}"
        )
    if experiment.train.steps is None:
        yield f"train.steps (null) must be set with loop ({name}); add train.steps=<int>"
    if experiment.precision == "mixed_float16":
        yield (
            f"precision (mixed_float16) needs a loss scale, which loop ({name}) has not; "
            "add precision=mixed_bfloat16"
        )
    if (count := (experiment.strategy or {}).get("devices_per_replica", 1)) != 1:
        yield (
            f"strategy.devices_per_replica ({count}) needs the built-in loop, which knows the "
            f"task's models and places their gradients, and loop is {name}; remove it"
        )
