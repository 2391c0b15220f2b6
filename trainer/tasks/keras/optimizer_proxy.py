"""Stands for an optimizer in a model's own step: its updates go through the engine's."""

from __future__ import annotations

import functools
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from trainer.engine.graph.state.variables import parts_of
from trainer.engine.graph.step import lockstep
from trainer.engine.graph.step.part_variables import shared_values
from trainer.errors import ConfigError
from trainer.tasks.keras.keras_optimizer import is_of_keras3

# Replicas and shards are traced in one thread each, hence thread-local.
_current = threading.local()


@dataclass(frozen=True)
class Update:
    """What a step of a model's own asks an optimizer for.

    Attributes:
        name: the attribute of the model that is the optimizer.
        variables: what it updates.
        gradients: theirs, dense, float32 or of the variables' types.
        loss: the number that they were derived from, float32 scalar; 0 if it is not known.
    """

    name: str
    variables: list[tf.Variable]
    gradients: list[tf.Tensor]
    loss: tf.Tensor


@contextmanager
def traced_part(index: tf.Tensor) -> Iterator[None]:
    """Trace a step of a model's own inside; `index` is the number of the training step."""
    _note_losses()
    _current.loss, _current.index = None, index
    try:
        yield
    finally:
        _current.loss = _current.index = None


@functools.cache
def _note_losses() -> None:
    """Have tapes note what they derive, from now on: the divergence monitor judges it."""
    original = tf.GradientTape.gradient

    @functools.wraps(original)
    def gradient(self: tf.GradientTape, target: Any, *args: Any, **options: Any) -> Any:
        if tf.is_tensor(target) and target.shape.rank == 0:
            _current.loss = target
        return original(self, target, *args, **options)

    tf.GradientTape.gradient = gradient


class OptimizerProxy:
    """An optimizer of a model, as its own step sees it.

    Attributes:
        updating: the optimizer of the engine that makes the updates; None: it is not built yet.

    Args:
        name: the attribute of the model.
        original: the optimizer that the model was compiled with.
    """

    def __init__(self, name: str, original: Any) -> None:
        self._steadfast_name = name
        self._original = original
        self.updating: Any = None

    @property
    def original(self) -> Any:
        """The optimizer that the model was compiled with."""
        return self._original

    @property
    def iterations(self) -> tf.Tensor:
        """Number of updates made."""
        return _current.index if self.updating is None else self.updating.iterations.read_value()

    @property
    def learning_rate(self) -> tf.Tensor:
        """The learning rate of the next update."""
        rate = 0.0 if self.updating is None else self.updating.learning_rate
        if not callable(rate):
            return tf.convert_to_tensor(rate)
        by_number = isinstance(rate, tf.keras.optimizers.schedules.LearningRateSchedule)
        return tf.cast(rate(self.iterations) if by_number else rate(), tf.float32)

    def apply_gradients(self, grads_and_vars: Iterable[tuple[Any, Any]], **options: Any) -> None:
        """Update variables by the mean gradient of the global batch; those without stay."""
        pairs = [(gradient, v) for gradient, v in grads_and_vars if gradient is not None]
        if not pairs:
            raise ConfigError(
                f"model: {self._steadfast_name}.apply_gradients was given no gradient; compute the "
                "loss from the variables within the tape"
            )
        variables = [getattr(v, "value", v) if is_of_keras3(v) else v for _, v in pairs]
        split = next((v for v in variables if parts_of(v) != [v]), None)
        if split is not None:
            raise ConfigError(
                f"model: its own train_step updates {split.name}, which parameter servers hold in "
                "pieces; add strategy.partitioner=none"
            )
        gradients = [tf.convert_to_tensor(gradient) for gradient, _ in pairs]
        loss = getattr(_current, "loss", None)
        loss = tf.zeros([]) if loss is None else tf.cast(loss, tf.float32)
        meet = tf.autograph.experimental.do_not_convert(lockstep.meet)
        with shared_values():
            meet(Update(self._steadfast_name, variables, gradients, loss))

    def apply(self, grads: Any, trainable_variables: Any = None) -> None:
        """Update as Keras 3's `apply` does."""
        if trainable_variables is None:
            raise ConfigError(
                f"model: {self._steadfast_name}.apply needs the variables; write "
                "apply(gradients, variables)"
            )
        self.apply_gradients(zip(grads, trainable_variables, strict=True))

    def minimize(
        self, loss: Any, var_list: Any, grad_loss: Any = None, name: Any = None, tape: Any = None
    ) -> None:
        """Update by the gradient of a loss that a tape has recorded."""
        if tape is None:
            raise ConfigError(
                f"model: {self._steadfast_name}.minimize needs tape=, the GradientTape of the loss"
            )
        variables = var_list() if callable(var_list) else list(var_list)
        self.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))

    def scale_loss(self, loss: Any) -> Any:
        """Return the loss: the engine scales none of a model's own step."""
        return loss

    get_scaled_loss = scale_loss
    get_unscaled_gradients = scale_loss

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        value = getattr(self._original, name)
        if callable(value) or isinstance(value, tf.Variable) or is_of_keras3(value):
            raise ConfigError(
                f"model: its own step uses {self._steadfast_name}.{name}, which the engine's "
                "optimizer does not have; apply_gradients, apply, minimize, iterations and "
                "learning_rate it has"
            )
        return value
