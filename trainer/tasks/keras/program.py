"""A Keras program on a shard of a batch: Keras' own losses, metrics and steps, as they are written.

Keras is called, not imitated. What a shard would change is kept apart: its metrics begin empty, and
what it assigns to weights is noted (`trainer.engine.graph.step.assignments`).

A metric is summed: what its variables hold after a shard is added up over shards, steps and
processes, and Keras' own `result` makes the reported value of the total. Touches what
`trainer.engine.graph.step.assignments` names, and `StatelessScope` of Keras 3.
"""

from __future__ import annotations

import re
import threading
import traceback
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
import tensorflow as tf

from trainer.engine.graph.library_patches import scale_no_losses
from trainer.engine.graph.step.assignments import Assigned, note_update, own_values
from trainer.errors import ConfigError, is_user_code
from trainer.protocols import Batch
from trainer.tasks.keras.optimizers import traced_step
from trainer.tasks.keras.user_model import (
    LIBRARIES,
    compiled_with,
    converted,
    enabled,
    has_call,
    own_steps,
    undecorated,
)


class MetricStates:
    """The metrics of a model, each once, those of what it was compiled with first."""

    def __init__(self, model: Any) -> None:
        self._is_keras3 = not isinstance(model, tf.keras.layers.Layer)
        metrics = list(model.metrics)
        if not self._is_keras3:
            metrics += [x for x in model.submodules if isinstance(x, tf.keras.metrics.Metric)]
        # What a model was compiled with is not built if its own steps do not use it.
        metrics = [x for x in metrics if not hasattr(x, "metrics") or x.built]
        self.metrics = list({id(metric): metric for metric in metrics}.values())
        variables = [v for metric in self.metrics for v in metric.variables]
        self.variables = list({id(v): v for v in variables}.values())
        if not self._is_keras3:
            for metric in self.metrics:
                # Keras' own waits for the other replicas to add their variables.
                object.__setattr__(metric, "result", types.MethodType(type(metric).result, metric))
        self._current = threading.local()  # replicas are traced in one thread each
        self._sizes = [int(np.prod(v.shape, dtype=np.int64)) for v in self.variables]

    @property
    def _each(self) -> list[Any]:
        """The metrics, those within what a model was compiled with by themselves."""
        return [x for metric in self.metrics for x in getattr(metric, "metrics", None) or [metric]]

    @property
    def has_own(self) -> bool:
        """Whether a metric is of a class of the user's, which may add nothing up."""
        return any(type(x).__module__.partition(".")[0] not in LIBRARIES for x in self._each)

    @property
    def groups(self) -> list[list[int]]:
        """The numbers of the variables of each metric."""
        number = {id(v): i for i, v in enumerate(self.variables)}
        return [[number[id(v)] for v in x.variables if id(v) in number] for x in self._each]

    @contextmanager
    def beginning(self, vector: tf.Tensor) -> Iterator[None]:
        """Have the variables hold other numbers than zeros when a shard inside begins, [size]."""
        pairs = zip(self.variables, self.split(vector), strict=True)
        self._current.values = {id(v): tf.cast(tf.reshape(x, v.shape), v.dtype) for v, x in pairs}
        try:
            yield
        finally:
            self._current.values = {}

    def begin_of(self, variable: Any) -> tf.Tensor:
        """Return what a variable holds when a shard begins."""
        value = getattr(self._current, "values", {}).get(id(variable))
        return tf.zeros(variable.shape, variable.dtype) if value is None else value

    @property
    def size(self) -> int:
        """How many numbers the variables hold."""
        return sum(self._sizes)

    def after(self, assigned: Any) -> tf.Tensor:
        """Return what the variables hold after a shard, [size] float32.

        Args:
            assigned: what `own_values` yielded, or the scope of a model of Keras 3.
        """
        values = []
        for variable, size in zip(self.variables, self._sizes, strict=True):
            if self._is_keras3:
                value = assigned.get_current_value(variable)
            else:
                entry = assigned.get(id(variable))
                value = None if entry is None else entry.value
            if value is None:
                value = self.begin_of(variable)
            values.append(tf.reshape(tf.cast(tf.convert_to_tensor(value), tf.float32), [size]))
        return tf.concat(values, axis=0) if values else tf.zeros([0])

    def spread(self, numbers: Sequence[float]) -> np.ndarray:
        """Return one number a variable for each number that it holds, [size] float32."""
        return np.repeat(np.asarray(numbers, np.float32), self._sizes)

    def split(self, vector: Any) -> list[Any]:
        """Return the slice of a vector, [size], that belongs to each variable."""
        ends = np.cumsum([0, *self._sizes])
        return [vector[start:end] for start, end in pairwise(ends)]

    def results(self, totals: np.ndarray) -> dict[str, float]:
        """Return Keras' value of each metric, of the totals of the variables, [size] float64."""
        with tf.device("CPU:0"):
            return numbers_of(self._results(tf.constant(totals, tf.float64)))

    # In a graph: eager operations bypass the replacements of variables.
    @tf.function(autograph=False)
    def _results(self, totals: tf.Tensor) -> dict[str, Any]:
        values = [
            tf.cast(tf.reshape(x, v.shape), v.dtype)
            for v, x in zip(self.variables, self.split(totals), strict=True)
        ]
        pairs = list(zip(self.variables, values, strict=True))
        if self._is_keras3:
            import keras

            with keras.StatelessScope(pairs):
                return {metric.name: metric.result() for metric in self.metrics}
        with own_values(self.variables) as held:
            held.update({id(v): Assigned(v, value, value) for v, value in pairs})
            return {metric.name: metric.result() for metric in self.metrics}

    def directions(self, direction_of: Callable[[str], str | None]) -> dict[str, str]:
        """Return which direction of each value is better, where its name or class shows it."""
        kinds = {metric.name: type(metric).__name__ for metric in self._each}
        found = {name: direction_of(name) for name in self.names()}
        found |= {name: way for name, kind in kinds.items() if (way := direction_of(kind))}
        return {name: way for name, way in found.items() if way}

    def names(self) -> list[str]:
        """Return the names of the values of all metrics."""
        return list(self.results(np.zeros([self.size])))


