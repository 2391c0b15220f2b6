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
from trainer.engine.graph.step.metric_sums import num_sums, unpack
from trainer.engine.pacing import PacedCalls
from trainer.engine.process_group import ProcessGroup
from trainer.protocols import TaskDefaults, with_defaults
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
    """

    judge: Judge
    predictor: Predictor
    process_group: ProcessGroup

    def compute(
        self, step: int, stop_requested: Callable[[], bool], enter: Callable[[str], None]
    ) -> Evaluation:
        """Return the values of the metrics after `step` updates; collective.

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
        channel: receives a heartbeat before each graph call.
        parts: in how many parts a replica evaluates its batch.
        rest_size: how many examples of the last batch are evaluated at a time; None: as many as
            there are in a part.
    """

    state: TrainState
    loop: EvalLoop
    source: Source
    process_group: ProcessGroup
    channel: Channel
    extra_metrics: Sequence[ExtraMetrics] = ()
    parts: int = 1
    rest_size: int | None = None

    def __post_init__(self) -> None:
        task = with_defaults(self.state.task, TaskDefaults)
        source = self.source
        # What remains after the whole batches, if the task is to see no other examples.
        self._has_rest = task.eval_part is not None
        batches = (
            source.split.num_examples // source.global_size if self._has_rest else source.num_steps
        )
        self._calls = PacedCalls(batches, self.process_group, self.channel)

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
        """Return the task's metrics as packed sums and weights, [num_sums] float64."""
        iterator = self.loop.feed.open(0)
        total = tf.zeros([num_sums(self.state.task)], tf.float64)
        for first, count in self._calls.batches(stop_requested, enter):
            total = self.loop.run(
                iterator, total, tf.constant(first, tf.int64), tf.constant(count, tf.int64)
            )
        if self._has_rest:
            enter("compile")
            total = self._with_rest(total)
        return total.numpy()

    def _with_rest(self, total: tf.Tensor) -> tf.Tensor:
        """Add the examples after the last whole batch, in every process, in parts of one size."""
        source = self.source
        size = self.rest_size or source.per_replica // self.parts
        end = source.split.num_examples
        first = end - end % source.global_size
        for start in range(first, end, size):
            self.channel.beat()
            indices = tf.range(start, min(start + size, end), dtype=tf.int64)
            with tf.device("CPU:0"):
                batch = source.split.fetch(indices)
            batch = source.complete(batch, indices, tf.ones([len(indices)]))
            total = self.loop.rest(batch, len(indices) / (end - first), total)
        return total


def blocks(
    chunks: Iterable[Mapping[str, np.ndarray]], size: int
) -> Iterator[dict[str, np.ndarray]]:
    """Yield the rows of all chunks in blocks of `size` rows.

    The length of a chunk depends on the clock, and no bit of a metric may. Rows of weight 0, which
    are examples that could not be read, are left out.

    Args:
        chunks: name -> [n, ...], with a `weight`.
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
