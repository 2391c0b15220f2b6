"""An optimizer of Keras without a fused counterpart, or of the user, as the engine calls one.

The optimizers of both Kerases sum gradients over the replicas and update variables through the
strategy. The engine has already summed, so here each device runs the whole optimizer by itself on
its copy of the variables, as a program of one device does: clipping, decay, averages, accumulation.

Touches private names of Keras (`_distribution_strategy`, `_learning_rate`, its stateless scope);
tests/tasks/keras/test_keras_optimizer.py fails when they move.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import tensorflow as tf

from trainer.errors import ConfigError
from trainer.keras_objects import optimizer_options

_ONE_DEVICE = SimpleNamespace(
    extended=SimpleNamespace(
        update=lambda variable, change, args=(), kwargs=None, group=True: change(
            variable, *args, **(kwargs or {})
        )
    )
)
"""Stands for the strategy that an optimizer updates variables through."""

with tf.Graph().as_default():  # whatever strategy's scope this is imported in
    _NO_STRATEGY = tf.distribute.get_strategy()


class KerasOptimizer:
    """Has the interface of a fused optimizer that the engine uses.

    Attributes:
        learning_rate: returns the learning rate of an update, from its number.
        updates_per_step: updates that it makes in a step.

    Args:
        optimizer: the optimizer, of either Keras.
        weights: the trainable variables as the optimizer knows them: those of Keras 3 by the
            variable of TensorFlow that they consist of.
    """

    def __init__(
        self, optimizer: Any, rate: Callable[[Any], Any], weights: Iterable[Any] = ()
    ) -> None:
        self._optimizer = _unbuilt(optimizer)
        self._is_of_tf_keras = isinstance(optimizer, tf.keras.optimizers.Optimizer)
        self._weights = {id(_of_tensorflow(weight)): weight for weight in weights}
        self._trained: list[Any] = []
        self._variables: list[tf.Variable] = []
        self._name = type(optimizer).__name__
        self.iterations: tf.Variable = _of_tensorflow(self._optimizer._iterations)
        self.learning_rate = rate
        self.updates_per_step = 1

    def variables(self) -> list[tf.Variable]:
        """Return all variables of the optimizer."""
        return self._variables

    def get_slot_names(self) -> list[str]:
        """Return nothing: `variables` has all."""
        return []

    def _create_all_weights(self, variables: Sequence[tf.Variable]) -> None:
        """Create what the optimizer keeps for variables, in the strategy's scope."""
        created: list[tf.Variable] = []

        def note(next_creator: Callable[..., tf.Variable], **options: Any) -> tf.Variable:
            created.append(next_creator(**options))
            return created[-1]

        optimizer = self._optimizer
        self._trained = [self._weight(variable) for variable in variables]
        with tf.variable_creator_scope(note):
            optimizer.build(self._trained)
        held = map(_of_tensorflow, (*optimizer.variables, *vars(optimizer).values(), *created))
        self._variables = list({id(v): v for v in held if isinstance(v, tf.Variable)}.values())
        # Another object of the same variables: the model's own is saved with the model.
        self._optimizer = object.__new__(type(optimizer))
        attributes = vars(self._optimizer)
        attributes |= vars(optimizer)
        attributes |= {
            "build": lambda variables: None,
            "_distribution_strategy": _ONE_DEVICE,
            "jit_compile": False,
            "loss_scale_factor": None,  # the engine has unscaled the gradients
        }
        if "_u_product_counter" in attributes:
            # The counter of tf_keras' Nadam counts what is traced, and `fit` traces twice.
            attributes["_u_product_counter"] += len(variables)
        if callable(optimizer._learning_rate):  # Keras 3 takes no schedule of tf_keras
            followed = self.learning_rate if self._is_of_tf_keras else self._rate
            attributes["_learning_rate"] = followed

    def _rate(self) -> tf.Tensor:
        return self.learning_rate(self.iterations.read_value())

    def apply_gradients(
        self,
        grads_and_vars: Iterable[tuple[Any, tf.Variable]],
        experimental_aggregate_gradients: bool = False,
    ) -> None:
        """Update variables, in replica context, by gradients that all replicas have alike."""
        if experimental_aggregate_gradients:
            raise ConfigError(
                f"model: compiled with {self._name}, which runs as Keras' own, and parameter "
                "servers and central storage would lose its counts; add optimizer=<choice>, or "
                "strategy=mirrored"
            )
        pairs = list(grads_and_vars)
        variables = [self._weight(variable) for _, variable in pairs]

        def everywhere(strategy: tf.distribute.Strategy, *gradients: Any) -> None:
            numbers = itertools.count()

            def update(_: tf.Variable, *own: tf.Tensor) -> tf.Tensor:
                with _Alone(_NO_STRATEGY, next(numbers)), self._stateful():
                    self._update(list(zip(own, variables, strict=True)))
                return tf.constant(True)

            strategy.extended.update(self.iterations, update, args=gradients)

        context = tf.distribute.get_replica_context()
        context.merge_call(everywhere, args=tuple(gradient for gradient, _ in pairs))

    def _update(self, pairs: Sequence[tuple[tf.Tensor, Any]]) -> None:
        optimizer = self._optimizer
        before = dict(vars(optimizer))
        if not callable(optimizer._learning_rate):
            optimizer._learning_rate.assign(self._rate())
        optimizer.apply_gradients(pairs)
        # Each device is traced alike, also where the optimizer counts in Python.
        vars(optimizer).update(before)

    def finish(self) -> None:
        """Give the variables their final values, as `fit` does at its end."""
        if getattr(self._optimizer, "use_ema", False):
            self._optimizer.finalize_variable_values(self._trained)

    def _weight(self, variable: tf.Variable) -> Any:
        return self._weights.get(id(variable), variable)

    @contextmanager
    def _stateful(self) -> Iterator[None]:
        """Have variables of Keras 3 be assigned to inside, also where a step only notes that."""
        if self._is_of_tf_keras:
            yield
            return
        from keras.src.backend.common import global_state

        scope = global_state.get_global_attribute("stateless_scope")
        global_state.set_global_attribute("stateless_scope", None)
        try:
            yield
        finally:
            global_state.set_global_attribute("stateless_scope", scope)


