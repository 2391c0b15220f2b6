"""The side of an actor, or of another worker, of the chief's `LearnerServer`."""

from __future__ import annotations

import json
import logging
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from trainer.files import read_text
from trainer.reinforcement.array_messages import receive, send
from trainer.reinforcement.learner_server import ADDRESS_FILE, Closed, Part

_log = logging.getLogger(__name__)
_WAIT_SECS = 0.25
_LOST_IN_A_ROW = 3
_CONNECT_SECS = 5.0


class Finished(Closed):
    """The training has reached its end."""


class LearnerClient:
    """A connection to the learner, made anew whenever it is lost.

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
        """Whether there is a connection, as far as it is known."""
        return self._connection is not None

    def exchange(
        self, unrolls: Mapping[str, np.ndarray], version: int
    ) -> tuple[int, Sequence[np.ndarray]]:
        """Send unrolls, and return what there is of newer weights.

        Args:
            unrolls: name -> [E, T, ...]; empty: there are none yet.
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

    def part(self, step: int, replica: int) -> Part:
        """Return one replica's part of the batch of a step.

        Raises:
            Closed: the training is over.
            OSError: the chief is gone.
        """
        connection = self._connected()
        send(connection, {"step": step, "replica": replica}, on_wait=self._on_wait)
        header, part = receive(connection, self._on_wait)
        _check(header)
        return part

    def close(self) -> None:
        """Close the connection."""
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