def numbers_of(results: Mapping[str, Any]) -> dict[str, float]:
    """Return results by name: of several numbers each has its own, such as `f1/0`."""
    numbers: dict[str, float] = {}
    for name, result in results.items():
        if isinstance(result, Mapping):
            numbers |= numbers_of(result)
            continue
        array = np.asarray(result, np.float64)
        if array.ndim == 0:
            numbers[name] = float(array)
        else:
            numbers |= {f"{name}/{i}": float(value) for i, value in enumerate(array.ravel())}
    return numbers


_AUTOGRAPH_LINE = re.compile(r'^ *File "(.+?)", line (\d+), in .*[^*]\*$', re.MULTILINE)
NO_LOSS = (
    "task.loss (null) must be set for a model that is not compiled with one; add "
    "task.loss=<name>, such as sparse_categorical_crossentropy, or compile the model"
)
_ERRORS = (AttributeError, TypeError, ValueError, NotImplementedError, tf.errors.OpError)


@dataclass(frozen=True)
class Pass:
    """What a program makes of a batch, or of a shard of it.

    Attributes:
        loss: one number, as Keras reports it of such a batch, regularization included.
        objective: what is derived: the same, but of a loss that is not reduced the sum.
        logs: what a step returns, scalars by name; of metrics their values for it alone.
        states: what the variables of the metrics hold afterwards, `MetricStates.size` float32.
    """

    loss: tf.Tensor
    objective: tf.Tensor
    logs: dict[str, tf.Tensor]
    states: tf.Tensor


