"""Models of KerasHub from a preset in a local folder: classifiers, and language models."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType
from typing import Annotated, Any, Literal

import keras
import numpy as np

from trainer.annotations import Exists
from trainer.optional_packages import import_extra


def keras_hub(
    input_shape: tuple[int, ...],
    num_classes: int,
    *,
    preset: Annotated[str, Exists("directory")],
    head: Literal["classifier", "language_model"] = "classifier",
) -> keras.Model:
    """Build a model on the backbone of a preset, whose weights it starts with.

    Of images, the model itself repeats a single channel three times, and scales them as the
    preset's converter does, if it has one. It does not resize them. Of texts it takes tokens: a
    classifier the numbers of the preset's vocabulary plus 1, and 0 for padding; a language model
    the numbers themselves.

    Returns:
        A model of Keras 3 from features [B, height, width, channels] float32 in [0, 1], or
        [B, tokens] int32, to logits float32: [B, num_classes], or of a language model
        [B, tokens, num_classes].

    Raises:
        ValueError: KerasHub is missing, the folder is no preset of such a model, or the features
            are of another shape.
    """
    models = import_extra("keras_hub", "keras_hub", "model=keras_hub").models
    is_text = len(input_shape) == 1
    if head == "language_model":
        task = _load(models.CausalLM, preset, "a language model")
        inputs, logits = _next_token(task, preset, input_shape, num_classes)
    elif is_text:
        task = _load(models.TextClassifier, preset, "a text classifier", num_classes)
        _check_text(task, preset, input_shape)
        inputs = keras.Input(input_shape, name="features", dtype="int32")
        padding = keras.ops.cast(keras.ops.not_equal(inputs, 0), "int32")
        logits = _called(task, preset, keras.ops.maximum(inputs - 1, 0), padding)
    else:
        task = _load(models.ImageClassifier, preset, "an image classifier", num_classes)
        inputs, x = _scaled_images(task, preset, input_shape)
        logits = task(x)
    # Of a policy in 16 bits the classifier may be too.
    logits = keras.layers.Activation("linear", dtype="float32", name="logits")(logits)
    return keras.Model(inputs, logits, name="keras_hub")


def _load(base: Any, preset: str, kind: str, num_classes: int | None = None) -> Any:
    """Load a task of KerasHub with its weights; with `num_classes`, a classifier with new ones."""
    folder = Path(preset).expanduser()
    if not (folder / "config.json").is_file():
        raise ValueError(
            f"preset ({preset}) has no config.json; give a folder that save_to_preset wrote"
        )
    try:
        return base.from_preset(
            str(folder),
            **({} if num_classes is None else {"num_classes": num_classes, "activation": None}),
            preprocessor=None,  # a layer that cannot be in a graph
            dtype=keras.config.dtype_policy().name,  # not the one that it was saved with
        )
    except (ValueError, TypeError, KeyError, OSError) as error:
        reason = " ".join(str(error).split())
        raise ValueError(f"preset ({preset}) cannot be loaded as {kind}: {reason[:300]}") from error


def _next_token(
    task: Any, preset: str, input_shape: tuple[int, ...], num_classes: int
) -> tuple[Any, Any]:
    """Return the input of a language model, and the first `num_classes` logits of each token."""
    _check_text(task, preset, input_shape)
    size = task.backbone.vocabulary_size
    if num_classes > size:
        raise ValueError(
            f"preset ({preset}) has {size} tokens, the dataset {num_classes}; set "
            "dataset.tokenizer to the preset's"
        )
    inputs = keras.Input(input_shape, name="features", dtype="int32")
    logits = _called(task, preset, inputs, keras.ops.ones_like(inputs))
    return inputs, logits[..., :num_classes]


def _called(task: Any, preset: str, tokens: Any, padding: Any) -> Any:
    """Return the outputs for tokens, [B, T] int32, of which `padding` marks with 0 what is none."""
    values = {
        "token_ids": tokens,
        "padding_mask": padding,
        "segment_ids": keras.ops.zeros_like(tokens),
    }
    if unknown := task.input.keys() - values.keys():
        raise ValueError(
            f"preset ({preset}) takes {', '.join(sorted(unknown))} besides tokens; choose another"
        )
    # Without what the task has for generation, such as seeds.
    network = keras.Model(task.input, task.output, name="network")
    return network({name: values[name] for name in task.input})


def _check_text(task: Any, preset: str, input_shape: tuple[int, ...]) -> None:
    """Refuse features that are no tokens, or more than the backbone has positions for."""
    most = getattr(task.backbone, "max_sequence_length", None)
    if len(input_shape) != 1 or (most is not None and input_shape[0] > most):
        limit = "" if most is None else f", at most {most}"
        raise ValueError(
            f"preset ({preset}) takes tokens [length{limit}], the dataset gives "
            f"{list(input_shape)}; set dataset.length, or choose another dataset"
        )


def _scaled_images(task: Any, preset: str, input_shape: tuple[int, ...]) -> tuple[Any, Any]:
    """Return the input of images, and what the classifier takes."""
    size = tuple(task.backbone.input.shape)[1:]
    _check(preset, size, input_shape)
    inputs = x = keras.Input(input_shape, name="features")
    if input_shape[-1] == 1 and size[-1] == 3:
        x = keras.layers.Concatenate(dtype="float32", name="gray_to_rgb")([x, x, x])
    return inputs, _rescaling(import_extra("keras_hub", "keras_hub", "model=keras_hub"), preset)(x)


def _check(preset: str, wanted: tuple[int | None, ...], input_shape: tuple[int, ...]) -> None:
    """Refuse features of another shape than the backbone takes; one channel does for three."""
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
