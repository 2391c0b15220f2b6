"""Rules across keys: a file a section of the configuration, and the list of them. No TensorFlow."""

from __future__ import annotations

from collections.abc import Iterator
from operator import attrgetter

from trainer.config.rules import (
    augmentation,
    checkpoint,
    env,
    evaluate,
    fault,
    finetuning,
    groups,
    loop,
    run_folder,
)
from trainer.config.schema import PAIRS, Experiment


def check_pairs(experiment: Experiment) -> Iterator[str]:
    """Of each pair of keys exactly one must be set."""
    for first, second in PAIRS:
        first_value, second_value = attrgetter(first, second)(experiment)
        if first_value is not None and second_value is not None:
            yield (
                f"{first} ({first_value}) and {second} ({second_value}) are both set, "
                f"exactly one must be; add {second}=null"
            )
        if first_value is None and second_value is None:
            yield (
                f"neither {first} nor {second} is set, exactly one must be; add {first}=<number>"
            )


RULES = (
    loop.check,
    env.check,
    check_pairs,
    run_folder.check,
    checkpoint.check,
    evaluate.check,
    fault.check,
    groups.check,
    finetuning.check,
    augmentation.check,
)
"""Each yields the problems of an experiment, one line each."""


def check(experiment: Experiment) -> list[str]:
    """Return all problems of an experiment, one line each."""
    return [line for rule in RULES for line in rule(experiment)]
