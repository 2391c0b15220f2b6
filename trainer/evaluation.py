"""Evaluation of a whole split, each example counted exactly once."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import tensorflow as tf

from trainer.channel import Channel
from trainer.input import Source
from trainer.loop import EvalLoop, unpack
from trainer.measures import Measures
from trainer.peers import Peers
from trainer.state import TrainState
from trainer.turns import Turns


class Evaluator:
    """Evaluates the test split with the averaged weights, if averages are kept.

    Args:
        state: the state whose models are evaluated.
        loop: the compiled evaluation loop.
        source: the test split.
        peers: the processes that evaluate together.
        channel: is told that it goes on.
        measures: measures it further; None: the task's own metrics are all.
    """

    def __init__(
        self, state: TrainState, loop: EvalLoop, source: Source, peers: Peers, channel: Channel, measures: Measures | None = None
    ) -> None:
        self._state, self._loop, self._turns = state, loop, Turns(source.num_steps, peers, channel)
        self._measures = measures

    @property
    def images(self) -> Mapping[str, np.ndarray]:
        """What the last evaluation has to show, in the chief: name -> [N, H, W, 3] uint8."""
        return self._measures.images if self._measures else {}

    def evaluate(self, stop_requested: Callable[[], bool], enter: Callable[[str], None] = lambda phase: None) -> dict[str, float]:
        """Gives the metrics over the split.

        Args:
            stop_requested: whether one was requested of this process.
            enter: is told before each graph call whether it will `compile`, or just `evaluate`.

        Raises:
            Stopped: a stop was requested meanwhile; the weights are as before.
        """
        self._state.swap_averages()
        try:
            found = unpack(self._state.task, self._sums(stop_requested, enter))
        finally:
            self._state.swap_averages()
        if self._measures:
            found |= self._measures.measure(int(self._state.step.numpy()), stop_requested, enter)
        return found

    def _sums(self, stop_requested: Callable[[], bool], enter: Callable[[str], None]) -> np.ndarray:
        opened = self._loop.feed.start(0)
        total = tf.zeros([2 * len(self._state.task.metrics)], tf.float64)
        for first, count in self._turns.walk(stop_requested, enter):
            total = self._loop.run(opened, total, tf.constant(first, tf.int64), tf.constant(count, tf.int64))
        return total.numpy()
