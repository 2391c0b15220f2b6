"""The fused optimizer that makes the same updates as the one that a model was compiled with."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from trainer.errors import ConfigError
from trainer.protocols import OptimizerNode, TaskParts

_log = logging.getLogger(__name__)

_ADAM = ("beta_1", "beta_2", "epsilon")
_TARGETS: Mapping[str, tuple[str, Mapping[str, str]]] = {
    "adam": ("trainer.optimizers.adam.adam", {name: name for name in _ADAM}),
    "adamax": ("tensorflow.keras.optimizers.legacy.Adamax", {name: name for name in _ADAM}),
    "sgd": ("trainer.optimizers.sgd.sgd", {"momentum": "momentum", "nesterov": "nesterov"}),
    "rmsprop": (
        "trainer.optimizers.rmsprop.rmsprop",
        {"rho": "rho", "momentum": "momentum", "epsilon": "epsilon"},
    ),
    "adagrad": (
        "trainer.optimizers.adagrad.adagrad",
        {"initial_accumulator_value": "initial_accumulator", "epsilon": "epsilon"},
    ),
    "adadelta": (
        "tensorflow.keras.optimizers.legacy.Adadelta",
        {"rho": "rho", "epsilon": "epsilon"},
    ),
    "lion": ("trainer.optimizers.lion.lion", {"beta_1": "beta_1", "beta_2": "beta_2"}),
}
"""Keras' optimizers -> the target here, and the name of each option there."""

_INSTEAD = {
    "clipnorm": "add train.clip_norm=<global norm>, which is the same on every layout",
    "global_clipnorm": "add train.clip_norm={}",
    "clipvalue": "add train.clip_value={}",
    "use_ema": "add train.ema_decay=0.99",
    "weight_decay": "add optimizer=adamw, which decays no biases and scales",
    "gradient_accumulation_steps": "add batch.accumulate={}",
    "decay": "add schedule=<choice>",
}
_HARMLESS = ("name", "learning_rate", "is_legacy_optimizer", "jit_compile", "ema_momentum",
             "ema_overwrite_frequency", "loss_scale_factor", "is_fused")  # fmt: skip


def build(parts: TaskParts, optimizer: Any, name: str = "optimizer", updates: int = 1) -> Any:
    """Build the configured optimizer; without one that which does what a compiled one does.

    Args:
        parts: builds it.
        optimizer: that of the model, of either Keras; None: it has none.
        name: its name in the log, if the model has several.
        updates: updates that it makes in a step.

    Raises:
        ConfigError: the optimizer does what no fused one does.
    """
    if optimizer is not None and parts.has_optimizer and parts.is_chief:
        _log.warning("model: compiled with %s, which optimizer= replaces", type(optimizer).__name__)
    if optimizer is None or parts.has_optimizer:
        return parts.optimizer(updates_per_step=updates)
    node = OptimizerNode(f"model.{name}", _options(optimizer))
    return parts.optimizer(node, schedule=_schedule(optimizer), updates_per_step=updates)


def _options(optimizer: Any) -> dict[str, Any]:
    """Return the node of the fused optimizer."""
    kind = type(optimizer).__name__
    config = dict(optimizer.get_config())
    target_options = _TARGETS.get(kind.lower())
    if target_options is None or kind == "LossScaleOptimizer":
        raise ConfigError(
            f"model: compiled with {kind}, which has no fused update here; add optimizer=<choice>, "
            "such as optimizer=adam, which replaces it"
        )
    target, names = target_options
    for key, value in config.items():
        if key in names or key in _HARMLESS or value in (None, False, 0, 0.0):
            continue
        fix = _INSTEAD.get(key, "leave it out, or add optimizer=<choice>").format(value)
        raise ConfigError(
            f"model: {kind} was compiled with {key}={value}, which the fused optimizer does not "
            f"do; compile without it, and {fix}"
        )
    options = {own: config[key] for key, own in names.items() if key in config}
    rate = config["learning_rate"]
    return {"_target_": target, **options, "learning_rate": 1.0 if _is_node(rate) else float(rate)}


def _schedule(optimizer: Any) -> Any:
    """Return the schedule of an optimizer's learning rate, a function of the step, or None."""
    for value in (
        getattr(optimizer, "_learning_rate", None),
        getattr(optimizer, "_hyper", {}).get("learning_rate"),
    ):
        if callable(value) and not isinstance(value, tf.Variable) and hasattr(value, "get_config"):
            return _Followed(value)
    return None


class _Followed(tf.keras.optimizers.schedules.LearningRateSchedule):
    """A schedule of either Keras, as the fused optimizers follow it."""

    def __init__(self, schedule: Any) -> None:
        self._schedule = schedule

    def __call__(self, step: tf.Tensor) -> tf.Tensor:
        """Return the learning rate of a step, float32 scalar."""
        return tf.cast(self._schedule(step), tf.float32)

    def get_config(self) -> dict[str, Any]:
        """Return the options of the schedule."""
        return self._schedule.get_config()


def _is_node(rate: Any) -> bool:
    return isinstance(rate, Mapping) or callable(rate)
