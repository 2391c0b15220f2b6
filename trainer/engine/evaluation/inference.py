"""What predicts and evaluates splits with the models of a run, whatever the task."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from trainer.cluster.messages import Channel
from trainer.config.directions import Directions, of_objects
from trainer.config.schema import Experiment
from trainer.engine.evaluation.evaluator import Evaluator, ExtraMetrics, SplitEvaluator
from trainer.engine.evaluation.prediction_metrics import make_prediction_metrics
from trainer.engine.evaluation.predictor import Predictor
from trainer.engine.graph.input.feed import Source
from trainer.engine.graph.loops.loop_factory import Loops
from trainer.engine.graph.loops.predict_loop import Predicts, Transforms
from trainer.engine.graph.state.train_state import TrainState
from trainer.engine.process_group import ProcessGroup
from trainer.errors import ConfigError
from trainer.protocols import (
    Dataset,
    DatasetDefaults,
    LoopDefaults,
    Metric,
    Split,
    TaskDefaults,
    with_defaults,
)


@dataclass(frozen=True)
class Inference:
    """How a process runs its models on a split: what a task makes evaluators and predictors of.

    Attributes:
        experiment: the configuration.
        run_dir: the run directory.
        channel: messages to the supervisor.
        dataset: the data.
        metrics: the configured metrics by name.
        state: whose models are evaluated.
        loops: makes the compiled loops.
        process_group: the processes that evaluate together.
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
        """Return what evaluates a split: the task's own, or the data's, or that of its metrics.

        Args:
            source: the split.
            predictor: predicts it; None: nothing does.
        """
        make = (
            with_defaults(self.state.task, TaskDefaults).make_evaluator
            or with_defaults(self.dataset, LoopDefaults).make_evaluator
        )
        if make is not None:
            evaluator: Evaluator = make(self, source, predictor)
            return evaluator
        return self.split_evaluator(source, self.configured_metrics(predictor))

    def split_evaluator(self, source: Source, extra: ExtraMetrics | None) -> SplitEvaluator:
        """Return what evaluates a split by the task's `eval_step`, and further metrics."""
        return SplitEvaluator(
            self.state,
            self.loops.evaluate(self.state.task, self.dataset, self.loops.feed(source)),
            source,
            self.process_group,
            self.channel,
            extra,
        )

    def configured_metrics(self, predictor: Predictor | None) -> ExtraMetrics | None:
        """Return the configured metrics and figures of predicted labels; None: there are none.

        Raises:
            ConfigError: they do not fit the task or the dataset.
        """
        return make_prediction_metrics(
            self.experiment,
            self.metrics,
            self.state.task,
            self.dataset,
            predictor,
            self.process_group,
            self.run_dir,
        )

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
            split: what is predicted.
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
