"""Processes that read records, for sources whose Python code is slower than a step.

Python runs one thread at a time, so threads make such a source no faster. The records of a batch
are shared out among the processes and put together by their places: which process reads a record
changes nothing. No TensorFlow, unless the source needs it.
"""

from __future__ import annotations

import logging
import os
import pickle
import queue
import select
import signal
import socket
import subprocess
import sys
import threading
import weakref
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

from trainer.datasets.records.fields import RecordReader
from trainer.text import first_line

logger = logging.getLogger(__name__)

_PROGRAM = (
    "import sys; sys.path[:] = sys.argv[2:]; "
    "from trainer.datasets.records.reading_processes import answer; answer(int(sys.argv[1]))"
)
_LEFT_TO_THE_TRAINER = (
    signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2, signal.SIGQUIT
)  # fmt: skip


class _LostError(Exception):
    """A process has ended; the message says how."""


class ReadingProcesses:
    """Reads records in several processes, which start at the first use and end with this one.

    A process that ends is replaced, and its records are read again, one by one; a record that ends
    the next process too is an error.
    """

    def __init__(self, readers: Sequence[RecordReader], count: int) -> None:
        """Take the readers, of which each process gets a copy.

        Raises:
            ValueError: a source cannot be pickled.
        """
        self._names = [reader.name for reader in readers]
        self._payload = _pickled(readers)
        self._idle: queue.SimpleQueue[_Process | None] = queue.SimpleQueue()
        for _ in range(count):
            self._idle.put(None)  # not started
        self._count = count
        self._threads = ThreadPoolExecutor(count, "read-records")
        self._processes: set[_Process] = set()
        weakref.finalize(self, _end_all, self._processes)

    def read(self, number: int, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return what `RecordReader.read` of the reader `number` returns; safe for threads.

        Raises:
            ValueError: as it does; or a record ends the processes that read it.
        """
        parts = [part for part in np.array_split(rows, self._count) if len(part)]
        return _joined(list(self._threads.map(lambda part: self._read_part(number, part), parts)))

    def _read_part(self, number: int, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        try:
            return self._ask(number, rows)
        except _LostError as error:
            logger.warning(
                "a process that read %d records of %s %s; it is replaced",
                len(rows),
                self._names[number],
                error,
            )
        results = []
        for row in rows:
            try:
                results.append(self._ask(number, np.array([row])))
            except _LostError as error:
                raise ValueError(
                    f"{self._names[number]}: the process that read record {row} {error}, for the "
                    "second time; does reading it need too much memory, or crash?"
                ) from None
        return _joined(results)

    def _ask(self, number: int, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        process = self._idle.get()
        try:
            process = process or self._start()
            return process.ask(pickle.dumps((number, rows)))
        except _LostError:
            process = None
            raise
        finally:
            self._idle.put(process)

    def _start(self) -> _Process:
        process = _Process()
        self._processes.add(process)
        try:
            process.ask(self._payload)
        except ValueError:
            process.end()
            raise
        return process


class _Process:
    """A process that reads records, with this end of a connection to it."""

    def __init__(self) -> None:
        ours, theirs = socket.socketpair()
        # Whatever a terminal or a scheduler sends to all processes is for the one that trains: it
        # saves first, and needs records until then.
        blocked = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        try:
            self._process = subprocess.Popen(
                # Reading needs no accelerator. If the source imports TensorFlow, that would take
                # the memory of all of them.
                [
                    *("env", "CUDA_VISIBLE_DEVICES=-1", sys.executable, "-c", _PROGRAM),
                    *(str(theirs.fileno()), *sys.path),
                ],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=2,  # a source that prints does so into the log
            )
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
            theirs.close()
        self._connection = Connection(ours.detach())

    def ask(self, message: bytes) -> Any:
        try:
            self._connection.send_bytes(message)
            problem, value = pickle.loads(self._connection.recv_bytes())
        except (EOFError, OSError):
            self._connection.close()
            code = self._process.wait()
            how = f"was ended by signal {-code}" if code < 0 else f"ended with exit code {code}"
            raise _LostError(how) from None
        if problem is not None:
            raise ValueError(problem)
        return value

    def end(self) -> None:
        self._process.kill()
        self._process.wait()


def _joined(results: list[tuple[np.ndarray, np.ndarray]]) -> tuple[np.ndarray, np.ndarray]:
    features, labels = zip(*results, strict=True)
    return np.concatenate(features), np.concatenate(labels)


def _end_all(processes: set[_Process]) -> None:
    for process in list(processes):
        with suppress(OSError):
            process.end()


def _pickled(readers: Sequence[RecordReader]) -> bytes:
    for reader in readers:
        try:
            pickle.dumps(reader.source)
        except Exception as error:  # any exception of an object
            raise ValueError(
                f"processes ({reader.name}, a {type(reader.source).__name__}) cannot be copied to "
                f"other processes: {first_line(error)}; open files in __getitem__, or set "
                "dataset.processes=0"
            ) from None
    return pickle.dumps(list(readers))


def answer(descriptor: int) -> None:
    """Answer what comes over a connection, until its other end is closed.

    The readers come first, then pairs of a reader's number and the numbers of records.
    """
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

    def reply(problem: str | None, value: Any = None) -> None:
        connection.send_bytes(pickle.dumps((problem, value), pickle.HIGHEST_PROTOCOL))

    # Until the process that trains has ended.
    with suppress(EOFError, BrokenPipeError, ConnectionResetError):
        payload = connection.recv_bytes()
        try:
            readers: list[RecordReader] = pickle.loads(payload)
        except Exception as error:  # any exception of the source's module
            logger.info("the source cannot be copied", exc_info=True)
            reason = f"{type(error).__name__}: {error}".splitlines()[0]
            reply(
                f"processes: the source cannot be copied to another process: {reason}; set "
                "dataset.processes=0"
            )
            return
        reply(None)
        while True:
            number, rows = pickle.loads(connection.recv_bytes())
            try:
                reply(None, readers[number].read(rows))
            except ValueError as error:
                reply(str(error))


def _leave_at_end(descriptor: int) -> None:
    """End this process when the other end is closed, also while a record is being read."""
    poll = select.poll()
    poll.register(descriptor, 0)  # no events: the end is always reported
    poll.poll()
    os._exit(0)
