"""Weights of a model that another program saved with `tf.train.Checkpoint`, as tutorials do."""

from __future__ import annotations

import re
from pathlib import Path

import tensorflow as tf

from trainer.engine.checkpoints.checkpointer import CONNECTION_ERRORS, describe_mismatch
from trainer.errors import CheckpointError
from trainer.runs.checkpoint_marker import committed_steps

_KERAS_3 = re.compile(
    r"(?:model/)?(?:_functional/)?_operations/(?P<layer>\d+)/_?(?P<name>\w+)"
    r"/\.ATTRIBUTES/VARIABLE_VALUE"
)


def find_foreign(source: Path) -> str | None:
    """Return the prefix of a checkpoint that no run has written, or None.

    Args:
        source: the prefix of a checkpoint, or a folder of a `tf.train.CheckpointManager`.
    """
    if source.is_dir():
        prefix: str | None = tf.train.latest_checkpoint(str(source))
        return prefix
    # A run's own checkpoint without a marker is unfinished.
    is_of_a_run = (source.parent.parent / "config.yaml").exists() or committed_steps(source.parent)
    return str(source) if Path(f"{source}.index").exists() and not is_of_a_run else None


def restore_foreign(prefix: str, model: tf.keras.Model) -> None:
    """Restore a model from `Checkpoint(model=...)` or `model.save_weights`, of Keras 2 or 3.

    Nothing else in the checkpoint is used. Keras 3 numbers the layers of a sequential or functional
    model; their variables are matched by this order and by name.

    Raises:
        CheckpointError: the model has other variables.
    """
    names = [name for name, _ in tf.train.list_variables(prefix)]
    try:
        if any(_KERAS_3.fullmatch(name) for name in names):
            _assign_in_order(prefix, names, model)
            return
        is_attribute = any(name.startswith("model/") for name in names)
        checkpoint = (
            tf.train.Checkpoint(model=model) if is_attribute else tf.train.Checkpoint(model)
        )
        checkpoint.read(prefix).assert_existing_objects_matched().expect_partial()
    except CONNECTION_ERRORS:
        raise
    except (AssertionError, ValueError, tf.errors.OpError) as error:
        raise CheckpointError(
            f"init_from ({prefix}): the checkpoint, which has no marker of a run, does not fit "
            f"this model: {describe_mismatch(error)}"
        ) from error


def _assign_in_order(prefix: str, names: list[str], model: tf.keras.Model) -> None:
    """Assign the variables of numbered layers to the model's layers in their order.

    Raises:
        ValueError: there are other layers, names or shapes.
    """
    saved: dict[int, dict[str, str]] = {}
    for key in names:
        if match := _KERAS_3.fullmatch(key):
            saved.setdefault(int(match["layer"]), {})[match["name"]] = key
    layers = [layer for layer in model.layers if layer.weights]
    if len(saved) != len(layers):
        raise ValueError(f"it has {len(saved)} layers with weights, this one {len(layers)}")
    values = []
    for layer, (_, keys) in zip(layers, sorted(saved.items()), strict=True):
        for variable in layer.weights:
            name = variable.name.rpartition("/")[2].removesuffix(":0")
            if name not in keys:
                raise ValueError(f"it lacks {layer.name}/{name}")
            value = tf.train.load_variable(prefix, keys[name])
            if tuple(value.shape) != tuple(variable.shape):
                shapes = f"{list(value.shape)}, this one {list(variable.shape)}"
                raise ValueError(f"its {layer.name}/{name} has the shape {shapes}")
            values.append((variable, value))
    for variable, value in values:
        variable.assign(value)
