"""ResNet-50."""

from __future__ import annotations

from typing import Annotated

import tensorflow as tf

from trainer.models.backbones import Head, network_layers
from trainer.models.inputs import image_input

# Blue, green and red means of ImageNet, in 0..255: what the published weights were trained with.
_MEANS_BGR = (103.939, 116.779, 123.68)


def resnet50(
    input_shape: tuple[int, ...],
    num_classes: int,
    *,
    momentum: Annotated[float, ">= 0, < 1"] = 0.9,
    synchronized: bool = False,
    outputs: Annotated[int | None, ">= 1"] = None,
    weights: Annotated[str | None, "file"] = None,
) -> tf.keras.Model:
    """Build ResNet-50 with a linear classifier.

    The model itself enlarges images with a side below 32 pixels, repeats a single channel three
    times, and scales as published weights expect: channels in the order blue, green, red, from 0 to
    255, less ImageNet's means.

    Args:
        input_shape: (height, width, 1 or 3).
        num_classes: how many classes.
        momentum: how much of batch normalisation's moving averages is kept at each step.
        synchronized: whether batch normalisation is over the global batch; otherwise over each
            replica's part of it, or each shard.
        outputs: how many logits, 1000 for the published network; None: one for each class.
        weights: an HDF5 weights file of `tf.keras.applications.ResNet50`, with or without the top.

    Returns:
        A model from features [B, height, width, channels] float32 in [0, 1] to logits
        [B, outputs] float32.

    Raises:
        ValueError: the features are not images, or the weights do not fit.
    """
    head = Head(num_classes, outputs, weights)
    inputs, images = image_input("resnet50", input_shape)
    scaled = tf.keras.layers.Rescaling(
        255.0, [-mean for mean in _MEANS_BGR], dtype="float32", name="scale"
    )(images[..., ::-1])
    backbone = tf.keras.applications.ResNet50(
        input_shape=tuple(scaled.shape[1:]),
        input_tensor=scaled,
        include_top=False,
        pooling="avg",
        weights=None,
        layers=network_layers(momentum, synchronized),
    )
    return head.attach("resnet50", inputs, backbone)
