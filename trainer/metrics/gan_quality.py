"""How good and how varied generated examples are, in the eyes of a trained classifier."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, ClassVar

import numpy as np
import tensorflow as tf

from trainer.annotations import Exists, Ge
from trainer.errors import ConfigError
from trainer.metrics.sample_scores import frechet_distance, inception_score
from trainer.metrics.trained_classifier import TrainedClassifier
from trainer.protocols import Dataset, Split

_ROWS = 500
"""Examples of the dataset that are read at a time."""


class GanQuality:
    """Fréchet distance and inception score, with the features of a classifier of the same data.

    The papers take the Inception network, trained on ImageNet. Here it is a classifier that a run
    has trained, so values can be compared only between runs with the same classifier. The features
    are the inputs of its last layer. Generated examples are compared with the training split.

    Attributes:
        names: `frechet_distance` and `inception_score`.
        num_samples: generated examples.

    Args:
        classifier: the run directory of the classifier, or one of its checkpoints.
        samples: number of generated examples.
        examples: number of examples of the training split; None: all.
    """

    names = ("frechet_distance", "inception_score")
    direction: ClassVar = {"frechet_distance": "min", "inception_score": "max"}

    def __init__(
        self,
        *,
        classifier: Annotated[str, Exists("checkpoint")],
        samples: Annotated[int, Ge(2)] = 2000,
        examples: Annotated[int | None, Ge(2)] = None,
    ) -> None:
        self._source = Path(classifier).expanduser()
        self.num_samples = samples
        self._num_examples = examples
        self._real_features: np.ndarray | None = None  # computed when they are first needed
        self.reset_state()

    def begin(self, dataset: Dataset) -> None:
        """Load the classifier.

        Raises:
            ConfigError: there is none, or it is not one of this dataset.
        """
        if not isinstance(dataset.train, Split):
            raise ConfigError(
                "classifier: the samples are compared with examples of the training split, and a "
                "stream has none by number; choose another dataset, or remove the metric"
            )
        self._dataset = dataset
        self._classifier = TrainedClassifier(self._source, dataset)

    def update_samples(self, samples: np.ndarray) -> None:
        """Add generated examples, [B, *input_shape] float32."""
        features, probabilities = self._classifier.judge(samples)
        self._features.append(features)
        self._probabilities.append(probabilities)

    def result(self) -> dict[str, float]:
        """Return both scores; needs two generated examples."""
        if self._real_features is None:
            self._real_features = self._features_of_dataset()
        distance = frechet_distance(np.concatenate(self._features), self._real_features)
        score = inception_score(np.concatenate(self._probabilities))
        return dict(zip(self.names, (distance, score), strict=True))

    def reset_state(self) -> None:
        """Forget all generated examples."""
        self._features: list[np.ndarray] = []
        self._probabilities: list[np.ndarray] = []

    def _features_of_dataset(self) -> np.ndarray:
        """Return the features of the training split, [N, D]."""
        split = self._dataset.train
        count = min(split.num_examples, self._num_examples or split.num_examples)
        features = []
        for start in range(0, count, _ROWS):
            with tf.device("CPU:0"):
                batch = split.fetch(tf.range(start, min(count, start + _ROWS), dtype=tf.int64))
                examples = self._dataset.transform(batch, None)["features"].numpy()
            features.append(self._classifier.judge(examples)[0])
        return np.concatenate(features)
