"""The connection between a learner, its actors, and the other processes that train.

The chief's process is the server. Actors send unrolls, and get the newest weights in reply. The
replicas of all processes fetch their shards of a batch: the chief's directly, the others over a
connection like an actor's. So a batch is put together once, in the order of the steps, and all
replicas of a step have shards of the same one.

A message is a header in JSON, then the bytes of arrays: nothing of it is executed.
"""

from __future__ import annotations

import hmac
import json
import logging
import math
import secrets
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from trainer.files import read_text, write_atomically
from trainer.protocols import Buffer, Unroll

ADDRESS_FILE = "actors.json"
"""Where the chief listens, in the run directory; it has the password."""

COUNTS = ("frames_generated", "frames_dropped", "frames_lost", "frames_waiting")
"""The frames that have arrived; that were dropped untrained; that waited in a process that was
ended; and that wait now. Those trained are what is left of the first."""

Shard: TypeAlias = list[np.ndarray]
"""One replica's shard of a batch, in the order of the names, and the counts."""

_log = logging.getLogger(__name__)
_LENGTH = struct.Struct("!Q")
_MAX_HEADER_BYTES = 1 << 20
_MAX_BYTES = 1 << 34
_WAIT_SECS = 0.25
_LOST_IN_A_ROW = 3
_CONNECT_SECS = 5.0


class Closed(Exception):
    """The training is over."""


class Finished(Closed):
    """The training has reached its end."""


@dataclass(eq=False, repr=False)
class LearnerServer:
    """Receives unrolls, and sends batches and weights.

    Attributes:
        names: the arrays in a batch, in order; `staleness` is made here.
        per_replica: unrolls on each.
        host: the address to listen at, by which other processes reach this one.
    """

    run_dir: Path
    buffer: Buffer
    _: KW_ONLY
    names: Sequence[str]
    length: int
    num_replicas: int
    per_replica: int
    host: str

    def __post_init__(self) -> None:
        self._path = self.run_dir / ADDRESS_FILE
        self._token = secrets.token_hex(16)
        self._changed = threading.Condition()
        self._listener: socket.socket | None = None
        self._weights: list[np.ndarray] = []
        self._version = 0
        self._next_version = 0
        self._next_step = 0
        self._shards: dict[tuple[int, int], Shard] = {}
        self._base = np.zeros(len(COUNTS), np.int64)
        self._generated = 0
        self._over: bool | None = None
        self.arrived_at = time.monotonic()

    def begin(self, step: int, counts: np.ndarray, weights: Sequence[np.ndarray]) -> None:
        """Begin after `step` updates; `counts`, int64, are those of the checkpoint."""
        with self._changed:
            self.buffer.begin(self.num_replicas * self.per_replica)
            self._base = np.array(counts, np.int64)
            self._base[2] += self._base[3]  # what waited then is lost
            self._base[3] = 0
            self._generated = 0
            self._shards.clear()
            self._next_step = step
            self._next_version = step  # the first step publishes the same weights again
            self._set_weights(step, weights)
            self._changed.notify_all()
        if self._listener is None:
            self._listen()

    def publish(self, *weights: np.ndarray) -> None:
        """Take the weights before the next step; called once a step.

        They are kept, not copied, and must not be changed later: an update whose variable still
        shares its memory with them allocates new memory.
        """
        with self._changed:
            self._set_weights(self._next_version, weights)
            self._next_version += 1

    def shard(self, step: int, replica: int, on_wait: Callable[[], None] = lambda: None) -> Shard:
        """Return one replica's shard of the batch of a step, once; wait until there is one.

        Raises:
            Closed: the training is over.
        """
        key = step, replica
        with self._changed:
            while key not in self._shards:
                if self._over is not None:
                    raise Closed
                if step != self._next_step or not self._make_batch():
                    self._changed.wait(_WAIT_SECS)
                    on_wait()
            return self._shards.pop(key)

    def close(self, *, finished: bool) -> None:
        """Notify all actors that the training is over."""
        with self._changed:
            self._over = finished
            self._changed.notify_all()
        if self._listener is not None:
            self._path.unlink(missing_ok=True)
            self._listener.close()

    def _set_weights(self, version: int, weights: Sequence[np.ndarray]) -> None:
        self._version = version
        self._weights = list(weights)

    def _make_batch(self) -> bool:
        """Make the batch of the next step, if there are enough unrolls."""
        size = self.per_replica
        unrolls = self.buffer.take(self._next_step, self.num_replicas * size)
        if unrolls is None:
            return False
        frames = [self._generated, self.buffer.dropped, 0, self.buffer.waiting]
        counts = self._base + self.length * np.array(frames, np.int64)
        for replica in range(self.num_replicas):
            own = unrolls[replica * size : (replica + 1) * size]
            staleness = np.array([self._next_step - x.version for x in own], np.float32)
            shard = [
                staleness if name == "staleness" else np.stack([x.arrays[name] for x in own])
                for name in self.names
            ]
            self._shards[self._next_step, replica] = [*shard, counts]
        self._next_step += 1
        self._changed.notify_all()
        return True

    def _listen(self) -> None:
        is_local = self.host == "127.0.0.1"
        self._listener = socket.create_server((self.host if is_local else "", 0))
        port = self._listener.getsockname()[1]
        address = {"host": self.host, "port": port, "token": self._token}
        write_atomically(self._path, json.dumps(address), mode=0o600)
        threading.Thread(target=self._accept, args=(self._listener,), daemon=True).start()

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return  # closed
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        """Answer one process until it or the training is gone."""
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with connection, suppress(OSError):
            try:
                hello, _ = receive(connection, max_bytes=0)
                if not hmac.compare_digest(str(hello.get("token")), self._token):
                    return
                while True:
                    header, arrays = receive(connection)
                    send(connection, *self._answer(header, arrays))
            except Closed:
                send(connection, {"over": True, "finished": self._over})
            except (ValueError, KeyError, TypeError) as error:
                _log.warning("a malformed message: %s", error)

    def _answer(
        self, header: dict[str, Any], arrays: list[np.ndarray]
    ) -> tuple[dict[str, Any], Sequence[np.ndarray]]:
        if "replica" in header:
            return {}, self.shard(header["step"], header["replica"])
        if arrays:
            self._add(dict(zip(header["names"], arrays, strict=True)), header["version"])
        with self._changed:
            if self._over is not None:
                raise Closed
            is_new = header["version"] != self._version
            return {"version": self._version}, self._weights if is_new else ()

    def _add(self, arrays: dict[str, np.ndarray], version: int) -> None:
        """Add the unrolls of an actor, [E, T, ...]; wait while there is no room."""
        for number in range(len(arrays["reward"])):
            unroll = Unroll({name: array[number] for name, array in arrays.items()}, version)
            with self._changed:
                while not self.buffer.has_room() and self._over is None:
                    self._changed.wait(_WAIT_SECS)
                if self._over is not None:
                    raise Closed
                self.buffer.add(unroll)
                self._generated += 1
                self.arrived_at = time.monotonic()
                self._changed.notify_all()


