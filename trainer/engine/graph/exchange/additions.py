"""Adds up what processes have in the same columns, in one order, without allocating."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np

AddUp: TypeAlias = Callable[[Sequence[Any], Callable[[Any, Any], Any]], Any]
"""Adds up parts of equal shape, in order, with a function that adds two: see `shard_tree`."""

Pieces: TypeAlias = list[tuple[slice, np.ndarray]]
"""Columns of a row, ascending, each with the float32 numbers that a process has there."""

ALIGNMENT = 16  # float32 numbers: what TensorFlow needs to use memory without copying it
_BLOCK = 1 << 15  # float32 numbers: what several rows have of it stays in the processor's caches


@dataclass(frozen=True)
class RowLayout:
    """Where tensors lie in a row of `size` elements: `columns` has those of each tensor."""

    size: int
    columns: list[slice] = field(repr=False)

    @classmethod
    def of(cls, tensors: Sequence[np.ndarray]) -> RowLayout:
        """Return the layout of some tensors, each where TensorFlow can use it as it is."""
        starts = [0, *itertools.accumulate(_aligned(x.size) for x in tensors)]
        columns = [slice(at, at + x.size) for at, x in zip(starts, tensors, strict=False)]
        return cls(starts[-1], columns)

    def part(self, number: int, count: int) -> slice:
        """Return one of `count` parts of the row."""
        return part_of(self.size, number, count)

    def pieces(self, tensors: Sequence[np.ndarray]) -> Pieces:
        """Return what tensors of this layout have in a row."""
        return [(x, y.reshape(-1)) for x, y in zip(self.columns, tensors, strict=True)]


def part_of(size: int, number: int, count: int) -> slice:
    """Return one of `count` parts of so many columns; all begin where a tensor can."""
    ends = [min(_aligned(size * end // count), size) for end in (number, number + 1)]
    return slice(*ends)


def within(pieces: Pieces, part: slice) -> Pieces:
    """Return what pieces have in a part of the columns."""
    cut = []
    for columns, values in pieces:
        start, stop = max(columns.start, part.start), min(columns.stop, part.stop)
        if start < stop:
            cut.append((slice(start, stop), values[start - columns.start : stop - columns.start]))
    return cut


def add_columns(
    rows: Sequence[np.ndarray | None], own: Pieces, total: np.ndarray, add_up: AddUp
) -> None:
    """Write the sum of all processes in the columns of `own` into `total`.

    Args:
        rows: what each process has in all columns; None: this one, which has `own`. The others'
            are changed.
        own: not changed, unless it lies in `total`.
    """
    buffers = np.empty((2, _BLOCK), np.float32)
    for columns, values in own:
        for start in range(columns.start, columns.stop, _BLOCK):
            block = slice(start, min(start + _BLOCK, columns.stop))
            mine = values[block.start - columns.start : block.stop - columns.start]
            parts = [mine if row is None else row[block] for row in rows]
            _add_block(parts, mine, total[block], buffers[:, : len(mine)], add_up)


def _add_block(
    parts: list[np.ndarray],
    mine: np.ndarray,
    total: np.ndarray,
    buffers: np.ndarray,
    add_up: AddUp,
) -> None:
    is_in_place = np.may_share_memory(mine, total)
    first = buffers[0] if is_in_place else total  # else the others would be added to what is lost

    def add_two(left: np.ndarray, right: np.ndarray) -> np.ndarray:
        into = left
        if left is parts[0]:
            into = first
        elif left is mine:
            into = buffers[1]
        return np.add(left, right, out=into)

    result = add_up(parts, add_two)
    if result is not total:
        total[:] = result


def _aligned(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT
