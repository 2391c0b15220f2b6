"""A process that writes the checkpoints of a chief, forked by `trainer.worker.forking`.

It has the lowest priority: what it takes of a processor is what the training leaves.
"""

from __future__ import annotations

import os
import socket
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

from trainer.errors import DONE
from trainer.runs.state_memory import StateMemory
from trainer.worker import process

_LOWEST_PRIORITY = 19


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

    os.nice(_LOWEST_PRIORITY)
    with suppress(OSError):  # where Linux shares processors among sessions, not among processes
        Path("/proc/self/autogroup").write_text(str(_LOWEST_PRIORITY))
    os.environ["CUDA_VISIBLE_DEVICES"] = "-1"
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    _, (memory, _lock), _, _ = socket.recv_fds(connection, 1, 2)
    serve(connection, StateMemory(memory))
    os._exit(DONE)
