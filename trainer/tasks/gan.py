"""Generative adversarial networks: a generator of examples against a discriminator."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated, ClassVar, Literal

import numpy as np
import tensorflow as tf

from trainer.annotations import Ge
from trainer.engine.evaluation.evaluator import Evaluator, Predictor, Rows
from trainer.engine.evaluation.inference import Inference
from trainer.engine.graph.input.feed import NumberedSplit, Source
from trainer.engine.graph.randomness.randomness import normal_of
from trainer.files import write_atomically
from trainer.protocols import (
    Batch,
    Dataset,
    MetricDefaults,
    Metrics,
    ModelNode,
    OptimizerNode,
    PerExample,
    Sampling,
    Served,
    StepContext,
    TaskParts,
    with_defaults,
)
from trainer.summaries import figures

_GRID_COLUMNS = 8
_GRID_SIZE = _GRID_COLUMNS**2
"""Generated examples in the picture."""


class Gan:
    """Trains a generator to make examples that a discriminator takes for real (Goodfellow 2014).

    The score D of an example is large where the discriminator takes it for real. With latent
    vectors z from the standard normal distribution the losses of one example are

        hinge           D: max(0, 1 - D(x)) + max(0, 1 + D(G(z)))   G: -D(G(z))
        non_saturating  D: log(1 + e^-D(x)) + log(1 + e^D(G(z)))    G: log(1 + e^-D(G(z)))

    A step makes `discriminator_steps` updates of the discriminator, each on its own part of the
    batch, and then one of the generator, with as many latent vectors as such a part has examples.

    Args:
        generator: a model from latent vectors [B, latent_size] to examples.
        discriminator: a model from examples to scores [B, 1].
        loss: `hinge` (Lim and Ye 2017; Miyato et al. 2018) or `non_saturating` (Goodfellow et al.
            2014).
    """

    metrics = ("loss", "generator_loss", "discriminator_accuracy")
    direction: ClassVar = {"loss": "min", "generator_loss": "min"}
    single_input = True
    # Its loss measures how well a generator fools, not the quality of its examples.
    primary_metric = "frechet_distance"

    def __init__(
        self,
        *,
        generator: ModelNode,
        discriminator: ModelNode,
        generator_optimizer: OptimizerNode,
        discriminator_optimizer: OptimizerNode,
        loss: Literal["hinge", "non_saturating"] = "hinge",
        discriminator_steps: Annotated[int, Ge(1)] = 1,
    ) -> None:
        self._nodes = {"generator": generator, "discriminator": discriminator}
        self._generator_optimizer = generator_optimizer
        self._discriminator_optimizer = discriminator_optimizer
        self._is_hinge = loss == "hinge"
        self._discriminator_steps = discriminator_steps
        self.latent_size = 0
        self.models: dict[str, tf.keras.Model] = {}
        self.optimizers: dict[str, tf.keras.optimizers.legacy.Optimizer] = {}

    def build(self, parts: TaskParts) -> None:
        self.models = {
            "generator": parts.model(self._nodes["generator"]),
            "discriminator": parts.model(self._nodes["discriminator"], outputs=1),
        }
        self.optimizers = {
            "generator": parts.optimizer(self._generator_optimizer),
            "discriminator": parts.optimizer(
                self._discriminator_optimizer, updates_per_step=self._discriminator_steps
            ),
        }
        self.latent_size = int(self.models["generator"].input_shape[-1])

    def train_step(self, batch: Batch, step: StepContext) -> Metrics:
        """Update the discriminator on each part of the batch, then the generator."""
        models, optimizers = self.models, self.optimizers
        parts = step.split(batch, self._discriminator_steps)

        def discriminator_loss(part: Batch) -> PerExample:
            return self._discriminator_loss(part, self._noise(part, step), training=True)

        def generator_loss(part: Batch) -> PerExample:
            return self._generator_loss(self._noise(part, step), training=True), {}

        updates = [
            step.minimize(
                discriminator_loss, part, models["discriminator"], optimizers["discriminator"]
            )
            for part in parts
        ]
        generated = step.minimize(
            generator_loss, parts[0], models["generator"], optimizers["generator"]
        )
        sums = {
            name: tuple(map(tf.add_n, zip(*(metrics[name] for metrics in updates), strict=True)))
            for name in updates[0]
        }
        return {**sums, "generator_loss": generated["loss"]}

    def eval_step(self, batch: Batch) -> PerExample:
        """Return both losses of each example, [B], with the latent vector of its number."""
        latents = normal_of(batch["id"], self.latent_size)
        losses, metrics = self._discriminator_loss(batch, latents, training=False)
        return losses, {**metrics, "generator_loss": self._generator_loss(latents, training=False)}

    def generate(self, latents: tf.Tensor) -> tf.Tensor:
        """Return examples, [B, *input_shape], from latent vectors, [B, latent_size]."""
        return self.models["generator"](latents, training=False)

    def make_predictor(
        self, inference: Inference, source: Source, count: int | None = None
    ) -> Predictor:
        """Return what generates examples, by default as many as a split has."""

        def sample(batch: Batch) -> dict[str, tf.Tensor]:
            latents = normal_of(batch["id"], self.latent_size)  # always the same for a number
            return {"sample": tf.cast(self.generate(latents), tf.float32)}

        numbers = NumberedSplit(count or source.split.num_examples)
        return inference.predict(replace(source, split=numbers), sample)

    def make_evaluator(
        self, inference: Inference, source: Source, predictor: Predictor | None
    ) -> Evaluator:
        metrics = inference.metrics.values()
        wanted = [with_defaults(metric, MetricDefaults).num_samples for metric in metrics]
        sampled = inference.configured_metrics(
            self.make_predictor(inference, source, max([_GRID_SIZE, *wanted])),
            "sample",
            {"samples": SampleGrid(inference.run_dir / "samples.png")},
        )
        return inference.split_evaluator(source, sampled)

    def serve(self, dataset: Dataset, sampling: Sampling) -> Served:

        def generate(latents: tf.Tensor) -> dict[str, tf.Tensor]:
            return {"samples": tf.cast(self.generate(latents), tf.float32)}

        vectors = tf.TensorSpec([None, self.latent_size], tf.float32, "latents")
        function = tf.function(generate, autograph=False).get_concrete_function(vectors)
        text = (
            f"- `serving_default`: `latents`, [N, {self.latent_size}] float32, independent numbers "
            "from the standard normal distribution.\n\nIt returns `samples`, float32: one "
            "generated example for each vector, as the dataset hands examples to a model (scaled, "
            "images in [0, 1])."
        )
        usage = (
            'predict = model.signatures["serving_default"]',
            f'inputs = {{"latents": tf.random.normal({[1, self.latent_size]})}}  # yours',
            "predictions = predict(**inputs)",
        )
        return Served({"serving_default": function}, text, usage)

    def _noise(self, part: Batch, step: StepContext) -> tf.Tensor:
        return step.random_normal([int(part["weight"].shape[0]), self.latent_size])

    def _discriminator_loss(
        self, batch: Batch, latents: tf.Tensor, *, training: bool
    ) -> PerExample:
        """Return the discriminator's loss and accuracy of each pair, real and generated, [B]."""
        generated = self.models["generator"](latents, training=training)
        real = self._score(batch["features"], training=training)
        fake = self._score(tf.stop_gradient(generated), training=training)
        if self._is_hinge:
            losses = tf.nn.relu(1.0 - real) + tf.nn.relu(1.0 + fake)
        else:
            losses = tf.nn.softplus(-real) + tf.nn.softplus(fake)
        right = tf.cast(real > 0.0, tf.float32) + tf.cast(fake < 0.0, tf.float32)
        return losses, {"discriminator_accuracy": right / 2.0}

    def _generator_loss(self, latents: tf.Tensor, *, training: bool) -> tf.Tensor:
        """Return the generator's loss of each vector, [B]."""
        generated = self.models["generator"](latents, training=training)
        fake = self._score(generated, training=training)
        return -fake if self._is_hinge else tf.nn.softplus(-fake)

    def _score(self, examples: tf.Tensor, *, training: bool) -> tf.Tensor:
        scores = self.models["discriminator"](examples, training=training)
        return tf.cast(tf.reshape(scores, [-1]), tf.float32)


class SampleGrid:
    """Draws the first generated examples, if they are images; `path` has the newest picture."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.reset()

    def reset(self) -> None:
        self._examples: list[np.ndarray] = []

    def update(self, rows: Rows) -> None:
        self._examples.extend(rows["sample"][: _GRID_SIZE - len(self._examples)])

    def images(self) -> np.ndarray:
        shown = np.stack(self._examples)
        if shown.ndim != 4 or shown.shape[3] not in (1, 3):
            return np.zeros((0, 1, 1, 3), np.uint8)
        pixels = np.rint(255 * np.clip(np.nan_to_num(shown), 0.0, 1.0)).astype(np.uint8)
        picture = figures.image_grid(pixels, _GRID_COLUMNS)
        write_atomically(self._path, figures.png(picture))
        return picture[None]
