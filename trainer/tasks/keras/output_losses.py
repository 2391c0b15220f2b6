"""Losses of Keras for each example, so that their mean is the same on any layout."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from trainer.errors import ConfigError
from trainer.tasks.keras.autograph import converted
from trainer.tasks.keras.outputs import aligned, by_output

_MEANS = ("sum_over_batch_size", "auto", "none", "mean", None)
_CROSS_ENTROPIES = {
    "sparse_categorical_crossentropy": "Softmax",
    "categorical_crossentropy": "Softmax",
    "categorical_focal_crossentropy": "Softmax",
    "binary_crossentropy": "Sigmoid",
    "binary_focal_crossentropy": "Sigmoid",
}
"""Losses of logits or probabilities -> the operation that makes these of those."""

_LINEAR = ("BiasAdd", "MatMul", "Add", "AddV2", "Einsum", "Conv2D")
"""Operations whose results have no bounds: no probabilities."""

_SHAPES_ONLY = ("Reshape", "Squeeze", "Cast", "Identity")


@dataclass(frozen=True)
class OutputLoss:
    """The loss of one output.

    Attributes:
        name: of the output.
        function: returns the loss of each element, [B, ...], from label and output, or one number;
            of a cross-entropy also from `from_logits`.
        weight: how much it counts in the sum over the outputs.
        activation: the operation that makes probabilities of logits; empty: no cross-entropy.
        from_logits: whether a cross-entropy is of logits; None: of those of a linear layer.
    """

    name: str
    function: Callable[..., tf.Tensor]
    weight: float
    activation: str = ""
    from_logits: bool | None = None

    def per_example(
        self, label: tf.Tensor, output: tf.Tensor, sample_weight: tf.Tensor | None
    ) -> tf.Tensor:
        """Return the loss of each example, [B] float32, weighted.

        The mean over an example's elements: so the mean over a batch is that of Keras' reduction
        `sum_over_batch_size`. Elements that a mask leaves out do not count among them.

        Args:
            label: [B, ...].
            output: [B, ...].
            sample_weight: [B], or [B, ...] by element; None: 1.
        """
        options = {"from_logits": self.takes_logits(output)} if self.activation else {}
        values = self.function(aligned(label, output), output, **options)
        values = tf.cast(values, tf.float32)
        if values.shape.rank == 0:
            return tf.fill([output.shape[0]], values)
        mask = getattr(output, "_keras_mask", None)
        if mask is not None and values.shape.rank > 1:
            valid = tf.cast(mask, tf.float32)
            share = tf.reduce_mean(valid, axis=-1, keepdims=True)
            values *= tf.math.divide_no_nan(valid, share)
        if sample_weight is not None:
            extra = values.shape.rank - sample_weight.shape.rank
            shape = [*sample_weight.shape, *[1] * extra]
            values *= tf.reshape(tf.cast(sample_weight, tf.float32), shape)
        return tf.reduce_mean(tf.reshape(values, [output.shape[0], -1]), axis=1)

    def takes_logits(self, output: tf.Tensor) -> bool:
        """Return whether an output is logits: of a linear layer it can be nothing else.

        Of the result of a softmax or sigmoid, Keras' losses take the logits before it themselves.
        """
        return is_linear(output) if self.from_logits is None else self.from_logits

    def probabilities(self, output: tf.Tensor) -> tf.Tensor:
        """Return the probabilities that an output stands for, [B, ..., C] float32."""
        output = tf.cast(output, tf.float32)
        if not self.activation or not self.takes_logits(output):
            return output
        return tf.nn.softmax(output) if self.activation == "Softmax" else tf.sigmoid(output)


def losses_of(
    key: str,
    losses: Any,
    weights: Any,
    names: Sequence[str],
    library: Any,
    *,
    from_logits: bool | None = None,
) -> list[OutputLoss | None]:
    """Return the loss of each output; None: it has none.

    Args:
        key: where they come from, for messages.
        losses: names, functions or objects of Keras, one for all outputs or by output.
        weights: how much each counts, likewise; None: 1.
        names: the outputs.
        library: the Keras that knows the names.
        from_logits: whether cross-entropies are of logits; None: as the losses themselves say.

    Raises:
        ConfigError: one is unknown, or depends on how the batch is cut.
    """
    each = by_output(key, losses, names)
    factors = by_output(f"{key}_weights", weights, names)
    return [
        None
        if loss is None
        else _loss(key, loss, name, 1.0 if factor is None else float(factor), library, from_logits)
        for loss, factor, name in zip(each, factors, names, strict=True)
    ]


def _loss(
    key: str, loss: Any, name: str, weight: float, library: Any, from_logits: bool | None
) -> OutputLoss:
    if isinstance(loss, str):
        try:
            loss = library.losses.get(loss)
        except ValueError:
            raise ConfigError(
                f"{key} ({loss}) is no loss of Keras; write its name, such as "
                "sparse_categorical_crossentropy, or a node with _target_"
            ) from None
    if inspect.isclass(loss):
        loss = loss()
    reduction = getattr(loss, "reduction", None)
    if reduction not in _MEANS:
        raise ConfigError(
            f"{key} ({_name_of(loss)}) has reduction={reduction}, which depends on the size of the "
            "batch; use reduction=sum_over_batch_size, and divide the learning rate accordingly"
        )
    inner = getattr(loss, "fn", loss)
    activation = _CROSS_ENTROPIES.get(getattr(inner, "__name__", ""), "")
    if not activation:
        function = getattr(loss, "call", None) or converted(loss, library)
        return OutputLoss(name, function, weight)
    options = dict(getattr(loss, "_fn_kwargs", {}))
    declared = options.pop("from_logits", False) or None  # False is the default: not said
    function = functools.partial(inner, **options)
    return OutputLoss(
        name, function, weight, activation, declared if from_logits is None else from_logits
    )


def is_linear(output: tf.Tensor) -> bool:
    """Return whether an output comes from a linear layer, so is no probability."""
    if not tf.is_symbolic_tensor(output):
        return False
    operation = output.op
    while operation.type in _SHAPES_ONLY:
        operation = operation.inputs[0].op
    return operation.type in _LINEAR


def _name_of(loss: Any) -> str:
    return str(getattr(loss, "name", getattr(loss, "__name__", type(loss).__name__)))
