"""The optimizer that makes exactly the updates of the one that a model was compiled with."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import tensorflow as tf

from trainer.config.instantiate import instantiate
from trainer.engine.graph.step.clipping import Clip
from trainer.keras_objects import optimizer_options
from trainer.protocols import OptimizerNode, TaskParts
from trainer.tasks.keras.keras_optimizer import KerasOptimizer

_log = logging.getLogger(__name__)

_LEGACY = "tensorflow.keras.optimizers.legacy"
_SAME: Mapping[str, tuple[str, str]] = {
    "Adam": ("trainer.optimizers.adamw.AdamW", "beta_1 beta_2 epsilon"),
    "AdamW": ("trainer.optimizers.adamw.AdamW", "beta_1 beta_2 epsilon"),
    "SGD": ("trainer.optimizers.sgd.SGD", "momentum nesterov"),
    "RMSprop": ("trainer.optimizers.rmsprop.RMSprop", "rho momentum epsilon centered"),
    "Adagrad": ("trainer.optimizers.adagrad.Adagrad", "initial_accumulator_value epsilon"),
    "Lion": ("trainer.optimizers.lion.lion", "beta_1 beta_2"),
    "Adadelta": (f"{_LEGACY}.Adadelta", "rho epsilon"),
    "Adamax": (f"{_LEGACY}.Adamax", "beta_1 beta_2 epsilon"),
    "Ftrl": (
        f"{_LEGACY}.Ftrl",
        "learning_rate_power initial_accumulator_value l1_regularization_strength "
        "l2_regularization_strength l2_shrinkage_regularization_strength beta",
    ),
}
"""Keras' optimizers -> the fused one of the same formula, and the options that both have."""

_IGNORED = (
    "name", "learning_rate", "is_legacy_optimizer", "jit_compile", "ema_momentum",
    "ema_overwrite_frequency", "loss_scale_factor",
)  # fmt: skip
_CLIPS = {"clipnorm": "each", "global_clipnorm": "norm", "clipvalue": "value"}
"""Options by which an optimizer clips: the first that is set -> the same of `Clip`."""
_AS_IT_IS = (
    "it runs as it is, for no fused optimizer makes exactly its updates; optimizer=<choice> "
    "replaces it"
)


def build(
    parts: TaskParts,
    optimizer: Any,
    name: str = "optimizer",
    updates: int = 1,
    weights: Iterable[Any] = (),
) -> Any:
    """Build the configured optimizer; without one that which does what a compiled one does.

    Args:
        optimizer: that of the model, of either Keras; None: it has none.
        name: its name in the log, if the model has several.
        updates: updates that it makes in a step.
        weights: the model's trainable variables, of its own Keras.
    """
    if optimizer is not None and parts.has_optimizer and parts.is_chief:
        _log.warning("model: compiled with %s, which optimizer= replaces", type(optimizer).__name__)
    if optimizer is None or parts.has_optimizer:
        return parts.optimizer(updates_per_step=updates)
    # The engine has a loss scale of its own.
    optimizer = getattr(optimizer, "inner_optimizer", optimizer)
    rate = _rate(optimizer)
    same = _same(optimizer)
    how = f"{same[0]} makes the same updates" if same is not None else _AS_IT_IS
    if parts.is_chief:
        level = logging.WARNING if same is None else logging.INFO
        _log.log(level, "model: compiled with %s; %s", type(optimizer).__name__, how)

    def make(rate: Callable[[Any], Any]) -> Any:
        if same is None and not isinstance(optimizer, tf.keras.optimizers.legacy.Optimizer):
            return KerasOptimizer(optimizer, rate, weights)
        own = _legacy(optimizer, rate) if same is None else _fused(optimizer, *same, rate)
        own.own_clips = _clips(optimizer)
        return own

    node = OptimizerNode(f"model.{name}", {"learning_rate": 1.0 if callable(rate) else rate})
    schedule = _Followed(rate) if callable(rate) else None
    return parts.optimizer(node, schedule=schedule, updates_per_step=updates, make=make)


