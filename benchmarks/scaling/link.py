"""The machine's bandwidth: one of two processes that exchange bytes, and then copy them.

python -m benchmarks.scaling.link <rank> <address of the first> <descriptor>

Link: both send and receive the same number of bytes at once, over one TCP connection, as
neighbors in a ring do. Memory: both copy, each on its own core.
"""

from __future__ import annotations

import socket
import sys
import time
from collections.abc import Callable
from functools import partial
from multiprocessing.connection import Connection
from threading import Thread

import numpy as np

SIZE = 8 * 2**20  # of a gradient's order, and beyond the processor's caches
CHUNK = 2**18  # at a time: the fastest of those that were tried
REPEATS = 30


def connected(parent: Connection, rank: int, address: str) -> socket.socket:
    """Connect the two; the first listens."""
    if rank == 0:
        with socket.create_server((address, 0)) as server:
            parent.send(server.getsockname()[1])
            parent.recv()
            return server.accept()[0]
    parent.send(None)
    return socket.create_connection((address, parent.recv()))


def rate(move: Callable[[], object]) -> float:
    """Return the highest rate, in bytes a second, at which `move` moves `SIZE` bytes: a bound."""
    secs = []
    for _ in range(REPEATS):
        begin = time.perf_counter()
        move()
        secs.append(time.perf_counter() - begin)
    return SIZE / min(secs)


def exchange(peer: socket.socket, ours: memoryview, theirs: memoryview) -> None:
    """Send `ours` while it receives `theirs`."""
    sending = Thread(
        target=lambda: [
            peer.sendall(ours[start : start + CHUNK]) for start in range(0, len(ours), CHUNK)
        ]
    )
    sending.start()
    while theirs:
        theirs = theirs[peer.recv_into(theirs, min(CHUNK, len(theirs))) :]
    sending.join()


def main() -> None:
    rank = int(sys.argv[1])
    parent = Connection(int(sys.argv[3]))
    ours = np.ones(SIZE, np.uint8)
    theirs = np.zeros(SIZE, np.uint8)
    with connected(parent, rank, sys.argv[2]) as peer:
        both = partial(exchange, peer, memoryview(ours), memoryview(theirs))
        both()
        parent.send({"link": rate(both), "memory": rate(partial(np.copyto, theirs, ours))})
        parent.recv()


if __name__ == "__main__":
    main()
