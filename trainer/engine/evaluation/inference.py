"""What predicts and evaluates splits with the models of a run, for any task."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import tensorflow as tf

from trainer.cluster.messages import Channel
from trainer.config.directions import Directions, of_objects
from trainer.config.schema import Experiment
from trainer.engine.evaluation.evaluator import Evaluator, OfRows, Predictor, SplitEvaluator
from trainer.engine.evaluation.row_metrics import (
    MisclassifiedExamples,
    Pictures,
    adapt_metrics,
    evaluate_rows,
    require_evaluated,
    validate_metrics,
)
from trainer.engine.graph.input.feature_specs import fetched_specs
from trainer.engine.graph.input.feed import Source
from trainer.engine.graph.loops.split_loops import Loops
from trainer.engine.graph.state.train_state import TrainState
from trainer.engine.graph.step.metric_sums import metric_names
from trainer.engine.process_group import ProcessGroup
from trainer.errors import ConfigError
from trainer.protocols import (
    IN_WORDS,
    Batch,
    Dataset,
    DatasetDefaults,
    LoopDefaults,
    Metric,
    MetricDefaults,
    MetricKind,
    TaskDefaults,
    with_defaults,
)


@dataclass(frozen=True)
class Inference:
    """How a process runs its models on a split: what a task makes evaluators and predictors of."""

    experiment: Experiment
    run_dir: Path
    channel: Channel
    dataset: Dataset
    metrics: Mapping[str, Metric]
    state: TrainState
    loops: Loops
    process_group: ProcessGroup
    global_size: int

    @property
    def directions(self) -> Directions:
        """Which direction of each metric is better."""
        return of_objects(self.state.task, self.metrics)

    def predictor(self, source: Source) -> Predictor | None:
        """Return what predicts a split; None: the task predicts nothing.

        Raises:
            ConfigError: `predict.prompts` is set, and the task reads none.
        """
        task = with_defaults(self.state.task, TaskDefaults)
        prompts = self.experiment.predict.prompts
        if prompts is not None and not task.reads_prompts:
            raise ConfigError(
                f"predict.prompts ({prompts}) needs a task that writes texts, such as "
                f"task=language_model; {type(self.state.task).__name__} does not"
            )
        if task.make_predictor is not None:
            predictor: Predictor | None = task.make_predictor(self, source)
            return predictor
        return None if task.predict_step is None else self.predict(source)

    def predict(
        self,
        source: Source,
        step: Callable[[Batch], Mapping[str, tf.Tensor]] | None = None,
        decode: Callable[[Sequence[int]], str] | None = None,
    ) -> Predictor:
        """Return what predicts a split by the task's `predict_step`, or in another way.

        Args:
            step: predicts a batch as the split has it, `id` and `weight` included; None: the task.
        """
        transform = None
        if step is None:
            step = with_defaults(self.state.task, TaskDefaults).predict_step
            transform = self.dataset.transform
        assert step is not None
        loop = self.loops.predict(step, transform, self.loops.feed(source))
        return Predictor(self.state, loop, source, self.process_group, self.channel, decode)

    def evaluator(self, source: Source, predictor: Predictor | None) -> Evaluator:
        """Return what evaluates a split: the task's own, or the data's, or that of its metrics."""
        if not source.split.num_examples:
            return Evaluator()
        make = (
            with_defaults(self.state.task, TaskDefaults).make_evaluator
            or with_defaults(self.dataset, LoopDefaults).make_evaluator
        )
        if make is not None:
            evaluator: Evaluator = make(self, source, predictor)
            return evaluator
        return self.split_evaluator(source, self.configured_metrics(predictor))

    def split_evaluator(
        self,
        source: Source,
        *of_rows: tuple[Predictor, OfRows] | None,
        part_size: int | None = None,
    ) -> SplitEvaluator:
        """Return what evaluates a split by the task's `eval_step`, and predicted rows, if any.

        Args:
            part_size: examples that are evaluated at a time, of a task with `eval_part`; None: all
                of a replica's batch.
        """
        part_size = part_size or source.per_replica
        num_parts = max(1, source.per_replica // part_size)
        return SplitEvaluator(
            self.state,
            self.loops.evaluate(self.state.task, self.dataset, self.loops.feed(source), num_parts),
            source,
            self.process_group,
            self.channel,
            part_size,
            of_rows=[each for each in of_rows if each is not None],
        )

    def configured_metrics(
        self,
        predictor: Predictor | None,
        kind: MetricKind | None = None,
        pictures: Mapping[str, Pictures] | None = None,
    ) -> tuple[Predictor, OfRows] | None:
        """Return the configured metrics and pictures of predicted rows, or None.

        Args:
            kind: what the metrics are of; None: of the labels that the task learns.

        Raises:
            ConfigError: they do not fit the task or the dataset, or the configuration refers to a
                metric that is not evaluated.
        """
        experiment, task, metrics = self.experiment, self.state.task, self.metrics
        kind = kind or with_defaults(task, TaskDefaults).label_kind or "class"
        class_names = class_names_of(self.dataset)
        adapt_metrics(metrics, class_names, task, kind)
        names = metric_names(task)
        names += validate_metrics(metrics, self.dataset.num_classes, names, kind)
        # The other modes have no writers, and rank no checkpoints.
        num_misclassified = experiment.summary.misclassified if experiment.trains else 0
        if num_misclassified and kind != "class":
            raise ConfigError(
                f"summary.misclassified ({num_misclassified}) needs one class an example, the "
                f"evaluation has {IN_WORDS[kind]}; add summary.misclassified=0"
            )
        if experiment.trains:
            require_evaluated(experiment, names, self.directions)
        if experiment.mode == "predict" or not (metrics or num_misclassified or pictures):
            return None  # nothing is evaluated, or nothing more
        options = {"metrics": ", ".join(metrics), "summary.misclassified": num_misclassified}
        configured = " and ".join(f"{key} ({value})" for key, value in options.items() if value)
        if predictor is None:
            raise ConfigError(
                f"{configured} needs a task with predict_step; {type(task).__name__} has none; "
                "add one, or leave the option out"
            )
        if kind != "sample" and "label" not in fetched_specs(self.dataset.test):
            raise ConfigError(f"{configured} needs examples with a 'label'; leave the option out")
        self._begin_metrics()
        pictures = dict(pictures or {})
        if num_misclassified:
            pictures["misclassified"] = MisclassifiedExamples(
                num_misclassified, self.dataset, class_names
            )
        return predictor, partial(evaluate_rows, metrics, pictures, kind, self.run_dir)

    def _begin_metrics(self) -> None:
        """Have metrics of generated examples prepare to compare them with the dataset."""
        for name, metric in self.metrics.items():
            begin = with_defaults(metric, MetricDefaults).begin
            try:
                if begin is not None:
                    begin(self.dataset)
            except ConfigError as error:
                raise ConfigError(*(f"metrics.{name}.{line}" for line in error.problems)) from error


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
