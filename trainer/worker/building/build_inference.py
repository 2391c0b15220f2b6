"""Builds what predicts and evaluates splits with the models of a training, whatever the task."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import tensorflow as tf

from trainer.config.directions import Directions, of_objects
from trainer.config.instantiate import instantiate
from trainer.config.schema import Experiment
from trainer.engine.evaluation.embedding_evaluator import (
    MAX_NEIGHBOURS,
    NEIGHBOUR_METRIC,
    EmbeddingEvaluator,
    ViewEmbedder,
    refuse_classifier_options,
)
from trainer.engine.evaluation.evaluator import Evaluator, SplitEvaluator
from trainer.engine.evaluation.extra_metrics import ExtraMetrics
from trainer.engine.evaluation.metric_names import require_evaluated
from trainer.engine.evaluation.misclassified import batch_spec
from trainer.engine.evaluation.pictures import Pictures
from trainer.engine.evaluation.prediction_metrics import make_prediction_metrics
from trainer.engine.evaluation.predictor import Predictor
from trainer.engine.evaluation.sample_metrics import make_sample_metrics, num_samples
from trainer.engine.evaluation.samples import NumberedSplit, Sampler
from trainer.engine.evaluation.subset import SpreadExamples
from trainer.engine.evaluation.text_samples import (
    FilePrompts,
    SplitPrompts,
    TextSamples,
    TextWriter,
)
from trainer.engine.graph.input.feed import Source
from trainer.engine.graph.loops.loop_factory import Loops
from trainer.engine.graph.state.train_state import TrainState
from trainer.engine.process_group import ProcessGroup
from trainer.errors import ConfigError
from trainer.protocols import (
    Dataset,
    Embeds,
    Generates,
    HasPictures,
    HasTokenizer,
    Metric,
    Split,
    Tokenizer,
    WritesText,
    optional,
)
from trainer.reinforcement.environment_data import EnvironmentData
from trainer.reinforcement.episode_evaluator import EpisodeEvaluator
from trainer.worker.building import members
from trainer.worker.context import WorkerContext


@dataclass(frozen=True)
class Inference:
    """How a process runs its models on a split.

    Attributes:
        context: this process.
        dataset: the data.
        state: whose models are evaluated.
        loops: makes the compiled loops.
        process_group: the processes that evaluate together.
        global_size: examples in one step of the training.
    """

    context: WorkerContext
    dataset: Dataset
    state: TrainState
    loops: Loops
    process_group: ProcessGroup
    global_size: int

    @cached_property
    def directions(self) -> Directions:
        """Which direction of each metric is better."""
        return of_objects(self.state.task, self._metrics)

    @cached_property
    def _metrics(self) -> dict[str, Metric]:
        return _metrics(self.context.experiment)

    def predictor(self, source: Source) -> Predictor | None:
        """Return what predicts a split; None: the task has no `predict_step`.

        A task that generates makes as many examples as the split has. One that writes texts
        continues the requested prompts.
        """
        task = self.state.task
        options = self.context.experiment.predict
        if isinstance(task, WritesText):
            return self._text_predictor(task, source)
        if options.prompts is not None:
            raise ConfigError(
                f"predict.prompts ({options.prompts}) needs a task that writes texts, such as "
                f"task=language_model; {type(task).__name__} does not"
            )
        if isinstance(task, Generates):
            return self._generator(task, source, source.split.num_examples)
        return self._predictor(source) if hasattr(task, "predict_step") else None

    def _predictor(self, source: Source, embedder: ViewEmbedder | None = None) -> Predictor:
        class_names = optional(self.dataset, "class_names") or ()
        task, dataset = (embedder, embedder) if embedder else (self.state.task, self.dataset)
        return Predictor(
            self.state,
            self.loops.predict(task, dataset, self.loops.feed(source)),
            source,
            self.process_group,
            self.context.channel,
            class_names,
        )

    def _generator(self, task: Generates, source: Source, count: int) -> Predictor:
        """Return what generates so many examples, in batches like those of `source`."""
        sampler = Sampler(task)
        source = replace(source, split=NumberedSplit(count))
        loop = self.loops.predict(sampler, sampler, self.loops.feed(source))
        return Predictor(self.state, loop, source, self.process_group, self.context.channel)

    def _text_predictor(self, task: WritesText, source: Source) -> Predictor | None:
        """Return what continues the prompts of mode=predict; None in other modes."""
        experiment = self.context.experiment
        if experiment.mode != "predict":
            return None
        if not isinstance(self.dataset, HasTokenizer):
            raise ConfigError(
                "mode (predict) needs a dataset with a `tokenizer`, to read and write texts; "
                f"{experiment.dataset['_target_']} makes none"
            )
        (length,) = self.dataset.input_shape
        prompts: Split = SplitPrompts(source.split, source.split.num_examples, length)
        if experiment.predict.prompts is not None:
            tokenizer = self.dataset.tokenizer
            prompts = FilePrompts(experiment.predict.prompts, tokenizer, length)
        return self._writer(task, replace(source, split=prompts), self.dataset.tokenizer)

    def _writer(self, task: WritesText, source: Source, tokenizer: Tokenizer) -> Predictor:
        """Return what continues the prompts of a source."""
        writer = TextWriter(task, self.context.experiment.predict.sampling)
        loop = self.loops.predict(writer, writer, self.loops.feed(source))
        return Predictor(
            self.state,
            loop,
            source,
            self.process_group,
            self.context.channel,
            decode=tokenizer.decode,
        )

    def evaluator(self, source: Source, predictor: Predictor | None) -> Evaluator:
        """Return what evaluates a split, with the configured metrics; or whole episodes."""
        task = self.state.task
        if isinstance(self.dataset, EnvironmentData):
            require_evaluated(self.context.experiment, EpisodeEvaluator.names, self.directions)
            return EpisodeEvaluator(
                self.state,
                self.dataset,
                num_episodes=self.context.experiment.evaluate.episodes,
                seed=self.context.experiment.seed,
                process_group=self.process_group,
                channel=self.context.channel,
            )
        if isinstance(task, Embeds):
            return self._embedding_evaluator(source)
        return SplitEvaluator(
            self.state,
            self.loops.evaluate(task, self.dataset, self.loops.feed(source)),
            source,
            self.process_group,
            self.context.channel,
            self._extra_metrics(source, predictor),
        )

    def _extra_metrics(self, source: Source, predictor: Predictor | None) -> ExtraMetrics | None:
        experiment = self.context.experiment
        metrics = self._metrics
        task = self.state.task
        parts = (experiment, metrics, task, self.dataset)
        if not isinstance(task, Generates):
            configured = make_prediction_metrics(
                *parts, predictor, self.process_group, self.context.run_dir
            )
            return configured or self._text_samples(source) or self._pictures(source, predictor)
        generator = self._generator(task, source, num_samples(metrics))
        return make_sample_metrics(*parts, generator, self.process_group, self.context.run_dir)

    def _text_samples(self, source: Source) -> TextSamples | None:
        """Return what shows texts at each evaluation of a training, one at a time."""
        task = self.state.task
        experiment = self.context.experiment
        count = min(experiment.summary.texts, source.split.num_examples)
        if not (
            isinstance(task, WritesText)
            and isinstance(self.dataset, HasTokenizer)
            and experiment.trains
            and count
        ):
            return None
        tokenizer = self.dataset.tokenizer
        size = max(1, self.dataset.input_shape[0] // 4)
        prompts = SplitPrompts(source.split, count, size)
        predictor = self._writer(task, replace(source, split=prompts, per_replica=1), tokenizer)
        run_dir = self.context.run_dir
        return TextSamples(predictor, self.process_group, tokenizer.decode, run_dir)

    def _pictures(self, source: Source, predictor: Predictor | None) -> Pictures | None:
        """Return what draws the first examples of a split; None: the task does not draw."""
        task = self.state.task
        if predictor is None or not isinstance(task, HasPictures):
            return None
        split = SpreadExamples(source.split, task.num_pictures)
        return Pictures(
            task,
            self.dataset,
            split,
            self._predictor(replace(source, split=split)),
            self.process_group,
            self.context.run_dir,
        )

    def _embedding_evaluator(self, source: Source) -> EmbeddingEvaluator:
        task = self.state.task
        assert isinstance(task, Embeds)
        train = self.dataset.train
        has_neighbors = (
            task.neighbors > 0 and isinstance(train, Split) and "label" in batch_spec(train)
        )
        refuse_classifier_options(self.context.experiment, task)
        if self.context.experiment.trains:
            names = [*task.metrics, *([NEIGHBOUR_METRIC] if has_neighbors else [])]
            require_evaluated(self.context.experiment, names, self.directions)
        bank = replace(source, split=SpreadExamples(train, MAX_NEIGHBOURS))
        embedder = ViewEmbedder(task, self.dataset)
        return EmbeddingEvaluator(
            task,
            self._predictor(source, embedder),
            self._predictor(bank) if has_neighbors else None,
            self.global_size,
            self.process_group,
        )


def _metrics(experiment: Experiment) -> dict[str, Metric]:
    metrics: dict[str, Metric] = {}
    with tf.device("CPU:0"):  # where their variables are: the devices are the model's
        for name, node in (experiment.metrics or {}).items():
            key = f"metrics.{name}"
            metrics[name] = instantiate(node, key)
            members.check_metric(key, metrics[name])
    return metrics
