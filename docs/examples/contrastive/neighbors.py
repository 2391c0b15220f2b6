"""Evaluation of a task that embeds: comparisons of test examples, and their nearest neighbors."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Protocol

import numpy as np
import tensorflow as tf

from trainer.engine.evaluation.evaluator import Evaluation, Evaluator, Rows, columns
from trainer.engine.evaluation.inference import Inference
from trainer.engine.evaluation.row_metrics import predicted_classes, require_evaluated
from trainer.engine.graph.input.feature_specs import fetched_specs
from trainer.engine.graph.input.feed import Source, SpreadExamples
from trainer.engine.graph.randomness import randomness
from trainer.errors import ConfigError
from trainer.protocols import Batch, Split

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


class Comparison:
    """Compares test examples with each other, and with training examples.

    Attributes:
        task: compares examples.
        group_size: examples that are compared with each other: consecutive ones of the split. The
            last of them may be fewer.
    """

    def __init__(self, task: Embeds, group_size: int) -> None:
        self.task = task
        self.group_size = group_size
        self._bank: dict[str, np.ndarray] = {}

    def keep(self, step: int, rows: Iterator[Rows]) -> Evaluation:
        """Keep the features of training examples with labels."""
        self._bank = columns(rows)
        return Evaluation({})

    def evaluate(self, step: int, rows: Iterator[Rows]) -> Evaluation:
        """Compute the task's metrics and `knn_accuracy` of test examples."""
        test, bank = columns(rows), self._bank
        metrics = self._compare(test.get(PROJECTIONS))
        if "label" in bank and "label" in test:
            classes = nearest_classes(
                bank[FEATURES], bank["label"], test[FEATURES], self.task.neighbors
            )
            metrics[NEIGHBOR_METRIC] = float((classes == test["label"]).mean())
        return Evaluation(metrics)

    def _compare(self, projections: np.ndarray | None) -> dict[str, float]:
        """Return the mean of each metric over all examples; NaN without views."""
        if projections is None:
            return dict.fromkeys(self.task.metrics, float("nan"))
        values: dict[str, list[np.ndarray]] = {name: [] for name in self.task.metrics}
        with tf.device("CPU:0"):
            for start in range(0, len(projections), self.group_size):
                group = tf.constant(projections[start : start + self.group_size])
                for name, each in self.task.compare(group).items():
                    values[name].append(each.numpy().astype(np.float64))
        return {name: float(np.concatenate(each).mean()) for name, each in values.items()}


def embedding_evaluator(task: Embeds, inference: Inference, source: Source) -> Evaluator:
    """Return what compares the examples of a split, and finds their neighbors.

    Raises:
        ConfigError: something is configured that judges predicted classes.
    """
    experiment, dataset = inference.experiment, inference.dataset
    train = dataset.train
    has_neighbors = (
        task.neighbors > 0 and isinstance(train, Split) and "label" in fetched_specs(train)
    )
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

    def embed(batch: Batch) -> Mapping[str, tf.Tensor]:
        """Embed each example, and two views of it, which are the same in every evaluation."""
        numbers = batch["id"]
        fixed = randomness.uniform(0, tf.zeros_like(numbers), numbers, dataset.num_draws)
        views = dataset.transform(batch, fixed).get("views")
        plain = {**batch, **dataset.transform(batch, None)}
        features = {FEATURES: task.predict_step(plain)[FEATURES]}
        if views is None:
            return features
        return {**features, PROJECTIONS: task.project({**plain, "views": views})}

    comparison = Comparison(task, inference.global_size)
    of_rows = [(inference.predict(source, embed), comparison.evaluate)]
    if has_neighbors:
        bank = replace(source, split=SpreadExamples(train, MAX_NEIGHBORS))
        of_rows.insert(0, (inference.predict(bank), comparison.keep))
    return Evaluator(of_rows=of_rows)


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
    classes = []
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
        classes.append(predicted_classes(votes))
    return np.concatenate(classes)


def _unit(features: np.ndarray) -> np.ndarray:
    """Return features of length 1, float64."""
    features = features.astype(np.float64)
    return features / np.maximum(np.linalg.norm(features, axis=1, keepdims=True), 1e-12)
