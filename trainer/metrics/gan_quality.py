"""How good and how varied generated examples are, as a trained classifier judges them."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, ClassVar

import numpy as np
import tensorflow as tf

from trainer.annotations import Exists, Ge
from trainer.config import loading
from trainer.config.instantiate import import_target, instantiate_model
from trainer.engine.adapted_layers import AdaptedLayers
from trainer.engine.graph.input.feature_specs import model_arguments
from trainer.engine.initial_weights import restore_weights
from trainer.errors import CheckpointError, ConfigError
from trainer.protocols import Dataset, Split
from trainer.runs.directory import read_config

_ROWS = 500
"""Examples that are read or classified at a time."""


class GanQuality:
    """Fréchet distance and inception score, with the features of a classifier of the same data.

    The papers take the Inception network, trained on ImageNet. Here it is a classifier that a run
    has trained, so values can be compared only between runs with the same classifier. The features
    are the inputs of its last layer. Generated examples are compared with the training split.
    """

    label_kind = "sample"
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
        """Load the classifier."""
        if not isinstance(dataset.train, Split):
            raise ConfigError(
                "classifier: the samples are compared with examples of the training split, and a "
                "stream has no examples by number; choose another dataset, or remove the metric"
            )
        self._dataset = dataset
        self._classifier = TrainedClassifier(self._source, dataset)

    def update_state(self, y_true: None, y_pred: np.ndarray) -> None:
        wanted = y_pred[: self.num_samples - sum(map(len, self._features))]
        if not len(wanted):
            return
        features, probabilities = self._classifier.judge(wanted)
        self._features.append(features)
        self._probabilities.append(probabilities)

    def result(self) -> dict[str, float]:
        if self._real_features is None:
            self._real_features = self._features_of_dataset()
        distance = frechet_distance(np.concatenate(self._features), self._real_features)
        score = inception_score(np.concatenate(self._probabilities))
        return dict(zip(self.names, (distance, score), strict=True))

    def reset_state(self) -> None:
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


class TrainedClassifier:
    """A run's model, on the CPU and in float32, with averaged weights where the run has them.

    Args:
        source: a run directory, or the path prefix of one of its checkpoints.

    Raises:
        ConfigError: there is no such run, or its model does not fit the data.
    """

    def __init__(self, source: Path, dataset: Dataset) -> None:
        run_dir = source if source.is_dir() else source.parent.parent
        name = f"classifier ({source})"
        try:
            config = read_config(run_dir)
        except FileNotFoundError as error:
            raise ConfigError(
                f"{name}: no run there: it has no config.yaml; give the directory of a run that "
                "has trained a classifier on the same dataset"
            ) from error
        node = loading.restore(config).model
        import_target(node)  # and with it the Keras that it uses
        try:
            with _in_float32(), tf.device("CPU:0"):
                with AdaptedLayers(run_dir, adapts=False).restored():
                    model = instantiate_model(node, name, model_arguments(dataset))
                library, saved = _kind(model)
                restore_weights(source, {"model": saved})
        except CheckpointError as error:
            reason = str(error).removeprefix(f"init_from ({source}): ")
            raise ConfigError(f"{name}: {reason}; is it a classifier of this dataset?") from error
        self._model = library.Model(model.inputs, [model.layers[-1].input, model.outputs[0]])

    def judge(self, features: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return what the last layer sees of examples, [N, D], and probabilities, [N, C]."""
        seen = []
        probabilities = []
        with tf.device("CPU:0"):
            for start in range(0, len(features), _ROWS):
                inputs, logits = self._model(features[start : start + _ROWS], training=False)
                seen.append(tf.reshape(inputs, [inputs.shape[0], -1]).numpy())
                probabilities.append(tf.nn.softmax(logits).numpy())
        return np.concatenate(seen), np.concatenate(probabilities)


def _kind(model: Any) -> tuple[Any, Any]:
    """Return the Keras that a model is of, and the model as in a checkpoint."""
    keras = sys.modules.get("keras")
    if keras is None or not isinstance(model, keras.Layer):
        return tf.keras, model
    from trainer.engine.graph.keras3.keras3_model import Keras3Model

    return keras, Keras3Model(model)


@contextmanager
def _in_float32() -> Iterator[None]:
    """Have layers of both Keras that are built inside compute in float32."""
    policies = [tf.keras.mixed_precision.global_policy()]
    setters = [tf.keras.mixed_precision.set_global_policy]
    if keras := sys.modules.get("keras"):
        policies.append(keras.config.dtype_policy())
        setters.append(keras.config.set_dtype_policy)
    try:
        for set_policy in setters:
            set_policy("float32")
        yield
    finally:
        for set_policy, policy in zip(setters, policies, strict=True):
            set_policy(policy)


def frechet_distance(features: np.ndarray, others: np.ndarray) -> float:
    """Return the Fréchet distance of two sets of features (Heusel et al. 2017).

    That of two normal distributions with their means m and covariances S:
    |m1 - m2|^2 + tr(S1 + S2 - 2 (S1 S2)^(1/2)).

    Both are [N, D] of their own N, at least 2.
    """
    first = features.astype(np.float64)
    second = others.astype(np.float64)
    if not (np.isfinite(first).all() and np.isfinite(second).all()):
        return float("nan")
    shift = first.mean(axis=0) - second.mean(axis=0)
    covariance = np.atleast_2d(np.cov(first, rowvar=False))
    other_covariance = np.atleast_2d(np.cov(second, rowvar=False))
    # S1 S2 has the eigenvalues of the symmetric S1^(1/2) S2 S1^(1/2).
    root = _square_root(covariance)
    product_root = _square_root(root @ other_covariance @ root)
    trace = np.trace(covariance) + np.trace(other_covariance) - 2.0 * np.trace(product_root)
    # A sum of squares, whose rounding error may be negative.
    return max(0.0, float(shift @ shift + trace))


def inception_score(probabilities: np.ndarray) -> float:
    """Return exp of the mean divergence of p(y | x) from p(y) (Salimans et al. 2016).

    It is 1 where the classifier predicts the same for all examples, and the number of classes where
    each is clearly of one class and all classes are as frequent.

    Args:
        probabilities: [N, classes], N at least 1; each row adds up to 1.
    """
    conditional = probabilities.astype(np.float64)
    marginal = conditional.mean(axis=0)
    # 0 log 0 is 0.
    ratio = np.where(conditional > 0, conditional, 1.0) / np.where(conditional > 0, marginal, 1.0)
    return float(np.exp((conditional * np.log(ratio)).sum(axis=1).mean()))


def _square_root(matrix: np.ndarray) -> np.ndarray:
    """Return the root of a symmetric matrix without negative eigenvalues but for rounding."""
    values, vectors = np.linalg.eigh((matrix + matrix.T) / 2.0)
    return (vectors * np.sqrt(np.maximum(values, 0.0))) @ vectors.T
