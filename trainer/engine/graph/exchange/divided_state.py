"""Weights and slots in memory that the processes of a host share, each of which updates a part.

    take    a row of the weights that nobody looks at <- own part       (all wait for all)
            own parts of weights and slots are updated where they lie
    give    everybody's weights and slots, where they lie               (all wait for all)

Weights have two rows, or more: what was read of them before an update, as for an evaluation or a
checkpoint, does not change. Slots have one, which is changed between `take` and `give` alone.
"""

from __future__ import annotations

import bisect
import itertools
import math
import weakref
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from trainer.engine.graph.exchange.additions import ALIGNMENT, RowLayout
from trainer.engine.graph.exchange.rendezvous import Rendezvous
from trainer.engine.graph.exchange.shared_rows import lowest, unheld


class Part(NamedTuple):
    """What one process has of a tensor: the elements from `start` to `stop`, whole rows of it."""

    tensor: int
    start: int
    stop: int


def divide(
    shapes: Sequence[Sequence[int]], by_rows: Sequence[bool], count: int
) -> list[list[Part]]:
    """Divide tensors into parts of about equal size, one list of them for each process.

    A part begins where a kernel that takes several elements at a time would begin with the whole
    tensor too: so each element is computed in the same way.

    Args:
        shapes: of the tensors.
        by_rows: for each, whether it may be cut between rows.
        count: number of processes.
    """
    sizes = [math.prod(shape) for shape in shapes]
    starts = [0, *itertools.accumulate(sizes)]
    cuts = [0]
    for number in range(1, count):
        wanted = starts[-1] * number // count
        index = min(bisect.bisect_right(starts, wanted) - 1, len(sizes) - 1)
        unit = sizes[index]
        if by_rows[index] and len(shapes[index]):
            unit = math.lcm(math.prod(shapes[index][1:]), ALIGNMENT)
        rest = wanted - starts[index]
        lower = rest // max(1, unit) * unit
        upper = min(lower + unit, sizes[index])
        cuts.append(starts[index] + (lower if rest - lower <= upper - rest else upper))
    cuts.append(starts[-1])
    return [
        [
            Part(index, max(first, start) - start, min(last, start + size) - start)
            for index, (start, size) in enumerate(zip(starts, sizes, strict=False))
            if max(first, start) < min(last, start + size)
        ]
        for first, last in itertools.pairwise(cuts)
    ]


class DividedState:
    """The memory of one update of a step.

    Attributes:
        num_moved: how many parts were not updated where they lie, but copied.

    Args:
        rendezvous: of the processes of this host, opened.
        call: number of the update within the step; that of no sum.
        weights: the shapes of all weights.
        slots: the shapes of all slots.
        own_weights: this process's parts of weights.
        own_slots: of slots.
    """

    GUARD = ALIGNMENT
    """Numbers before each part that `take` returns: TensorFlow updates only a slice in place."""

    def __init__(
        self,
        rendezvous: Rendezvous,
        call: int,
        weights: Sequence[tuple[int, ...]],
        slots: Sequence[tuple[int, ...]],
        own_weights: Sequence[Part],
        own_slots: Sequence[Part],
    ) -> None:
        self.num_moved = 0
        self._rendezvous = rendezvous
        self._call = call
        self._shapes = (weights, slots)
        self._own = (own_weights, own_slots)
        self._columns = [_columns(shapes) for shapes in self._shapes]
        self._rows: list[np.ndarray] = []
        self._given: list[list[weakref.ref[np.ndarray]]] = []
        self._number = 0
        self._slots = np.empty(0, np.float32)

    def take(self, *values: np.ndarray) -> list[np.ndarray]:
        """Bring this process's parts to where they are updated; all processes call this.

        Args:
            values: for each of its parts of weights the whole gradient, and the whole weight; for
                each of its parts of slots the whole slot.

        Returns:
            Its parts of the gradients, where they lie, in shape; those of weights and slots where
            they lie from now on, flat, each after `GUARD` other numbers.
        """
        number = lowest(self._rendezvous.wait(self._call, 0, unheld(self._given)))
        if not self._rows:
            self._slots = self._share(1)
        if number is None:
            number = len(self._rows)
            self._rows.append(self._share(0))
            self._given.append([])
        self._number = number
        own = self._own[0]
        values = tuple(np.asarray(value) for value in values)  # scalars are no arrays
        cut = [
            value.reshape(-1)[part.start : part.stop]
            for value, part in zip(values, [*own, *own, *self._own[1]], strict=True)
        ]
        self._write(cut[len(own) :])
        # As arrays: TensorFlow does not compute in them, as it does in slices of its own, and the
        # others still look at the same gradients.
        gradients = [
            part.reshape(whole.shape if part.size == whole.size else (-1, *whole.shape[1:]))
            for part, whole in zip(cut[: len(own)], values, strict=False)
        ]
        return [*gradients, *self._views(self.GUARD)]

    def give(self, *values: np.ndarray) -> list[np.ndarray]:
        """Return all weights and slots when every process has updated its parts.

        Args:
            values: what has become of those that `take` has returned.
        """
        self.num_moved += self._write(values)
        self._rendezvous.wait(self._call, 1)
        weights, slots = (
            [row[x].reshape(shape) for x, shape in zip(columns, shapes, strict=True)]
            for row, columns, shapes in zip(
                (self._rows[self._number], self._slots), self._columns, self._shapes, strict=True
            )
        )
        self._given[self._number] = [weakref.ref(view) for view in weights]
        return [*weights, *slots]

    def _share(self, kind: int) -> np.ndarray:
        size = self._columns[kind][-1].stop if self._columns[kind] else 1
        return np.frombuffer(self._rendezvous.share(self._call, 4 * size), np.float32)

    def _write(self, values: Sequence[np.ndarray]) -> int:
        """Copy what is not where it belongs; return how many parts that were."""
        count = 0
        for value, place in zip(map(np.asarray, values), self._views(0), strict=True):
            if value.ctypes.data != place.ctypes.data:
                place[:] = value.reshape(-1)
                count += 1
        return count

    def _views(self, guard: int) -> list[np.ndarray]:
        """Return where this process's parts lie, with so many numbers before each."""
        views = []
        for row, columns, own in zip(
            (self._rows[self._number], self._slots), self._columns, self._own, strict=True
        ):
            for part in own:
                start = columns[part.tensor].start
                views.append(row[start + part.start - guard : start + part.stop])
        return views


def _columns(shapes: Sequence[tuple[int, ...]]) -> list[slice]:
    """Return where tensors lie in a row, after a guard."""
    layout = RowLayout.of([np.broadcast_to(np.float32(0), shape) for shape in shapes])
    return [slice(x.start + ALIGNMENT, x.stop + ALIGNMENT) for x in layout.columns]
