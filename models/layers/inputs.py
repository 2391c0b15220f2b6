"""The input of models of images: which shapes they accept, and how it is enlarged."""

from __future__ import annotations

import tensorflow as tf

MIN_SIZE = 32  # the least that the networks of `tf.keras.applications` take


def require_images(
    model: str, shape: tuple[int, ...], *, multiple_of: int = 1
) -> tuple[int, int, int]:
    """Return (height, width, channels)."""
    if len(shape) != 3 or shape[0] % multiple_of or shape[1] % multiple_of:
        sides = f" whose sides are multiples of {multiple_of}" if multiple_of > 1 else ""
        fix = "add dataset.image_size=[<height>,<width>]" if len(shape) == 3 else "use model=mlp"
        raise ValueError(
            f"{model} takes images [height, width, channels]{sides}, the dataset gives "
            f"{list(shape)}; {fix}"
        )
    return shape[0], shape[1], shape[2]


def require_tokens(model: str, shape: tuple[int, ...], dataset: str) -> None:
    """Raise a ValueError that names a dataset unless an example has the shape [length]."""
    if len(shape) != 1:
        raise ValueError(
            f"{model} takes tokens [length], the dataset gives {list(shape)}; use dataset={dataset}"
        )


def image_input(name: str, input_shape: tuple[int, ...]) -> tuple[tf.Tensor, tf.Tensor]:
    """Return the input layer, and images [B, H, W, 3] float32 in [0, 1] of at least 32 x 32 pixels.

    The layers between them stay in float32 under mixed precision, so that pixels are rounded only
    once, in the network.

    1 channel is repeated three times.
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
        x = tf.keras.layers.Concatenate(dtype="float32", name="gray_to_rgb")([x, x, x])
    return inputs, x
