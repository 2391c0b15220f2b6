"""Factory of the compiled loops of a strategy whose replicas all run the same step together."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from trainer.engine.graph import input as input_module
from trainer.engine.graph.eval_loop import EvalLoop
from trainer.engine.graph.input import Feed, Source
from trainer.engine.graph.predict_loop import PredictLoop, Predicts, Transforms
from trainer.engine.graph.stream_feed import StreamFeed
from trainer.engine.graph.train_loop import TrainLoop
from trainer.protocols import Dataset, Stream, Task


class Loops:
    """Creates the compiled loops.

    Args:
        strategy: TensorFlow's strategy.
        input_outside: whether replicas cannot gather their batches themselves.
        in_order: whether evaluations add up batches in the order of the split.
    """

    def __init__(
        self, strategy: tf.distribute.Strategy, *, input_outside: bool, in_order: bool = False
    ) -> None:
        self._in_order = in_order
        self._strategy = strategy
        self._outside = input_outside

    def feed(self, source: Source) -> Feed:
        """Choose how the batches of a source reach the replicas."""
        if source.order is not None and isinstance(source.split, Stream):
            return StreamFeed(source, self._strategy)
        return input_module.feed(source, self._strategy, outside=self._outside)

    def train(self, dataset: Dataset, feed: Feed, **parts: Any) -> TrainLoop:
        """Create the loop over training steps; `parts` are those of `TrainLoop`."""
        return TrainLoop(self._strategy, dataset, feed, **parts)

    def evaluate(self, task: Task, dataset: Dataset, feed: Feed) -> EvalLoop:
        """Create the loop that evaluates the batches of a split."""
        return EvalLoop(self._strategy, task, dataset, feed, in_order=self._in_order)

    def predict(self, task: Predicts, dataset: Transforms, feed: Feed) -> PredictLoop:
        """Create the loop that predicts the batches of a split."""
        return PredictLoop(self._strategy, task, dataset, feed)
