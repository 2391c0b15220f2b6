"""Sums of what processes have in the same columns, in one order, in memory that they share.

A process has a row of that memory, and there are rows for the sums. Where the processes of a host
wait for one another, they also have to share it.
"""

from __future__ import annotations

import itertools
import logging
import mmap
import os
import select
import socket
import struct
import time
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

logger = logging.getLogger(__name__)

_HEADER = struct.Struct("<qqq")
_RANK = struct.Struct("<q")
_CREDENTIALS = struct.Struct("3i")
_ALL = -1  # every bit of a mask


class PeerLostError(ConnectionError):
    """Another process has gone, does not answer, or adds up something else.

    No ValueError: that of a Python function in a graph is taken for one of the user's data.
    """


@dataclass(frozen=True)
class Timeouts:
    """How long a process waits for another one, which may only be compiling.

    Attributes:
        warn_secs: after these a warning names it.
        silent_secs: after these it counts as lost.
        cut_off_secs: after these without an answer its host counts as lost.
    """

    warn_secs: float = 150.0
    silent_secs: float = 600.0
    cut_off_secs: float = 30.0

    def warn(self, names: str) -> None:
        """Warn that this process has waited for others."""
        logger.warning("%s: no message for %g s; this process waits", names, self.warn_secs)


class Rendezvous:
    """Where the processes wait for one another: the first one listens, the others connect.

    Leaves nothing behind.

    Attributes:
        waited_secs: how long this process has waited here for the others.
    """

    def __init__(self, address: str, rank: int, names: Sequence[str], timeouts: Timeouts) -> None:
        self.rank = rank
        self.count = len(names)
        self.waited_secs = 0.0
        self._names = names
        self._timeouts = timeouts
        # No file: a name that starts with a zero byte exists as long as a process listens.
        self._address = f"\0steadfast-{address}"
        self._links: dict[int, socket.socket] = {}
        self._listener = socket.socket(socket.AF_UNIX)
        if rank == 0:
            self._listener.bind(self._address)
            self._listener.listen(self.count)

    def open(self, secs: float) -> None:
        """Connect all within `secs` each; the first must have been created before this.

        Raises:
            PeerLostError: one does not come, or has gone.
        """
        self._listener.settimeout(secs)
        if self.rank:
            try:
                self._listener.connect(self._address)
                self._listener.sendall(_RANK.pack(self.rank))
            except OSError as error:
                raise PeerLostError(f"{self._names[0]} has gone: {error.strerror}") from error
            self._links = {0: self._listener}
        else:
            try:
                while len(self._links) < self.count - 1:
                    self._admit(self._listener.accept()[0], secs)
            except OSError as error:
                missing = [x for i, x in enumerate(self._names) if i and i not in self._links]
                raise PeerLostError(f"{', '.join(missing)} did not connect: {error}") from error
            self._listener.close()
        for link in self._links.values():
            link.settimeout(None)

    def _admit(self, link: socket.socket, secs: float) -> None:
        """Take a process that has connected, unless it is another user's, who can see the name."""
        credentials = link.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
        _, user, _ = _CREDENTIALS.unpack(credentials)
        if user == os.getuid():
            link.settimeout(secs)
            content = link.recv(_RANK.size, socket.MSG_WAITALL)
            if len(content) == _RANK.size:  # else it has gone
                self._links[_RANK.unpack(content)[0]] = link
                return
        link.close()

    def share(self, call: int, num_bytes: int) -> mmap.mmap:
        """Return memory that all processes share, the same for the same `call`."""
        self.wait(call, num_bytes)
        if self.rank:
            _, (memory,), _, _ = socket.recv_fds(self._links[0], 1, 1)
        else:
            memory = os.memfd_create("gradients")
            # Fails now, and not with a bus error later, if there is not enough.
            os.posix_fallocate(memory, 0, num_bytes)
            for link in self._links.values():
                socket.send_fds(link, [b"m"], [memory])
        try:
            return mmap.mmap(memory, num_bytes)
        finally:
            os.close(memory)

    def wait(self, call: int, size: int, mask: int = _ALL) -> int:
        """Wait until all processes have come here with the same call and size.

        Returns:
            The bits that are set in the masks of all processes.

        Raises:
            PeerLostError: one of them is gone, or came with another call or size.
        """
        arrived = time.monotonic()
        own = _HEADER.pack(call, size, mask)
        if self.rank:
            self._send(0, own)
            mask = self._compare(call, size, self._receive(0))
        else:
            others = range(1, self.count)
            for rank in others:
                mask &= self._compare(call, size, self._receive(rank))
            for rank in others:
                self._send(rank, _HEADER.pack(call, size, mask))
        self.waited_secs += time.monotonic() - arrived
        return mask

    def _send(self, rank: int, header: bytes) -> None:
        try:
            self._links[rank].sendall(header)
        except OSError as error:
            raise PeerLostError(f"{self._names[rank]} has gone: {error.strerror}") from error

    def _receive(self, rank: int) -> bytes:
        link, name = self._links[rank], self._names[rank]
        warn_secs, silent_secs = self._timeouts.warn_secs, self._timeouts.silent_secs
        if not _is_readable(link, min(warn_secs, silent_secs)):
            self._timeouts.warn(name)
            if not _is_readable(link, max(0.0, silent_secs - warn_secs)):
                raise PeerLostError(f"{name}: silent for {silent_secs:g} s")
        try:
            received = link.recv(_HEADER.size, socket.MSG_WAITALL)
        except OSError as error:
            raise PeerLostError(f"{name} has gone: {error.strerror}") from error
        if len(received) < _HEADER.size:
            raise PeerLostError(f"{name} has gone")
        return received

    def _compare(self, call: int, size: int, theirs: bytes) -> int:
        """Return the mask of another process that has come with the same call and size."""
        other_call, other_size, mask = _HEADER.unpack(theirs)
        if (call, size) != (other_call, other_size):
            raise PeerLostError(
                f"the processes add up different gradients: number {call} of {size} bytes here, "
                f"number {other_call} of {other_size} there"
            )
        return int(mask)


