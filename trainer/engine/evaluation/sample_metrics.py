"""Metrics and a picture of what a task generates, at every evaluation from the same vectors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from trainer.config.directions import of_objects
from trainer.config.schema import Experiment
from trainer.engine.evaluation.extra_metrics import ExtraMetrics
from trainer.engine.evaluation.metric_names import require_evaluated
from trainer.engine.evaluation.predictor import Predictor
from trainer.engine.evaluation.samples import SAMPLE
from trainer.engine.graph.step.metric_sums import metric_names
from trainer.engine.process_group import ProcessGroup
from trainer.errors import ConfigError
from trainer.files import write_atomically
from trainer.protocols import Dataset, Metric, SampleMetric, Task
from trainer.summaries import figures

GRID_COLUMNS = 8
GRID_SIZE = GRID_COLUMNS**2
"""Generated examples in the picture."""
PICTURE = "samples.png"
"""File of the newest picture, in the run directory."""


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

    def results(self, step: int) -> dict[str, float]:
        """Return the values; draw and write the picture if the examples are images."""
        values = {
            name: float(value)
            for metric in self._metrics.values()
            for name, value in metric.result().items()
        }
        first = np.concatenate(self._first)
        if first.ndim == 4 and first.shape[3] in (1, 3):
            pixels = np.rint(255 * np.clip(np.nan_to_num(first), 0.0, 1.0)).astype(np.uint8)
            picture = figures.image_grid(pixels, GRID_COLUMNS)
            self.images = {"samples": picture[None]}
            write_atomically(self._run_dir / PICTURE, figures.png(picture))
        return values


def num_samples(metrics: Mapping[str, Metric | SampleMetric]) -> int:
    """Return how many examples must be generated for the metrics and the picture."""
    counts = [metric.num_samples for metric in metrics.values() if isinstance(metric, SampleMetric)]
    return max(GRID_SIZE, *counts) if counts else GRID_SIZE


def make_sample_metrics(
    experiment: Experiment,
    metrics: Mapping[str, Metric | SampleMetric],
    task: Task,
    dataset: Dataset,
    predictor: Predictor,
    process_group: ProcessGroup,
    run_dir: Path,
) -> SampleMetrics:
    """Return the metrics of what a task generates.

    Args:
        experiment: the configuration.
        metrics: the configured metrics by name.
        task: the task, with metrics of its own.
        dataset: the dataset that the metrics compare with.
        predictor: generates the examples.
        process_group: the processes that generate together.
        run_dir: the run directory.

    Raises:
        ConfigError: a metric does not judge generated examples, or the configuration refers to a
            metric that is not evaluated.
    """
    problems = [
        f"metrics.{name} ({type(metric).__name__}) judges predictions of labels, and "
        f"{type(task).__name__} generates examples; remove it, or choose metrics=gan_quality"
        for name, metric in metrics.items()
        if not isinstance(metric, SampleMetric)
    ]
    if experiment.trains and (count := experiment.summary.misclassified):
        problems.append(
            f"summary.misclassified ({count}) needs a classifier, and {type(task).__name__} "
            "generates examples; add summary.misclassified=0"
        )
    if problems:
        raise ConfigError(*problems)
    judges = {name: metric for name, metric in metrics.items() if isinstance(metric, SampleMetric)}
    for name, judge in judges.items():
        try:
            judge.begin(dataset)
        except ConfigError as error:
            raise ConfigError(*(f"metrics.{name}.{line}" for line in error.problems)) from error
    names: Sequence[str] = [
        *metric_names(task),
        *(n for judge in judges.values() for n in judge.names),
    ]
    if experiment.trains:
        require_evaluated(experiment, names, of_objects(task, metrics))
    return SampleMetrics(judges, predictor, process_group, run_dir)
