"""The memory in which the processes of a host add up: a row for each, and rows for the sums."""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np

from trainer.engine.graph.exchange.rendezvous import Rendezvous

AddUp: TypeAlias = Callable[[Sequence[Any], Callable[[Any, Any], Any]], Any]
"""Adds up parts of equal shape, in order, with a function that adds two: see `shard_tree`."""

_ALIGNMENT = 16  # float32 numbers: what TensorFlow needs to use memory without copying it
_NUM_SUMS = 3
"""A step reads a sum while the next one is made, and frees the one before it a moment later."""


class SharedRows:
    """The memory of one sum of a step.

    Args:
        rendezvous: of the processes of this host, opened; None: this process is alone.
        call: number of the sum within the step.
        sizes: elements of each tensor, float32.
    """

    def __init__(self, rendezvous: Rendezvous | None, call: int, sizes: Sequence[int]) -> None:
        starts = [0, *itertools.accumulate(_aligned(size) for size in sizes)]
        self.size = starts[-1]
        self._slices = [slice(at, at + size) for at, size in zip(starts, sizes, strict=False)]
        self._rendezvous = rendezvous
        self._call = call
        self._count = 1 if rendezvous is None else rendezvous.count
        self._rows: np.ndarray | None = None
        self._given: list[list[weakref.ref[np.ndarray]]] = [[] for _ in range(_NUM_SUMS)]

    def columns(self, part: int, count: int) -> slice:
        """Return one of `count` parts of the columns."""
        ends = [_aligned(self.size * number // count) for number in (part, part + 1)]
        return slice(min(ends[0], self.size), min(ends[1], self.size))

    def write(self, tensors: Sequence[np.ndarray]) -> int:
        """Write this process's row; return which sum is free, when all have written theirs."""
        rows = self._memory()
        own = rows[0 if self._rendezvous is None else self._rendezvous.rank]
        for columns, tensor in zip(self._slices, tensors, strict=True):
            own[columns] = tensor.reshape(-1)
        free = sum(1 << number for number in range(_NUM_SUMS) if self._is_free(number))
        mask = self.wait(free)
        return (mask & -mask).bit_length() - 1

    def add_up(self, columns: slice, number: int, add_up: AddUp) -> np.ndarray:
        """Add up some columns of all rows into a sum; return them there."""
        rows = self._memory()
        total = self._sum(number)[columns]
        parts = [row[columns] for row in rows[: self._count]]
        if len(parts) == 1:
            total[:] = parts[0]
        # Into the left operand, and the row of the sum instead of the first: nothing is allocated.
        add_up(parts, lambda a, b: np.add(a, b, out=total if a is parts[0] else a))
        return total

    def wait(self, mask: int = -1) -> int:
        """Wait for the other processes; return the bits that are set in the masks of all."""
        if self._rendezvous is None:
            return mask
        return self._rendezvous.wait(self._call, 4 * self.size, mask)

    def tensors(self, number: int, shapes: Sequence[tuple[int, ...]]) -> list[np.ndarray]:
        """Return the tensors of a sum, in the memory itself unless all sums are in use.

        Such memory is not written again as long as somebody has one of them.
        """
        total = self._sum(number)
        views = [
            total[columns].reshape(shape)
            for columns, shape in zip(self._slices, shapes, strict=True)
        ]
        if number < 0:
            return [view.copy() for view in views]
        self._given[number] = [weakref.ref(view) for view in views]
        return views

    def _is_free(self, number: int) -> bool:
        return not any(reference() is not None for reference in self._given[number])

    def _sum(self, number: int) -> np.ndarray:
        """Return a row of a sum; -1: the last one, which is never given away."""
        total: np.ndarray = self._memory()[self._count + (_NUM_SUMS if number < 0 else number)]
        return total

    def _memory(self) -> np.ndarray:
        if self._rows is None:
            shape = (self._count + _NUM_SUMS + 1, self.size)
            if self._rendezvous is None:
                self._rows = np.zeros(shape, np.float32)
            else:
                memory = self._rendezvous.share(self._call, 4 * shape[0] * shape[1])
                self._rows = np.frombuffer(memory, np.float32).reshape(shape)
        return self._rows


def _aligned(size: int) -> int:
    return -(-size // _ALIGNMENT) * _ALIGNMENT
