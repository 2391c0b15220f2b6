"""Parts for models around `tf.keras.applications`: classifier, published weights, freezing."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import h5py
import tensorflow as tf

ALL = "backbone"  # `freeze` with this word: all but the classifier


def network_layers(momentum: float, synchronized: bool) -> SimpleNamespace:
    """Return `tf.keras.layers` for a network of `tf.keras.applications`, as its argument `layers`.

    Its batch normalisation has this momentum and synchronisation, whatever the network asks for.
    """

    def batch_norm(**options: Any) -> tf.keras.layers.BatchNormalization:
        return tf.keras.layers.BatchNormalization(
            **{**options, "momentum": momentum, "synchronized": synchronized}
        )

    return SimpleNamespace(**{**vars(tf.keras.layers), "BatchNormalization": batch_norm})


@dataclass(frozen=True)
class Head:
    """The classifier on a backbone, and what is taken from published weights.

    Attributes:
        num_classes: how many classes the dataset has.
        outputs: how many logits; None: as many as classes. If it is given, the weights must have a
            classifier of this size, which is loaded too.
        weights: path of a weights file; None: all weights are random.
        freeze: the last layer that is not trained, nor any before it; `backbone`: all but the
            classifier; None: everything is trained.

    Raises:
        ValueError: there are fewer outputs than classes.
    """

    num_classes: int
    outputs: int | None
    weights: str | None
    freeze: str | None

    def __post_init__(self) -> None:
        if self.outputs is not None and self.outputs < self.num_classes:
            raise ValueError(
                f"outputs ({self.outputs}) must be at least the number of classes, "
                f"{self.num_classes}; add model.outputs=null"
            )

    def attach(self, name: str, inputs: tf.Tensor, backbone: tf.keras.Model) -> tf.keras.Model:
        """Return the model of a backbone with pooled features.

        Raises:
            ValueError: the weights do not fit, or there is no layer to freeze.
        """
        # The published classifier is a layer called predictions.
        logits = tf.keras.layers.Dense(
            self.outputs or self.num_classes,
            dtype="float32",
            name="logits" if self.outputs is None else "predictions",
        )(backbone.output)
        model = tf.keras.Model(inputs, logits, name=name)
        if self.weights is not None:
            loaded = backbone if self.outputs is None else model
            load_weights(loaded, Path(self.weights).expanduser())
        if self.freeze is not None:
            freeze_layers(backbone, self.freeze)
        return model


def freeze_layers(backbone: tf.keras.Model, last: str) -> None:
    """Set the layers up to `last` to be not trained; their batch normalisation does not learn.

    It normalises by its moving averages, in training too, and leaves them as they are.

    Raises:
        ValueError: there is no such layer.
    """
    names = [layer.name for layer in backbone.layers]
    if last != ALL and last not in names:
        close = difflib.get_close_matches(last, names, 1, 0.0)
        raise ValueError(
            f"freeze ({last}) must be {ALL}, or the name of a layer of {backbone.name}, "
            f"such as {close[0]}"
        )
    end = len(names) if last == ALL else names.index(last) + 1
    for layer in backbone.layers[:end]:
        layer.trainable = False


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
