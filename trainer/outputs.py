"""What a task predicts of each example of a split, in the order of the split, on every strategy."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np

from trainer.channel import Channel
from trainer.input import Source
from trainer.loop import PredictLoop
from trainer.peers import Peers
from trainer.state import TrainState
from trainer.turns import Turns

_MOST_ROWS = 4096  # of one chunk, unless a single batch has more


class Outputs:
    """Predicts the examples of a split with the averaged weights, if averages are kept.

    Each batch has the static size of training, `batch_size` on each replica, and the last one is filled up: the same number on every
    strategy gives the same bits.

    Attributes:
        num_examples: how many examples the split has.
        batch_size: how many examples a replica predicts at a time.
        class_names: the names of the classes; empty if the dataset has none.

    Args:
        state: the state whose models predict; none of them may be swapped with its averages meanwhile.
        loop: the compiled loop.
        source: the split.
        peers: the processes that predict together.
        channel: is told that it goes on.
    """

    def __init__(
        self, state: TrainState, loop: PredictLoop, source: Source, peers: Peers, channel: Channel, class_names: Sequence[str] = ()
    ) -> None:
        self.class_names = class_names
        self._state, self._loop, self._global_size = state, loop, source.global_size
        self.num_examples, self.batch_size = source.split.num_examples, source.per_replica
        self._turns = Turns(source.num_steps, peers, channel, most=max(1, _MOST_ROWS // source.global_size))

    def each(
        self,
        start: int = 0,
        stop_requested: Callable[[], bool] = lambda: False,
        enter: Callable[[str], None] = lambda phase: None,
    ) -> Iterator[dict[str, np.ndarray]]:
        """Gives the predictions of the examples from `start` on, in chunks of bounded size. Every process must go through all of them.

        Args:
            start: the first example.
            stop_requested: whether one was requested of this process.
            enter: is told before each graph call whether it will `compile`, or just `evaluate`.

        Yields:
            In every process name -> [n, ...]: `id` int64; `weight` float32, 0 for an example that could not be read; `label` if the
            split has it; what the task's `predict_step` gives.

        Raises:
            Stopped: a stop was requested meanwhile.
        """
        if start >= self.num_examples:
            return
        first_batch = start // self._global_size
        opened = self._loop.feed.start(first_batch)
        for first, count in self._turns.walk(stop_requested, enter, first_batch):
            rows = self._rows(opened, first, count)
            position = first * self._global_size
            kept = slice(max(0, start - position), self.num_examples - position)
            yield {name: value[kept] for name, value in rows.items()}

    def _rows(self, opened: object, first: int, count: int) -> dict[str, np.ndarray]:
        # For each call anew: what is done between two chunks finds the weights as they were.
        self._state.swap_averages()
        try:
            return self._loop.run(opened, first, count)
        finally:
            self._state.swap_averages()
