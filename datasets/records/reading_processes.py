"""Processes that read records, for sources whose Python code is slower than a step.

Python runs one thread at a time, so threads make such a source no faster. The records of a batch
are divided among the processes and put together by their places: which process reads a record
changes nothing. No TensorFlow, unless the source needs it.
"""

from __future__ import annotations

import logging
import multiprocessing
import os
import pickle
import queue
import signal
import threading
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

from trainer.datasets.records.fields import RecordReader
from trainer.text import first_line

logger = logging.getLogger(__name__)

Records = tuple[np.ndarray, np.ndarray]
_FOR_THE_TRAINER = (
    signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2, signal.SIGQUIT
)  # fmt: skip
"""Signals that a terminal or a scheduler sends to all processes; that of the training saves first,
and needs records until then."""


class _LostError(Exception):
    """A process has ended."""


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
        self._content = _pickled(readers)
        self._idle: queue.SimpleQueue[_Process | None] = queue.SimpleQueue()
        for _ in range(count):
            self._idle.put(None)  # not started
        self._count = count
        self._threads = ThreadPoolExecutor(count, "read-records")

    def read(self, number: int, rows: np.ndarray) -> Records:
        """Return what `RecordReader.read` of the reader `number` returns; safe for threads.

        Raises:
            ValueError: as it does; or a record ends the processes that read it.
        """
        parts = [part for part in np.array_split(rows, self._count) if len(part)]
        return _joined(self._threads.map(lambda part: self._read_part(number, part), parts))

    def _read_part(self, number: int, rows: np.ndarray) -> Records:
        name = self._names[number]
        try:
            return self._read(number, rows)
        except _LostError:
            logger.warning("a process that read records of %s ended; it is replaced", name)
        results = []
        for row in rows:
            try:
                results.append(self._read(number, np.array([row])))
            except _LostError:
                raise ValueError(
                    f"{name}: the process that read record {row} ended, for the second time; does "
                    "reading it need too much memory, or crash?"
                ) from None
        return _joined(results)

    def _read(self, number: int, rows: np.ndarray) -> Records:
        process = self._idle.get()
        try:
            process = process or _Process(self._content)
            return process.read(number, rows)
        except _LostError:
            process = None
            raise
        finally:
            self._idle.put(process)


class _Process:
    def __init__(self, content: bytes) -> None:
        # Not forked: TensorFlow's threads would be missing.
        spawn = multiprocessing.get_context("spawn")
        self._connection, theirs = spawn.Pipe()
        spawn.Process(target=_answer, args=(theirs, content), daemon=True).start()
        theirs.close()

    def read(self, number: int, rows: np.ndarray) -> Records:
        try:
            self._connection.send((number, rows))
            problem, records = self._connection.recv()
        except (EOFError, OSError):
            raise _LostError from None
        if problem is not None:
            raise ValueError(problem)
        result: Records = records
        return result


def _joined(results: Iterable[Records]) -> Records:
    features, labels = zip(*results, strict=True)
    return np.concatenate(features), np.concatenate(labels)


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


def _answer(connection: Connection, content: bytes) -> None:
    """Answer pairs of a reader's number and the numbers of records, until the trainer ends."""
    # Reading needs no accelerator. If the source imports TensorFlow, that would take the memory of
    # all of them.
    os.environ["CUDA_VISIBLE_DEVICES"] = "-1"
    os.dup2(2, 1)  # a source that prints does so into the log
    for number in _FOR_THE_TRAINER:
        # Not SIG_IGN, which programs that a source starts would inherit, like a blocked signal.
        signal.signal(number, lambda received, frame: None)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, signal.valid_signals())
    logging.basicConfig(
        level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )
    threading.Thread(target=_end_with_parent, daemon=True).start()
    readers: list[RecordReader] = []
    with suppress(EOFError, OSError):
        while True:
            number, rows = connection.recv()
            try:
                readers = readers or _loaded(content)
                answer: Any = None, readers[number].read(rows)
            except ValueError as error:
                answer = str(error), None
            connection.send(answer)


def _end_with_parent() -> None:
    if (parent := multiprocessing.parent_process()) is not None:
        parent.join()
    os._exit(0)


def _loaded(content: bytes) -> list[RecordReader]:
    try:
        readers: list[RecordReader] = pickle.loads(content)
    except Exception as error:  # any exception of the source's module
        logger.info("the source cannot be copied", exc_info=True)
        raise ValueError(
            "processes: the source cannot be copied to another process: "
            f"{type(error).__name__}: {first_line(error)}; set dataset.processes=0"
        ) from None
    return readers
