"""Evaluation of a whole split, each example counted exactly once."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

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

    def show(self, writer: Writer, split: str, step: int) -> None:
        """Write images and texts of a split after `step` updates."""
        for name, images in self.images.items():
            writer.images(split, step, name, images)
        for name, texts in self.texts.items():
            writer.texts(split, step, name, texts)


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


class ExtraMetrics(ABC):
    """Computes metrics in the chief, from rows that all processes predict together.

    Args:
        predictor: predicts the rows.
        process_group: the processes that predict together.
    """

    def __init__(self, predictor: Predictor, process_group: ProcessGroup) -> None:
        self._predictor = predictor
        self._process_group = process_group

    def compute(
        self, step: int, stop_requested: Callable[[], bool], enter: Callable[[str], None]
    ) -> Evaluation:
        """Return the values of the metrics; collective.

        Args:
            step: number of updates made.
            stop_requested: whether a stop was requested of this process.
            enter: called before each graph call with its phase, `compile` or `evaluate`.

        Raises:
            Stopped: a stop was requested of some process.
        """
        self.reset()
        chunks = self._predictor.predict(0, stop_requested, enter)
        for block in blocks(chunks, _BLOCK_ROWS):
            if self._process_group.is_chief:
                self.update(block)
        results = self.results(step) if self._process_group.is_chief else Evaluation({})
        text = self._process_group.broadcast_text_from_chief(json.dumps(results.metrics))
        return Evaluation(json.loads(text), results.images, results.texts)

    @abstractmethod
    def reset(self) -> None:
        """Forget all rows."""

    @abstractmethod
    def update(self, block: Mapping[str, np.ndarray]) -> None:
        """Add rows, name -> [n, ...]; in the chief."""

    @abstractmethod
    def results(self, step: int) -> Evaluation:
        """Return the values and images, and write files; in the chief."""


class SplitEvaluator:
    """Evaluates a split with the averaged weights, if averages are kept.

    Args:
        state: the state whose models are evaluated.
        loop: the compiled evaluation loop.
        source: the split.
        process_group: the processes that evaluate together.
        channel: receives a heartbeat before each graph call.
        extra_metrics: computes further metrics; None: only the task's own are evaluated.
    """

    def __init__(
        self,
        state: TrainState,
        loop: EvalLoop,
        source: Source,
        process_group: ProcessGroup,
        channel: Channel,
        extra_metrics: ExtraMetrics | None = None,
    ) -> None:
        self._state = state
        self._loop = loop
        self._calls = PacedCalls(source.num_steps, process_group, channel)
        self._extra_metrics = extra_metrics

    def evaluate(
        self, stop_requested: Callable[[], bool], enter: Callable[[str], None] = lambda phase: None
    ) -> Evaluation:
        """Evaluate the whole split; see `Evaluator`."""
        self._state.swap_averages()
        try:
            metrics = unpack(self._state.task, self._sums(stop_requested, enter))
        finally:
            self._state.swap_averages()
        if self._extra_metrics is None:
            return Evaluation(metrics)
        step = int(self._state.step.numpy())
        extra = self._extra_metrics.compute(step, stop_requested, enter)
        return Evaluation({**metrics, **extra.metrics}, extra.images, extra.texts)

    def _sums(self, stop_requested: Callable[[], bool], enter: Callable[[str], None]) -> np.ndarray:
        """Return the task's metrics as packed sums and weights, [2 * metrics] float64."""
        iterator = self._loop.feed.open(0)
        total = tf.zeros([2 * len(self._state.task.metrics)], tf.float64)
        for first, count in self._calls.batches(stop_requested, enter):
            total = self._loop.run(
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
