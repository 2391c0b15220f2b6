"""What a task generates from fixed random vectors: its metrics, and a picture."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Protocol

import numpy as np
import tensorflow as tf

from trainer.engine.evaluation.evaluator import Evaluation, SplitEvaluator
from trainer.engine.evaluation.inference import Inference
from trainer.engine.evaluation.prediction_metrics import (
    misclassified_problems,
    require_evaluated,
)
from trainer.engine.evaluation.predictor import Predictor
from trainer.engine.graph.input.feed import Source
from trainer.engine.graph.randomness.randomness import normal_of
from trainer.engine.graph.step.metric_sums import metric_names
from trainer.errors import ConfigError
from trainer.files import write_atomically
from trainer.protocols import Batch, SampleMetric
from trainer.summaries import figures

SAMPLE = "sample"
"""Name of the generated examples among the predictions."""

GRID_COLUMNS = 8
GRID_SIZE = GRID_COLUMNS**2
"""Generated examples in the picture."""
PICTURE = "samples.png"
"""File of the newest picture, in the run directory."""


class Generates(Protocol):
    """A task whose first model makes examples out of random vectors.

    Attributes:
        latent_size: numbers in a random vector; known after `build`.
    """

    latent_size: int

    def generate(self, latents: tf.Tensor) -> tf.Tensor:
        """Return the examples of some vectors as the trained model makes them.

        Args:
            latents: [B, latent_size] float32, from the standard normal distribution.

        Returns:
            [B, *input_shape] float32, in the units of the dataset's features.
        """


@dataclass
class NumberedSplit:
    """A split whose examples are their numbers alone."""

    num_examples: int
    in_memory: bool = True

    def fetch(self, indices: tf.Tensor) -> Batch:
        """Return a batch with nothing but what the engine adds: `id` and `weight`."""
        return {}


@dataclass(eq=False)
class Sampler:
    """Predicts for each number one generated example, always from the same random vector.

    It stands for the task and for the dataset of a prediction loop.
    """

    task: Generates

    def transform(self, batch: Batch, draws: tf.Tensor | None) -> Batch:
        """Return the batch."""
        return batch

    def predict_step(self, batch: Batch) -> Batch:
        """Return `sample`, [B, *input_shape] float32, from `id`, [B] int64."""
        latents = normal_of(batch["id"], self.task.latent_size)
        return {SAMPLE: tf.cast(self.task.generate(latents), tf.float32)}


def judge_samples(
    metrics: Mapping[str, SampleMetric],
    run_dir: Path,
    step: int,
    rows: Iterator[Mapping[str, np.ndarray]],
) -> Evaluation:
    """Return the values of generated examples; draw the first of them if they are images."""
    for metric in metrics.values():
        metric.reset_state()
    count = 0
    first: list[np.ndarray] = []
    for block in rows:
        samples = block[SAMPLE]
        for metric in metrics.values():
            if len(wanted := samples[: max(0, metric.num_samples - count)]):
                metric.update_samples(wanted)
        first.append(samples[: max(0, GRID_SIZE - count)])
        count += len(samples)
    values = {
        name: float(value) for metric in metrics.values() for name, value in metric.result().items()
    }
    shown = np.concatenate(first)
    if shown.ndim != 4 or shown.shape[3] not in (1, 3):
        return Evaluation(values)
    pixels = np.rint(255 * np.clip(np.nan_to_num(shown), 0.0, 1.0)).astype(np.uint8)
    picture = figures.image_grid(pixels, GRID_COLUMNS)
    write_atomically(run_dir / PICTURE, figures.png(picture))
    return Evaluation(values, {"samples": picture[None]})


def generator(task: Generates, inference: Inference, source: Source, count: int) -> Predictor:
    """Return what generates so many examples, in batches like those of `source`."""
    return inference.predict_by(Sampler(task), source, NumberedSplit(count))


def sample_evaluator(task: Generates, inference: Inference, source: Source) -> SplitEvaluator:
    """Return what evaluates a split, and what the task generates.

    Raises:
        ConfigError: a metric does not judge generated examples, or the configuration refers to a
            metric that is not evaluated.
    """
    experiment = inference.experiment
    judges = {
        name: metric
        for name, metric in inference.metrics.items()
        if isinstance(metric, SampleMetric)
    }
    problems = [
        f"metrics.{name} ({type(metric).__name__}) judges predictions of labels, and "
        f"{type(task).__name__} generates examples; remove it, or choose metrics=gan_quality"
        for name, metric in inference.metrics.items()
        if name not in judges
    ]
    reason = f"needs a classifier, and {type(task).__name__} generates examples"
    if problems := [*problems, *misclassified_problems(experiment, reason)]:
        raise ConfigError(*problems)
    for name, judge in judges.items():
        try:
            judge.begin(inference.dataset)
        except ConfigError as error:
            raise ConfigError(*(f"metrics.{name}.{line}" for line in error.problems)) from error
    if experiment.trains:
        names = [
            *metric_names(inference.state.task),
            *(name for each in judges.values() for name in each.names),
        ]
        require_evaluated(experiment, names, inference.directions)
    num_samples = max([GRID_SIZE, *(judge.num_samples for judge in judges.values())])
    predictor = generator(task, inference, source, num_samples)
    extra = inference.extra_metrics(partial(judge_samples, judges, inference.run_dir), predictor)
    return inference.split_evaluator(source, extra)
