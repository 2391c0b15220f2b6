"""Language models: each token is predicted from those before it, and texts can be continued."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import ClassVar

import tensorflow as tf

from trainer.protocols import Batch, Metrics, PerExample, Sampling, StepContext, TaskParts
from trainer.tasks import model_outputs
from trainer.tasks.generation import continue_tokens


class LanguageModel:
    """Trains `model(features)`, logits [B, T, vocabulary], on the tokens `label`, [B, T] integers.

    The loss is the mean cross-entropy of a token, in nats; its exponential is the perplexity.
    """

    metrics = ("loss", "accuracy")
    derived_metrics = ("perplexity",)
    direction: ClassVar = {"loss": "min", "accuracy": "max", "perplexity": "min"}
    primary_metric = "accuracy"

    def __init__(self) -> None:
        self._shape: list[int] | None = None
        self.models: dict[str, tf.keras.Model] = {}
        self.optimizers: dict[str, tf.keras.optimizers.legacy.Optimizer] = {}

    def build(self, parts: TaskParts) -> None:
        """Create the model and its optimizer."""
        self._shape = [*parts.input_shape, parts.num_classes]
        self.models = {"model": parts.model()}
        self.optimizers = {"model": parts.optimizer()}

    def train_step(self, batch: Batch, step: StepContext) -> Metrics:
        """Make one update on the global batch."""
        return step.minimize(
            lambda part: self._loss(part, training=True),
            batch,
            self.models["model"],
            self.optimizers["model"],
        )

    def eval_step(self, batch: Batch) -> PerExample:
        """Return the mean loss and accuracy of the tokens of each example, [B]."""
        return self._loss(batch, training=False)

    def derive_metrics(self, metrics: Mapping[str, float]) -> dict[str, float]:
        """Return the metrics with the perplexity, the exponential of the mean loss."""
        loss = metrics["loss"]
        # Of more than 700 it is no float.
        return {**metrics, "perplexity": math.inf if loss > 700 else math.exp(loss)}

    def logits(self, tokens: tf.Tensor) -> tf.Tensor:
        """Return the logits of the token after each, [B, T, vocabulary] float32."""
        return self._logits(tokens, training=False)

    def continue_text(
        self, prompts: tf.Tensor, sizes: tf.Tensor, numbers: tf.Tensor, sampling: Sampling
    ) -> tf.Tensor:
        """Return the tokens that follow prompts, [B, sampling.tokens] int32."""
        return continue_tokens(self.logits, prompts, sizes, numbers, sampling)

    def _loss(self, batch: Batch, *, training: bool) -> PerExample:
        logits = self._logits(batch["features"], training=training)
        labels = batch["label"]
        losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)
        is_right = tf.argmax(logits, axis=-1, output_type=labels.dtype) == labels
        is_right &= tf.math.is_finite(losses)
        accuracies = tf.reduce_mean(tf.cast(is_right, tf.float32), axis=-1)
        return tf.reduce_mean(losses, axis=-1), {"accuracy": accuracies}

    def _logits(self, tokens: tf.Tensor, *, training: bool) -> tf.Tensor:
        return model_outputs.call(
            self.models["model"],
            tokens,
            training=training,
            shape=self._shape,
            fix="task=language_model needs a logit of each token of the vocabulary at each place; "
            "choose model=transformer and a dataset of tokens, such as dataset=text_windows",
        )
