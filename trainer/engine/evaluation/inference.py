"""What predicts and evaluates splits with the models of a run, whatever the task."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import tensorflow as tf

from trainer.cluster.messages import Channel
from trainer.config.directions import Directions, of_objects
from trainer.config.schema import Experiment
from trainer.engine.evaluation.evaluator import (
    Evaluation,
    Evaluator,
    ExtraMetrics,
    Judge,
    NoEvaluator,
    SplitEvaluator,
    columns,
)
from trainer.engine.evaluation.misclassified import MisclassifiedExamples
from trainer.engine.evaluation.prediction_metrics import (
    PredictionMetrics,
    adapt_metrics,
    misclassified_problems,
    require_evaluated,
    validate_metrics,
)
from trainer.engine.evaluation.predictor import Predictor
from trainer.engine.evaluation.subset import SpreadExamples, batch_spec
from trainer.engine.graph.input.feed import Source
from trainer.engine.graph.loops.loop_factory import Loops
from trainer.engine.graph.loops.predict_loop import Predicts, Transforms
from trainer.engine.graph.state.train_state import TrainState
from trainer.engine.graph.step.metric_sums import metric_names
from trainer.engine.process_group import ProcessGroup
from trainer.errors import ConfigError
from trainer.files import write_atomically
from trainer.protocols import (
    IN_WORDS,
    Dataset,
    DatasetDefaults,
    LoopDefaults,
    Metric,
    Split,
    TaskDefaults,
    with_defaults,
)
from trainer.summaries import figures

Draw: TypeAlias = Callable[
    [Mapping[str, np.ndarray], Mapping[str, np.ndarray]], Mapping[str, np.ndarray]
]
"""Draws examples, name -> [n, ...] as the model receives them, with what is predicted of them.

Returns name -> [H, W, 3] uint8.
"""


@dataclass(frozen=True)
class Inference:
    """How a process runs its models on a split: what a task makes evaluators and predictors of.

    Attributes:
        state: whose models are evaluated.
        global_size: examples in one step of the training.
    """

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

    def evaluator(self, source: Source, predictor: Predictor | None) -> Evaluator:
        """Return what evaluates a split: the task's own, or the data's, or that of its metrics."""
        if not source.split.num_examples:
            return NoEvaluator()
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
        *extra: ExtraMetrics | None,
        parts: int = 1,
        rest_size: int | None = None,
    ) -> SplitEvaluator:
        """Return what evaluates a split by the task's `eval_step`, and further metrics, if any.

        Args:
            parts: in how many parts a replica evaluates its batch, of a task with `eval_part`.
            rest_size: examples of the last batch at a time; None: as in a part.
        """
        return SplitEvaluator(
            self.state,
            self.loops.evaluate(self.state.task, self.dataset, self.loops.feed(source), parts),
            source,
            self.process_group,
            self.channel,
            [each for each in extra if each is not None],
            parts,
            rest_size,
        )

    def configured_metrics(
        self, predictor: Predictor | None, others: Sequence[str] = ()
    ) -> ExtraMetrics | None:
        """Return the configured metrics and figures of predicted labels; None: there are none.

        Args:
            others: names of what else is evaluated.

        Raises:
            ConfigError: they do not fit the task or the dataset, or the configuration refers to a
                metric that is not evaluated.
        """
        experiment, task, metrics, dataset = (
            self.experiment, self.state.task, self.metrics, self.dataset
        )  # fmt: skip
        class_names = class_names_of(dataset)
        kind = with_defaults(task, TaskDefaults).label_kind or "class"
        adapt_metrics(metrics, class_names, task, kind)
        names = [*metric_names(task), *others]
        names += validate_metrics(metrics, dataset.num_classes, names, kind)
        # The other modes have no writers, and rank no checkpoints.
        num_misclassified = experiment.summary.misclassified if experiment.trains else 0
        if experiment.trains:
            require_evaluated(experiment, names, self.directions)
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
            if kind != "class":
                reason = f"needs one class an example, the labels are {IN_WORDS[kind]}"
                raise ConfigError(*misclassified_problems(experiment, reason))
            misclassified = MisclassifiedExamples(num_misclassified, dataset, class_names)
        judge = PredictionMetrics(metrics, misclassified, kind, self.run_dir).judge
        return self.extra_metrics(judge, predictor)

    def extra_metrics(self, judge: Judge, predictor: Predictor) -> ExtraMetrics:
        """Return metrics of what a predictor predicts; see `ExtraMetrics`."""
        return ExtraMetrics(judge, predictor, self.process_group)

    def pictures(self, draw: Draw, source: Source, count: int) -> ExtraMetrics:
        """Return what draws some examples of a split, spread evenly, with their predictions.

        Args:
            count: how many examples at most.
        """
        split = SpreadExamples(source.split, count)

        def judge(step: int, rows: Iterator[Mapping[str, np.ndarray]]) -> Evaluation:
            predictions = columns(rows)
            if not predictions:
                return Evaluation({})
            with tf.device("CPU:0"):
                batch = split.fetch(tf.constant(predictions["id"], tf.int64))
                examples = self.dataset.transform(batch, None)
            arrays = {name: np.asarray(value) for name, value in examples.items()}
            drawn = draw(arrays, predictions)
            for name, picture in drawn.items():
                write_atomically(self.run_dir / f"{name}.png", figures.png(picture))
            return Evaluation({}, {name: picture[None] for name, picture in drawn.items()})

        return self.extra_metrics(judge, self.predict(replace(source, split=split)))

    def predict(self, source: Source) -> Predictor:
        """Return what predicts a split by the task's `predict_step`."""
        task: Any = self.state.task
        class_names = with_defaults(self.dataset, DatasetDefaults).class_names or ()
        return self._predictor(source, task, self.dataset, class_names=class_names)

    def predict_by(
        self,
        step: Any,
        source: Source,
        split: Split,
        decode: Callable[[Sequence[int]], str] | None = None,
    ) -> Predictor:
        """Return what predicts another split, by another `predict_step` and `transform`.

        Args:
            step: has both.
            source: says in which batches.
            decode: returns the text of tokens, if texts are predicted.
        """
        return self._predictor(replace(source, split=split), step, step, decode=decode)

    def _predictor(
        self,
        source: Source,
        task: Predicts,
        dataset: Transforms,
        *,
        class_names: Sequence[str] = (),
        decode: Callable[[Sequence[int]], str] | None = None,
    ) -> Predictor:
        loop = self.loops.predict(task, dataset, self.loops.feed(source))
        return Predictor(
            self.state, loop, source, self.process_group, self.channel, class_names, decode
        )


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
