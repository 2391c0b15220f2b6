"""The outputs of a model by name, and what the user has said of each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import tensorflow as tf

from trainer.config.options.constraints import did_you_mean
from trainer.errors import ConfigError


def output_names(model: Any, outputs: Any) -> list[str]:
    """Return a name for each output, in the order in which a nest of them is flattened.

    They are the keys of a dict, else the names of a functional model's output layers, else
    `output_1` and so on.

    Args:
        model: the user's model.
        outputs: what it returns, symbolic or not.
    """
    if isinstance(outputs, Mapping):
        return [str(key) for key in sorted(outputs)]
    count = len(tf.nest.flatten(outputs))
    names = list(getattr(model, "output_names", None) or ())
    return names if len(names) == count else [f"output_{i + 1}" for i in range(count)]


def by_output(key: str, value: Any, names: Sequence[str], *, is_list: bool = False) -> list[Any]:
    """Return the part of a value that belongs to each output.

    Args:
        key: where the value comes from, for messages.
        value: one for all outputs, or a dict or a list of one for each.
        names: the outputs.
        is_list: whether the value of one output may be a list: then a list without lists in it is
            the value of all outputs.

    Raises:
        ConfigError: it is of other outputs.
    """
    if isinstance(value, Mapping):
        for name in value:
            if name not in names:
                raise ConfigError(
                    f"{key} has {name}, which is no output of the model: {', '.join(names)}"
                    f"{did_you_mean(str(name), list(names))}"
                )
        return [value.get(name) for name in names]
    if isinstance(value, list | tuple):
        is_one = is_list and not any(isinstance(part, list | tuple) for part in value)
        if is_one or (len(names) == 1 and is_list):
            return [value[0] if value and not is_one else value] * len(names)
        if len(value) != len(names):
            raise ConfigError(
                f"{key} has {len(value)} values for the {len(names)} outputs of the model: "
                f"{', '.join(names)}; give one for each, or a dict by output"
            )
        return list(value)
    return [value] * len(names)


def pairs(
    labels: Any, outputs: Any, names: Sequence[str], *, has_loss: Sequence[bool]
) -> list[tuple[tf.Tensor | None, tf.Tensor]]:
    """Return the label and the output of each, flat.

    Args:
        labels: a tensor, a dict by output or a sequence; None: there are none.
        outputs: what the model returned.
        names: the names of the outputs.
        has_loss: which of them are compared with a label. A single label belongs to the single one.

    Raises:
        ConfigError: labels and outputs do not belong together.
    """
    flat = tf.nest.flatten(outputs)
    if isinstance(labels, Mapping):
        each = by_output("dataset: the label", labels, names)
    elif isinstance(labels, list | tuple):
        each = by_output("dataset: the label", list(labels), names)
    else:
        if labels is not None and sum(has_loss) > 1 and len(names) > 1:
            raise ConfigError(
                f"dataset: there is one label for the {len(names)} outputs of the model: "
                f"{', '.join(names)}; give a dict or a tuple of labels, or task.loss as a dict "
                "with one of them"
            )
        each = [labels if compared else None for compared in has_loss]
    return list(zip(each, flat, strict=True))


def aligned(label: tf.Tensor, output: tf.Tensor) -> tf.Tensor:
    """Return a label that may stand beside an output, as Keras makes it.

    A number for each example, [B], becomes [B, 1] beside [B, C].
    """
    if label.shape.rank == 1 and output.shape.rank == 2:
        label = label[:, None]
    both_float = label.dtype.is_floating and output.dtype.is_floating
    both_integer = label.dtype.is_integer and output.dtype.is_integer
    return tf.cast(label, output.dtype) if both_float or both_integer else label