class Program:
    """A compiled model, or one with custom steps.

    Attributes:
        own: the user's, which is the same of tf_keras.
        steps: the steps that its class does not inherit from Keras: name -> class.

    Args:
        specs: of a batch; of the loss and the metrics the variables are created for such.

    Raises:
        ConfigError: it cannot be evaluated on such a batch.
    """

    def __init__(
        self, model: Any, own: Any, library: Any, specs: Mapping[str, Any], *, evaluates: bool
    ) -> None:
        self.model = model
        self.own = own
        self.library = library
        self.steps = own_steps(own)
        self._is_keras3 = library is not tf.keras
        scale_no_losses(of_tf_keras=library is tf.keras)
        self._create_metrics(specs, evaluates=evaluates)

    @cached_property
    def states(self) -> MetricStates:
        """Its metrics, all of which exist when a step has been traced."""
        states = MetricStates(self.own)
        if self._is_keras3:
            self.model.metric_begin = states.begin_of
        return states

    @property
    def has_own_metrics(self) -> bool:
        """Whether the class has its own `compute_metrics`."""
        return "compute_metrics" in self.steps

    @property
    def has_own_loss(self) -> bool:
        """Whether the class has its own `compute_loss`."""
        return "compute_loss" in self.steps

    def compiled(self, batch: Batch, *, training: bool) -> Pass:
        """Call the model, its loss and its metrics."""
        with self._called() as assigned:
            outputs = self.own(batch["features"], training=training)
            return self._of_outputs(batch, outputs, assigned, training=training)

    def outputs(self, batch: Batch, *, training: bool) -> tuple[Any, tf.Tensor]:
        """Return the outputs of the model, and the sum of what its layers add to the loss."""
        with self._called():
            outputs = self.own(batch["features"], training=training)
            return outputs, self._added()

    def of_outputs(self, batch: Batch, outputs: Any, added: tf.Tensor, *, training: bool) -> Pass:
        """Compute loss and metrics of a whole batch from the outputs that its shards have had."""
        with self._called() as assigned:
            return self._of_outputs(batch, outputs, assigned, added, training=training)

    def step(self, name: str, batch: Batch, index: tf.Tensor) -> Pass:
        """Run `train_step` or `test_step` of the model's own on a batch, or on a shard of it."""
        scope: AbstractContextManager[Any] = self._metrics_apart()
        weights: Sequence[tf.Variable] = ()
        if self._is_keras3:
            scope = self.model.own_step()
        elif "train_step" in self.steps:
            weights = self.model.variables
        with self._explained(), traced_step(index), own_values(weights) as assigned, scope as held:
            with self._converting():
                returned = converted(undecorated(self.own, name), self.library)(packed(batch))
            logs = _scalars(name, returned)
            states = self.states.after(held)
        for variable, value, old in assigned.values():
            note_update(variable, tf.cast(value, tf.float32), tf.cast(old, tf.float32))
        loss = logs["loss"] if "loss" in logs else next(iter(logs.values()))
        return Pass(loss, loss, logs, states)

    @contextmanager
    def _called(self) -> Iterator[Any]:
        """Call the model inside; yield the source of the metrics' values."""
        with self._explained(), self._converting():
            if self._is_keras3:
                with self.model.values_noted() as scope:
                    yield scope
            else:
                with self._metrics_apart() as assigned:
                    yield assigned

    @contextmanager
    def _metrics_apart(self) -> Iterator[Mapping[int, Assigned]]:
        """Keep what is assigned to metrics of tf_keras apart; not yet in the first trace."""
        states = vars(self).get("states")
        if states is None:
            yield {}
            return
        with own_values(states.variables, states.begin_of) as assigned:
            yield assigned

    def _of_outputs(
        self,
        batch: Batch,
        outputs: Any,
        assigned: Any,
        added: tf.Tensor | None = None,
        *,
        training: bool,
    ) -> Pass:
        own = self.own
        args = (batch["features"], batch.get("label"), outputs)
        weight = batch.get("sample_weight")
        _set_rows(outputs, batch.get("label"))
        loss = self._loss(*args, weight, added, training=training)
        if loss is None:
            raise ConfigError(NO_LOSS)
        loss = tf.cast(tf.convert_to_tensor(loss), tf.float32)
        if self._is_keras3:
            if own._loss_tracker is not None:  # else its class has its own `compile`
                own._loss_tracker.update_state(loss, sample_weight=num_examples(batch))
            returned = own.compute_metrics(*args, sample_weight=weight)
        else:
            returned = converted(own.compute_metrics, self.library)(*args, weight)
        logs, states = _scalars("compute_metrics", returned), self.states.after(assigned)
        return Pass(tf.reduce_mean(loss), tf.reduce_sum(loss), logs, states)

    def _loss(
        self, features: Any, label: Any, outputs: Any, weight: Any, added: Any, *, training: bool
    ) -> Any:
        """Return what the model's `compute_loss` does; where it is Keras', with another `added`."""
        own = self.own
        if added is None or self.has_own_loss:
            if self._is_keras3:
                return own._compute_loss(features, label, outputs, weight, training=training)
            return converted(own.compute_loss, self.library)(features, label, outputs, weight)
        if not self._is_keras3:
            return own.compiled_loss(label, outputs, weight, regularization_losses=[added])
        compiled = own._compile_loss
        return added if compiled is None else compiled(label, outputs, weight) + added

    def _added(self) -> tf.Tensor:
        losses = [tf.reduce_sum(tf.cast(loss, tf.float32)) for loss in self.own.losses]
        if losses and self.has_own_loss:
            raise ConfigError(
                f"model: {self.place_of('compute_loss')}: the loss is no mean over examples, and "
                "layers add to it (add_loss, regularizers), so it cannot be computed of several "
                "shards of a batch; train it on one device, or have compute_loss return a mean"
            )
        return tf.add_n(losses) if losses else tf.zeros([])

    def place_of(self, step: str) -> str:
        """Return file and line of a step of the model's own."""
        function = undecorated(self.own, step)
        code = getattr(function, "__func__", function).__code__
        return f"{code.co_filename}:{code.co_firstlineno}"

    def _create_metrics(self, specs: Mapping[str, Any], *, evaluates: bool) -> None:
        """Create the variables of losses and metrics, in the strategy's scope."""
        own = self.own
        loss = own._compile_loss if self._is_keras3 else getattr(own, "compiled_loss", None)
        metrics = own._compile_metrics if self._is_keras3 else own.compiled_metrics
        runs_steps = "train_step" in self.steps and (
            "test_step" in self.steps or compiled_with(own).loss is None or not evaluates
        )
        if (loss is None and metrics is None) or runs_steps or not has_call(own):
            return

        # Decided here: a replica builds while the others wait for it, and all must do the same.
        is_new = {id(each): each is not None and not each.built for each in (loss, metrics)}

        def call(batch: Batch) -> None:
            label = batch.get("label")
            outputs = self.model(batch["features"], training=False)
            if not (compiled_with(own).loss or self.model.losses or own_steps(own)):
                raise ConfigError(NO_LOSS)
            if loss is not None and is_new[id(loss)]:
                loss(label, outputs)
            if metrics is not None and is_new[id(metrics)]:
                metrics.update_state(label, outputs)

        if self._is_keras3:
            import keras

            # Variables that are created inside get their values when the scope is left.
            with self._explained(), keras.StatelessScope():
                tf.function(call, autograph=False).get_concrete_function(dict(specs))
            return
        # As Keras does: in the replicas, in the first step; but nothing is computed here.
        strategy = tf.distribute.get_strategy()
        trace = tf.function(lambda batch: strategy.run(call, args=(batch,)), autograph=False)
        with self._explained(), self._converting():
            trace.get_concrete_function(dict(specs))
        losses = tf.nest.flatten(getattr(loss, "_losses", None))
        for each in filter(None, losses) if strategy.num_replicas_in_sync > 1 else ():
            if each.reduction == tf.keras.losses.Reduction.SUM:
                # Else Keras multiplies what it reports by the number of replicas.
                each._is_sum, each.reduction = True, tf.keras.losses.Reduction.NONE

    def _converting(self) -> AbstractContextManager[Any]:
        """Convert the user's functions by AutoGraph, as tf_keras does and Keras 3 does not."""
        return nullcontext() if self._is_keras3 else enabled()

    @contextmanager
    def _explained(self) -> Iterator[None]:
        """Have errors of the program inside name its file and line, in one line."""
        try:
            yield
        except _ERRORS as error:
            place = _place(error)
            raise ConfigError(
                f"model: {place}: {_reason(error)}" if place else f"model: {_reason(error)}"
            ) from error


