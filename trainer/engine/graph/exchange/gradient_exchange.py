"""Gradient exchanges besides TensorFlow's: shared memory of one machine, and 16-bit compression.

TensorFlow's ring passes everything through gRPC, also between neighbors. With shared memory each
process copies its gradient into its own row of a common file in memory, adds up its share of the
columns, and copies the whole sum out again:

    own row <- gradient       (all wait for all)
    sum of own columns        (all wait for all)
    gradient <- sum

A column is added up in the order of the processes, as the devices of one process are, or in the
order of a tree over shards. So the sum has the same bits everywhere and in every run.
"""

from __future__ import annotations

import itertools
import mmap
import os
import socket
import struct
import time
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias, TypeVar

import numpy as np
import tensorflow as tf

from trainer.engine.graph.exchange.collectives import flat_sum, packed
from trainer.engine.graph.placement.step_devices import on_own_device

_Sums = TypeVar("_Sums")
AddUp: TypeAlias = Callable[[Sequence[Any], Callable[[Any, Any], Any]], Any]

# A process that compiles keeps the others waiting; one that is stopped should not do so for ever.
_SILENT_SECS = 600.0
_HEADER = struct.Struct("<qq")


UNSAVED = "unsaved"
"""A name scope of operations that change variables in no checkpoint."""


class PeerLostError(ConnectionError):
    """Another process has gone, or does not answer."""


class Rendezvous:
    """Where the processes wait for one another: the first one listens, the others connect.

    Leaves nothing behind.

    Attributes:
        rank: this process's number among them.
        count: number of processes.
        waited_secs: how long this process has waited here for the others.

    Args:
        name: unique on this machine.
        rank: see above.
        count: see above.
    """

    def __init__(self, name: str, rank: int, count: int) -> None:
        self.rank = rank
        self.count = count
        self.waited_secs = 0.0
        # No file: a name that begins with a zero byte exists as long as a process listens.
        self._address = f"\0steadfast-{name}"
        self._links: list[socket.socket] = []
        self._listener = socket.socket(socket.AF_UNIX)
        if rank == 0:
            self._listener.bind(self._address)
            self._listener.listen(count)

    def open(self) -> None:
        """Connect all; the first process must have been created before any other calls this."""
        if self.rank:
            self._listener.connect(self._address)
            self._links = [self._listener]
        else:
            while len(self._links) < self.count - 1:
                link = self._listener.accept()[0]
                _, user, _ = struct.unpack(
                    "3i",
                    link.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i")),
                )
                if user == os.getuid():
                    self._links.append(link)
                else:
                    link.close()  # other users of this machine can see the name
            self._listener.close()
        for link in self._links:
            link.settimeout(_SILENT_SECS)

    def share(self, call: int, size: int) -> mmap.mmap:
        """Return memory that all processes share, the same for the same `call`.

        It has `size` bytes for each process, and once more for the sum.
        """
        self.wait(call, size)
        num_bytes = (self.count + 1) * size
        if self.rank:
            _, (memory,), _, _ = socket.recv_fds(self._links[0], 1, 1)
        else:
            memory = os.memfd_create("gradients")
            # Fails now, and not with a bus error later, if there is not enough.
            os.posix_fallocate(memory, 0, num_bytes)
            for link in self._links:
                socket.send_fds(link, [b"m"], [memory])
        try:
            return mmap.mmap(memory, num_bytes)
        finally:
            os.close(memory)

    def wait(self, call: int, size: int) -> None:
        """Wait until all processes have come here with the same call and size.

        Raises:
            PeerLostError: one of them is gone.
            ValueError: one came with another call or size.
        """
        mine = _HEADER.pack(call, size)
        arrived = time.monotonic()
        try:
            if self.rank:
                self._links[0].sendall(mine)
                self._compare(mine, self._receive(self._links[0]))
            else:
                for link in self._links:
                    self._compare(mine, self._receive(link))
                for link in self._links:
                    link.sendall(mine)
            self.waited_secs += time.monotonic() - arrived
        except OSError as error:
            raise PeerLostError(
                f"another process does not answer: {error or type(error).__name__}"
            ) from error

    def _receive(self, link: socket.socket) -> bytes:
        received = link.recv(_HEADER.size, socket.MSG_WAITALL)
        if len(received) < _HEADER.size:
            raise PeerLostError("another process has gone")
        return received

    def _compare(self, mine: bytes, theirs: bytes) -> None:
        if mine != theirs:
            (call, size) = _HEADER.unpack(mine)
            (other_call, other_size) = _HEADER.unpack(theirs)
            raise ValueError(
                f"the processes add up different gradients: number {call} of {size} bytes here, "
                f"number {other_call} of {other_size} there"
            )


class SharedMemory:
    """Sums tensors over the processes; each has one replica, on the CPU.

    Args:
        rendezvous: of all processes, opened.
        add_up: adds up parts of equal shape with a function that adds two: see `shard_tree`.
    """

    def __init__(self, rendezvous: Rendezvous, add_up: AddUp) -> None:
        self._rendezvous = rendezvous
        self._add_up = add_up
        self._calls = 0

    def __call__(
        self,
        replica: tf.distribute.ReplicaContext,
        gradients: list[tf.Tensor],
        others: list[tf.Tensor],
    ) -> tuple[list[tf.Tensor], list[tf.Tensor]]:
        """Sum float32 tensors over the processes; in replica context."""
        self._calls += 1
        tensors = [*gradients, *others]
        sizes = [x.shape.num_elements() for x in tensors]
        buffer = GradientBuffer(self._rendezvous, self._calls, sizes, self._add_up)
        # Not as one flat buffer: the rows are that already, and to pack it would be one more copy.
        summed = tf.numpy_function(buffer.sum, tensors, [tf.float32] * len(tensors))
        for total, tensor in zip(summed, tensors, strict=True):
            total.set_shape(tensor.shape)
        return summed[: len(gradients)], summed[len(gradients) :]


