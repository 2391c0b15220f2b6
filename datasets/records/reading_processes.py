"""Processes that read records, for sources whose Python code is slower than a step.

Python runs one thread at a time, so threads make such a source no faster. The records of a batch
are divided among the processes and put together by their places: which process reads a record
changes nothing. No TensorFlow, unless the source needs it.
"""

from __future__ import annotations

import functools
import logging
import multiprocessing
import os
import pickle
import signal
import threading
from collections.abc import Iterable, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool

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


class ReadingProcesses:
    """Reads records in several processes, which start at the first use and end with this one.

    If one ends, all are replaced, and the records are read again, one by one; a record that ends
    another process too is an error.
    """

    def __init__(self, readers: Sequence[RecordReader], count: int) -> None:
        """Take the readers, of which each process gets a copy.

        Raises:
            ValueError: a source cannot be pickled.
        """
        self._names = [reader.name for reader in readers]
        self._content = _pickled(readers)
        self._count = count
        self._pool = self._start(count)
        self._replacing = threading.Lock()

    def read(self, number: int, rows: np.ndarray) -> Records:
        """Return what `RecordReader.read` of the reader `number` returns; safe for threads.

        Raises:
            ValueError: as it does; or a record ends the processes that read it.
        """
        pool = self._pool
        parts = [part for part in np.array_split(rows, self._count) if len(part)]
        try:
            return _joined(map(_result, [pool.submit(_read, number, part) for part in parts]))
        except BrokenProcessPool:
            name = self._names[number]
            logger.warning("a process that read records of %s ended; it is replaced", name)
        with self._replacing:
            if self._pool is pool:
                self._pool = self._start(self._count)
        return self._read_singly(number, rows)

    def _read_singly(self, number: int, rows: np.ndarray) -> Records:
        with self._start(1) as alone:
            results = []
            for row in rows:
                try:
                    results.append(_result(alone.submit(_read, number, np.array([row]))))
                except BrokenProcessPool:
                    raise ValueError(
                        f"{self._names[number]}: the process that read record {row} ended, for the "
                        "second time; does reading it need too much memory, or crash?"
                    ) from None
            return _joined(results)

    def _start(self, count: int) -> ProcessPoolExecutor:
        # Not forked: TensorFlow's threads would be missing.
        spawn = multiprocessing.get_context("spawn")
        return ProcessPoolExecutor(count, spawn, initializer=_begin, initargs=(self._content,))


def _result(future: Future[Records]) -> Records:
    try:
        return future.result()
    except ValueError as error:
        raise ValueError(str(error)) from None  # the traceback is in the log


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


_content = b""


def _begin(content: bytes) -> None:
    """Prepare a process that reads; it ends with the one that has started it."""
    global _content
    _content = content
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


def _end_with_parent() -> None:
    if (parent := multiprocessing.parent_process()) is not None:
        parent.join()
    os._exit(0)


@functools.cache
def _readers() -> list[RecordReader]:
    try:
        readers: list[RecordReader] = pickle.loads(_content)
    except Exception as error:  # any exception of the source's module
        logger.info("the source cannot be copied", exc_info=True)
        raise ValueError(
            "processes: the source cannot be copied to another process: "
            f"{type(error).__name__}: {first_line(error)}; set dataset.processes=0"
        ) from None
    return readers


def _read(number: int, rows: np.ndarray) -> Records:
    return _readers()[number].read(rows)