def _same(optimizer: Any) -> tuple[str, dict[str, Any]] | None:
    """Return the target of the fused optimizer of the same formula, and its options, if any."""
    kind = type(optimizer)
    if kind.__name__ not in _SAME or kind.__module__.partition(".")[0] not in ("keras", "tf_keras"):
        return None
    target, names = _SAME[kind.__name__]
    config = optimizer_options(optimizer)
    config.pop("learning_rate", None)
    options = {name: config.pop(name) for name in names.split() if name in config}
    is_legacy = isinstance(optimizer, tf.keras.optimizers.legacy.Optimizer)
    if is_legacy and (kind.__name__ in ("Adagrad", "RMSprop") or optimizer.gradient_transformers):
        return None  # those put their epsilon elsewhere
    if config.get("weight_decay") and kind.__name__ not in ("Adadelta", "Adamax", "Ftrl"):
        options["weight_decay"] = config.pop("weight_decay")
    others = config.keys() - {*_IGNORED, *_CLIPS}
    if any(config[name] for name in others):
        return None  # use_ema, amsgrad, gradient_accumulation_steps and the like
    return target, options


def _fused(
    optimizer: Any, target: str, options: Mapping[str, Any], rate: Callable[[Any], Any]
) -> Any:
    """Return a fused optimizer that makes the updates of another one at a learning rate."""
    own = {"weight_decay": 0.0, **options} if target.startswith("trainer.") else dict(options)
    epsilon = own.get("epsilon")
    if "centered" in own:  # for the value 0 the legacy class does not use the kernel
        own["momentum"] = lambda: options["momentum"]
    if target.endswith("Adagrad"):
        # The kernel adds epsilon to the root, Keras to the sum under it.
        own["initial_accumulator_value"] += epsilon
        epsilon = 0.0
    fused = instantiate({"_target_": target}, "model.optimizer", rate, named=own)
    if epsilon is not None:
        fused.epsilon = epsilon  # also 0, which the constructor does not take
    if own.get("weight_decay"):
        fused.decays = optimizer._use_weight_decay
    return fused


def _legacy(optimizer: Any, rate: Callable[[Any], Any]) -> Any:
    """Return another optimizer of the same legacy class, at a learning rate; it does not clip."""
    own = type(optimizer).from_config(optimizer_options(optimizer))
    own.clipnorm = own.clipvalue = own.global_clipnorm = None
    own.gradient_transformers = optimizer.gradient_transformers
    own.learning_rate = lambda: rate(own.iterations)
    return own


def _clips(optimizer: Any) -> list[Clip]:
    """Return how an optimizer clips gradients, in order."""
    clips = [
        Clip(**{kind: float(bound)}) for name, kind in _CLIPS.items()
        if (bound := getattr(optimizer, name, None))
    ]  # fmt: skip
    if isinstance(optimizer, tf.keras.optimizers.legacy.Optimizer):
        return [*clips[::-1]]
    return clips[:1]


def _rate(optimizer: Any) -> Any:
    """Return the learning rate of a compiled optimizer: a number, or a function of the update."""
    hyper = getattr(optimizer, "_hyper", {})
    rate = hyper["learning_rate"] if hyper else optimizer._learning_rate
    if not callable(rate):
        return float(tf.convert_to_tensor(rate))
    return rate if hasattr(rate, "get_config") else lambda update: rate()


class _Followed(tf.keras.optimizers.schedules.LearningRateSchedule):
    """A schedule of either Keras, as the fused optimizers follow it."""

    def __init__(self, schedule: Any) -> None:
        self._schedule = schedule

    def __call__(self, step: tf.Tensor) -> tf.Tensor:
        """Return the learning rate of an update, float32 scalar."""
        return tf.cast(self._schedule(step), tf.float32)

    def get_config(self) -> dict[str, Any]:
        """Return the options of the schedule."""
        return self._schedule.get_config()
