"""A process that writes the checkpoints of a chief, forked by `trainer.worker.forking`."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import NoReturn, TypeVar

from trainer.errors import DONE
from trainer.runs.state_memory import StateMemory
from trainer.worker import process

_LOWEST_PRIORITY = 19
_CROWDED = 2.0
"""The load of each processor above which other programs compute too.

What waits for them at the lowest priority waits long, and the next save for it.
"""
_Result = TypeVar("_Result")


def prepare() -> None:
    """Import what takes seconds."""
    process.prepare()


def work(connection: socket.socket, began: float) -> NoReturn:
    """Write what the chief asks for, until it ends.

    Args:
        connection: to the chief; the first message has the descriptors of its memory, and of the
            lock of the run, which is held as long as this process writes.
        began: Unix time when this process was asked for.
    """
    import tensorflow as tf

    from trainer.engine.checkpoints.file_writer import serve

    tf.config.set_visible_devices([], "GPU")  # they are the chief's
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    _, (memory, _lock), _, _ = socket.recv_fds(connection, 1, 2)
    serve(connection, StateMemory(memory), LowPriority())
    os._exit(DONE)


class LowPriority:
    """Calls functions with the lowest priority, unless the machine is crowded."""

    def __init__(self) -> None:
        # A thread of its own: none may raise its priority again.
        self._thread = ThreadPoolExecutor(1, initializer=_lower_priority)

    def __call__(self, function: Callable[[], _Result]) -> _Result:
        """Return what a function returns."""
        is_crowded = os.getloadavg()[0] > _CROWDED * (os.cpu_count() or 1)
        with suppress(OSError):  # where Linux shares processors among sessions, not among threads
            Path("/proc/self/autogroup").write_text("0" if is_crowded else str(_LOWEST_PRIORITY))
        return function() if is_crowded else self._thread.submit(function).result()


def _lower_priority() -> None:
    os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _LOWEST_PRIORITY)
