"""The served functions of a language model."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from trainer.protocols import Dataset, Sampling, WritesText


def signatures(task: WritesText, dataset: Dataset, sampling: Sampling) -> dict[str, Any]:
    """Return `serving_default`, from tokens to logits, and `generate`, from prompts to tokens.

    They are traced without AutoGraph, as the steps are.
    """
    features = tf.TensorSpec([None, *dataset.input_shape], tf.int32, "features")

    def logits(features: tf.Tensor) -> dict[str, tf.Tensor]:
        return {"logits": task.logits(features)}

    def generate(features: tf.Tensor, size: tf.Tensor, id: tf.Tensor) -> dict[str, tf.Tensor]:
        return {"text": task.continue_text(features, size, id, sampling)}

    return {
        "serving_default": tf.function(logits, autograph=False).get_concrete_function(features),
        "generate": tf.function(generate, autograph=False).get_concrete_function(
            features,
            tf.TensorSpec([None], tf.int32, "size"),
            tf.TensorSpec([None], tf.int64, "id"),
        ),
    }