class LearnerClient:
    """A connection to the learner, opened again whenever it is lost.

    Args:
        on_wait: called from time to time while it waits; may raise an error to end the wait.
    """

    def __init__(self, run_dir: Path, on_wait: Callable[[], None]) -> None:
        self._path = run_dir / ADDRESS_FILE
        self._on_wait = on_wait
        self._connection: socket.socket | None = None
        self._lost_in_a_row = 0

    @property
    def is_connected(self) -> bool:
        """Whether there is a connection, as far as messages show."""
        return self._connection is not None

    def exchange(
        self, unrolls: Mapping[str, np.ndarray], version: int
    ) -> tuple[int, Sequence[np.ndarray]]:
        """Send unrolls, and return what there is of newer weights.

        Args:
            unrolls: name -> [E, T, ...]; empty before the first.
            version: that of the weights, -1 before the first.

        Returns:
            The newest version, and its weights; none if they are those of `version`.

        Raises:
            Closed: the training is over.
        """
        names = list(unrolls)
        # Where the connection is lost the unrolls are too: another learner may have begun at an
        # earlier step.
        while True:
            connection = self._connected()
            request = {"names": names, "version": version}
            try:
                send(connection, request, list(unrolls.values()), self._on_wait)
                header, weights = receive(connection, self._on_wait)
            except OSError as error:
                self.close()
                self._on_wait()
                self._count_lost(unrolls, error)
                time.sleep(_WAIT_SECS)
                names, unrolls, version = [], {}, -1
                continue
            _check(header)
            self._lost_in_a_row = 0 if unrolls else self._lost_in_a_row
            return header["version"], weights

    def shard(self, step: int, replica: int) -> Shard:
        """Return one replica's shard of the batch of a step.

        Raises:
            Closed: the training is over.
            OSError: the chief is gone.
        """
        connection = self._connected()
        send(connection, {"step": step, "replica": replica}, on_wait=self._on_wait)
        header, shard = receive(connection, self._on_wait)
        _check(header)
        return shard

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
        self._connection = None

    def _count_lost(self, unrolls: Mapping[str, np.ndarray], error: OSError) -> None:
        """Warn of unrolls that are lost again and again; a learner that restarts loses one."""
        self._lost_in_a_row += bool(unrolls)
        if unrolls and self._lost_in_a_row % _LOST_IN_A_ROW == 0:
            _log.warning(
                "the last %d messages of unrolls did not reach the learner (%s); is the network "
                "between them sound?",
                self._lost_in_a_row,
                error,
            )

    def _connected(self) -> socket.socket:
        """Return the connection; wait until the chief listens."""
        while self._connection is None:
            try:
                self._connection = _connect(json.loads(read_text(self._path)))
            except (OSError, ValueError):  # it has not begun to listen, or it is gone
                self._on_wait()
                time.sleep(_WAIT_SECS)
        return self._connection


