"""Evaluation of a task that embeds: comparisons of test examples, and their nearest neighbors."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
import tensorflow as tf

from trainer.engine.evaluation.evaluator import Evaluation, blocks
from trainer.engine.evaluation.inference import Inference
from trainer.engine.evaluation.metric_names import require_evaluated
from trainer.engine.evaluation.misclassified import batch_spec
from trainer.engine.evaluation.predicted_classes import predicted_classes
from trainer.engine.evaluation.predictor import Predictor
from trainer.engine.evaluation.subset import SpreadExamples
from trainer.engine.graph.input.feed import Source
from trainer.engine.graph.randomness import randomness
from trainer.engine.process_group import ProcessGroup
from trainer.errors import ConfigError
from trainer.protocols import Batch, Dataset, Split

FEATURES = "features"
PROJECTIONS = "projections"
NEIGHBOR_METRIC = "knn_accuracy"
MAX_NEIGHBORS = 5000
"""Training examples that are looked through, spread evenly over the split."""
_ROWS = 256  # test examples whose neighbors are looked for at a time
_TEMPERATURE = 0.1  # of the weights of neighbors


class Embeds(Protocol):
    """A task that learns features from comparisons of examples with each other.

    Attributes:
        neighbors: number of nearest neighbors that predict a class; 0: none is predicted.
    """

    neighbors: int

    @property
    def metrics(self) -> tuple[str, ...]:
        """Names of the metrics that `compare` returns."""

    def predict_step(self, batch: Batch) -> Mapping[str, tf.Tensor]:
        """Return `features` [B, D] float32."""

    def project(self, batch: Batch) -> tf.Tensor:
        """Return what is compared of both `views`, [B, 2, P] float32."""

    def compare(self, projections: tf.Tensor) -> Mapping[str, tf.Tensor]:
        """Compare examples with each other; return name -> the metric of each, [N].

        Args:
            projections: [N, 2, P] float32.
        """


class ViewEmbedder:
    """Embeds each example, and two views of it, which are the same in every evaluation.

    It stands for the task and for the dataset of a prediction loop.

    Args:
        task: the task that embeds.
        dataset: makes the views.
    """

    def __init__(self, task: Embeds, dataset: Dataset) -> None:
        self._task = task
        self._dataset = dataset

    def transform(self, batch: Batch, draws: tf.Tensor | None) -> Batch:
        """Return the batch as the model receives it, with `views` if the dataset makes some."""
        numbers = batch["id"]
        fixed = randomness.uniform(0, tf.zeros_like(numbers), numbers, self._dataset.num_draws)
        views = self._dataset.transform(batch, fixed).get("views")
        plain = self._dataset.transform(batch, None)
        return plain if views is None else {**plain, "views": views}

    def predict_step(self, batch: Batch) -> Mapping[str, tf.Tensor]:
        """Return `features` [B, D] and `projections` [B, 2, P], float32."""
        predictions = self._task.predict_step(batch)
        if "views" not in batch:
            return {FEATURES: predictions[FEATURES]}
        return {FEATURES: predictions[FEATURES], PROJECTIONS: self._task.project(batch)}


@dataclass(frozen=True)
class _Rows:
    """Rows of a split: features [N, D], and projections [N, 2, P] and labels [N] if it has them."""

    features: np.ndarray
    projections: np.ndarray | None
    labels: np.ndarray | None


class EmbeddingEvaluator:
    """Compares test examples with each other, and with training examples; in the chief.

    Args:
        task: compares examples.
        test: embeds the test split and two views of each example.
        bank: embeds training examples with labels; None: no neighbors are looked for.
        group_size: examples that are compared with each other: consecutive ones of the split. The
            last of them may be fewer.
        process_group: the processes that predict together.
    """

    def __init__(
        self,
        task: Embeds,
        test: Predictor,
        bank: Predictor | None,
        group_size: int,
        process_group: ProcessGroup,
    ) -> None:
        self._task = task
        self._test = test
        self._bank = bank
        self._group_size = group_size
        self._process_group = process_group

    def evaluate(
        self, stop_requested: Callable[[], bool], enter: Callable[[str], None] = lambda phase: None
    ) -> Evaluation:
        """Compute the task's metrics and `knn_accuracy`; see `Evaluator`."""
        test = self._rows(self._test.predict(0, stop_requested, enter))
        bank = None
        if self._bank is not None:
            bank = self._rows(self._bank.predict(0, stop_requested, enter))
        text = json.dumps(self._metrics(test, bank)) if self._process_group.is_chief else ""
        return Evaluation(json.loads(self._process_group.broadcast_text_from_chief(text)))

    def _rows(self, chunks: Iterator[dict[str, np.ndarray]]) -> _Rows:
        """Return all rows but those of weight 0."""
        rows = list(blocks(chunks, self._group_size))

        def column(name: str) -> np.ndarray | None:
            return np.concatenate([row[name] for row in rows]) if name in rows[0] else None

        features = column(FEATURES)
        assert features is not None, "a task that embeds predicts features"
        return _Rows(features, column(PROJECTIONS), column("label"))

    def _metrics(self, test: _Rows, bank: _Rows | None) -> dict[str, float]:
        metrics = self._compare(test.projections)
        if bank is not None and bank.labels is not None and test.labels is not None:
            found = nearest_classes(bank.features, bank.labels, test.features, self._task.neighbors)
            metrics[NEIGHBOR_METRIC] = float((found == test.labels).mean())
        return metrics

    def _compare(self, projections: np.ndarray | None) -> dict[str, float]:
        """Return the mean of each metric over all examples; NaN without views."""
        if projections is None:
            return dict.fromkeys(self._task.metrics, float("nan"))
        values: dict[str, list[np.ndarray]] = {name: [] for name in self._task.metrics}
        with tf.device("CPU:0"):
            for start in range(0, len(projections), self._group_size):
                group = tf.constant(projections[start : start + self._group_size])
                for name, each in self._task.compare(group).items():
                    values[name].append(each.numpy().astype(np.float64))
        return {name: float(np.concatenate(each).mean()) for name, each in values.items()}


