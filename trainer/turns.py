"""A walk over a split's batches, in graph calls of about a second's worth, by all processes together."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from trainer.channel import Channel
from trainer.pace import Pace
from trainer.peers import Peers


class Stopped(Exception):
    """A stop was requested in the middle of a walk over a split."""


class Turns:
    """The graph calls of walks over a split; how long they are is learnt from one walk for the next.

    Args:
        num_steps: batches in the split.
        peers: the processes that walk together.
        channel: is told that it goes on.
        most: how many batches one call may have; None: any number.
    """

    def __init__(self, num_steps: int, peers: Peers, channel: Channel, most: int | None = None) -> None:
        self._num_steps, self._peers, self._channel, self._most = num_steps, peers, channel, most or num_steps
        self._pace = Pace("auto")

    def walk(self, stop_requested: Callable[[], bool], enter: Callable[[str], None], start: int = 0) -> Iterator[tuple[int, int]]:
        """Gives the first batch and the number of batches of each call, in order.

        Args:
            stop_requested: whether one was requested of this process.
            enter: is told before each graph call whether it will `compile`, or just `evaluate`.
            start: the first batch.

        Raises:
            Stopped: a stop was requested meanwhile.
        """
        while start < self._num_steps:
            self._channel.beat()
            stopping, count = self._peers.sums(stop_requested(), self._pace.count if self._peers.is_chief else 0)
            if stopping:
                raise Stopped
            enter("evaluate" if self._pace.started else "compile")
            count = min(count, self._most, self._num_steps - start)
            with self._pace.measured(count):
                yield start, count
            start += count
