"""The wrongly classified examples of a split, as images."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import tensorflow as tf

from trainer import pictures
from trainer.errors import ConfigError
from trainer.protocols import Dataset


class Mistakes:
    """The examples that are wrong with the greatest probability; of equals the first.

    Args:
        count: how many are kept.
        dataset: what the examples of its test split are fetched from. White is `max_value`, if it has that attribute.
        class_names: names of the classes.

    Raises:
        ConfigError: the examples are no images.
    """

    def __init__(self, count: int, dataset: Dataset, class_names: Sequence[str]) -> None:
        self._count, self._split, self._names = count, dataset.test, class_names
        features = fetched(dataset)["features"]
        if features.shape.rank != 4 or features.shape[3] not in (1, 3):
            raise ConfigError(
                f"summary.mistakes ({count}) needs images, features of [height, width, 1 or 3]; "
                f"the dataset has {list(features.shape)[1:]}; add summary.mistakes=0"
            )
        self._white = getattr(dataset, "max_value", 255.0 if features.dtype.is_integer else 1.0)
        self.reset()

    def reset(self) -> None:
        """Forgets all examples."""
        self._found: list[tuple[float, int, int, int]] = []  # minus the probability, id, label, prediction

    def update(self, ids: np.ndarray, labels: np.ndarray, probabilities: np.ndarray) -> None:
        """Takes more examples: ids and labels, [B], probabilities, [B, C]."""
        predicted, surest = probabilities.argmax(axis=1), probabilities.max(axis=1)
        wrong = np.flatnonzero(predicted != labels)
        found = [(-float(surest[row]), int(ids[row]), int(labels[row]), int(predicted[row])) for row in wrong]
        self._found = sorted([*self._found, *found])[: self._count]

    def images(self) -> np.ndarray:
        """Gives the images with "label -> prediction (probability)" under each, the surest first, [N, H, W, 3] uint8.

        They are as the dataset has them, before any augmentation; N is 0 if nothing was wrong.
        """
        if not self._found:
            return np.zeros((0, 1, 1, 3), np.uint8)
        captions = [f"{self._names[label]} -> {self._names[predicted]} ({-minus:.2f})" for minus, _, label, predicted in self._found]
        with tf.device("CPU:0"):
            features = self._split.fetch(tf.constant([number for _, number, _, _ in self._found], tf.int64))["features"].numpy()
        grey = np.clip(features.astype(np.float64) / self._white, 0.0, 1.0)
        return pictures.captioned(np.rint(255 * grey).astype(np.uint8), captions)


def fetched(dataset: Dataset) -> dict[str, tf.TensorSpec]:
    """Gives name, shape and type of what the test split has of each example; nothing is read."""
    indices = tf.TensorSpec([None], tf.int64)
    found: dict[str, tf.TensorSpec] = tf.function(dataset.test.fetch, autograph=False).get_concrete_function(indices).structured_outputs
    return found
