"""The processes that run every step together, and their agreement on what only one observes.

A step, an evaluation and a save are collective: a process that stops, evaluates or saves alone
leaves the others waiting. So everything that only one process observes (a signal, a clock, the
disk) is agreed on here, by all of them and at the same point.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import KW_ONLY, dataclass
from functools import cached_property
from itertools import zip_longest
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.python.eager import context

from trainer.errors import DivergedError

_LEAVE_SECS = 10  # that the others may need to leave a collective that has ended
_NUMBER_BYTES = 6  # of the eight of a number: the replicas of a process add it up, too
_MAX_NUMBERS = 1 << 20  # in one sum of a long content: 8 MiB


@dataclass(eq=False, repr=False)
class ProcessGroup:
    """All processes of a synchronous run; a single process communicates nothing."""

    strategy: tf.distribute.Strategy
    index: int = 0
    count: int = 1
    _: KW_ONLY
    is_chief: bool = True

    @property
    def local_devices(self) -> list[str]:
        """The names of the devices of this process's replicas."""
        return list(self.strategy.extended.worker_devices)

    def all_reduce_sum(self, *values: int) -> list[int]:
        """Return the sum of each integer over all processes."""
        if self.count == 1:
            return list(values)
        padding = (0,) * (_padded_length(len(values)) - len(values))
        sums = self._sums(tf.constant([*values, *padding], tf.int64)).numpy()
        return [int(value) for value in sums[: len(values)]]

    def any_process(self, flag: bool) -> bool:
        return self.all_reduce_sum(int(flag))[0] > 0

    def gather(self, *values: int) -> list[list[int]]:
        """Return the integers of each process, as many of each, in the order of their numbers."""
        size = len(values)
        before, after = self.index * size, (self.count - self.index - 1) * size
        sums = self.all_reduce_sum(*[0] * before, *values, *[0] * after)
        return [sums[at : at + size] for at in range(0, len(sums), size)]

    def broadcast_from_chief(self, *values: int) -> list[int]:
        """Return the chief's integers."""
        return self.all_reduce_sum(*(value if self.is_chief else 0 for value in values))

    def broadcast_text_from_chief(self, text: str) -> str:
        return text if self.count == 1 else self.broadcast_text(self._chief, text)

    def broadcast_bytes_from_chief(self, content: bytes) -> np.ndarray:
        """Return the chief's bytes, [n] uint8."""
        return self.broadcast_bytes(self._chief, content)

    def broadcast_text(self, source: int, text: str) -> str:
        return self.broadcast_bytes(source, text.encode()).tobytes().decode()

    def broadcast_bytes(self, source: int, content: Any) -> np.ndarray:
        """Return the content of process `source`, [n] uint8, sent in sums of integers."""
        own = np.frombuffer(content if self.index == source else b"", np.uint8)
        (size,) = self.all_reduce_sum(own.size)
        received = np.zeros([-(-size // _NUMBER_BYTES), _NUMBER_BYTES], np.uint8)
        received.reshape(-1)[: own.size] = own
        for begin in range(0, len(received), _MAX_NUMBERS):
            part = received[begin : begin + _MAX_NUMBERS]
            numbers = np.zeros([_padded_length(len(part)), 8], np.uint8)
            numbers[: len(part), :_NUMBER_BYTES] = part
            sums = self._sums(tf.constant(numbers.view(np.int64)[:, 0])).numpy()
            part[:] = sums.view(np.uint8).reshape(numbers.shape)[: len(part), :_NUMBER_BYTES]
        return received.reshape(-1)[:size]

    def barrier(self) -> None:
        """Return when all processes have called it."""
        self.all_reduce_sum(0)

    def leave(self) -> None:
        """Return when all processes have called it, and need nothing of this one any more.

        A collective alone does not ensure that: a process is done when it has what the others sent,
        though what it sent itself may still be in its own buffers, and be lost with it.
        """
        if self.count == 1:
            return
        self.barrier()  # may take long: another process may be writing
        # By the coordination service that detects lost peers, not by a collective.
        with suppress(tf.errors.OpError):  # the others are gone, so they needed nothing
            context.context().wait_at_barrier("leave", _LEAVE_SECS * 1000)

    def assert_same(self, what: str, get_values: Callable[[], Mapping[str, object]]) -> None:
        """Raise unless all processes have the same values as the chief, in the same order.

        Args:
            get_values: returns label -> value; not called in a single process.

        Raises:
            DivergedError: in every process, if any differs; names the first that does, and the
                labels of what differs there.
        """
        if self.count == 1:
            return
        values = get_values()
        own = list(map(str, values.values()))
        chiefs = self.broadcast_text(self._chief, "\n".join(own)).split("\n")
        triples = zip_longest(values, own, chiefs, fillvalue="")
        labels = [label or "fewer" for label, mine, theirs in triples if mine != theirs]
        problem = ""
        if labels:
            more = f" and {len(labels) - 3} more" if len(labels) > 3 else ""
            listed = f"{', '.join(labels[:3])}{more}"
            problem = f"{what} of worker-{self.index} differ from the chief's: {listed}"
        differing = self._gather_flags(bool(problem))
        if any(differing):
            raise DivergedError(self.broadcast_text(differing.index(1), problem))

    @cached_property
    def _chief(self) -> int:
        return self._gather_flags(self.is_chief).index(1)

    def _gather_flags(self, flag: bool) -> list[int]:
        return [value for (value,) in self.gather(int(flag))]

    @tf.function(autograph=False)
    def _sums(self, values: tf.Tensor) -> tf.Tensor:
        """Return the sums of [n] int64 values over all processes, [n] int64."""

        def on_replica(values: tf.Tensor) -> tf.Tensor:
            return tf.distribute.get_replica_context().all_reduce(
                tf.distribute.ReduceOp.SUM, tf.identity(values)
            )

        local: Sequence[tf.Tensor] = self.strategy.experimental_local_results(
            self.strategy.run(on_replica, args=(values,))
        )
        return local[0] // len(local)  # each replica of a process has contributed


def _padded_length(length: int) -> int:
    """Return how many numbers are added up in place of a number of them.

    A collective is traced for each length, and no trace is ever freed: so few lengths.
    """
    return 2 ** max(0, length - 1).bit_length()