def _connect(address: Mapping[str, Any]) -> socket.socket:
    connection = socket.create_connection((address["host"], address["port"]), _CONNECT_SECS)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.settimeout(_WAIT_SECS)
    send(connection, {"token": address["token"]})
    return connection


def _check(header: Mapping[str, Any]) -> None:
    if header.get("over"):
        raise Finished if header["finished"] else Closed


def send(
    connection: socket.socket,
    header: Mapping[str, Any],
    arrays: Sequence[np.ndarray] = (),
    on_wait: Callable[[], None] = lambda: None,
) -> None:
    """Send a header and arrays, however long the other process takes to read them.

    Args:
        on_wait: called after each timeout of the socket; may raise an error to end the wait.

    Raises:
        OSError: the other process is gone.
    """
    contiguous = [np.ascontiguousarray(array) for array in arrays]
    described = [[array.dtype.str, array.shape] for array in arrays]
    content = json.dumps({**header, "arrays": described}).encode()
    buffers = [memoryview(_LENGTH.pack(len(content)) + content)]
    buffers += [array.data.cast("B") for array in contiguous if array.size]
    with _whole_or_closed(connection):
        for buffer in buffers:
            while buffer:
                try:
                    buffer = buffer[connection.send(buffer) :]
                except TimeoutError:
                    on_wait()


def receive(
    connection: socket.socket,
    on_wait: Callable[[], None] = lambda: None,
    max_bytes: int = _MAX_BYTES,
) -> tuple[dict[str, Any], list[np.ndarray]]:
    """Return the header and the arrays of the next message; `on_wait` as of `send`.

    Args:
        max_bytes: the most bytes of all arrays together.

    Raises:
        OSError: the other process is gone.
        ValueError: this is no message.
    """
    with _whole_or_closed(connection):
        (length,) = _LENGTH.unpack(_read(connection, _LENGTH.size, on_wait))
        if length > _MAX_HEADER_BYTES:
            raise ValueError(f"a header of {length} bytes is too long")
        header = json.loads(bytes(_read(connection, length, on_wait)))
        kinds = [(np.dtype(name), tuple(shape)) for name, shape in header.pop("arrays")]
        size = sum(dtype.itemsize * math.prod(shape) for dtype, shape in kinds)
        if size > max_bytes or any(dtype.hasobject for dtype, _ in kinds):
            raise ValueError(f"arrays of {size} bytes cannot be received")
        arrays = [
            np.frombuffer(
                _read(connection, dtype.itemsize * math.prod(shape), on_wait), dtype
            ).reshape(shape)
            for dtype, shape in kinds
        ]
        return header, arrays


@contextmanager
def _whole_or_closed(connection: socket.socket) -> Iterator[None]:
    """Close a connection after an error: the rest of a message would be taken for the next one."""
    try:
        yield
    except BaseException:
        connection.close()
        raise


def _read(connection: socket.socket, size: int, on_wait: Callable[[], None]) -> bytearray:
    content = bytearray(size)
    view = memoryview(content)
    while view:
        try:
            count = connection.recv_into(view)
        except TimeoutError:
            on_wait()
            continue
        if count == 0:
            raise ConnectionResetError("the other process is gone")
        view = view[count:]
    return content
