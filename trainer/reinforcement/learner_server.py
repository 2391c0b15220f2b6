"""The learner's side of its actors, in the chief's process.

Actors send unrolls, and get the newest weights in reply. The replicas of all processes fetch their
parts of a batch: the chief's directly, the others over a connection like an actor's. So a batch is
put together once, in the order of the steps, and all replicas of a step have parts of the same one.
"""

from __future__ import annotations

import hmac
import json
import logging
import secrets
import socket
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from trainer.files import write_atomically
from trainer.protocols import Buffer, Unroll
from trainer.reinforcement.array_messages import receive, send

ADDRESS_FILE = "actors.json"
"""Where the chief listens, in the run directory; it has the password."""

COUNTS = ("frames_generated", "frames_dropped", "frames_lost", "frames_waiting")
"""The frames that have arrived; that were thrown away untrained; that waited in a process that was
ended; and that wait now. Those trained are what is left of the first."""

Part: TypeAlias = list[np.ndarray]
"""One replica's part of a batch, in the order of the names, and the counts."""

_log = logging.getLogger(__name__)
_WAIT_SECS = 0.25


class Closed(Exception):
    """The training is over."""


@dataclass(frozen=True)
class BatchLayout:
    """What is in a batch.

    Attributes:
        names: its arrays, in order; `staleness` is made by the server.
        length: frames in an unroll.
        num_replicas: replicas of all processes.
        per_replica: unrolls on each.
    """

    names: Sequence[str]
    length: int
    num_replicas: int
    per_replica: int

    @property
    def size(self) -> int:
        """Number of unrolls in a batch."""
        return self.num_replicas * self.per_replica


class LearnerServer:
    """Receives unrolls, and hands out batches and weights.

    Args:
        host: the address to listen at, by which other processes reach this one.
    """

    def __init__(
        self,
        run_dir: Path,
        buffer: Buffer,
        layout: BatchLayout,
        *,
        host: str,
    ) -> None:
        self._path = run_dir / ADDRESS_FILE
        self._buffer = buffer
        self._layout = layout
        self._host = host
        self._token = secrets.token_hex(16)
        self._changed = threading.Condition()
        self._listener: socket.socket | None = None
        self._weights: list[np.ndarray] = []
        self._version = 0
        self._next_version = 0
        self._next_step = 0
        self._parts: dict[tuple[int, int], Part] = {}
        self._base = np.zeros(len(COUNTS), np.int64)
        self._generated = 0
        self._over: bool | None = None
        self.arrived_at = time.monotonic()

    def begin(self, step: int, counts: np.ndarray, weights: Sequence[np.ndarray]) -> None:
        """Begin with a training step.

        Args:
            step: number of updates made.
            counts: as in the checkpoint, in the order of `COUNTS`, int64.
        """
        with self._changed:
            self._buffer.begin(self._layout.size)
            self._base = np.array(counts, np.int64)
            self._base[2] += self._base[3]  # what waited then is lost
            self._base[3] = 0
            self._generated = 0
            self._parts.clear()
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

    def part(self, step: int, replica: int, on_wait: Callable[[], None] = lambda: None) -> Part:
        """Return one replica's part of the batch of a step, once; wait until there is one.

        Args:
            replica: the replica's number among all.
            on_wait: called from time to time while there are not enough unrolls.

        Raises:
            Closed: the training is over.
        """
        key = step, replica
        with self._changed:
            while key not in self._parts:
                if self._over is not None:
                    raise Closed
                if step != self._next_step or not self._make_batch():
                    self._changed.wait(_WAIT_SECS)
                    on_wait()
            return self._parts.pop(key)

    def close(self, *, finished: bool) -> None:
        """Tell all actors that the training is over."""
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
        layout = self._layout
        unrolls = self._buffer.take(self._next_step, layout.size)
        if unrolls is None:
            return False
        frames = [self._generated, self._buffer.dropped, 0, self._buffer.waiting]
        counts = self._base + layout.length * np.array(frames, np.int64)
        for replica in range(layout.num_replicas):
            own = unrolls[replica * layout.per_replica : (replica + 1) * layout.per_replica]
            staleness = np.array([self._next_step - x.version for x in own], np.float32)
            part = [
                staleness if name == "staleness" else np.stack([x.arrays[name] for x in own])
                for name in layout.names
            ]
            self._parts[self._next_step, replica] = [*part, counts]
        self._next_step += 1
        self._changed.notify_all()
        return True

    def _listen(self) -> None:
        is_local = self._host == "127.0.0.1"
        self._listener = socket.create_server((self._host if is_local else "", 0))
        port = self._listener.getsockname()[1]
        address = {"host": self._host, "port": port, "token": self._token}
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
            return {}, self.part(header["step"], header["replica"])
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
                while not self._buffer.has_room() and self._over is None:
                    self._changed.wait(_WAIT_SECS)
                if self._over is not None:
                    raise Closed
                self._buffer.add(unroll)
                self._generated += 1
                self.arrived_at = time.monotonic()
                self._changed.notify_all()
