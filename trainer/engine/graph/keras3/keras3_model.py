"""A model of Keras 3, with what the engine uses of a model of tf_keras.

Under tf.distribute Keras 3 is silently wrong: statistics of batch normalization drift apart between
replicas, and its seeds are variables that nothing keeps equal. So the model is called as a function
of its variables' values (`keras.StatelessScope`): the tape sees the reads, and what the forward
pass would have assigned is noted as a value, which a step averages over all parts of the batch.

Touches two private names: the module that holds the backend's `remat`, and the constraint of a
variable; tests/engine/graph/keras3/test_keras3_model.py fails when they move.
"""

from __future__ import annotations

import functools
import re
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras.src.backend import core as backend
from tensorflow.python.autograph.core.ag_ctx import ControlStatusCtx, Status

from trainer.engine.graph.keras3 import keras3_random
from trainer.engine.graph.keras3.keras3_random import refusals_as_they_are, refuse
from trainer.engine.graph.state.variables import pieces_of
from trainer.engine.graph.state.weight_paths import select, shown, weights_of
from trainer.engine.graph.step.assignments import note_update
from trainer.errors import ConfigError

LORA = "train.lora.layers"


class Keras3Model(tf.Module):
    """Calls a built model of Keras 3 without changing any of its variables.

    Attributes:
        metric_begin: returns what a variable of a metric holds when a step begins.
        saved: the variables as a checkpoint names them. Automatic names of layers differ
            between two builds, so a name starts with the variable's number.
    """

    notes_updates = True

    def __init__(self, model: keras.Model) -> None:
        super().__init__(name=re.sub(r"\W", "_", model.name))
        check_model(model)
        for layer in model._flatten_layers():
            _leave_no_function(layer)
        self._model = self._no_dependency(model)
        weights = list(model.weights)
        for weight in weights:
            if weight.constraint is not None:
                _give_constraint(weight)
        self.saved = {f"{i}_{v.name}": v.value for i, v in enumerate(weights)}
        keras3_random.convert_draws()
        self.metric_begin: Callable[[Any], tf.Tensor] = lambda v: tf.zeros(v.shape, v.dtype)
        # Mirrored strategies trace their replicas in one thread each, hence thread-local.
        self._traced = self._no_dependency(threading.local())

    def __call__(self, *args: Any, **options: Any) -> Any:
        """Call the model; in training, note what it would assign to its variables."""
        with self.values_noted():
            return self._model(*args, **options)

    @contextmanager
    def values_noted(self) -> Iterator[keras.StatelessScope]:
        """Compute from the values of the variables inside; note what would be assigned to weights.

        Metrics begin empty; the scope has their values.
        """
        weights = list(self._model.weights)
        before = [self._value(v) for v in weights]
        metrics = [(v, self.metric_begin(v)) for v in self._model.metrics_variables]
        mapping = [*zip(weights, before, strict=True), *metrics]
        with checked_call(), keras.StatelessScope(mapping, collect_losses=True) as scope:
            yield scope
        self._traced.losses = scope.losses
        for variable, old in zip(weights, before, strict=True):
            new = scope.get_current_value(variable)
            if new is not old and tf.is_tensor(new):
                self._note(variable, new, old)

    @contextmanager
    def own_step(self) -> Iterator[keras.StatelessScope]:
        """Call a step of the model's own inside: it reads its weights, and assigns to none.

        What it would assign to weights and moving statistics is noted. Metrics begin empty.
        """
        trained = {id(v) for v in self._model.trainable_variables}
        statistics = [(v, self._value(v)) for v in self._model.weights if id(v) not in trained]
        metrics = [(v, self.metric_begin(v)) for v in self._model.metrics_variables]
        mapping = [*statistics, *metrics]
        with checked_call(), _OwnStepScope(mapping, collect_losses=True) as scope:
            yield scope
        values = {id(v): old for v, old in statistics}
        for variable in self._model.weights:
            old = values.get(id(variable))
            new = scope.state_mapping.get(id(variable))
            if new is not old and tf.is_tensor(new):
                old = self._value(variable) if old is None else old
                note_update(variable.value, tf.cast(new, tf.float32), tf.cast(old, tf.float32))

    def read_values(self) -> list[tf.Tensor]:
        return [variable.read_value() for variable in self.variables]

    @contextmanager
    def computed_from(self, values: Sequence[tf.Tensor]) -> Iterator[None]:
        """Have forward passes inside take the values of `variables` from here, and read none.

        XLA compiles only what has its variables on the device that computes.
        """
        self._traced.values = dict(zip(map(id, self.variables), values, strict=True))
        try:
            yield
        finally:
            self._traced.values = {}

    def value_of(self, variable: tf.Variable) -> tf.Tensor:
        """Return the value of one of `variables`, within a forward pass or outside of it."""
        value = getattr(self._traced, "values", {}).get(id(variable))
        return variable.read_value() if value is None else value

    @property
    def trainable_variables(self) -> list[tf.Variable]:
        """The trainable variables, those in pieces piece by piece."""
        return [piece for v in self._model.trainable_variables for piece in pieces_of(v.value)]

    @property
    def non_trainable_variables(self) -> list[tf.Variable]:
        """The other variables: moving statistics, and weights of frozen layers."""
        trained = {id(v) for v in self._model.trainable_variables}
        others = (v for v in self._model.weights if id(v) not in trained)
        return [piece for v in others for piece in pieces_of(v.value)]

    @property
    def variables(self) -> list[tf.Variable]:
        return [*self.trainable_variables, *self.non_trainable_variables]

    @property
    def losses(self) -> list[tf.Tensor]:
        """The regularization of the weights, and what the last call added to the loss; scalars."""
        graph = tf.compat.v1.get_default_graph()
        losses = getattr(self._traced, "losses", ())
        added = [x for x in losses if tf.executing_eagerly() or x.graph is graph]
        regularization = [
            v.regularizer(self._value(v))
            for v in self._model.trainable_variables
            if v.regularizer is not None
        ]
        return [*added, *regularization]

    @property
    def library(self) -> Any:
        """The Keras whose layers the model may have."""
        return keras

    @property
    def keras_model(self) -> keras.Model:
        return self._model

    @property
    def layers(self) -> list[keras.Layer]:
        return self._model.layers

    @property
    def all_layers(self) -> list[keras.Layer]:
        """The layers of the model, and those within them."""
        return list(self._model._flatten_layers())

    @property
    def inputs(self) -> Any:
        """The symbolic inputs; None of a subclassed model."""
        return getattr(self._model, "inputs", None)

    @property
    def input_shape(self) -> tuple[int | None, ...]:
        """Shape of the input, the batch included; of a subclassed model, of its first call."""
        if self.inputs:
            return self.inputs[0].shape
        return (None, *self._model.get_build_config()["input_shape"][1:])

    @property
    def trainable(self) -> bool:
        """Whether the model is trained; setting it freezes or releases all of its layers."""
        return bool(self._model.trainable)

    @trainable.setter
    def trainable(self, value: bool) -> None:
        self._model.trainable = value

    def get_weights(self) -> list[np.ndarray]:
        return self._model.get_weights()

    def set_weights(self, weights: list[np.ndarray]) -> None:
        """Assign the values of all weights."""
        self._model.set_weights(weights)

    def count_params(self) -> int:
        """Return the number of weights."""
        return self._model.count_params()

    def extended(self, outputs: Any) -> Keras3Model:
        """Return a model of these symbolic outputs, which are computed from this one's layers."""
        extended = keras.Model(self._model.inputs, outputs, name=self._model.name)
        return Keras3Model(extended)

    def save(self, path: Any) -> None:
        """Write the model as Keras 3 does."""
        self._model.save(path)

    def _value(self, variable: keras.Variable) -> tf.Tensor:
        pieces = [self.value_of(piece) for piece in pieces_of(variable.value)]
        return pieces[0] if len(pieces) == 1 else tf.concat(pieces, axis=0)

    def _note(self, variable: keras.Variable, value: tf.Tensor, old: tf.Tensor) -> None:
        if variable.trainable:
            raise ConfigError(
                f"model: the forward pass assigns to the weight {variable.path}, as Keras 3's "
                "SpectralNormalization does, so its gradient would belong to another value; use "
                "such a layer of tf_keras, or a variable that is not trainable"
            )
        note_update(variable.value, tf.cast(value, tf.float32), tf.cast(old, tf.float32))