def embedding_evaluator(task: Embeds, inference: Inference, source: Source) -> EmbeddingEvaluator:
    """Return what compares the examples of a split, and finds their neighbors.

    Raises:
        ConfigError: a metric or figure is configured that judges predicted classes.
    """
    experiment = inference.experiment
    train = inference.dataset.train
    has_neighbors = task.neighbors > 0 and isinstance(train, Split) and "label" in batch_spec(train)
    if names := ", ".join(inference.metrics):
        raise ConfigError(
            f"metrics ({names}) needs predicted classes, and {type(task).__name__} predicts "
            "features; leave the option out"
        )
    if experiment.trains and (count := experiment.summary.misclassified):
        raise ConfigError(
            f"summary.misclassified ({count}) needs a classifier, and {type(task).__name__} "
            "predicts features; add summary.misclassified=0"
        )
    if experiment.trains:
        evaluated = [*task.metrics, *([NEIGHBOR_METRIC] if has_neighbors else [])]
        require_evaluated(experiment, evaluated, inference.directions)
    bank = replace(source, split=SpreadExamples(train, MAX_NEIGHBORS))
    return EmbeddingEvaluator(
        task,
        inference.predict_by(ViewEmbedder(task, inference.dataset), source, source.split),
        inference.predict(bank) if has_neighbors else None,
        inference.global_size,
        inference.process_group,
    )


def nearest_classes(
    bank: np.ndarray, labels: np.ndarray, features: np.ndarray, count: int
) -> np.ndarray:
    """Return the class of each example by its nearest neighbors' votes, [N] int64; -1: none.

    The neighbors are those of the largest cosine similarity s, and each has exp(s / 0.1) votes
    (Wu et al. 2018).

    Args:
        bank: features of examples with known classes, [M, D].
        labels: these classes, [M] int64.
        features: of the examples, [N, D].
        count: number of neighbors.
    """
    count = min(count, len(bank))
    num_classes = int(labels.max()) + 1
    bank = _unit(bank)
    found = []
    for start in range(0, len(features), _ROWS):
        similarity = _unit(features[start : start + _ROWS]) @ bank.T
        nearest = np.argsort(-similarity, axis=1, kind="stable")[:, :count]
        weights = np.exp(np.take_along_axis(similarity, nearest, axis=1) / _TEMPERATURE)
        votes = np.zeros([len(similarity), num_classes])
        for neighbor in range(count):
            np.add.at(
                votes,
                (np.arange(len(votes)), labels[nearest[:, neighbor]]),
                weights[:, neighbor],
            )
        found.append(predicted_classes(votes))
    return np.concatenate(found)


def _unit(features: np.ndarray) -> np.ndarray:
    """Return features of length 1, float64."""
    features = features.astype(np.float64)
    return features / np.maximum(np.linalg.norm(features, axis=1, keepdims=True), 1e-12)
