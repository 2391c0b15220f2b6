"""Factory of the compiled loops of a strategy whose replicas all run the same step together."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import tensorflow as tf

from trainer.engine.graph.input import feed as input_module
from trainer.engine.graph.input.feed import Feed, Source
from trainer.engine.graph.loops.split_loops import EvalLoop, Predict, PredictLoop, Transform
from trainer.engine.graph.loops.train_loop import TrainLoop
from trainer.protocols import Dataset, Task

AnyLoop = TypeVar("AnyLoop", TrainLoop, EvalLoop, PredictLoop)


class Loops:
    """Creates the compiled loops.

    Attributes:
        in_sequence: whether an evaluation sees its batches one after the other.

    Args:
        input_outside: whether replicas cannot gather their batches themselves.
        in_order: whether evaluations add up batches in the order of the split.
    """

    in_sequence = True

    def __init__(
        self,
        strategy: tf.distribute.Strategy,
        *,
        input_outside: bool,
        in_order: bool = False,
        check: Callable[[str], None] = lambda subject: None,
    ) -> None:
        self._check = check
        self._train: Callable[..., TrainLoop] = TrainLoop
        self._evaluate: Callable[..., EvalLoop] = EvalLoop
        self._predict: Callable[..., PredictLoop] = PredictLoop
        self._in_order = in_order
        self._strategy = strategy
        self._outside = input_outside

    def feed(self, source: Source) -> Feed:
        """Choose how the batches of a source reach the replicas."""
        return input_module.feed(source, self._strategy, outside=self._outside)

    def train(self, dataset: Dataset, feed: Feed, **parts: Any) -> TrainLoop:
        """Create the loop over training steps; `parts` are those of `TrainLoop`."""
        return self.checked(self._train(self._strategy, dataset, feed, **parts))

    def evaluate(self, task: Task, dataset: Dataset, feed: Feed, parts: int = 1) -> EvalLoop:
        """Create the loop that evaluates the batches of a split; `parts` is that of `EvalLoop`."""
        in_order = self._in_order
        return self.checked(
            self._evaluate(self._strategy, task, dataset, feed, in_order=in_order, parts=parts)
        )

    def predict(self, predict: Predict, transform: Transform | None, feed: Feed) -> PredictLoop:
        """Create the loop that predicts the batches of a split."""
        return self.checked(self._predict(self._strategy, predict, transform, feed))

    def checked(self, loop: AnyLoop) -> AnyLoop:
        """Have a loop checked when it has been traced."""
        loop.check = self._check
        return loop