class _OwnStepScope(keras.StatelessScope):
    """A scope in which variables without a value in it are read as they are."""

    def get_current_value(self, variable: keras.Variable) -> Any:
        value = super().get_current_value(variable)
        return variable._value if value is None else value


def _leave_no_function(layer: keras.Layer) -> None:
    """Take a `tf.function` off the `call` of a layer: it keeps the values of its first trace."""
    function = getattr(type(layer).call, "python_function", None)
    if function is not None:
        status = ControlStatusCtx(Status.ENABLED)  # as a tf.function has it
        layer.call = tf.__internal__.autograph.tf_convert(function, status).__get__(layer)


def _give_constraint(weight: Any) -> None:
    """Have optimizers of tf_keras apply a weight's constraint, which its variable does not have."""
    if pieces_of(weight.value) != [weight.value]:
        raise ConfigError(
            f"model: the weight {weight.path} has a constraint, which cannot be applied to its "
            "pieces; add strategy.partitioner=none"
        )
    for variable in getattr(weight.value, "values", (weight.value,)):
        variable = getattr(variable, "_v", variable)  # within central storage's
        variable._constraint = lambda value: weight.constraint(tf.convert_to_tensor(value))


def add_adapters(model: Any, rank: int, patterns: Sequence[str]) -> None:
    """Add low-rank adapters (LoRA, Hu et al. 2021) to layers; their kernels are no longer trained.

    The output of the model stays what it was: an adapter starts with zeros.

    Args:
        patterns: layers whose kernel one of them matches have adapters, if Keras can add any.

    Raises:
        ConfigError: a pattern matches nothing, or no layer that can have adapters.
    """
    weights = weights_of({"model": model})
    able = [weight for weight in weights if hasattr(weight.layer, "enable_lora")]
    if not able:
        raise ConfigError(
            f"train.lora.rank ({rank}): no layer of {model.name} can have adapters; Keras adds "
            f"them to Dense, EinsumDense, Embedding and Conv layers; its layers are "
            f"{shown(dict.fromkeys(weight.layer.name for weight in weights))}"
        )
    for pattern in patterns:
        for weight in select(LORA, pattern, able):
            layer = weight.layer
            if layer.lora_enabled:
                continue
            try:
                layer.enable_lora(rank)
            except ValueError as error:
                raise ConfigError(f"{LORA} ('{pattern}'): {layer.name}: {error}") from error


