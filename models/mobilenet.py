"""MobileNetV2, of any width."""

from __future__ import annotations

from typing import Annotated

import tensorflow as tf

from trainer.annotations import Exists, Ge, Gt, Lt, Semantic
from trainer.models.keras_application import build_backbone
from trainer.models.layers.backbones import loader_of, with_classifier
from trainer.models.layers.inputs import image_input


def mobilenet(
    input_shape: tuple[int, ...],
    num_classes: int,
    *,
    alpha: Annotated[float, Gt(0)] = 1.0,
    momentum: Annotated[float, Ge(0), Lt(1), Semantic()] = 0.9,
    synchronized: Annotated[bool, Semantic()] = False,
    outputs: Annotated[int | None, Ge(1)] = None,
    weights: Annotated[str | None, Exists("file", or_word="imagenet"), Semantic()] = None,
) -> tf.keras.Model:
    """Build MobileNetV2, from images in [0, 1] to logits [B, outputs] float32.

    The model itself enlarges images with a side below 32 pixels, repeats a single channel three
    times, and scales from [0, 1] to the [-1, 1] that published weights expect.
    """
    num_outputs = num_classes if outputs is None else outputs
    if num_outputs < num_classes:
        raise ValueError(
            f"outputs ({outputs}) must be at least the number of classes, {num_classes}; add "
            "model.outputs=null"
        )
    inputs, images = image_input("mobilenet", input_shape)
    is_published = outputs is not None
    load = loader_of(weights, "MobileNetV2", images, alpha=alpha, include_top=is_published)
    backbone, features = build_backbone("MobileNetV2", images, momentum, synchronized, alpha=alpha)
    return with_classifier(
        inputs, features, backbone, num_outputs, load, name="mobilenet", is_published=is_published
    )
