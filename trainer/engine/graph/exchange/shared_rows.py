"""The memory in which the processes of a host add up: a row for each, and rows for the sums."""

from __future__ import annotations

import mmap
import weakref
from collections.abc import Callable, Sequence
from typing import TypeAlias

import numpy as np

from trainer.engine.graph.exchange.additions import AddUp, Pieces, RowLayout, add_columns, within
from trainer.engine.graph.exchange.rendezvous import Rendezvous

_NUM_SUMS = 2
"""A step reads a sum while the next one is made."""

Views: TypeAlias = "Sequence[Sequence[weakref.ref[np.ndarray]]]"
"""The views of each row that were given away."""


def _free_rows(views: Views) -> int:
    """Return a bit mask of the rows whose views have all been released."""
    return sum(
        1 << number
        for number, references in enumerate(views)
        if not any(reference() is not None for reference in references)
    )


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
        over_hosts: Callable[[np.ndarray, Pieces], None] | None,
    ) -> list[np.ndarray]:
        """Return the sums of float32 tensors over the processes; all of them call this.

        The results lie in the memory itself unless all sums are in use. Such memory is not written
        again as long as somebody has one of them.

        Args:
            tensors: those of this process; their shapes are the same in all.
            over_hosts: writes the sum over the hosts of what is in a part into the part.
        """
        layout = RowLayout.of(tensors)
        pieces = layout.pieces(tensors)
        part = slice(0, 0)
        if self._rank < self._num_parts:
            part = layout.part(self._rank, self._num_parts)
        self._reserve(layout.size)
        row = self._rows[self._rank]
        for others in (slice(0, part.start), slice(part.stop, layout.size)):
            for columns, values in within(pieces, others):
                row[columns] = values
        # All have written: take a free sum, or the one never given away.
        mask = self._wait(layout.size, _free_rows(self._given))
        number = (mask & -mask).bit_length() - 1 if mask else _NUM_SUMS
        total = self._rows[self._count + number]
        own = within(pieces, part)
        if self._count > 1 or over_hosts is None:
            rows = [x if i != self._rank else None for i, x in enumerate(self._rows[: self._count])]
            add_columns(rows, own, total, add_up)
            # The same columns as of a process that is alone on its host.
            own = [(columns, total[columns]) for columns, _ in own]
        if over_hosts is not None and self._rank < self._num_parts:
            inside = [(slice(x.start - part.start, x.stop - part.start), y) for x, y in own]
            over_hosts(total[part], inside)
        self._wait(layout.size)
        views = [
            total[columns].reshape(x.shape)
            for columns, x in zip(layout.columns, tensors, strict=True)
        ]
        if number == _NUM_SUMS:
            return [view.copy() for view in views]
        self._given[number] = [weakref.ref(view) for view in views]
        return views

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
