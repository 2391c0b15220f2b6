"""The classes that probabilities predict, and the misclassified examples of a split, as images."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from trainer.engine.evaluation.subset import batch_spec
from trainer.engine.graph.input.feature_specs import feature_words
from trainer.errors import ConfigError
from trainer.protocols import Dataset, DatasetDefaults, with_defaults
from trainer.summaries import figures

NO_CLASS = -1
"""What probabilities that are not finite predict: it equals no label."""


def predicted_classes(probabilities: np.ndarray) -> np.ndarray:
    """Return the most probable class of each example, [B] int64, from probabilities, [B, C]."""
    is_finite = np.isfinite(probabilities).all(axis=1)
    return np.where(is_finite, np.argmax(probabilities, axis=1), NO_CLASS)


class _Example(NamedTuple):
    """A misclassified example; in order the most probable error first, then the smallest id."""

    negative_probability: float
    id: int
    label: int
    prediction: int


class MisclassifiedExamples:
    """Collects the examples that are misclassified with the greatest probability.

    Args:
        dataset: the dataset, whose test split has the examples. White is its `max_value`, if it has
            that attribute.

    Raises:
        ConfigError: the examples are not images.
    """

    def __init__(self, count: int, dataset: Dataset, class_names: Sequence[str]) -> None:
        self._count = count
        self._split = dataset.test
        self._class_names = class_names
        features = batch_spec(dataset.test)["features"]
        shape = [] if tf.nest.is_nested(features) else list(features.shape)[1:]
        if len(shape) != 3 or shape[2] not in (1, 3):
            raise ConfigError(
                f"summary.misclassified ({count}) needs images, features of [height, width, "
                f"1 or 3]; the dataset has {feature_words(features)}; add summary.misclassified=0"
            )
        white = with_defaults(dataset, DatasetDefaults).max_value
        self._white = white or (255.0 if features.dtype.is_integer else 1.0)
        self.reset()

    def reset(self) -> None:
        """Forget all examples."""
        self._examples: list[_Example] = []

    def update(self, ids: np.ndarray, labels: np.ndarray, probabilities: np.ndarray) -> None:
        """Add the misclassified ones among B examples; `probabilities` is [B, C]."""
        predictions = predicted_classes(probabilities)
        highest = probabilities.max(axis=1)
        examples = [
            _Example(-float(highest[row]), int(ids[row]), int(labels[row]), int(predictions[row]))
            for row in np.flatnonzero((predictions != labels) & (predictions != NO_CLASS))
        ]
        self._examples = sorted([*self._examples, *examples])[: self._count]

    def images(self) -> np.ndarray:
        """Return the images, the most probable errors first, [N, H, W, 3] uint8.

        Each has the caption "label -> prediction (probability)". They are as the dataset has them,
        before any augmentation; N is 0 if no example was misclassified.
        """
        if not self._examples:
            return np.zeros((0, 1, 1, 3), np.uint8)
        captions = [
            f"{self._class_names[example.label]} -> {self._class_names[example.prediction]} "
            f"({-example.negative_probability:.2f})"
            for example in self._examples
        ]
        with tf.device("CPU:0"):
            ids = tf.constant([example.id for example in self._examples], tf.int64)
            features = self._split.fetch(ids)["features"].numpy()
        gray = np.clip(features.astype(np.float64) / self._white, 0.0, 1.0)
        return figures.add_captions(np.rint(255 * gray).astype(np.uint8), captions)