# Mirrored strategies trace their replicas in one thread each, hence thread-local.
_current = threading.local()


def check_model(model: keras.Model) -> None:
    """Raise a ConfigError if its layers show that a model cannot be trained here."""
    layers = list(model._flatten_layers())
    # The table of a TextVectorization is never called itself; it has no variables.
    unbuilt = [x.name for x in layers if not (x.built or hasattr(x, "lookup_table"))]
    if unbuilt:
        raise ConfigError(
            f"model: layer {unbuilt[0]} has no variables yet, so none could be trained or "
            "restored; give the model a keras.Input, or call it once before it is returned"
        )
    if any(getattr(v, "overwrite_with_gradient", False) for v in model.weights):
        raise ConfigError(
            "model: float8 keeps its scales as gradients, which cannot be summed over replicas; "
            "use another dtype"
        )


@contextmanager
def checked_call() -> Iterator[None]:
    """Check the call of a model inside, which is given the values of all its variables.

    Raises:
        ConfigError: it has Python request the value of a tensor, or `refuse` was called.
    """
    _current.calls = True
    try:
        with refusals_as_they_are():
            yield
    except tf.errors.OperatorNotAllowedInGraphError as error:
        place = re.search(r"when calling ([\w.]+\(\))", str(error))
        raise ConfigError(
            f"model: {place[1] if place else 'the forward pass'} needs in Python the value of a "
            "tensor (if, while, for, and, not), which is unknown when the step is compiled; use "
            "keras.ops.cond, keras.ops.where, keras.ops.while_loop or keras.ops.logical_and"
        ) from error
    finally:
        _current.calls = False


@functools.cache
def refuse_remat() -> None:
    """Have what `keras.remat` makes from now on refuse to run within `checked_call`.

    It computes again from the variables that were read, and values are none: their gradients would
    be lost without an error.
    """
    original = backend.remat

    def remat(function: Callable[..., Any]) -> Callable[..., Any]:
        computing_again = original(function)

        def call(*args: Any, **options: Any) -> Any:
            if getattr(_current, "calls", False):
                refuse(
                    "model: keras.remat gives the weights within it no gradient here; build the "
                    "model without keras.remat and keras.RematScope (batch.accumulate saves memory "
                    "too)"
                )
            return computing_again(*args, **options)

        return call

    backend.remat = remat