def num_examples(batch: Batch) -> int:
    """Return how many examples are in a batch."""
    return int(batch["weight"].shape[0])


def _set_rows(outputs: Any, label: Any) -> None:
    """Set the number of rows of outputs that text layers and the like have made, as of the labels.

    Keras weighs the loss of an output by it, and by 1 where it is unknown.
    """
    outputs, labels = tf.nest.flatten(outputs), tf.nest.flatten(label)
    pairs = zip(outputs, labels, strict=True) if len(outputs) == len(labels) else ()
    for output, own in pairs:
        if output.shape.rank and output.shape[0] is None and own.shape.rank:
            output.set_shape([own.shape[0], *output.shape[1:]])


def packed(batch: Batch) -> Any:
    """Return a batch as Keras passes it to a step: features, or with label and sample weight.

    A step may change the dicts that it is given.
    """
    batch = tf.nest.map_structure(lambda x: x, dict(batch))
    if "label" not in batch:
        return batch["features"]
    weights = [batch["sample_weight"]] if "sample_weight" in batch else []
    return (batch["features"], batch["label"], *weights)


def _scalars(step: str, returned: Any) -> dict[str, tf.Tensor]:
    if not isinstance(returned, Mapping):
        raise ConfigError(
            f"model: its {step} returns {type(returned).__name__}; it must return a dict of "
            'metrics, such as {"loss": loss}'
        )
    values: dict[str, tf.Tensor] = {}
    for name, value in returned.items():
        if isinstance(value, Mapping):
            values |= _scalars(step, value)
        else:
            values[str(name)] = tf.reduce_mean(tf.cast(tf.convert_to_tensor(value), tf.float32))
    if not values and step != "compute_metrics":
        raise ConfigError(f'model: its {step} returns no metrics; return {{"loss": loss}}')
    return values


def _place(error: BaseException) -> str:
    """Return file and line of the user's code that raised an error, if any did."""
    if converted_lines := _AUTOGRAPH_LINE.findall(str(error)):
        file, line = converted_lines[-1]
        return f"{file}:{line}"
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if is_user_code(frame.filename):
            return f"{frame.filename}:{frame.lineno}"
    return ""


def _reason(error: BaseException) -> str:
    """Return the message of an error in one line."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if _AUTOGRAPH_LINE.search(str(error)):
        lines = [line for line in lines if re.match(r"\w+(Error|Exception)?: ", line)] or lines
    return lines[0] if lines else repr(error)
