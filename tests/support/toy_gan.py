"""A user-defined task with two models and two optimizers, all nodes of its configuration."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Annotated

from trainer.annotations import Ge, Lt, Semantic
from trainer.protocols import (
    Batch,
    Metrics,
    ModelNode,
    OptimizerNode,
    PerExample,
    ScheduleNode,
    StepContext,
    TaskParts,
)

if TYPE_CHECKING:
    import tensorflow as tf


def generator(
    input_shape: tuple[int, ...],
    output_shape: tuple[int, ...],
    *,
    width: Annotated[int, Ge(1)] = 16,
) -> tf.keras.Model:
    """Build a model from noise to images."""
    import tensorflow as tf

    return tf.keras.Sequential(
        [
            tf.keras.Input(input_shape),
            tf.keras.layers.Dense(width, "relu"),
            tf.keras.layers.Dense(math.prod(output_shape), "sigmoid"),
            tf.keras.layers.Reshape(output_shape),
        ]
    )


def discriminator(
    input_shape: tuple[int, ...],
    outputs: int,
    *,
    width: Annotated[int, Ge(1)] = 16,
    dropout: Annotated[float, Ge(0), Lt(1), Semantic()] = 0.0,
) -> tf.keras.Model:
    """Build a model from images to logits."""
    import tensorflow as tf

    return tf.keras.Sequential(
        [
            tf.keras.Input(input_shape),
            tf.keras.layers.Flatten(),
            tf.keras.layers.Dense(width, "relu"),
            tf.keras.layers.Dropout(dropout),
            tf.keras.layers.Dense(outputs),
        ]
    )


class ToyGan:
    """Goodfellow et al. 2014, with several updates of the discriminator in a step."""

    metrics = ("loss", "discriminator_loss")

    def __init__(
        self,
        *,
        generator: ModelNode,
        discriminator: ModelNode,
        generator_optimizer: OptimizerNode,
        discriminator_optimizer: OptimizerNode,
        generator_schedule: ScheduleNode | None = None,
        latent: Annotated[int, Ge(1)] = 4,
        updates: Annotated[int, Ge(1)] = 1,
    ) -> None:
        self.generator = generator
        self.discriminator = discriminator
        self.generator_optimizer = generator_optimizer
        self.discriminator_optimizer = discriminator_optimizer
        self.generator_schedule = generator_schedule
        self.latent = latent
        self.updates = updates

    def build(self, parts: TaskParts) -> None:
        self.models = {
            "generator": parts.model(
                self.generator, input_shape=(self.latent,), outputs=parts.input_shape
            ),
            "discriminator": parts.model(self.discriminator, outputs=1),
        }
        self.optimizers = {
            "generator": parts.optimizer(
                self.generator_optimizer, schedule=self.generator_schedule
            ),
            "discriminator": parts.optimizer(
                self.discriminator_optimizer, updates_per_step=self.updates
            ),
        }

    def train_step(self, batch: Batch, step: StepContext) -> Metrics:
        import tensorflow as tf

        def discriminator_loss(part: Batch) -> PerExample:
            return self._discriminator_loss(part, self._noise(part, step), training=True), {}

        def generator_loss(part: Batch) -> PerExample:
            return self._generator_loss(self._noise(part, step), training=True), {}

        name = "discriminator"
        sums = [
            step.minimize(discriminator_loss, part, self.models[name], self.optimizers[name])
            for part in step.split(batch, self.updates)
        ]
        name = "generator"
        generated = step.minimize(generator_loss, batch, self.models[name], self.optimizers[name])
        total = tuple(tf.add_n(numbers) for numbers in zip(*(s["loss"] for s in sums), strict=True))
        return {"loss": generated["loss"], "discriminator_loss": total}

    def eval_step(self, batch: Batch) -> PerExample:
        import tensorflow as tf

        noise = tf.zeros([tf.shape(batch["features"])[0], self.latent])
        losses = self._discriminator_loss(batch, noise, training=False)
        return self._generator_loss(noise, training=False), {"discriminator_loss": losses}

    def _noise(self, part: Batch, step: StepContext) -> tf.Tensor:
        return step.random_normal([part["weight"].shape[0], self.latent])

    def _discriminator_loss(self, batch: Batch, noise: tf.Tensor, *, training: bool) -> tf.Tensor:
        fakes = self.models["generator"](noise, training=training)
        real = self._judge(batch["features"], 1.0, training=training)
        return real + self._judge(fakes, 0.0, training=training)

    def _generator_loss(self, noise: tf.Tensor, *, training: bool) -> tf.Tensor:
        fakes = self.models["generator"](noise, training=training)
        return self._judge(fakes, 1.0, training=training)

    def _judge(self, images: tf.Tensor, target: float, *, training: bool) -> tf.Tensor:
        import tensorflow as tf

        logits = self.models["discriminator"](images, training=training)[:, 0]
        logits = tf.cast(logits, tf.float32)
        return tf.nn.sigmoid_cross_entropy_with_logits(tf.fill(tf.shape(logits), target), logits)
