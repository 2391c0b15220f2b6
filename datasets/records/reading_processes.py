"""Processes that read records, for sources whose Python code is slower than a step.

Python runs one thread at a time, so threads make such a source no faster. The records of a batch
are shared out among the processes and put together by their places: which process reads a record
changes nothing.
"""

from __future__ import annotations

import logging
import pickle
import queue
import signal
import socket
import subprocess
import sys
import weakref
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

from trainer.datasets.records.record_reader import RecordReader

logger = logging.getLogger(__name__)

_PROGRAM = (
    "import sys; sys.path[:] = sys.argv[2:]; "
    "from trainer.datasets.records.reading_process import main; main(int(sys.argv[1]))"
)


class _LostError(Exception):
    """A process has ended; the message says how."""


class ReadingProcesses:
    """Reads records in several processes, which start at the first use and end with this one.

    A process that ends is replaced, and its records are read again, one by one; a record that ends
    the next process too is an error.
    """

    def __init__(self, readers: Sequence[RecordReader], count: int) -> None:
        """Take the readers.

        Args:
            readers: each process gets a copy of them.
            count: of the processes.

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
        results = list(self._threads.map(lambda part: self._read_part(number, part), parts))
        features, labels = zip(*results, strict=True)
        return np.concatenate(features), np.concatenate(labels)

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
        features, labels = zip(*results, strict=True)
        return np.concatenate(features), np.concatenate(labels)

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
        """Send a message, and return the answer.

        Raises:
            ValueError: the answer is a problem.
            _LostError: the process has ended.
        """
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
        """End the process."""
        self._process.kill()
        self._process.wait()


def _end_all(processes: set[_Process]) -> None:
    for process in list(processes):
        with suppress(OSError):
            process.end()


def _pickled(readers: Sequence[RecordReader]) -> bytes:
    for reader in readers:
        try:
            pickle.dumps(reader.source)
        except Exception as error:  # whatever an object raises
            reason = (str(error).strip() or type(error).__name__).splitlines()[0]
            raise ValueError(
                f"processes ({reader.name}, a {type(reader.source).__name__}) cannot be copied to "
                f"other processes: {reason}; open files in __getitem__, or set dataset.processes=0"
            ) from None
    return pickle.dumps(list(readers))
