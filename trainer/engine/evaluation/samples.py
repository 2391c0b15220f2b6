"""What a generating task makes of fixed random vectors: examples that have only a number."""

from __future__ import annotations

from dataclasses import dataclass

import tensorflow as tf

from trainer.engine.graph.randomness.randomness import normal_of
from trainer.protocols import Batch, Generates

SAMPLE = "sample"
"""Name of the generated examples among the predictions."""


@dataclass
class NumberedSplit:
    """A split whose examples are their numbers alone.

    Attributes:
        num_examples: how many.
        in_memory: always: there is nothing to read.
    """

    num_examples: int
    in_memory: bool = True

    def fetch(self, indices: tf.Tensor) -> Batch:
        """Return a batch with nothing but what the engine adds: `id` and `weight`."""
        return {}


class Sampler:
    """Predicts for each number one generated example, always from the same random vector.

    It stands for the task and for the dataset of a prediction loop.

    Args:
        task: the task that generates.
    """

    def __init__(self, task: Generates) -> None:
        self._task = task

    def transform(self, batch: Batch, draws: tf.Tensor | None) -> Batch:
        """Return the batch."""
        return batch

    def predict_step(self, batch: Batch) -> Batch:
        """Return `sample`, [B, *input_shape] float32, from `id`, [B] int64."""
        latents = normal_of(batch["id"], self._task.latent_size)
        return {SAMPLE: tf.cast(self._task.generate(latents), tf.float32)}
