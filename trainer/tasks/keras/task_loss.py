"""What the options of `task=keras` add to a program: losses by name, class weights, predictions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import tensorflow as tf

from trainer.errors import ConfigError
from trainer.protocols import Batch, LabelKind
from trainer.tasks.keras.user_model import compiled_with, library_of

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


def loss_of_names(model: Any, loss: Any, from_logits: bool | None, features: Any) -> Any:
    """Return losses, with Keras' own for names, and `from_logits` set for cross-entropies.

    Args:
        loss: a name, a function or an object, or a dict or list of such by output.
        from_logits: whether cross-entropies take logits; None: of the outputs of a linear layer.
        features: specification of what the model is called with.

    Raises:
        ConfigError: a name is not one of Keras.
    """
    library = library_of(model)
    is_linear = _linear_outputs(model, features) if from_logits is None else {}

    def one(loss: Any, output: Any) -> Any:
        if not isinstance(loss, str):
            return loss
        try:
            function = library.losses.get(loss)
        except ValueError:
            raise ConfigError(
                f"task.loss ({loss}) is no loss of Keras; write its name, such as "
                "sparse_categorical_crossentropy, or a node with _target_"
            ) from None
        name = getattr(function, "__name__", type(function).__name__)
        takes_logits = is_linear.get(output, False) if from_logits is None else from_logits
        if name not in _CROSS_ENTROPIES or not takes_logits:
            return loss
        kind = "".join(word.title() for word in name.split("_"))
        return getattr(library.losses, kind)(from_logits=True)

    if isinstance(loss, Mapping):
        return {name: one(each, name) for name, each in loss.items()}
    if isinstance(loss, list | tuple):
        return [one(each, i) for i, each in enumerate(loss)]
    return one(loss, 0)


def _linear_outputs(model: Any, features: Any) -> dict[Any, bool]:
    """Return by number and by name whether an output comes from a linear layer."""
    kinds: dict[Any, bool] = {}

    def call(inputs: Any) -> None:
        outputs = model(inputs, training=False)
        flat = tf.nest.flatten(outputs)
        names = sorted(outputs) if isinstance(outputs, Mapping) else output_names(model, len(flat))
        for i, (name, output) in enumerate(zip(names, flat, strict=True)):
            kinds[i] = kinds[name] = is_linear(output)

    tf.function(call, autograph=False).get_concrete_function(features)
    return kinds


def output_names(model: Any, count: int) -> list[str]:
    """Return the names of a model's outputs, by default `output_1` and so on."""
    names = list(getattr(model, "output_names", None) or ())
    return names if len(names) == count else [f"output_{i + 1}" for i in range(count)]


def is_linear(output: tf.Tensor) -> bool:
    """Return whether an output comes from a linear layer, so is no probability."""
    if not tf.is_symbolic_tensor(output):
        return False
    operation = output.op
    while operation.type in _SHAPES_ONLY:
        operation = operation.inputs[0].op
    return operation.type in _LINEAR


def class_weighted(batch: Batch, weights: Mapping[int, float]) -> Batch:
    """Return a batch whose sample weights have the weight of each example's class, as in `fit`.

    Args:
        batch: has `label`, of numbers of classes, [B] or [B, 1], or one-hot, [B, C].
        weights: weight by class; 1 for a class that is not in it.

    Raises:
        ConfigError: its labels are others.
    """
    if not weights:
        return batch
    label = batch.get("label")
    if label is None or tf.nest.is_nested(label) or label.shape.rank > 2:
        if tf.nest.is_nested(label):
            kind = "several outputs"
        else:
            kind = "no labels" if label is None else f"labels of shape {label.shape}"
        raise ConfigError(
            f"task.class_weights cannot be used with {kind}, as in Keras; give the dataset a "
            "sample weight for each example"
        )
    if label.shape.rank == 2 and label.shape[-1] > 1:
        label = tf.argmax(label, axis=-1)
    numbers = tf.cast(tf.round(tf.cast(tf.reshape(label, [-1]), tf.float32)), tf.int64)
    factors = tf.ones_like(numbers, tf.float32)
    for number, weight in weights.items():
        factors = tf.where(numbers == int(number), float(weight), factors)
    if (own := batch.get("sample_weight")) is not None:
        factors = rows_times(factors, own)
    return {**batch, "sample_weight": factors}


def rows_times(factors: tf.Tensor, values: tf.Tensor) -> tf.Tensor:
    """Return values, [B, ...], as float32, each row times its factor, [B]."""
    shape = [-1, *[1] * (values.shape.rank - 1)]
    return tf.reshape(factors, shape) * tf.cast(values, tf.float32)


def predictions(model: Any, outputs: Any, label_kind: LabelKind | None) -> dict[str, tf.Tensor]:
    """Return the outputs by name; of a single one what metrics of such labels compare.

    Args:
        label_kind: what the labels are; None: they are not compared.
    """
    flat = tf.nest.flatten(outputs)
    if len(flat) > 1 or flat[0].shape.rank != 2 or label_kind is None:
        names = sorted(outputs) if isinstance(outputs, Mapping) else output_names(model, len(flat))
        return dict(zip(names, flat, strict=True))
    output = tf.cast(flat[0], tf.float32)
    if label_kind == "number":
        return {"prediction": output}
    loss = tf.nest.flatten(compiled_with(model).loss)[0]
    if getattr(loss, "_fn_kwargs", {}).get("from_logits"):
        activation = _CROSS_ENTROPIES.get(getattr(loss.fn, "__name__", ""))
        output = tf.sigmoid(output) if activation == "Sigmoid" else tf.nn.softmax(output)
    if label_kind == "class" and output.shape[-1] == 1:
        output = tf.concat([1.0 - output, output], axis=-1)
    return {"probabilities": output}


def masks_of(outputs: Sequence[tf.Tensor]) -> dict[str, tf.Tensor]:
    """Return by number the masks that Keras' layers have given outputs."""
    masks = {str(i): getattr(x, "_keras_mask", None) for i, x in enumerate(outputs)}
    return {name: mask for name, mask in masks.items() if mask is not None}


def logits_of(outputs: Sequence[tf.Tensor]) -> dict[str, tf.Tensor]:
    """Return by number the logits of outputs that activations of Keras have made.

    Cross-entropies of Keras are computed from them, with any `from_logits`.
    """
    return {str(i): x._keras_logits for i, x in enumerate(outputs) if hasattr(x, "_keras_logits")}


def with_attributes(
    outputs: Sequence[tf.Tensor], masks: Mapping[str, tf.Tensor], logits: Mapping[str, tf.Tensor]
) -> list[tf.Tensor]:
    """Return outputs with the masks and the logits that Keras attached to them, by number."""
    outputs = [tf.identity(x) for x in outputs]
    for number, mask in masks.items():
        outputs[int(number)]._keras_mask = mask
    for number, value in logits.items():
        outputs[int(number)]._keras_logits = value
    return outputs
