"""Where the processes of a host wait for one another, and how they come to share memory."""

from __future__ import annotations

import logging
import mmap
import os
import select
import socket
import struct
import time
from collections.abc import Sequence
from dataclasses import dataclass

logger = logging.getLogger(__name__)

_HEADER = struct.Struct("<qqq")
_RANK = struct.Struct("<q")
_CREDENTIALS = struct.Struct("3i")
_ALL = -1  # every bit of a mask


class PeerLostError(ConnectionError):
    """Another process has gone, does not answer, or adds up something else.

    No ValueError: that of a Python function in a graph is taken for one of the user's data.
    """


@dataclass(frozen=True)
class Timeouts:
    """How long a process waits for another one, which may only be compiling.

    Attributes:
        warn_secs: after these a warning names it.
        silent_secs: after these it counts as lost.
        cut_off_secs: after these without an answer its host counts as lost.
    """

    warn_secs: float = 150.0
    silent_secs: float = 600.0
    cut_off_secs: float = 30.0

    def warn(self, names: str) -> None:
        """Warn that this process has waited for others."""
        logger.warning("%s: not heard of for %g s; this process waits", names, self.warn_secs)


class Rendezvous:
    """Where the processes wait for one another: the first one listens, the others connect.

    Leaves nothing behind.

    Attributes:
        waited_secs: how long this process has waited here for the others.

    Args:
        address: unique on this machine.
    """

    def __init__(self, address: str, rank: int, names: Sequence[str], timeouts: Timeouts) -> None:
        self.rank = rank
        self.count = len(names)
        self.waited_secs = 0.0
        self._names = names
        self._timeouts = timeouts
        # No file: a name that begins with a zero byte exists as long as a process listens.
        self._address = f"\0steadfast-{address}"
        self._links: dict[int, socket.socket] = {}
        self._listener = socket.socket(socket.AF_UNIX)
        if rank == 0:
            self._listener.bind(self._address)
            self._listener.listen(self.count)

    def open(self, secs: float) -> None:
        """Connect all; the first process must have been created before any other calls this.

        Args:
            secs: how long the first one waits for each of the others.

        Raises:
            PeerLostError: one does not come, or has gone.
        """
        self._listener.settimeout(secs)
        if self.rank:
            try:
                self._listener.connect(self._address)
                self._listener.sendall(_RANK.pack(self.rank))
            except OSError as error:
                raise PeerLostError(f"{self._names[0]} has gone: {error.strerror}") from error
            self._links = {0: self._listener}
        else:
            try:
                while len(self._links) < self.count - 1:
                    self._admit(self._listener.accept()[0], secs)
            except OSError as error:
                missing = [x for i, x in enumerate(self._names) if i and i not in self._links]
                raise PeerLostError(f"{', '.join(missing)} did not connect: {error}") from error
            self._listener.close()
        for link in self._links.values():
            link.settimeout(None)

    def _admit(self, link: socket.socket, secs: float) -> None:
        """Take a process that has connected, unless it is another user's, who can see the name."""
        credentials = link.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
        _, user, _ = _CREDENTIALS.unpack(credentials)
        if user == os.getuid():
            link.settimeout(secs)
            content = link.recv(_RANK.size, socket.MSG_WAITALL)
            if len(content) == _RANK.size:  # else it has gone
                self._links[_RANK.unpack(content)[0]] = link
                return
        link.close()

    def share(self, call: int, num_bytes: int) -> mmap.mmap:
        """Return memory that all processes share, the same for the same `call`."""
        self.wait(call, num_bytes)
        if self.rank:
            _, (memory,), _, _ = socket.recv_fds(self._links[0], 1, 1)
        else:
            memory = os.memfd_create("gradients")
            # Fails now, and not with a bus error later, if there is not enough.
            os.posix_fallocate(memory, 0, num_bytes)
            for link in self._links.values():
                socket.send_fds(link, [b"m"], [memory])
        try:
            return mmap.mmap(memory, num_bytes)
        finally:
            os.close(memory)

    def wait(self, call: int, size: int, mask: int = _ALL) -> int:
        """Wait until all processes have come here with the same call and size.

        Args:
            call: number of the sum within the step.

        Returns:
            The bits that are set in the masks of all processes.

        Raises:
            PeerLostError: one of them is gone, or came with another call or size.
        """
        arrived = time.monotonic()
        own = _HEADER.pack(call, size, mask)
        if self.rank:
            self._send(0, own)
            mask = self._compare(call, size, self._receive(0))
        else:
            others = range(1, self.count)
            for rank in others:
                mask &= self._compare(call, size, self._receive(rank))
            for rank in others:
                self._send(rank, _HEADER.pack(call, size, mask))
        self.waited_secs += time.monotonic() - arrived
        return mask

    def _send(self, rank: int, header: bytes) -> None:
        try:
            self._links[rank].sendall(header)
        except OSError as error:
            raise PeerLostError(f"{self._names[rank]} has gone: {error.strerror}") from error

    def _receive(self, rank: int) -> bytes:
        link, name = self._links[rank], self._names[rank]
        warn_secs, silent_secs = self._timeouts.warn_secs, self._timeouts.silent_secs
        if not _is_readable(link, min(warn_secs, silent_secs)):
            self._timeouts.warn(name)
            if not _is_readable(link, max(0.0, silent_secs - warn_secs)):
                raise PeerLostError(f"{name}: silent for {silent_secs:g} s")
        try:
            received = link.recv(_HEADER.size, socket.MSG_WAITALL)
        except OSError as error:
            raise PeerLostError(f"{name} has gone: {error.strerror}") from error
        if len(received) < _HEADER.size:
            raise PeerLostError(f"{name} has gone")
        return received

    def _compare(self, call: int, size: int, theirs: bytes) -> int:
        """Return the mask of another process that has come with the same call and size."""
        other_call, other_size, mask = _HEADER.unpack(theirs)
        if (call, size) != (other_call, other_size):
            raise PeerLostError(
                f"the processes add up different gradients: number {call} of {size} bytes here, "
                f"number {other_call} of {other_size} there"
            )
        return int(mask)


def _is_readable(link: socket.socket, secs: float) -> bool:
    """Wait until there is something to read, or the end; return whether there is."""
    poll = select.poll()  # not select, which takes no descriptor from 1024 on
    poll.register(link, select.POLLIN)
    return bool(poll.poll(1000 * secs))
