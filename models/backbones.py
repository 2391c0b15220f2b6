"""Parts for models around `tf.keras.applications`: input, classifier head, pretrained weights."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import h5py
import tensorflow as tf

MIN_SIZE = 32  # the least that the networks of `tf.keras.applications` take


def image_input(name: str, input_shape: tuple[int, ...]) -> tuple[tf.Tensor, tf.Tensor]:
    """Return the input layer, and images [B, H, W, 3] float32 in [0, 1] of at least 32 x 32 pixels.

    The layers between them stay in float32 under mixed precision, so that pixels are rounded only
    once, in the network.

    Args:
        name: the model's name, for the error.
        input_shape: (height, width, channels); 1 channel is repeated three times.

    Raises:
        ValueError: the features are not images of 1 or 3 channels.
    """
    if len(input_shape) != 3 or input_shape[-1] not in (1, 3):
        raise ValueError(
            f"{name} takes images [height, width, 1 or 3 channels], the dataset gives "
            f"{list(input_shape)}; use model=softmax"
        )
    height, width, channels = input_shape
    inputs = x = tf.keras.Input(input_shape, name="features")
    if min(height, width) < MIN_SIZE:
        x = tf.keras.layers.Resizing(
            max(height, MIN_SIZE), max(width, MIN_SIZE), dtype="float32", name="enlarge"
        )(x)
    if channels == 1:
        x = tf.keras.layers.Concatenate(dtype="float32", name="grey_to_rgb")([x, x, x])
    return inputs, x


def classifier(
    name: str, inputs: tf.Tensor, backbone: tf.keras.Model, num_classes: int, weights: str | None
) -> tf.keras.Model:
    """Put a linear layer on a pooled backbone, whose weights are loaded if a path is given."""
    if weights is not None:
        load_weights(backbone, Path(weights).expanduser())
    outputs = tf.keras.layers.Dense(num_classes, dtype="float32", name="logits")(backbone.output)
    return tf.keras.Model(inputs, outputs, name=name)


def set_momentum(backbone: tf.keras.Model, momentum: float) -> None:
    """Set the momentum of the moving averages of every batch normalisation layer."""
    for layer in backbone.layers:
        if isinstance(layer, tf.keras.layers.BatchNormalization):
            layer.momentum = momentum


def load_weights(backbone: tf.keras.Model, path: Path) -> None:
    """Load a weights file of `tf.keras.applications`, with or without the top, into a backbone.

    Layers are matched by name and every layer of the backbone must be in the file. Keras' loading
    by name would silently keep the random weights of a layer that is missing.

    Raises:
        ValueError: the file is missing, is no Keras weights file in HDF5, or is of another network
            or width.
    """
    names = [layer.name for layer in backbone.layers if layer.weights]
    missing = set(names).difference(_saved_layers(path))
    if missing:
        example = next(name for name in names if name in missing)
        raise ValueError(
            f"weights ({path}) lacks {len(missing)} of the {len(names)} layers "
            f"of {backbone.name}, such as {example}"
        )
    try:
        backbone.load_weights(str(path), by_name=True)
    except (ValueError, OSError) as error:
        raise ValueError(
            f"weights ({path}) does not fit {backbone.name}: {str(error).splitlines()[0]}"
        ) from error


def _saved_layers(path: Path) -> Iterable[str]:
    """Return the names of the layers that have weights in a Keras weights file (HDF5)."""
    if not path.is_file():
        raise ValueError(
            f"weights ({path}): no such file; "
            "give an HDF5 weights file of tf.keras.applications, or null"
        )
    try:
        with h5py.File(path, "r") as file:
            group = file.get("model_weights", file)  # a whole saved model keeps them there
            return [
                name
                for name in group
                if isinstance(group[name], h5py.Group)
                and len(group[name].attrs.get("weight_names", ()))
            ]
    except OSError as error:
        raise ValueError(
            f"weights ({path}) is not an HDF5 file: {str(error).splitlines()[0]}"
        ) from error
