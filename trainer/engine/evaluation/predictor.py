"""Predictions for each example of a split, in the order of the split, on every strategy."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from trainer.cluster.messages import Channel
from trainer.engine.graph.input.feed import Source
from trainer.engine.graph.loops.predict_loop import PredictLoop
from trainer.engine.graph.state.train_state import TrainState
from trainer.engine.pacing import PacedCalls
from trainer.engine.process_group import ProcessGroup

_MAX_ROWS = 4096  # of one chunk, unless a single batch has more


@dataclass(eq=False)
class Predictor:
    """Predicts the examples of a split with the averaged weights, if averages are kept.

    Each batch has the static size of training, `batch_size` on each replica, and the last one is
    padded: the same batch size gives the same bits on every strategy.

    Attributes:
        batch_size: examples that a replica predicts at a time.
        state: the state whose models predict; between two chunks it must hold the trained weights,
            not their averages.
        channel: receives a heartbeat before each graph call.
        class_names: names of the classes; empty if the dataset has none.
        decode: returns the text of tokens, if texts are predicted.
    """

    state: TrainState
    loop: PredictLoop
    source: Source
    process_group: ProcessGroup
    channel: Channel
    class_names: Sequence[str] = ()
    decode: Callable[[Sequence[int]], str] | None = None

    def __post_init__(self) -> None:
        self.num_examples = self.source.split.num_examples
        self.batch_size = self.source.per_replica
        max_batches = max(1, _MAX_ROWS // self.source.global_size)
        self._calls = PacedCalls(
            self.source.num_steps, self.process_group, self.channel, max_batches
        )

    def predict(
        self,
        start: int = 0,
        stop_requested: Callable[[], bool] = lambda: False,
        enter: Callable[[str], None] = lambda phase: None,
    ) -> Iterator[dict[str, np.ndarray]]:
        """Yield the predictions for the examples from `start` on, in chunks of bounded size.

        Each chunk is collective: every process must consume all of them.

        Args:
            enter: called before each graph call with its phase, `compile` or `evaluate`.

        Yields:
            In every process name -> [n, ...]: `id` int64; `weight` float32, 0 for an example that
            could not be read; `label` if the split has it; the outputs of the task's
            `predict_step`.

        Raises:
            Stopped: a stop was requested of some process.
        """
        if start >= self.num_examples:
            return
        first_batch = start // self.source.global_size
        iterator = self.loop.feed.open(first_batch)
        for first, count in self._calls.batches(stop_requested, enter, first_batch):
            rows = self._rows(iterator, first, count)
            position = first * self.source.global_size
            unpadded = slice(max(0, start - position), self.num_examples - position)
            yield {name: value[unpadded] for name, value in rows.items()}

    def _rows(self, iterator: object, first: int, count: int) -> dict[str, np.ndarray]:
        # Swapped for each call: between two chunks the caller finds the trained weights.
        self.state.swap_averages()
        try:
            return self.loop.run(iterator, first, count)
        finally:
            self.state.swap_averages()
