"""Batch normalization over the global batch where that is computed in several passes, exactly.

A normalization layer needs the sums S of its inputs over the whole global batch before any pass can
go on. So the sums are computed first, call by call in the order of the forward pass: call k needs
one sweep over all passes, in which the calls before it normalize with sums that are known.

The loss L depends on the weights also through the sums. With the sums m(w, S) that one pass adds to
all calls, and the loss l(w, S) of one pass,

    dL/dS_k = sum over passes of d(l + sum over j > k of dL/dS_j . m_j) / dS_k
    dL/dw   = sum over passes of d(l + sum over j of dL/dS_j . m_j) / dw

where S is a constant to each derivative: an adjoint of the forward pass, from the last call back to
the first, with one sweep each. No pass keeps anything for another, so the memory is that of one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial

import tensorflow as tf

from trainer.engine.graph.placement.step_devices import backward_pass
from trainer.engine.graph.randomness import randomness
from trainer.protocols import Batch

Compute = Callable[[Batch], list[tf.Tensor]]
AddUp = Callable[[Compute, Sequence[tf.TensorSpec]], list[tf.Tensor]]
"""Adds up the tensors that a function returns for each pass, over the passes of this replica."""
Reduce = Callable[[list[tf.Tensor]], list[tf.Tensor]]
"""Sums tensors of static shapes over the replicas, without rounding them further."""

_SUMS = tf.TensorSpec([2, None], tf.float32)


def synchronized_layers(models: Iterable[tf.keras.Model]) -> list[tf.keras.layers.Layer]:
    """Return the layers that normalize over the global batch, each once."""
    layers = [layer for model in models for layer in model.submodules]
    by_id = {id(layer): layer for layer in layers if getattr(layer, "synchronized", False)}
    return list(by_id.values())


@dataclass(frozen=True)
class NormCall:
    """A call of a normalization layer in one pass.

    Attributes:
        layer: the layer.
        sums: what this pass adds to the sum of its inputs and of their squares, [2, C] float32.
        count: numbers that are normalized alike, for each channel, in the global batch.
    """

    layer: tf.keras.layers.Layer
    sums: tf.Tensor
    count: int


@dataclass(frozen=True)
class _Record:
    """What the calls of a layer in one pass read and add to."""

    layer: tf.keras.layers.Layer
    totals: Sequence[tf.Tensor]
    calls: list[NormCall]


@dataclass
class GlobalStatistics:
    """The sums of all calls, and the derivatives of the loss by them.

    Attributes:
        layers: the layers whose calls are meant.
        passes: number of passes over the global batch, of all replicas.
        add_up: adds up over the passes of this replica.
        reduce: adds up over the replicas.
        calls: the calls in the order of the forward pass; their `sums` are of no use.
        totals: for each call the sums over the global batch, [2, C] float32.
        adjoints: for each call the derivative of the loss by its totals; None: not needed.
    """

    layers: Sequence[tf.keras.layers.Layer]
    passes: int
    add_up: AddUp
    reduce: Reduce
    calls: list[NormCall] = field(default_factory=list)
    totals: list[tf.Tensor] = field(default_factory=list)
    adjoints: list[tf.Tensor | None] = field(default_factory=list)

    def compute(self, objective: Callable[[Batch], tf.Tensor], model: tf.keras.Model) -> None:
        """Compute totals and adjoints of a loss.

        Args:
            objective: the loss that a pass adds to that of the global batch, a scalar.
            model: the loss is to be differentiated by its weights.
        """
        if not self.layers:
            return
        needed: list[bool] = []
        while True:
            total = self._next_total(objective, model, needed)
            if self.calls:
                self.totals.append(total)
            if len(self.totals) == len(self.calls):
                break
        self.adjoints = [None] * len(self.totals)
        for number in reversed(range(len(self.totals))):
            if needed[number]:
                self.adjoints[number] = self._adjoint(number, objective)

    @contextmanager
    def known(self, totals: Sequence[tf.Tensor]) -> Iterator[list[NormCall]]:
        """Normalize with known totals in the forward pass that is traced inside.

        Calls after those whose totals are known take the sums of the pass for a whole: what
        follows is of no use then.

        Yields:
            The calls, complete when the pass is.
        """
        calls: list[NormCall] = []
        for layer in self.layers:
            layer._calculate_mean_and_var = partial(self._moments, _Record(layer, totals, calls))
            # Made once, when the step knows the totals.
            layer._assign_moving_average = lambda *args: None
        try:
            yield calls
        finally:
            for layer in self.layers:
                del layer._calculate_mean_and_var
                del layer._assign_moving_average

    def weighted(self, calls: Sequence[NormCall], after: int = -1) -> tf.Tensor:
        """Return what a pass adds to the loss through the calls after one of them, a scalar."""
        terms = [
            tf.reduce_sum(adjoint * call.sums)
            for adjoint, call in list(zip(self.adjoints, calls, strict=True))[after + 1 :]
            if adjoint is not None
        ]
        return tf.add_n(terms) if terms else tf.zeros([])

    def moving_updates(self) -> list[tuple[tf.Variable, tf.Tensor]]:
        """Return the moving statistics of the layers and their new values, in this order."""
        values: dict[int, tuple[tf.Variable, tf.Tensor]] = {}
        for call, total in zip(self.calls, self.totals, strict=True):
            layer = call.layer
            for variable, value in zip(
                (layer.moving_mean, layer.moving_variance),
                _mean_and_variance(total, call.count),
                strict=True,
            ):
                old = values.get(id(variable), (variable, variable.read_value()))[1]
                new = old - (old - tf.reshape(value, old.shape)) * (1.0 - layer.momentum)
                values[id(variable)] = (variable, new)
        return list(values.values())

    def _next_total(
        self,
        objective: Callable[[Batch], tf.Tensor],
        model: tf.keras.Model,
        needed: list[bool],
    ) -> tf.Tensor:
        """Return the totals of the first call that has none, and note whether weights matter."""
        number = len(self.totals)
        own = {id(layer) for layer in model.submodules}

        def compute(batch: Batch) -> tf.Tensor:
            with tf.GradientTape() as tape, self.known(self._locals()) as calls:
                objective(batch)
            self.calls = calls
            if number >= len(calls):
                needed[number:] = [False]
                return tf.zeros([2, 0])
            call = calls[number]
            needed[number:] = [
                id(call.layer) in own
                or any(x is not None for x in tape.gradient(call.sums, model.trainable_variables))
            ]
            return call.sums

        return self._sweep(compute)

    def _adjoint(self, number: int, objective: Callable[[Batch], tf.Tensor]) -> tf.Tensor:
        def compute(batch: Batch) -> tf.Tensor:
            totals = self._locals()
            with tf.GradientTape(watch_accessed_variables=False) as tape:
                tape.watch(totals[number])
                with self.known(totals) as calls:
                    loss = objective(batch)
                loss += self.weighted(calls, number)
            with backward_pass():
                return tape.gradient(
                    loss, totals[number], unconnected_gradients=tf.UnconnectedGradients.ZERO
                )

        return self._sweep(compute)

    def _sweep(self, compute: Callable[[Batch], tf.Tensor]) -> tf.Tensor:
        """Add up [2, C] over all passes, with the random numbers that the next sweep draws too."""
        shapes: list[tf.TensorShape] = []

        def noted(batch: Batch) -> list[tf.Tensor]:
            value = compute(batch)
            shapes[:] = [value.shape]
            return [value]

        with randomness.repeatable():
            (own,) = self.add_up(noted, [_SUMS])
        own = tf.ensure_shape(own, shapes[0])
        return self.reduce([own])[0] if own.shape.num_elements() else own

    def _locals(self) -> list[tf.Tensor]:
        """Return the totals as tensors of the graph that is traced, which a tape can watch."""
        return [tf.identity(total) for total in self.totals]

    def _moments(
        self,
        record: _Record,
        x: tf.Tensor,
        axes: Sequence[int],
        keep_dims: bool,
        mask: tf.Tensor | None = None,
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Return mean and variance of a call, as tf_keras' layer asks for them."""
        x = tf.cast(x, tf.float32)
        sums = tf.stack([tf.reduce_sum(x, axes), tf.reduce_sum(tf.square(x), axes)])
        sums = tf.reshape(sums, [2, -1])
        count = x.shape.num_elements() // sums.shape[1] * self.passes
        number = len(record.calls)
        record.calls.append(NormCall(record.layer, sums, count))
        is_known = number < len(record.totals)
        total = record.totals[number] if is_known else sums * float(self.passes)
        shape = [1 if axis in axes else size for axis, size in enumerate(x.shape)]
        moments = _mean_and_variance(total, count)
        mean, variance = (tf.reshape(value, shape) for value in moments)
        if not keep_dims:
            mean, variance = tf.squeeze(mean, axes), tf.squeeze(variance, axes)
        return mean, variance


def _mean_and_variance(total: tf.Tensor, count: int) -> tuple[tf.Tensor, tf.Tensor]:
    """Return both, [C], from the sums of inputs and squares, [2, C], of so many numbers each."""
    mean = total[0] / float(count)
    # As tf_keras' synchronized layer: the difference of two rounded numbers may be negative.
    return mean, tf.maximum(total[1] / float(count) - tf.square(mean), 0.0)
