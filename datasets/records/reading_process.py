"""One process that reads records for `ReadingProcesses`, until the other end is closed.

No TensorFlow, unless the source needs it.
"""

from __future__ import annotations

import logging
import os
import pickle
import select
import signal
import sys
import threading
from multiprocessing.connection import Connection
from typing import Any

from trainer.datasets.records.record_reader import RecordReader

_LEFT_TO_THE_TRAINER = (
    signal.SIGINT,
    signal.SIGTERM,
    signal.SIGHUP,
    signal.SIGUSR1,
    signal.SIGUSR2,
    signal.SIGQUIT,
)


def main(descriptor: int) -> None:
    """Answer what comes over a connection: first the readers, then numbers of records."""
    for number in _LEFT_TO_THE_TRAINER:
        # Not SIG_IGN, which programs that a source starts would inherit, like a blocked signal.
        signal.signal(number, lambda received, frame: None)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, signal.valid_signals())
    logging.basicConfig(
        level=logging.INFO,
        format="%(asctime)s %(levelname)s %(name)s: %(message)s",
        stream=sys.stderr,
    )
    connection = Connection(descriptor)
    threading.Thread(target=_leave_at_end, args=(descriptor,), daemon=True).start()
    try:
        readers = _readers(connection)
        while True:
            number, rows = pickle.loads(connection.recv_bytes())
            try:
                _answer(connection, None, readers[number].read(rows))
            except ValueError as error:
                _answer(connection, str(error), None)
    except (EOFError, BrokenPipeError, ConnectionResetError):
        pass  # the process that trains has ended


def _readers(connection: Connection) -> list[RecordReader]:
    payload = connection.recv_bytes()
    try:
        readers: list[RecordReader] = pickle.loads(payload)
    except Exception as error:  # whatever the source's module raises
        logging.getLogger(__name__).info("the source cannot be copied", exc_info=True)
        reason = f"{type(error).__name__}: {error}".splitlines()[0]
        _answer(
            connection,
            f"processes: the source cannot be copied to another process: {reason}; set "
            "dataset.processes=0",
            None,
        )
        raise EOFError from None
    _answer(connection, None, None)
    return readers


def _answer(connection: Connection, problem: str | None, value: Any) -> None:
    connection.send_bytes(pickle.dumps((problem, value), pickle.HIGHEST_PROTOCOL))


def _leave_at_end(descriptor: int) -> None:
    """End this process when the other end is closed, also while a record is being read."""
    poll = select.poll()
    poll.register(descriptor, 0)  # no events: the end is always reported
    poll.poll()
    os._exit(0)