def _is_readable(link: socket.socket, secs: float) -> bool:
    """Wait until there is something to read, or the end; return whether there is."""
    poll = select.poll()  # not select, which takes no descriptor from 1024 on
    poll.register(link, select.POLLIN)
    return bool(poll.poll(1000 * secs))


AddUp: TypeAlias = Callable[[Sequence[Any], Callable[[Any, Any], Any]], Any]
"""Adds up parts of equal shape, in order, with a function that adds two: see `shard_tree`."""

Pieces: TypeAlias = list[tuple[slice, np.ndarray]]
"""Columns of a row, ascending, each with the float32 numbers that a process has there."""

ALIGNMENT = 16  # float32 numbers: what TensorFlow needs to use memory without copying it
_BLOCK = 1 << 15  # float32 numbers: what several rows have of it stays in the processor's caches
_NUM_SUMS = 2
"""A step reads a sum while the next one is made."""


class SharedRows:
    """The memory of one sum of a step.

    Args:
        rendezvous: of the processes of this host, opened; None: this process is alone.
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

        The results are in the memory itself unless all sums are in use. Such memory is not written
        again as long as one of them is in use.

        Args:
            over_hosts: writes the sum over the hosts of what is in a part into the part.
        """
        # Where TensorFlow can use them as they are.
        starts = itertools.accumulate((_aligned(x.size) for x in tensors), initial=0)
        columns_of = [slice(x, x + y.size) for x, y in zip(starts, tensors, strict=False)]
        size = _aligned(columns_of[-1].stop) if tensors else 0
        pieces = [(x, y.reshape(-1)) for x, y in zip(columns_of, tensors, strict=True)]
        part = slice(0, 0)
        if self._rank < self._num_parts:
            part = part_of(size, self._rank, self._num_parts)
        self._reserve(size)
        row = self._rows[self._rank]
        for others in (slice(0, part.start), slice(part.stop, size)):
            for columns, values in within(pieces, others):
                row[columns] = values
        # All have written: take a free sum, or the one never given away.
        mask = self._wait(size, self._free_rows())
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
        self._wait(size)
        views = [
            total[columns].reshape(x.shape) for columns, x in zip(columns_of, tensors, strict=True)
        ]
        if number == _NUM_SUMS:
            return [view.copy() for view in views]
        self._given[number] = [weakref.ref(view) for view in views]
        return views

    def _free_rows(self) -> int:
        """Return a bit mask of the sums whose views have all been released."""
        return sum(
            1 << number
            for number, views in enumerate(self._given)
            if not any(view() is not None for view in views)
        )

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
        own: not changed, unless it is in `total`.
    """
    buffers = np.empty((2, _BLOCK), np.float32)
    for columns, values in own:
        for start in range(columns.start, columns.stop, _BLOCK):
            block = slice(start, min(start + _BLOCK, columns.stop))
            mine = values[block.start - columns.start : block.stop - columns.start]
            parts = [mine if row is None else row[block] for row in rows]
            _add_block(parts, mine, total[block], buffers[:, : len(mine)], add_up)


def _add_block(
    parts: list[np.ndarray], mine: np.ndarray, total: np.ndarray, buffers: np.ndarray, add_up: AddUp
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
