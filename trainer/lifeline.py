"""No worker outlives its supervisor, and leaves no files when it goes with it. No TensorFlow.

A thread of the worker cannot promise that: TensorFlow joins a cluster within one call that keeps Python's lock until all others have
come, an hour if need be, and a stopped process runs no thread at all. So a small process watches from outside.
"""

from __future__ import annotations

import os
import select
import shutil
import signal
import socket


def tie(connection: socket.socket, scratch: str) -> None:
    """Ties the life of this process to that of the one at the other end of a connection.

    To be called before this process has threads, or anything else that a fork must not copy, and with signals held back.

    Args:
        connection: its other end is the supervisor's alone, and is closed when that ends, however it ends.
        scratch: a directory that is removed when this process is ended because its supervisor has gone.
    """
    # Nobody writes: the reading end tells when this process, who alone has the other, has ended.
    ended, _held_for_life = os.pipe()
    worker = os.getpid()
    if os.fork():
        os.close(ended)
        return
    try:
        os.close(_held_for_life)
        _watch(worker, ended, connection, scratch)
    finally:
        os._exit(0)


def _watch(worker: int, ended: int, connection: socket.socket, scratch: str) -> None:
    signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())  # whoever stops all processes wants the worker to save first
    silence = os.open(os.devnull, os.O_RDWR)
    for stream in range(3):
        os.dup2(silence, stream)  # else the worker's output would not end with it
    poll = select.poll()
    poll.register(ended, 0)  # the end of a file is told unasked, and nothing else is of interest
    poll.register(connection, 0)
    if ended not in dict(poll.poll()):
        os.kill(worker, signal.SIGKILL)
        os.read(ended, 1)
        shutil.rmtree(scratch, ignore_errors=True)
