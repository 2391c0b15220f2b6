"""Ports: which are in use here, and whether a process listens at an address."""

from __future__ import annotations

import errno
import socket
from contextlib import ExitStack

_TIMEOUT_SECS = 1.0


def connect(address: str, timeout_secs: float = _TIMEOUT_SECS) -> None:
    """Connect to an address and hang up.

    Args:
        address: host:port; an IPv6 host in brackets.

    Raises:
        OSError: no process listens there, or it cannot be reached.
    """
    host, _, port = address.rpartition(":")
    socket.create_connection((host.strip("[]"), int(port)), timeout_secs).close()


def is_listening(address: str) -> bool:
    """Return whether a process accepts connections at an address, host:port."""
    try:
        connect(address)
    except OSError:
        return False
    return True


def is_in_use(port: int) -> bool:
    """Return whether a process of this machine listens at a port, on any interface."""
    for family in (socket.AF_INET, socket.AF_INET6):
        try:
            with socket.socket(family) as probe:
                # A connection that has ended occupies its port for a minute more; that is no
                # obstacle, TensorFlow binds with this option too.
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                probe.bind(("", port))
        except OSError as error:
            # Any other error means that the machine lacks this family, such as IPv6.
            if error.errno == errno.EADDRINUSE:
                return True
    return False


def free_port() -> int:
    """Return a port that is free at this moment on every interface."""
    with socket.socket() as probe:
        probe.bind(("", 0))
        return int(probe.getsockname()[1])


def free_addresses(count: int) -> list[str]:
    """Return addresses of 127.0.0.1 with different ports that are free at this moment."""
    addresses = []
    with ExitStack() as stack:
        # All are open together, so that no port is chosen twice.
        for _ in range(count):
            probe = stack.enter_context(socket.socket())
            probe.bind(("127.0.0.1", 0))
            addresses.append(f"127.0.0.1:{probe.getsockname()[1]}")
    return addresses
