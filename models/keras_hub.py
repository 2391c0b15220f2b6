"""An image classifier of KerasHub, from a preset in a local folder."""

from __future__ import annotations

import importlib
from pathlib import Path
from types import ModuleType
from typing import Annotated

import keras
import numpy as np


def keras_hub(
    input_shape: tuple[int, ...],
    num_classes: int,
    *,
    preset: Annotated[str, "directory"],
) -> keras.Model:
    """Build a classifier on the backbone of a preset, whose weights it begins with.

    The model itself repeats a single channel three times, and scales images as the preset's
    converter does, if it has one. It does not resize them.

    Args:
        input_shape: (height, width, channels).
        num_classes: how many classes.
        preset: a folder that `save_to_preset` wrote, or a preset that was downloaded.

    Returns:
        A model of Keras 3 from features [B, height, width, channels] float32 in [0, 1] to logits
        [B, num_classes] float32.

    Raises:
        ValueError: KerasHub is missing, the folder is no preset of images, or the features are of
            another shape.
    """
    hub = _import_hub()
    classifier = _load(hub, preset, num_classes)
    size = tuple(classifier.backbone.input.shape)[1:]
    _check(preset, size, input_shape)
    inputs = x = keras.Input(input_shape, name="features")
    if input_shape[-1] == 1 and size[-1] == 3:
        x = keras.layers.Concatenate(dtype="float32", name="grey_to_rgb")([x, x, x])
    x = _rescaling(hub, preset)(x)
    # Of a policy in 16 bits the classifier may be too.
    logits = keras.layers.Activation("linear", dtype="float32", name="logits")(classifier(x))
    return keras.Model(inputs, logits, name="keras_hub")


def _import_hub() -> ModuleType:
    """Import KerasHub.

    Raises:
        ValueError: it is not installed.
    """
    try:
        return importlib.import_module("keras_hub")
    except ModuleNotFoundError as error:
        raise ValueError(
            f"model=keras_hub needs the package {error.name}, which is missing; "
            "pip install 'steadfast[keras_hub]'"
        ) from error


def _load(hub: ModuleType, preset: str, num_classes: int) -> keras.Model:
    """Load the backbone and its weights; the classifier's are random.

    Raises:
        ValueError: the folder is no preset, or none of a backbone of images.
    """
    folder = Path(preset).expanduser()
    if not (folder / "config.json").is_file():
        raise ValueError(
            f"preset ({preset}) has no config.json; give a folder that save_to_preset wrote"
        )
    try:
        return hub.models.ImageClassifier.from_preset(
            str(folder),
            num_classes=num_classes,
            activation=None,
            preprocessor=None,  # a layer that cannot be in a graph
            dtype=keras.config.dtype_policy().name,  # not the one that it was saved with
        )
    except (ValueError, TypeError, KeyError, OSError) as error:
        reason = " ".join(str(error).split())
        raise ValueError(
            f"preset ({preset}) cannot be loaded as an image classifier: {reason[:300]}"
        ) from error


def _check(preset: str, wanted: tuple[int | None, ...], input_shape: tuple[int, ...]) -> None:
    """Refuse features of another shape than the backbone takes; one channel does for three.

    Raises:
        ValueError: they are.
    """
    fits = len(wanted) == len(input_shape) == 3 and all(
        size in (None, other) for size, other in zip(wanted[:2], input_shape[:2], strict=True)
    )
    if not fits or input_shape[-1] not in (wanted[-1], 1):
        sides = [size or "any" for size in wanted]
        raise ValueError(
            f"preset ({preset}) takes images of [{', '.join(map(str, sides))}], the dataset gives "
            f"{list(input_shape)}; add dataset.image_size=[<height>,<width>], or choose another"
        )


def _rescaling(hub: ModuleType, preset: str) -> keras.layers.Layer:
    """Return the scaling of the preset, whose converter takes images in 0..255; or none."""
    folder = Path(preset).expanduser()
    if not (folder / "image_converter.json").is_file():
        return keras.layers.Rescaling(1.0, dtype="float32", name="scale")
    converter = hub.layers.ImageConverter.from_preset(str(folder))
    scale = 255.0 * np.asarray(1.0 if converter.scale is None else converter.scale)
    offset = np.asarray(0.0 if converter.offset is None else converter.offset)
    return keras.layers.Rescaling(scale.tolist(), offset.tolist(), dtype="float32", name="scale")
