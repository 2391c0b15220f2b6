"""Processes of one host that wait for one another, played by threads."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

from trainer.engine.graph.exchange.rendezvous import Patience, Rendezvous


@contextmanager
def opened(count: int, name: str) -> Iterator[list[Rendezvous]]:
    """Yield the opened rendezvous of as many processes."""
    address = f"test-{threading.get_native_id()}-{name}"
    names = [f"worker-{rank}" for rank in range(count)]
    members = [Rendezvous(address, rank, names, Patience(1.0, 30.0)) for rank in range(count)]
    with ThreadPoolExecutor(count) as pool:
        list(pool.map(lambda member: member.open(10.0), members))
    yield members
    for member in members:
        close(member)


def close(member: Rendezvous) -> None:
    """Close the links of a process, as when it ends."""
    for link in member._links.values():
        link.shutdown(socket.SHUT_RDWR)
