"""What a model function of the user's own returns: is it a model, built, and trained from outside?

Of either Keras, without an import of Keras 3.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trainer.errors import ConfigError
from trainer.worker.error_summary import error_cause

_LIBRARIES = ("tf_keras", "keras", "keras_hub")
_STEPS = ("train_step", "test_step", "compute_loss")


def check(model: Any, key: str, target: str, *, is_own_task: bool) -> None:
    """Check what a model function has returned.

    Args:
        model: what it returned.
        key: the key of its node.
        target: its dotted path.
        is_own_task: whether the task is the user's own, and may call a step of the model's.

    Raises:
        ConfigError: it is no model, or has a training step of its own.
    """
    if not callable(model) or isinstance(model, type) or not hasattr(type(model), "variables"):
        kind = "None" if model is None else f"a {type(model).__name__}"
        raise ConfigError(
            f"{key}._target_ ({target}) must return a model of Keras, and returns {kind}; add "
            "return model at its end"
        )
    for name in () if is_own_task else _STEPS:
        base = next((base for base in type(model).__mro__ if name in vars(base)), None)
        if base and base.__module__.partition(".")[0] not in _LIBRARIES:
            raise ConfigError(
                f"{key}: {base.__module__}.{base.__qualname__} overrides {name}, which is not "
                "called: the task's step would train something else; write it as the train_step "
                "of a task of your own (task._target_), or remove it"
            )


def ignored(model: Any) -> str:
    """Return in words what a model was compiled with, which is not used; empty: it was not."""
    model = getattr(model, "keras_model", model)  # of Keras 3
    optimizer = getattr(model, "optimizer", None)
    if optimizer is None:
        return ""
    return f"its loss ({_name(model.loss)}), optimizer ({type(optimizer).__name__}) and metrics"


def call_failure(model: Any, features: Any) -> str:
    """Build a model by calling it on a symbolic input; return why it cannot be, or nothing."""
    try:
        model(features)
    except Exception as error:  # a call of the user's, which may be made for other inputs
        return error_cause(error).rstrip(".")
    return ""


def not_built(key: str, model: Any, failure: str) -> ConfigError:
    """Return the error of a model that has no variables, because it cannot be called."""
    return ConfigError(
        f"{key} ({type(model).__name__}) has no variables yet, and calling it with the dataset's "
        f"features fails: {failure}; correct its call, or call it once before it is returned"
    )


def _name(loss: Any) -> str:
    if isinstance(loss, Mapping | list | tuple):
        return ", ".join(map(_name, loss.values() if isinstance(loss, Mapping) else loss))
    return loss if isinstance(loss, str) else getattr(loss, "name", getattr(loss, "__name__", "?"))
