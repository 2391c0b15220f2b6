"""Parts for models around `tf.keras.applications`: classifier, published weights."""

from __future__ import annotations

import fcntl
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeAlias

import h5py
import numpy as np
import tensorflow as tf

from trainer.keras_objects import open_hdf5

Layers: TypeAlias = dict[str, list[np.ndarray]]
"""The weights of each layer that has any, in the model's order."""

_WITH_TOP = (96, 128, 160, 192, 224)
"""Sizes of images for which MobileNetV2 is published with its classifier."""


def with_classifier(
    inputs: tf.Tensor,
    features: tf.Tensor,
    backbone: tf.keras.Model,
    num_outputs: int,
    load: Callable[[tf.keras.Model], None] | None,
    *,
    name: str,
    is_published: bool = False,
) -> tf.keras.Model:
    """Return the model of a backbone and a linear classifier, with the weights that are loaded.

    Args:
        features: what the backbone computes from the inputs, [B, channels].
        is_published: whether the classifier's weights are loaded too.

    Raises:
        ValueError: the weights do not fit.
    """
    # The published classifier is a layer called predictions.
    head = "predictions" if is_published else "logits"
    logits = tf.keras.layers.Dense(num_outputs, dtype="float32", name=head)(features)
    model = tf.keras.Model(inputs, logits, name=name)
    if load is not None:
        load(model if is_published else backbone)
    return model


def loader_of(
    weights: str | None, network: str, images: tf.Tensor, **options: Any
) -> Callable[[tf.keras.Model], None] | None:
    """Return what loads the weights that an option names: a file, or `imagenet` as Keras does.

    Args:
        network: its name in `tf.keras.applications`.
        images: what it takes, [B, height, width, 3].
    """
    if weights is None:
        return None
    if weights != "imagenet":
        return lambda model: load_weights(model, Path(weights).expanduser())
    shape = tuple(images.shape[1:])
    return lambda model: _assign(model, _published(network, shape, options), "weights (imagenet)")


def _published(network: str, shape: tuple[int, ...], options: Mapping[str, Any]) -> Layers:
    """Return the weights that Keras publishes, which it keeps in its cache."""
    folder = Path("~/.keras/models").expanduser()  # that of tf_keras, regardless of KERAS_HOME
    folder.mkdir(parents=True, exist_ok=True)
    if options.get("include_top") and (shape[0] != shape[1] or shape[0] not in _WITH_TOP):
        shape = (_WITH_TOP[-1], _WITH_TOP[-1], 3)  # the classifier is the same for all sizes
    with (folder / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # one process of a host downloads
        try:
            build = getattr(tf.keras.applications, network)
            # In a thread, so in no strategy's scope, where variables wait for the other workers.
            with ThreadPoolExecutor(1) as executor:
                options = {"include_top": False, "input_shape": shape, **options}
                model = executor.submit(build, **options).result()
        except Exception as error:  # Keras raises a bare one when there is no network
            reason = str(error).partition("\n")[0]
            raise ValueError(
                f"weights (imagenet): {reason}; where there is no network, or a file is damaged, "
                f"put the file that it names into {folder}"
            ) from error
    return {layer.name: layer.get_weights() for layer in model.layers if layer.weights}


def load_weights(backbone: tf.keras.Model, path: Path) -> None:
    """Load a weights file of `tf.keras.applications`, with or without the top, into a backbone.

    Layers are matched by name. Where names are automatic, as in InceptionV3, they differ between
    files and processes: then by their order, and every shape must fit. Keras' own loading by name
    would silently keep the random weights of a layer that is missing. `Normalization` layers are
    left out: the models scale images before.

    Raises:
        ValueError: the file is missing, is no Keras weights file in HDF5, or is of another network
            or width.
    """
    _assign(backbone, _saved_layers(path), f"weights ({path})")


def _assign(backbone: tf.keras.Model, saved: Layers, source: str) -> None:
    saved = {name: x for name, x in saved.items() if not name.startswith("normalization")}
    layers = {
        layer.name: layer
        for layer in backbone.layers
        if layer.weights and not isinstance(layer, tf.keras.layers.Normalization)
    }
    missing = [name for name in layers if name not in saved]
    in_order = dict(zip(layers, saved.values(), strict=False))
    if not missing:
        values = {name: saved[name] for name in layers}
    elif len(in_order) == len(layers) and _misfit(layers, in_order) is None:
        values = in_order
    else:
        raise ValueError(
            f"{source} lacks {len(missing)} of the {len(layers)} layers "
            f"of {backbone.name}, such as {missing[0]}"
        )
    if misfit := _misfit(layers, values):
        raise ValueError(f"{source} does not fit {backbone.name}: {misfit}")
    for name, layer in layers.items():
        layer.set_weights(values[name])


def _misfit(
    layers: Mapping[str, tf.keras.layers.Layer], values: Mapping[str, Sequence[np.ndarray]]
) -> str | None:
    """Return the first layer whose weights have other shapes in the file, in words."""
    for name, layer in layers.items():
        wanted = [list(weight.shape) for weight in layer.weights]
        shapes = [list(value.shape) for value in values[name]]
        if wanted != shapes:
            return f"{name} has weights of {shapes} in the file, not of {wanted}"
    return None


def _saved_layers(path: Path) -> Layers:
    """Return the weights of each layer in a Keras weights file (HDF5), in the model's order."""
    if not path.is_file():
        raise ValueError(
            f"weights ({path}): no such file; "
            "give an HDF5 weights file of tf.keras.applications, or null"
        )
    try:
        with open_hdf5(path) as file:
            group = file.get("model_weights", file)  # a whole saved model keeps them there
            layers = _texts(group, "layer_names")
            names = {name: _texts(group[name], "weight_names") for name in layers}
            return {
                name: [np.asarray(group[name][weight]) for weight in weights]
                for name, weights in names.items()
                if weights
            }
    except (OSError, KeyError, ValueError) as error:
        raise ValueError(
            f"weights ({path}) is not an HDF5 file of Keras: {str(error).splitlines()[0]}; "
            "remove it from Keras' cache to have it downloaded again, or give another"
        ) from error


def _texts(group: h5py.Group, attribute: str) -> list[str]:
    """Return an attribute of texts, which Keras cuts into numbered pieces if it is long."""
    pieces = [attribute] if attribute in group.attrs else []
    while f"{attribute}{len(pieces)}" in group.attrs:
        pieces.append(f"{attribute}{len(pieces)}")
    texts = [text for piece in pieces for text in group.attrs[piece]]
    return [text.decode() if isinstance(text, bytes) else str(text) for text in texts]
