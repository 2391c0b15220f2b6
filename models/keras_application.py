"""Any network of `tf.keras.applications`, by its name."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import tensorflow as tf

from trainer.annotations import Exists, Ge, Lt, Semantic
from trainer.models.layers.backbones import loader_of, with_classifier
from trainer.models.layers.inputs import MIN_SIZE, image_input

Name = Literal[
    "ConvNeXtBase", "ConvNeXtLarge", "ConvNeXtSmall", "ConvNeXtTiny", "ConvNeXtXLarge",
    "DenseNet121", "DenseNet169", "DenseNet201",
    "EfficientNetB0", "EfficientNetB1", "EfficientNetB2", "EfficientNetB3",
    "EfficientNetB4", "EfficientNetB5", "EfficientNetB6", "EfficientNetB7",
    "EfficientNetV2B0", "EfficientNetV2B1", "EfficientNetV2B2", "EfficientNetV2B3",
    "EfficientNetV2L", "EfficientNetV2M", "EfficientNetV2S",
    "InceptionResNetV2", "InceptionV3",
    "MobileNet", "MobileNetV2", "MobileNetV3Large", "MobileNetV3Small",
    "NASNetLarge", "NASNetMobile",
    "RegNetX002", "RegNetX004", "RegNetX006", "RegNetX008", "RegNetX016", "RegNetX032",
    "RegNetX040", "RegNetX064", "RegNetX080", "RegNetX120", "RegNetX160", "RegNetX320",
    "RegNetY002", "RegNetY004", "RegNetY006", "RegNetY008", "RegNetY016", "RegNetY032",
    "RegNetY040", "RegNetY064", "RegNetY080", "RegNetY120", "RegNetY160", "RegNetY320",
    "ResNet50", "ResNet101", "ResNet152", "ResNet50V2", "ResNet101V2", "ResNet152V2",
    "ResNetRS50", "ResNetRS101", "ResNetRS152", "ResNetRS200", "ResNetRS270",
    "ResNetRS350", "ResNetRS420",
    "VGG16", "VGG19", "Xception",
]  # fmt: skip

_MIN_SIZES = {"InceptionResNetV2": 75, "InceptionV3": 75, "Xception": 71}
"""The least side of an image, of networks that need more than `MIN_SIZE`."""

_MEANS_BGR = (103.939, 116.779, 123.68)
_MEAN = (0.485, 0.456, 0.406)
_STD = (0.229, 0.224, 0.225)
"""Of ImageNet's images: the first in 0..255 in the order blue, green, red; the others in 0..1."""

_FROM_MINUS_1_TO_1 = (
    "inception_resnet_v2", "inception_v3", "mobilenet", "mobilenet_v2", "nasnet", "resnet_v2",
    "xception",
)  # fmt: skip
_BLUE_FIRST = ("resnet", "vgg16", "vgg19")
_NESTED = ("convnext", "regnet")
"""Families that start at the model's input with any `input_tensor`: they become one layer."""


def keras_application(
    input_shape: tuple[int, ...],
    num_classes: int,
    *,
    name: Name = "EfficientNetV2B0",
    momentum: Annotated[float, Ge(0), Lt(1), Semantic()] = 0.9,
    synchronized: Annotated[bool, Semantic()] = False,
    weights: Annotated[str | None, Exists("file", or_word="imagenet"), Semantic()] = None,
) -> tf.keras.Model:
    """Build a network of `tf.keras.applications`, from images in [0, 1] to logits [B, num_classes].

    The model itself enlarges images with a side below 32 pixels, repeats a single channel three
    times, and scales as the network's published weights expect.
    """
    inputs, images = image_input(name, input_shape)
    _check_size(name, input_shape)
    load = loader_of(weights, name, images)
    backbone, features = build_backbone(name, images, momentum, synchronized)
    return with_classifier(inputs, features, backbone, num_classes, load, name=name)


def build_backbone(
    name: str, images: tf.Tensor, momentum: float, synchronized: bool, **options: Any
) -> tuple[tf.keras.Model, tf.Tensor]:
    """Return a network without its classifier, and what it computes from images, [B, channels].

    Args:
        images: [B, H, W, 3] float32 in [0, 1].
    """
    build = getattr(tf.keras.applications, name)
    family = build.__module__.rpartition(".")[2]
    is_nested = family in _NESTED
    scaled = scale_images(images, family)
    backbone = build(
        input_shape=tuple(scaled.shape[1:]),
        input_tensor=None if is_nested else scaled,
        include_top=False,
        pooling="avg",
        weights=None,
        **options,
    )
    for layer in backbone.layers:
        if isinstance(layer, tf.keras.layers.BatchNormalization):
            layer.momentum = momentum
            layer.synchronized = synchronized
            if synchronized:
                layer.fused = False  # as its constructor decides it
    return backbone, backbone(scaled) if is_nested else backbone.output


def _check_size(name: str, input_shape: tuple[int, ...]) -> None:
    """Refuse images that are too small for a network that needs more than `MIN_SIZE`.

    Enlarging tiny images that much would waste nearly all of the computation.
    """
    least = _MIN_SIZES.get(name, MIN_SIZE)
    if least > MIN_SIZE and min(input_shape[:2]) < least:
        raise ValueError(
            f"{name} takes images of at least {least} x {least} pixels, the dataset gives "
            f"{list(input_shape)}; add dataset.image_size=[{least},{least}], or choose another name"
        )


def scale_images(images: tf.Tensor, family: str) -> tf.Tensor:
    """Scale images, [B, H, W, 3] float32 in [0, 1], as the networks of a Keras module expect."""
    if family in _FROM_MINUS_1_TO_1:
        return _rescale(2.0, -1.0)(images)
    if family in _BLUE_FIRST:
        return _rescale(255.0, [-mean for mean in _MEANS_BGR])(images[..., ::-1])
    offsets = [-mean / std for mean, std in zip(_MEAN, _STD, strict=True)]
    scales = [1 / std for std in _STD]
    if family == "densenet":
        return _rescale(scales, offsets)(images)
    if family == "efficientnet":
        # It divides by 255 itself; its Normalization layer, whose weights are not loaded, leaves
        # the images as they are. The published mean and variance alone would not be right: Keras
        # adds a layer for them when it downloads the weights itself.
        return _rescale([255 * x for x in scales], [255 * x for x in offsets])(images)
    return _rescale(255.0)(images)  # the others contain their own scaling


def _rescale(
    scale: float | list[float], offset: float | list[float] = 0.0
) -> tf.keras.layers.Layer:
    return tf.keras.layers.Rescaling(scale, offset, dtype="float32", name="scale")
