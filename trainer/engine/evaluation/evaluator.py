"""Evaluation of a whole split, each example counted exactly once."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import numpy as np
import tensorflow as tf

from trainer.cluster.messages import Channel
from trainer.engine.evaluation.extra_metrics import ExtraMetrics
from trainer.engine.graph.input.feed import Source
from trainer.engine.graph.loops.eval_loop import EvalLoop
from trainer.engine.graph.state.train_state import TrainState
from trainer.engine.graph.step.metric_sums import unpack
from trainer.engine.pacing import PacedCalls
from trainer.engine.process_group import ProcessGroup


class Evaluator(Protocol):
    """What evaluates a task on one split."""

    @property
    def images(self) -> Mapping[str, np.ndarray]:
        """The images of the last evaluation, in the chief: name -> [N, H, W, 3] uint8."""

    @property
    def texts(self) -> Mapping[str, Sequence[str]]:
        """The texts of the last evaluation, in the chief, by name."""

    def evaluate(
        self, stop_requested: Callable[[], bool], enter: Callable[[str], None] = lambda phase: None
    ) -> dict[str, float]:
        """Return the metrics over the whole split; collective.

        Args:
            stop_requested: whether a stop was requested of this process.
            enter: called before each graph call with its phase, `compile` or `evaluate`.

        Raises:
            Stopped: a stop was requested of some process; the weights are as before.
        """


class SplitEvaluator:
    """Evaluates the test split with the averaged weights, if averages are kept.

    Args:
        state: the state whose models are evaluated.
        loop: the compiled evaluation loop.
        source: the test split.
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

    @property
    def images(self) -> Mapping[str, np.ndarray]:
        """The images of the last evaluation, in the chief: name -> [N, H, W, 3] uint8."""
        return self._extra_metrics.images if self._extra_metrics else {}

    @property
    def texts(self) -> Mapping[str, Sequence[str]]:
        """The texts of the last evaluation, in the chief, by name."""
        return self._extra_metrics.texts if self._extra_metrics else {}

    def evaluate(
        self, stop_requested: Callable[[], bool], enter: Callable[[str], None] = lambda phase: None
    ) -> dict[str, float]:
        """Return the metrics over the whole split; collective.

        Args:
            stop_requested: whether a stop was requested of this process.
            enter: called before each graph call with its phase, `compile` or `evaluate`.

        Raises:
            Stopped: a stop was requested of some process; the weights are as before.
        """
        self._state.swap_averages()
        try:
            metrics = unpack(self._state.task, self._sums(stop_requested, enter))
        finally:
            self._state.swap_averages()
        if self._extra_metrics:
            step = int(self._state.step.numpy())
            metrics |= self._extra_metrics.compute(step, stop_requested, enter)
        return metrics

    def _sums(self, stop_requested: Callable[[], bool], enter: Callable[[str], None]) -> np.ndarray:
        """Return the task's metrics as packed sums and weights, [2 * metrics] float64."""
        iterator = self._loop.feed.open(0)
        total = tf.zeros([2 * len(self._state.task.metrics)], tf.float64)
        for first, count in self._calls.batches(stop_requested, enter):
            total = self._loop.run(
                iterator, total, tf.constant(first, tf.int64), tf.constant(count, tf.int64)
            )
        return total.numpy()
