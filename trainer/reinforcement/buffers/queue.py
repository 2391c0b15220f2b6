"""A queue: each unroll is trained on once, soon after it was made."""

from __future__ import annotations

from collections import deque
from typing import Annotated

from trainer.annotations import Ge
from trainer.protocols import Unroll


class Queue:
    """Returns unrolls in the order of their arrival, unless they are too old.

    Staleness is bounded twice. While the queue is full, actors wait. And when a batch is made for
    step s, an unroll whose weights have seen fewer than s - `max_staleness` updates is dropped.
    """

    def __init__(
        self,
        *,
        max_staleness: Annotated[int, Ge(0)] | None = 20,
        capacity: Annotated[int, Ge(1)] = 2,
    ) -> None:
        self._max_staleness = max_staleness
        self._capacity = capacity
        self._limit = capacity
        self._unrolls: deque[Unroll] = deque()
        self.dropped = 0

    @property
    def waiting(self) -> int:
        return len(self._unrolls)

    def begin(self, batch_size: int) -> None:
        self._limit = self._capacity * batch_size
        self._unrolls.clear()
        self.dropped = 0

    def has_room(self) -> bool:
        return len(self._unrolls) < self._limit

    def add(self, unroll: Unroll) -> None:
        self._unrolls.append(unroll)

    def take(self, step: int, count: int) -> list[Unroll] | None:
        if self._max_staleness is not None:
            fresh = [x for x in self._unrolls if step - x.version <= self._max_staleness]
            self.dropped += len(self._unrolls) - len(fresh)
            self._unrolls = deque(fresh)
        if len(self._unrolls) < count:
            return None
        return [self._unrolls.popleft() for _ in range(count)]
