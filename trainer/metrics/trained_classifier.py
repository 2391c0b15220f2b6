"""A classifier that a run has trained, as a judge of other examples."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from trainer.config import loading
from trainer.config.instantiate import import_target, instantiate
from trainer.engine.initial_weights.initial_weights import restore_weights
from trainer.errors import CheckpointError, ConfigError
from trainer.protocols import Dataset
from trainer.runs.directory import read_config

_ROWS = 500
"""Examples that are classified at a time."""


class TrainedClassifier:
    """A run's model, on the CPU and in float32, with averaged weights where the run has them.

    Args:
        source: a run directory, or the path prefix of one of its checkpoints.
        dataset: the data to be judged; as many classes, and features of the same shape, as the run
            was trained on.

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
                model = instantiate(node, name, tuple(dataset.input_shape), dataset.num_classes)
                library, saved = _kind(model)
                restore_weights(source, {"model": saved})
        except CheckpointError as error:
            reason = str(error).removeprefix(f"init_from ({source}): ")
            raise ConfigError(f"{name}: {reason}; is it a classifier of this dataset?") from error
        self._model = library.Model(model.inputs, [model.layers[-1].input, model.outputs[0]])

    def judge(self, features: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return what the last layer sees of examples, and their probabilities.

        Args:
            features: [N, *input_shape] float32.

        Returns:
            [N, D] and [N, classes], float32.
        """
        seen = []
        probabilities = []
        with tf.device("CPU:0"):
            for start in range(0, len(features), _ROWS):
                inputs, logits = self._model(features[start : start + _ROWS], training=False)
                seen.append(tf.reshape(inputs, [inputs.shape[0], -1]).numpy())
                probabilities.append(tf.nn.softmax(logits).numpy())
        return np.concatenate(seen), np.concatenate(probabilities)


def _kind(model: Any) -> tuple[Any, Any]:
    """Return the Keras that a model is of, and the model as a checkpoint knows it."""
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
