"""The memory in which the processes of a host add up: a row for each, and rows for the sums."""

from __future__ import annotations

import itertools
import mmap
import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np

from trainer.engine.graph.exchange.rendezvous import Rendezvous

AddUp: TypeAlias = Callable[[Sequence[Any], Callable[[Any, Any], Any]], Any]
"""Adds up parts of equal shape, in order, with a function that adds two: see `shard_tree`."""

_ALIGNMENT = 16  # float32 numbers: what TensorFlow needs to use memory without copying it
_BLOCK = 1 << 15  # float32 numbers: what several rows have of it stays in the processor's caches
_NUM_SUMS = 2
"""A step reads a sum while the next one is made, and frees the one before it a moment later."""


@dataclass(frozen=True)
class Layout:
    """Where tensors lie in a row.

    Attributes:
        size: elements of the row.
        columns: those of each tensor.
    """

    size: int
    columns: list[slice] = field(repr=False)

    @classmethod
    def of(cls, tensors: Sequence[np.ndarray]) -> Layout:
        """Return the layout of some tensors, each where TensorFlow can use it as it is."""
        starts = [0, *itertools.accumulate(_aligned(x.size) for x in tensors)]
        columns = [slice(at, at + x.size) for at, x in zip(starts, tensors, strict=False)]
        return cls(starts[-1], columns)

    def part(self, number: int, count: int) -> slice:
        """Return one of `count` parts of the row."""
        ends = [_aligned(self.size * end // count) for end in (number, number + 1)]
        return slice(min(ends[0], self.size), min(ends[1], self.size))

    def pieces(self, part: slice) -> Iterator[tuple[int, slice, slice]]:
        """Yield what tensors have in a part: a tensor's number, its elements, and the columns."""
        for number, columns in enumerate(self.columns):
            start, stop = max(columns.start, part.start), min(columns.stop, part.stop)
            if start < stop:
                own = slice(start - columns.start, stop - columns.start)
                yield number, own, slice(start, stop)


class SharedRows:
    """The memory of one sum of a step.

    Args:
        rendezvous: of the processes of this host, opened; None: this process is alone.
        call: number of the sum within the step.
        num_parts: how many of the processes add up, each a part of the columns.
    """

    def __init__(self, rendezvous: Rendezvous | None, call: int, num_parts: int) -> None:
        self._rendezvous = rendezvous
        self._call = call
        self._num_parts = num_parts
        self._rank = 0 if rendezvous is None else rendezvous.rank
        self._count = 1 if rendezvous is None else rendezvous.count
        self._rows = np.empty((0, 0), np.float32)
        self._given: list[list[weakref.ref[np.ndarray]]] = [[] for _ in range(_NUM_SUMS)]

    def sum(
        self,
        tensors: Sequence[np.ndarray],
        add_up: AddUp,
        all_reduce: Callable[[np.ndarray], None] | None,
    ) -> list[np.ndarray]:
        """Return the sums of float32 tensors over the processes; all of them call this.

        The results lie in the memory itself unless all sums are in use. Such memory is not written
        again as long as somebody has one of them.

        Args:
            tensors: those of this process; their shapes are the same in all.
            add_up: the order in which processes are added.
            all_reduce: replaces a part by its sum over the hosts.
        """
        layout = Layout.of(tensors)
        part = slice(0, 0)
        if self._rank < self._num_parts:
            part = layout.part(self._rank, self._num_parts)
        self._reserve(layout.size)
        self._write(layout, tensors, part)
        number = self._agree_on_sum(layout.size)
        total = self._rows[self._count + number]
        self._add_up(layout, tensors, part, total, add_up)
        if all_reduce is not None and self._rank < self._num_parts:
            all_reduce(total[part])
        self._wait(layout.size)
        views = [
            total[columns].reshape(x.shape)
            for columns, x in zip(layout.columns, tensors, strict=True)
        ]
        if number == _NUM_SUMS:
            return [view.copy() for view in views]
        self._given[number] = [weakref.ref(view) for view in views]
        return views

    def _write(self, layout: Layout, tensors: Sequence[np.ndarray], part: slice) -> None:
        """Write what others add up into this process's row."""
        row = self._rows[self._rank]
        for others in (slice(0, part.start), slice(part.stop, layout.size)):
            for number, own, columns in layout.pieces(others):
                row[columns] = tensors[number].reshape(-1)[own]

    def _add_up(
        self,
        layout: Layout,
        tensors: Sequence[np.ndarray],
        part: slice,
        total: np.ndarray,
        add_up: AddUp,
    ) -> None:
        """Add up a part of all rows, this process's from its tensors, which are in none."""
        scratch = np.empty(_BLOCK, np.float32)
        for number, own, columns in layout.pieces(part):
            tensor = tensors[number].reshape(-1)[own]
            length = columns.stop - columns.start
            for start in range(0, length, _BLOCK):
                block = slice(start, min(start + _BLOCK, length))
                parts = [row[columns][block] for row in self._rows[: self._count]]
                parts[self._rank] = mine = tensor[block]
                into = total[columns][block]
                if len(parts) == 1:
                    into[:] = mine
                else:
                    _add_in_place(parts, mine, into, scratch[: len(mine)], add_up)

    def _agree_on_sum(self, size: int) -> int:
        """Wait until all have written; return which sum is free, or the one never given away."""
        free = sum(
            1 << number
            for number, references in enumerate(self._given)
            if not any(reference() is not None for reference in references)
        )
        mask = self._wait(size, free)
        return (mask & -mask).bit_length() - 1 if mask else _NUM_SUMS

    def _wait(self, size: int, mask: int = -1) -> int:
        if self._rendezvous is None:
            return mask
        return self._rendezvous.wait(self._call, 4 * size, mask)

    def _reserve(self, size: int) -> None:
        """Have memory for rows of a size; those given away keep theirs."""
        if size <= self._rows.shape[1]:
            return
        shape = (self._count + _NUM_SUMS + 1, size)
        num_bytes = 4 * shape[0] * shape[1]
        if self._rendezvous is None:
            memory = mmap.mmap(-1, num_bytes)
        else:
            memory = self._rendezvous.share(self._call, num_bytes)
        self._rows = np.frombuffer(memory, np.float32).reshape(shape)
        self._given = [[] for _ in range(_NUM_SUMS)]


def _add_in_place(
    parts: Sequence[np.ndarray],
    mine: np.ndarray,
    total: np.ndarray,
    scratch: np.ndarray,
    add_up: AddUp,
) -> None:
    """Add up parts into a sum without allocating: into what a pair's left part lies in.

    The first lies in the sum then, and what TensorFlow owns in a buffer: it may not be changed.
    """

    def add_two(left: np.ndarray, right: np.ndarray) -> np.ndarray:
        into = left
        if left is parts[0]:
            into = total
        elif left is mine:
            into = scratch
        return np.add(left, right, out=into)

    add_up(parts, add_two)


def _aligned(size: int) -> int:
    return -(-size // _ALIGNMENT) * _ALIGNMENT