class GradientBuffer:
    """The memory of one sum in the step: a row for each process, and a last one for the sum.

    Args:
        rendezvous: of all processes, opened.
        call: number of the sum within the step.
        sizes: elements of each tensor, float32.
        add_up: see `SharedMemory`.
    """

    def __init__(self, rendezvous: Rendezvous, call: int, sizes: list[int], add_up: AddUp) -> None:
        self._add_up = add_up
        self._rendezvous = rendezvous
        self._call = call
        ends = list(itertools.accumulate(sizes))
        self._slices = [slice(end - size, end) for end, size in zip(ends, sizes, strict=True)]
        self._size = ends[-1]
        self._rows: np.ndarray | None = None

    def sum(self, *tensors: np.ndarray) -> list[np.ndarray]:
        """Return the sums of the tensors over the processes; all of them call this."""
        rendezvous = self._rendezvous
        num_bytes = 4 * self._size
        if self._rows is None:
            memory = rendezvous.share(self._call, num_bytes)
            self._rows = np.frombuffer(memory, np.float32).reshape(rendezvous.count + 1, self._size)
        rows = self._rows[:-1]
        total = self._rows[-1]
        for columns, tensor in zip(self._slices, tensors, strict=True):
            rows[rendezvous.rank, columns] = tensor.ravel()
        rendezvous.wait(self._call, num_bytes)
        share = slice(
            self._size * rendezvous.rank // rendezvous.count,
            self._size * (rendezvous.rank + 1) // rendezvous.count,
        )
        parts = [row[share] for row in rows]
        # Into the left operand, and the row of the sum instead of the first: nothing is allocated.
        self._add_up(
            parts,
            lambda a, b: np.add(a, b, out=total[share] if a is parts[0] else a),
        )
        rendezvous.wait(self._call, num_bytes)
        # A copy: TensorFlow may still be reading it when the next sum is written.
        return [
            total[columns].reshape(tensor.shape).copy()
            for columns, tensor in zip(self._slices, tensors, strict=True)
        ]


_BELOW_OVERFLOW = 2.0**14
"""float16 ends at 2**16; a gradient is scaled to at most twice this, and its sum with it."""

_LEAST_BOUND = 2.0**-100
_EXPONENT = 0x7F800000  # the bits of a float32 that alone make a power of two


class CompressedExchange:
    """Rounds gradients, sums them over the replicas in that type, and returns float32.

    float16 has few exponents, so a gradient is scaled by a power of two before. The scale follows
    from the sum of the replicas' largest values, which no part of the gradient's sum exceeds: it
    travels with the tensors that are not rounded, so nothing is kept from step to step, and a
    gradient that is not finite anywhere is NaN everywhere, for the divergence monitor to see.

    Args:
        dtype: bfloat16 or float16.
    """

    def __init__(self, dtype: tf.DType) -> None:
        self._dtype = dtype

    def __call__(
        self,
        replica: tf.distribute.ReplicaContext,
        gradients: list[tf.Tensor],
        others: list[tf.Tensor],
    ) -> tuple[list[tf.Tensor], list[tf.Tensor]]:
        """Sum float32 tensors over the replicas, only the gradients rounded; in replica context."""
        if self._dtype != tf.float16 or not gradients:
            return packed(gradients, lambda x: self._sum(replica, x)), flat_sum(replica, others)
        largest = [on_own_device(_largest, gradient) for gradient in gradients]
        *exact, bound = flat_sum(replica, [*others, tf.reduce_max(tf.stack(largest))])
        # The power of two of the bound; infinite if the bound is not finite.
        power = tf.bitcast(
            tf.bitwise.bitwise_and(tf.bitcast(bound, tf.int32), _EXPONENT), tf.float32
        )
        scale = _BELOW_OVERFLOW / tf.maximum(power, _LEAST_BOUND)
        return packed(gradients, lambda x: self._sum(replica, x * scale) / scale), exact

    def _sum(self, replica: tf.distribute.ReplicaContext, flat: tf.Tensor) -> tf.Tensor:
        return tf.cast(
            replica.all_reduce(tf.distribute.ReduceOp.SUM, tf.cast(flat, self._dtype)), tf.float32
        )


def _largest(gradient: tf.Tensor) -> tf.Tensor:
    return tf.reduce_max(tf.abs(gradient))


class ExchangeTimer:
    """Adds up the seconds between the moment that tensors are ready and that of their sum.

    It changes no value: clocks are read beside the reduction, and nothing waits for them. On a GPU
    an operation counts as ready when it has been queued, so it is for processes without.

    Args:
        num_replicas: replicas of this process, each of which exchanges its own tensors.
    """

    def __init__(self, num_replicas: int) -> None:
        self._num_replicas = num_replicas
        # Of this process alone, and in no checkpoint.
        self._secs = tf.Variable(0.0, dtype=tf.float64, trainable=False, name="exchange_secs")

    def measure(self, tensors: Sequence[tf.Tensor], exchange: Callable[[], _Sums]) -> _Sums:
        """Return what `exchange` returns, a nest of tensors that needs all of `tensors`."""
        with tf.control_dependencies(tensors):
            ready = tf.timestamp()
        sums = exchange()
        with tf.control_dependencies(tf.nest.flatten(sums)):
            arrived = tf.timestamp()
        with tf.name_scope(UNSAVED):
            self._secs.assign_add(arrived - ready, read_value=False)
        return sums

    def read(self) -> float:
        """Return the seconds so far, the mean over the replicas of this process."""
        return float(self._secs.numpy()) / self._num_replicas
