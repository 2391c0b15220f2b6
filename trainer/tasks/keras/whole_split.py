"""Evaluation of Keras programs: metrics that are no means over a whole split."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Protocol

import numpy as np
import tensorflow as tf

from trainer.engine.evaluation.evaluator import Evaluation, Evaluator
from trainer.engine.evaluation.inference import Inference
from trainer.engine.evaluation.predictor import Predictor
from trainer.engine.graph.input.feed import Source
from trainer.protocols import Batch, Dataset
from trainer.tasks.keras.objective import Objective
from trainer.tasks.keras.output_metrics import WholeSplitMetrics


class _Task(Protocol):
    objective: Objective | None

    def call(self, batch: Batch, *, training: bool) -> Any: ...


def evaluator_of(
    task: _Task, inference: Inference, source: Source, predictor: Predictor | None
) -> Evaluator:
    """Return what evaluates a split: means by the examples, all other metrics at once."""
    objective = task.objective
    if objective is None or not objective.others:
        return inference.split_evaluator(source, inference.configured_metrics(predictor))
    whole = WholeSplitMetrics(objective.others)

    def judge(step: int, rows: Iterator[Mapping[str, np.ndarray]]) -> Evaluation:
        return Evaluation(whole.values(rows))

    compared = inference.predict_by(
        _Compared(task, objective, inference.dataset), source, source.split
    )
    extra = inference.configured_metrics(predictor, [metric.name for metric in objective.others])
    return inference.split_evaluator(source, extra, inference.extra_metrics(judge, compared))


class _Compared:
    """Predicts, for each example, its labels and the outputs that they are compared with."""

    def __init__(self, task: _Task, objective: Objective, dataset: Dataset) -> None:
        self._task = task
        self._objective = objective
        self._dataset = dataset

    def transform(self, batch: Batch, draws: tf.Tensor | None) -> Batch:
        """Turn a fetched batch into the model's input."""
        return self._dataset.transform(batch, draws)

    def predict_step(self, batch: Batch) -> dict[str, tf.Tensor]:
        """Return `label/<i>` and `output/<i>` of each output, and `sample_weight`."""
        outputs = self._task.call(batch, training=False)
        rows: dict[str, tf.Tensor] = {}
        for i, (label, output) in enumerate(self._objective.compared(batch, outputs)):
            if label is not None:
                rows |= {f"label/{i}": label, f"output/{i}": output}
        if "sample_weight" in batch:
            rows["sample_weight"] = batch["sample_weight"]
        return rows
