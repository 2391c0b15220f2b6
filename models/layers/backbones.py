"""Parts for models around `tf.keras.applications`: classifier, published weights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import tensorflow as tf

from trainer import published_weights
from trainer.keras_files import open_hdf5


@dataclass(frozen=True)
class Head:
    """The classifier on a backbone, and what is taken from published weights.

    Attributes:
        num_classes: how many classes the dataset has.
        outputs: how many logits; None: as many as classes. If it is given, the weights must have a
            classifier of this size, which is loaded too.
        weights: a weights file; None: all weights are random.

    Raises:
        ValueError: there are fewer outputs than classes.
    """

    num_classes: int
    outputs: int | None
    weights: Path | None

    def __post_init__(self) -> None:
        if self.outputs is not None and self.outputs < self.num_classes:
            raise ValueError(
                f"outputs ({self.outputs}) must be at least the number of classes, "
                f"{self.num_classes}; add model.outputs=null"
            )

    def attach(
        self,
        name: str,
        inputs: tf.Tensor,
        backbone: tf.keras.Model,
        features: tf.Tensor | None = None,
    ) -> tf.keras.Model:
        """Return the model of a backbone with pooled features.

        Args:
            name: the model's name.
            inputs: its input.
            backbone: the network.
            features: what it computes from the inputs, [B, channels]; None: its output.

        Raises:
            ValueError: the weights do not fit.
        """
        # The published classifier is a layer called predictions.
        logits = tf.keras.layers.Dense(
            self.outputs or self.num_classes,
            dtype="float32",
            name="logits" if self.outputs is None else "predictions",
        )(backbone.output if features is None else features)
        model = tf.keras.Model(inputs, logits, name=name)
        if self.weights is not None:
            loaded = backbone if self.outputs is None else model
            load_weights(loaded, self.weights)
        return model


def weights_file(
    weights: str | None, network: str, images: tf.Tensor, **options: Any
) -> Path | None:
    """Return the weights file that an option names: a path, or `imagenet` for the published one.

    Args:
        weights: the option; None: there is no file.
        network: its name in `tf.keras.applications`.
        images: what it takes, [B, height, width, 3].
        options: further ones of `published_weights.find`.

    Raises:
        ConfigError: there is no published file, or it can neither be found nor downloaded.
    """
    if weights == published_weights.IMAGENET:
        size = tuple(images.shape[1:3])
        return published_weights.fetch(published_weights.find(network, size, **options))
    return None if weights is None else Path(weights).expanduser()


def set_normalization(backbone: tf.keras.Model, momentum: float, synchronized: bool) -> None:
    """Give all batch normalization of a network this momentum and synchronization."""
    for layer in backbone.layers:
        if isinstance(layer, tf.keras.layers.BatchNormalization):
            layer.momentum = momentum
            layer.synchronized = synchronized
            if synchronized:
                layer.fused = False  # as its constructor decides it


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
    saved = _saved_layers(path)
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
            f"weights ({path}) lacks {len(missing)} of the {len(layers)} layers "
            f"of {backbone.name}, such as {missing[0]}"
        )
    if misfit := _misfit(layers, values):
        raise ValueError(f"weights ({path}) does not fit {backbone.name}: {misfit}")
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


def _saved_layers(path: Path) -> dict[str, list[np.ndarray]]:
    """Return the weights of each layer in a Keras weights file (HDF5), in the model's order."""
    if not path.is_file():
        raise ValueError(
            f"weights ({path}): no such file; "
            "give an HDF5 weights file of tf.keras.applications, or null"
        )
    try:
        with open_hdf5(path) as file:
            group = file.get("model_weights", file)  # a whole saved model keeps them there
            names = {name: _weight_names(group, name) for name in _texts(group, "layer_names")}
            return {
                name: [np.asarray(group[name][weight]) for weight in weights]
                for name, weights in names.items()
                if weights and not name.startswith("normalization")
            }
    except (OSError, KeyError, ValueError) as error:
        raise ValueError(
            f"weights ({path}) is not an HDF5 file of Keras: {str(error).splitlines()[0]}; "
            "remove it from Keras' cache to have it downloaded again, or give another"
        ) from error


def _weight_names(group: h5py.Group, layer: str) -> list[str]:
    return _texts(group[layer], "weight_names")


def _texts(group: h5py.Group, attribute: str) -> list[str]:
    """Return an attribute of texts, which Keras cuts into numbered pieces if it is long."""
    pieces = [attribute] if attribute in group.attrs else []
    while f"{attribute}{len(pieces)}" in group.attrs:
        pieces.append(f"{attribute}{len(pieces)}")
    texts = [text for piece in pieces for text in group.attrs[piece]]
    return [text.decode() if isinstance(text, bytes) else str(text) for text in texts]
