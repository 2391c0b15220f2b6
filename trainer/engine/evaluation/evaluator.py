"""Evaluation of a whole split, each example counted exactly once."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias

import numpy as np
import tensorflow as tf

from trainer.cluster.messages import Channel
from trainer.engine.evaluation.predictor import Predictor
from trainer.engine.graph.input.feed import Source
from trainer.engine.graph.loops.eval_loop import EvalLoop
from trainer.engine.graph.state.train_state import TrainState
from trainer.engine.graph.step.metric_sums import unpack
from trainer.engine.pacing import PacedCalls
from trainer.engine.process_group import ProcessGroup
from trainer.summaries.writers.writer import Writer

_BLOCK_ROWS = 1024


@dataclass(frozen=True)
class Evaluation:
    """What an evaluation has found.

    Attributes:
        metrics: the values of the metrics by name, in every process.
        images: name -> [N, H, W, 3] uint8, in the chief.
        texts: texts by name, in the chief.
    """

    metrics: dict[str, float]
    images: Mapping[str, np.ndarray] = field(default_factory=dict)
    texts: Mapping[str, Sequence[str]] = field(default_factory=dict)

    def joined(self, other: Evaluation) -> Evaluation:
        """Return what both have found."""
        return Evaluation(
            {**self.metrics, **other.metrics},
            {**self.images, **other.images},
            {**self.texts, **other.texts},
        )

    def show(self, writer: Writer, split: str, step: int) -> None:
        """Write images and texts of a split after `step` updates."""
        for name, images in self.images.items():
            writer.images(split, step, name, images)
        for name, texts in self.texts.items():
            writer.texts(split, step, name, texts)


Judge: TypeAlias = Callable[[int, Iterator[Mapping[str, np.ndarray]]], Evaluation]


class Evaluator(Protocol):
    """What evaluates a task on one split."""

    def evaluate(
        self, stop_requested: Callable[[], bool], enter: Callable[[str], None] = lambda phase: None
    ) -> Evaluation:
        """Evaluate the whole split; collective.

        Args:
            stop_requested: whether a stop was requested of this process.
            enter: called before each graph call with its phase, `compile` or `evaluate`.

        Raises:
            Stopped: a stop was requested of some process; the weights are as before.
        """


class NoEvaluator:
    """Evaluates nothing: an empty split, or a task that has only a training step."""

    def evaluate(
        self, stop_requested: Callable[[], bool], enter: Callable[[str], None] = lambda phase: None
    ) -> Evaluation:
        """Return no metrics."""
        return Evaluation({})


@dataclass(eq=False)
class ExtraMetrics:
    """Computes metrics in the chief, from rows that all processes predict together.

    Attributes:
        judge: returns the values and images of a step from all predicted rows, and writes files;
            called in the chief with blocks of rows, name -> [n, ...].
        predictor: predicts the rows.
        process_group: the processes that predict together.
    """

    judge: Judge
    predictor: Predictor
    process_group: ProcessGroup

    def compute(
        self, step: int, stop_requested: Callable[[], bool], enter: Callable[[str], None]
    ) -> Evaluation:
        """Return the values of the metrics after `step` updates; collective.

        Args:
            step: number of updates made.
            stop_requested: whether a stop was requested of this process.
            enter: called before each graph call with its phase, `compile` or `evaluate`.

        Raises:
            Stopped: a stop was requested of some process.
        """
        rows = blocks(self.predictor.predict(0, stop_requested, enter), _BLOCK_ROWS)
        is_chief = self.process_group.is_chief
        results = self.judge(step, rows) if is_chief else Evaluation({})
        for _ in rows:
            pass  # every process predicts all of them
        text = self.process_group.broadcast_text_from_chief(json.dumps(results.metrics))
        return Evaluation(json.loads(text), results.images, results.texts)


@dataclass(eq=False)
class SplitEvaluator:
    """Evaluates a split with the averaged weights, if averages are kept.

    Attributes:
        state: the state whose models are evaluated.
        loop: the compiled evaluation loop.
        source: the split.
        process_group: the processes that evaluate together.
        channel: receives a heartbeat before each graph call.
        extra_metrics: compute further metrics.
    """

    state: TrainState
    loop: EvalLoop
    source: Source
    process_group: ProcessGroup
    channel: Channel
    extra_metrics: Sequence[ExtraMetrics] = ()

    def __post_init__(self) -> None:
        self._calls = PacedCalls(self.source.num_steps, self.process_group, self.channel)

    def evaluate(
        self, stop_requested: Callable[[], bool], enter: Callable[[str], None] = lambda phase: None
    ) -> Evaluation:
        """Evaluate the whole split; see `Evaluator`."""
        self.state.swap_averages()
        try:
            metrics = unpack(self.state.task, self._sums(stop_requested, enter))
        finally:
            self.state.swap_averages()
        evaluation = Evaluation(metrics)
        step = int(self.state.step.numpy())
        for extra in self.extra_metrics:
            evaluation = evaluation.joined(extra.compute(step, stop_requested, enter))
        return evaluation

    def _sums(self, stop_requested: Callable[[], bool], enter: Callable[[str], None]) -> np.ndarray:
        """Return the task's metrics as packed sums and weights, [2 * metrics] float64."""
        iterator = self.loop.feed.open(0)
        total = tf.zeros([2 * len(self.state.task.metrics)], tf.float64)
        for first, count in self._calls.batches(stop_requested, enter):
            total = self.loop.run(
                iterator, total, tf.constant(first, tf.int64), tf.constant(count, tf.int64)
            )
        return total.numpy()


def blocks(
    chunks: Iterable[Mapping[str, np.ndarray]], size: int
) -> Iterator[dict[str, np.ndarray]]:
    """Yield the rows of all chunks in blocks of `size` rows.

    The length of a chunk depends on the clock, and no bit of a metric may. Rows of weight 0, which
    are examples that could not be read, are left out.

    Args:
        chunks: name -> [n, ...], with a `weight`.
        size: rows in each block but the last.
    """
    pending: dict[str, np.ndarray] = {}
    for chunk in chunks:
        is_valid = chunk["weight"] > 0
        rows = {name: values[is_valid] for name, values in chunk.items()}
        if pending:
            rows = {name: np.concatenate([pending[name], values]) for name, values in rows.items()}
        pending = rows
        while len(pending["weight"]) >= size:
            yield {name: values[:size] for name, values in pending.items()}
            pending = {name: values[size:] for name, values in pending.items()}
    if pending and len(pending["weight"]):
        yield pending


def columns(rows: Iterable[Mapping[str, np.ndarray]]) -> dict[str, np.ndarray]:
    """Return the rows of all blocks by name, [N, ...]; empty if there are none."""
    parts = list(rows)
    names = parts[0] if parts else ()
    return {name: np.concatenate([part[name] for part in parts]) for name in names}