class _Alone(tf.distribute.ReplicaContext):
    """A program of one device, within the update of one of several."""

    def all_reduce(self, reduce_op: Any, value: Any, options: Any = None) -> Any:
        return value


def _of_tensorflow(variable: Any) -> Any:
    """Return the variable of TensorFlow that one of Keras 3 consists of; all else as it is."""
    return getattr(variable, "value", variable) if is_of_keras3(variable) else variable


def _unbuilt(optimizer: Any) -> Any:
    """Return an optimizer without variables of another model, or of another strategy.

    Raises:
        ConfigError: it has some, and another one cannot be made from its configuration.
    """
    iterations = _of_tensorflow(optimizer._iterations)
    is_built = getattr(optimizer, "built", False) or getattr(optimizer, "_built", False)
    if not is_built and tf.distribute.get_strategy().extended.variable_created_in_scope(iterations):
        return optimizer
    try:
        unbuilt = type(optimizer).from_config(optimizer_options(optimizer))
    except TypeError as error:
        raise ConfigError(
            f"model: compiled with {type(optimizer).__name__}, which already has variables, and "
            "its get_config does not give the arguments of another one; create it where the model "
            f"is compiled, or complete get_config ({error})"
        ) from error
    kept = {n: x for n, x in vars(optimizer).items() if n.startswith("_exclude_from_weight_decay")}
    vars(unbuilt).update(kept)
    return unbuilt


def is_of_keras3(value: Any) -> bool:
    """Return whether an object is of Keras 3, not of tf_keras."""
    return type(value).__module__.partition(".")[0] == "keras"
