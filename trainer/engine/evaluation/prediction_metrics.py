"""Metrics and figures of a split from its predictions, besides the metrics of the task itself."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from trainer.config.directions import of_objects
from trainer.config.schema import Experiment
from trainer.engine.evaluation.evaluator import Evaluation, ExtraMetrics
from trainer.engine.evaluation.metric_names import (
    kind_of,
    metric_values,
    require_evaluated,
    update_metrics,
    validate_metrics,
)
from trainer.engine.evaluation.misclassified import MisclassifiedExamples, batch_spec
from trainer.engine.evaluation.predictor import Predictor
from trainer.engine.graph.step.metric_sums import metric_names
from trainer.engine.process_group import ProcessGroup
from trainer.errors import ConfigError
from trainer.files import write_json
from trainer.protocols import (
    IN_WORDS,
    PREDICTIONS,
    Dataset,
    DatasetDefaults,
    HasFigures,
    LabelKind,
    Metric,
    SampleMetric,
    Task,
    TaskDefaults,
    with_defaults,
)


class PredictionMetrics(ExtraMetrics):
    """Computes metrics from the predictions for the test split, in the chief.

    Args:
        metrics: the metrics by name.
        misclassified: collects misclassified examples; None: they are not shown.
        predictor: predicts the test split.
        process_group: the processes that predict together.
        run_dir: the run directory, for the tables of metrics with figures.
        kind: what the labels are.
    """

    def __init__(
        self,
        metrics: Mapping[str, Metric],
        misclassified: MisclassifiedExamples | None,
        predictor: Predictor,
        process_group: ProcessGroup,
        run_dir: Path,
        kind: LabelKind = "class",
    ) -> None:
        super().__init__(predictor, process_group)
        self._metrics = metrics
        self._misclassified = misclassified
        self._run_dir = run_dir
        self._kind = kind

    def reset(self) -> None:
        """Forget all predictions."""
        for metric in self._metrics.values():
            metric.reset_state()
        if self._misclassified:
            self._misclassified.reset()

    def update(self, block: Mapping[str, np.ndarray]) -> None:
        """Add predictions.

        Raises:
            ConfigError: the task does not predict what is compared with the labels.
        """
        name = PREDICTIONS[self._kind]
        if name not in block:
            raise ConfigError(
                f"metrics and summary.misclassified need '{name}' "
                f"from the task's predict_step, it gives {sorted(block)}"
            )
        predictions = block[name]
        labels = block["label"]
        if self._kind == "number":
            labels = labels.reshape(predictions.shape)
        else:
            labels = labels.astype(np.int64)
        update_metrics(self._metrics, labels, predictions)
        if self._misclassified:
            self._misclassified.update(block["id"], labels, predictions)

    def results(self, step: int) -> Evaluation:
        """Return the values, draw the images, and write the tables."""
        values: dict[str, float] = {}
        images: dict[str, np.ndarray] = {}
        for name, metric in self._metrics.items():
            values |= metric_values(name, metric)
            if isinstance(metric, HasFigures):
                images[name] = metric.figure()[None]
                table = {"step": step, **metric.table()}
                write_json(self._run_dir / f"{name}.json", table)
        if self._misclassified and len(misclassified := self._misclassified.images()):
            images["misclassified"] = misclassified
        return Evaluation(values, images)


def make_prediction_metrics(
    experiment: Experiment,
    metrics: Mapping[str, Metric],
    task: Task,
    dataset: Dataset,
    predictor: Predictor | None,
    process_group: ProcessGroup,
    run_dir: Path,
) -> PredictionMetrics | None:
    """Return the metrics besides the task's own; None if the configuration has none.

    Args:
        experiment: the configuration.
        metrics: the configured metrics by name, which are told what they ask for.
        task: the task, with metrics of its own.
        dataset: the dataset.
        predictor: predicts its test split; None: the task has no `predict_step`.
        process_group: the processes that predict together.
        run_dir: the run directory.

    Raises:
        ConfigError: the metrics do not fit the task or the dataset, or the configuration refers to
            a metric that is not evaluated.
    """
    _refuse_sample_metrics(metrics, task)
    class_names = class_names_of(dataset)
    kind = with_defaults(task, TaskDefaults).label_kind or "class"
    _adapt(metrics, class_names, task)
    names = metric_names(task)
    names += validate_metrics(metrics, dataset.num_classes, names, kind)
    # The other modes have no writers, and rank no checkpoints.
    num_misclassified = experiment.summary.misclassified if experiment.trains else 0
    if experiment.trains:
        require_evaluated(experiment, names, of_objects(task, metrics))
    if experiment.mode == "predict" or not (metrics or num_misclassified):
        return None  # nothing is evaluated, or nothing more
    options = {"metrics": ", ".join(metrics), "summary.misclassified": num_misclassified}
    configured = " and ".join(f"{key} ({value})" for key, value in options.items() if value)
    if predictor is None:
        raise ConfigError(
            f"{configured} needs a task with predict_step; {type(task).__name__} has none; "
            "add one, or leave the option out"
        )
    if "label" not in batch_spec(dataset.test):
        raise ConfigError(f"{configured} needs examples with a 'label'; leave the option out")
    misclassified = None
    if num_misclassified:
        _require_classes(num_misclassified, kind)
        misclassified = MisclassifiedExamples(num_misclassified, dataset, class_names)
    return PredictionMetrics(metrics, misclassified, predictor, process_group, run_dir, kind)


def _adapt(metrics: Mapping[str, Metric], class_names: list[str], task: Task) -> None:
    """Tell metrics what they ask for: the names of classes, and from when on a label is there."""
    for metric in metrics.values():
        if hasattr(metric, "class_names"):
            metric.class_names = class_names
        if hasattr(metric, "threshold") and kind_of(metric) == "multilabel":
            threshold = with_defaults(task, TaskDefaults).threshold
            metric.threshold = metric.threshold if threshold is None else threshold


def _require_classes(num_misclassified: int, kind: LabelKind) -> None:
    """Raise unless examples have one class, which can be wrong.

    Raises:
        ConfigError: the labels are others.
    """
    if kind != "class":
        raise ConfigError(
            f"summary.misclassified ({num_misclassified}) needs one class an example, the "
            f"labels are {IN_WORDS[kind]}; add summary.misclassified=0"
        )


def _refuse_sample_metrics(metrics: Mapping[str, Metric], task: Task) -> None:
    if problems := [
        f"metrics.{name} ({type(metric).__name__}) judges generated examples, and "
        f"{type(task).__name__} generates none; remove it, or choose task=gan"
        for name, metric in metrics.items()
        if isinstance(metric, SampleMetric)
    ]:
        raise ConfigError(*problems)


def class_names_of(dataset: Dataset) -> list[str]:
    """Return the names of a dataset's classes; without names, their numbers.

    Raises:
        ConfigError: there is not one name for each class.
    """
    names = list(
        with_defaults(dataset, DatasetDefaults).class_names or map(str, range(dataset.num_classes))
    )
    if len(names) != dataset.num_classes:
        raise ConfigError(
            f"the dataset has {len(names)} class_names for {dataset.num_classes} classes; "
            "give it one for each"
        )
    return names
