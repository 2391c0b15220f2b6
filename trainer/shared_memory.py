"""Gradients of several processes of one machine, added up in memory that they share.

TensorFlow's ring passes everything through gRPC, also between neighbours. Here each process copies its gradient into its own
row of a common file in memory, adds up its share of the columns, and copies the whole sum out again:

    my row <- mine          (all wait for all)
    sum of my columns       (all wait for all)
    mine <- sum

A column is added up in the order of the processes, so the sum has the same bits everywhere and in every run.
"""

from __future__ import annotations

import itertools
import mmap
import os
import socket
import struct

import numpy as np
import tensorflow as tf

_SILENT_SECS = 600.0  # a process that compiles keeps the others waiting; one that is stopped should not do so for ever
_HEADER = struct.Struct("<qq")


class PeerLostError(ConnectionError):
    """Another process has gone, or does not answer."""


class Meeting:
    """Where the processes wait for one another: the first one listens, the others connect. Leaves nothing behind.

    Args:
        name: a name that no other meeting of this machine has.
        rank: this process's number among them.
        count: how many they are.
    """

    def __init__(self, name: str, rank: int, count: int) -> None:
        self.rank, self.count = rank, count
        # No file: a name beginning with a zero byte exists as long as somebody listens.
        self._address = f"\0steadfast-{name}"
        self._links: list[socket.socket] = []
        self._listener = socket.socket(socket.AF_UNIX)
        if rank == 0:
            self._listener.bind(self._address)
            self._listener.listen(count)

    def open(self) -> None:
        """Connects all; the first process must have been made before any other comes here."""
        if self.rank:
            self._listener.connect(self._address)
            self._links = [self._listener]
        else:
            while len(self._links) < self.count - 1:
                link = self._listener.accept()[0]
                _, user, _ = struct.unpack("3i", link.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i")))
                if user == os.getuid():
                    self._links.append(link)
                else:
                    link.close()  # a stranger: other users of this machine can see the name
            self._listener.close()
        for link in self._links:
            link.settimeout(_SILENT_SECS)

    def share(self, call: int, size: int) -> mmap.mmap:
        """Gives memory that all processes share, `size` bytes for each and once more; the same for the same `call`."""
        self.wait(call, size)
        num_bytes = (self.count + 1) * size
        if self.rank:
            _, (memory,), _, _ = socket.recv_fds(self._links[0], 1, 1)
        else:
            memory = os.memfd_create("gradients")
            os.posix_fallocate(memory, 0, num_bytes)  # now, and not as a bus error later, if there is not enough
            for link in self._links:
                socket.send_fds(link, [b"m"], [memory])
        try:
            return mmap.mmap(memory, num_bytes)
        finally:
            os.close(memory)

    def wait(self, call: int, size: int) -> None:
        """Returns when all processes have come here with the same call and size.

        Raises:
            PeerLostError: one of them is gone.
            ValueError: one came with something else.
        """
        mine = _HEADER.pack(call, size)
        try:
            if self.rank:
                self._links[0].sendall(mine)
                self._compare(mine, self._receive(self._links[0]))
                return
            for link in self._links:
                self._compare(mine, self._receive(link))
            for link in self._links:
                link.sendall(mine)
        except OSError as error:
            raise PeerLostError(f"another process does not answer: {error or type(error).__name__}") from error

    def _receive(self, link: socket.socket) -> bytes:
        received = link.recv(_HEADER.size, socket.MSG_WAITALL)
        if len(received) < _HEADER.size:
            raise PeerLostError("another process has gone")
        return received

    def _compare(self, mine: bytes, theirs: bytes) -> None:
        if mine != theirs:
            (call, size), (other_call, other_size) = _HEADER.unpack(mine), _HEADER.unpack(theirs)
            raise ValueError(
                f"the processes add up different gradients: number {call} of {size} bytes here, number {other_call} of {other_size} there"
            )


class SharedMemory:
    """Sums tensors over the processes; each has one replica, on the CPU.

    Args:
        meeting: of all processes, opened.
    """

    def __init__(self, meeting: Meeting) -> None:
        self._meeting, self._calls = meeting, 0

    def __call__(
        self, replica: tf.distribute.ReplicaContext, gradients: list[tf.Tensor], others: list[tf.Tensor]
    ) -> tuple[list[tf.Tensor], list[tf.Tensor]]:
        """Sums float32 tensors over the processes; in replica context."""
        self._calls += 1
        tensors = [*gradients, *others]
        table = _Table(self._meeting, self._calls, [x.shape.num_elements() for x in tensors])
        # Not as one flat buffer: the rows are that already, and putting it together here would be a copy more.
        summed = tf.numpy_function(table.sum, tensors, [tf.float32] * len(tensors))
        for total, mine in zip(summed, tensors, strict=True):
            total.set_shape(mine.shape)
        return summed[: len(gradients)], summed[len(gradients) :]


class _Table:
    """The rows of one place in the step where tensors are added up, and a last row for their sum.

    Args:
        call: number of the place.
        sizes: elements of each tensor, float32.
    """

    def __init__(self, meeting: Meeting, call: int, sizes: list[int]) -> None:
        self._meeting, self._call = meeting, call
        ends = list(itertools.accumulate(sizes))
        self._places = [slice(end - size, end) for end, size in zip(ends, sizes, strict=True)]
        self._size = ends[-1]
        self._rows: np.ndarray | None = None

    def sum(self, *tensors: np.ndarray) -> list[np.ndarray]:
        meeting, num_bytes = self._meeting, 4 * self._size
        if self._rows is None:
            memory = meeting.share(self._call, num_bytes)
            self._rows = np.frombuffer(memory, np.float32).reshape(meeting.count + 1, self._size)
        rows, total = self._rows[:-1], self._rows[-1]
        for place, tensor in zip(self._places, tensors, strict=True):
            rows[meeting.rank, place] = tensor.ravel()
        meeting.wait(self._call, num_bytes)
        columns = slice(self._size * meeting.rank // meeting.count, self._size * (meeting.rank + 1) // meeting.count)
        np.add(rows[0, columns], rows[1, columns], out=total[columns])
        for row in rows[2:]:
            total[columns] += row[columns]
        meeting.wait(self._call, num_bytes)
        # A copy: TensorFlow may still be reading it when the next sum is written.
        return [total[place].reshape(tensor.shape).copy() for place, tensor in zip(self._places, tensors, strict=True)]
