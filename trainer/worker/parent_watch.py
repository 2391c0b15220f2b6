"""Ends a worker, and removes its files, when its supervisor has ended. No TensorFlow.

A thread of the worker cannot do that: TensorFlow joins a cluster within one call that holds
Python's global lock until all others have joined, an hour if need be, and a stopped process runs no
thread at all. So a small process watches from outside.
"""

from __future__ import annotations

import os
import select
import shutil
import signal
import socket


def watch_parent(connection: socket.socket, scratch: str) -> None:
    """End this process when the one at the other end of a connection ends.

    Call it before this process has threads, or anything else that a fork must not copy, and with
    signals blocked.

    Args:
        connection: its other end belongs to the supervisor alone, and is closed however that ends.
        scratch: a directory that is removed when this process is ended for that reason.
    """
    # Nothing is written: the reading end reports when this process, which alone has the other end,
    # has exited.
    worker_exited, _held_for_life = os.pipe()
    worker = os.getpid()
    if os.fork():
        os.close(worker_exited)
        return
    try:
        os.close(_held_for_life)
        _watch(worker, worker_exited, connection, scratch)
    finally:
        os._exit(0)


def _watch(worker: int, worker_exited: int, connection: socket.socket, scratch: str) -> None:
    # A signal to all processes is a request to the worker to save first.
    signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    null = os.open(os.devnull, os.O_RDWR)
    for stream in range(3):
        os.dup2(null, stream)  # else the worker's output would stay open after its end
    poll = select.poll()
    # No events: the end of a file is always reported.
    poll.register(worker_exited, 0)
    poll.register(connection, 0)
    if worker_exited not in dict(poll.poll()):
        os.kill(worker, signal.SIGKILL)
        os.read(worker_exited, 1)
        shutil.rmtree(scratch, ignore_errors=True)
