"""Rules across keys: a file a section of the configuration, and the list of them. No TensorFlow."""

from __future__ import annotations

from trainer.config.rules import (
    augmentation,
    checkpoint,
    evaluate,
    fault,
    finetuning,
    groups,
    run_folder,
    values,
)
from trainer.config.schema import Experiment

RULES = (
    values.check_pairs,
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
    if empty := list(values.check_empty(experiment, "")):
        return empty  # other rules would say the same in other words
    problems = list(values.check_values(experiment, ""))
    return [*problems, *(line for rule in RULES for line in rule(experiment))]
