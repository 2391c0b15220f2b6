"""What a task generates from fixed random vectors: its metrics, and a picture."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
import tensorflow as tf

from trainer.engine.evaluation.evaluator import Evaluation, ExtraMetrics, SplitEvaluator
from trainer.engine.evaluation.inference import Inference
from trainer.engine.evaluation.metric_names import require_evaluated
from trainer.engine.evaluation.predictor import Predictor
from trainer.engine.graph.input.feed import Source
from trainer.engine.graph.randomness.randomness import normal_of
from trainer.engine.graph.step.metric_sums import metric_names
from trainer.engine.process_group import ProcessGroup
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


class SampleMetrics(ExtraMetrics):
    """Computes metrics of generated examples, and shows the first of them.

    Args:
        metrics: the metrics by name.
        predictor: generates the examples.
        process_group: the processes that generate together.
        run_dir: the run directory, for the picture.
    """

    def __init__(
        self,
        metrics: Mapping[str, SampleMetric],
        predictor: Predictor,
        process_group: ProcessGroup,
        run_dir: Path,
    ) -> None:
        super().__init__(predictor, process_group)
        self._metrics = metrics
        self._run_dir = run_dir
        self.reset()

    def reset(self) -> None:
        """Forget all generated examples."""
        for metric in self._metrics.values():
            metric.reset_state()
        self._count = 0
        self._first: list[np.ndarray] = []

    def update(self, block: Mapping[str, np.ndarray]) -> None:
        """Add generated examples."""
        samples = block[SAMPLE]
        for metric in self._metrics.values():
            if len(wanted := samples[: max(0, metric.num_samples - self._count)]):
                metric.update_samples(wanted)
        self._first.append(samples[: max(0, GRID_SIZE - self._count)])
        self._count += len(samples)

    def results(self, step: int) -> Evaluation:
        """Return the values; draw and write the picture if the examples are images."""
        values = {
            name: float(value)
            for metric in self._metrics.values()
            for name, value in metric.result().items()
        }
        first = np.concatenate(self._first)
        if first.ndim != 4 or first.shape[3] not in (1, 3):
            return Evaluation(values)
        pixels = np.rint(255 * np.clip(np.nan_to_num(first), 0.0, 1.0)).astype(np.uint8)
        picture = figures.image_grid(pixels, GRID_COLUMNS)
        write_atomically(self._run_dir / PICTURE, figures.png(picture))
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
    if experiment.trains and (count := experiment.summary.misclassified):
        problems.append(
            f"summary.misclassified ({count}) needs a classifier, and {type(task).__name__} "
            "generates examples; add summary.misclassified=0"
        )
    if problems:
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
    extra = SampleMetrics(judges, predictor, inference.process_group, inference.run_dir)
    return inference.split_evaluator(source, extra)
