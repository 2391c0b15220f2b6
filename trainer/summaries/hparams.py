"""The hyperparameters of a run, as writers show them."""

from __future__ import annotations

from trainer.config.options import constraints
from trainer.config.schema import Experiment
from trainer.runs import identity, normal_form
from trainer.runs.secret_masking import shown

_CHOICES = (
    "model",
    "dataset",
    "augment",
    "task",
    "optimizer",
    "schedule",
    "strategy",
    "callbacks",
    "loop",
)
"""Groups whose choice is shown besides its values."""


def hyperparameters(experiment: Experiment) -> dict[str, bool | int | float | str]:
    """Return the hyperparameters: choices by group, such as `model`, and values by dotted key.

    They are the keys that name a run. A null is left out, and so is a `_target_`, because the
    choice is its name.
    """
    choices = {
        group: choice
        for group, choice in (experiment.choices or {}).items()
        if group in _CHOICES or "." in group  # a node of the task
    }
    values = shown(normal_form.leaves(experiment))
    options = {
        key: value
        for key, value in values.items()
        if identity.names_run(key, values) and not key.endswith("._target_")
    }
    return {
        key: value
        if isinstance(value, bool | int | float | str)
        else constraints.format_value(value)
        for key, value in {**choices, **options}.items()
        if value not in (None, {}, [])
    }
