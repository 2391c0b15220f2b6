"""A whole model from a file, of either Keras."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path
from typing import Annotated, Any

import h5py
import tensorflow as tf


def saved(
    input_shape: tuple[int, ...],
    num_classes: int | tuple[int, ...],
    *,
    path: Annotated[str, "file"],
) -> Any:
    """Load a model with its weights, with which the training begins.

    Args:
        input_shape: shape of one example's features.
        num_classes: how many outputs, or their shape.
        path: a model saved by `model.save`: `.keras` or `.h5`, of tf_keras or Keras 3.

    Returns:
        A model from features [B, *input_shape] to outputs [B, num_classes]: of tf_keras, or of
        Keras 3 if the file was written by that.

    Raises:
        ValueError: the file is not a whole model, cannot be read, or does not fit the dataset.
    """
    file = Path(path).expanduser()
    version, layers = _read(file)
    if "Lambda" in layers:
        raise ValueError(
            f"path ({path}): the model has a Lambda layer, which holds code that would be run "
            "unseen; replace it by a layer of Keras, and save the model again"
        )
    model = _load(file, path, is_keras_3=not version.startswith("2."))
    outputs = (num_classes,) if isinstance(num_classes, int) else tuple(num_classes)
    _check(model, path, input_shape, outputs)
    return model


def _read(file: Path) -> tuple[str, set[str]]:
    """Return the version of Keras that wrote a file, and the classes of all that it holds.

    Raises:
        ValueError: the file is no whole model.
    """
    try:
        if zipfile.is_zipfile(file):
            with zipfile.ZipFile(file) as archive:
                version = json.loads(archive.read("metadata.json"))["keras_version"]
                config = json.loads(archive.read("config.json"))
        else:
            with h5py.File(file, "r") as group:
                version = _text(group.attrs["keras_version"])
                config = json.loads(_text(group.attrs["model_config"]))
    except (OSError, KeyError, ValueError) as error:
        raise ValueError(
            f"path ({file}) is not a whole model of Keras; write it with model.save('model.keras')"
        ) from error
    return version, _classes(config)


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value


def _classes(config: Any) -> set[str]:
    """Return the names of all classes in a configuration of Keras."""
    if isinstance(config, list):
        return set().union(*map(_classes, config))
    if not isinstance(config, dict):
        return set()
    name = config.get("class_name")
    return _classes(list(config.values())) | ({name} if isinstance(name, str) else set())


def _load(file: Path, path: str, *, is_keras_3: bool) -> Any:
    """Load a model without its optimizer.

    Raises:
        ValueError: it has layers that this Keras does not know, or another format.
    """
    if is_keras_3:
        import keras

        load = keras.saving.load_model
    else:
        load = tf.keras.models.load_model
    try:
        return load(file, compile=False)
    except (ValueError, TypeError, OSError, KeyError) as error:
        kind = "Keras 3" if is_keras_3 else "tf_keras"
        reason = " ".join(str(error).split()) or type(error).__name__
        raise ValueError(f"path ({path}) cannot be loaded by {kind}: {reason[:300]}") from error


def _check(model: Any, path: str, input_shape: tuple[int, ...], outputs: tuple[int, ...]) -> None:
    """Refuse a model that does not fit the dataset or the run.

    Raises:
        ValueError: it does not.
    """
    tensors = [getattr(model, name, None) for name in ("inputs", "outputs")]
    for tensor, (what, wanted) in zip(
        tensors, (("input", input_shape), ("output", outputs)), strict=True
    ):
        if not tensor:
            raise ValueError(
                f"path ({path}): the model has no {what} of a known shape; build it with a "
                "keras.Input, and save it again"
            )
        if len(tensor) != 1:
            raise ValueError(
                f"path ({path}): the model has {len(tensor)} {what}s, but must have one; save the "
                "part that is to be trained"
            )
        shape = tuple(tensor[0].shape)[1:]
        if len(shape) != len(wanted) or any(
            size not in (None, other) for size, other in zip(shape, wanted, strict=True)
        ):
            raise ValueError(
                f"path ({path}): the model's {what} is {list(shape)} for each example, but the "
                f"dataset's is {list(wanted)}; choose a model or a dataset that fits"
            )
    if _activation(model.layers[-1]) == "softmax":
        raise ValueError(
            f"path ({path}): the model ends in softmax, but the loss takes logits; save it without "
            "its last activation"
        )
    _check_precision(model, path)


def _activation(layer: Any) -> str | None:
    """Return the name of a layer's activation, or of the layer if it is one."""
    activation = getattr(layer, "activation", None)
    return type(layer).__name__.lower() if activation is None else activation.__name__


def _check_precision(model: Any, path: str) -> None:
    """Refuse a precision that the layers, which have their own, would not follow.

    Raises:
        ValueError: they would not.
    """
    wanted = tf.keras.mixed_precision.global_policy().compute_dtype
    layers = [x for x in model._flatten_layers() if x.weights and not hasattr(x, "layers")]
    dtypes = {layer.compute_dtype for layer in layers}
    if dtypes and wanted not in dtypes:
        raise ValueError(
            f"path ({path}): the model's layers compute in {', '.join(sorted(dtypes))}, as they "
            f"were saved, not in {wanted}; save it with the policy of precision, or leave that out"
        )
