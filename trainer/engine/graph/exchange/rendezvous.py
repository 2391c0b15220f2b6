"""Where the processes of a host wait for one another, and how they come to share memory."""

from __future__ import annotations

import mmap
import os
import socket
import struct
import time

# A process that compiles keeps the others waiting; one that is stopped should not do so for ever.
SILENT_SECS = 600.0
_HEADER = struct.Struct("<qqq")
_ALL = -1  # every bit of a mask


class PeerLostError(ConnectionError):
    """Another process has gone, or does not answer."""


class Rendezvous:
    """Where the processes wait for one another: the first one listens, the others connect.

    Leaves nothing behind.

    Attributes:
        rank: this process's number among them.
        count: number of processes.
        waited_secs: how long this process has waited here for the others.

    Args:
        name: unique on this machine.
        rank: see above.
        count: see above.
    """

    def __init__(self, name: str, rank: int, count: int) -> None:
        self.rank = rank
        self.count = count
        self.waited_secs = 0.0
        # No file: a name that begins with a zero byte exists as long as a process listens.
        self._address = f"\0steadfast-{name}"
        self._links: list[socket.socket] = []
        self._listener = socket.socket(socket.AF_UNIX)
        if rank == 0:
            self._listener.bind(self._address)
            self._listener.listen(count)

    def open(self) -> None:
        """Connect all; the first process must have been created before any other calls this."""
        if self.rank:
            self._listener.connect(self._address)
            self._links = [self._listener]
        else:
            while len(self._links) < self.count - 1:
                link = self._listener.accept()[0]
                _, user, _ = struct.unpack(
                    "3i",
                    link.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i")),
                )
                if user == os.getuid():
                    self._links.append(link)
                else:
                    link.close()  # other users of this machine can see the name
            self._listener.close()
        for link in self._links:
            link.settimeout(SILENT_SECS)

    def share(self, call: int, num_bytes: int) -> mmap.mmap:
        """Return memory that all processes share, the same for the same `call`."""
        self.wait(call, num_bytes)
        if self.rank:
            _, (memory,), _, _ = socket.recv_fds(self._links[0], 1, 1)
        else:
            memory = os.memfd_create("gradients")
            # Fails now, and not with a bus error later, if there is not enough.
            os.posix_fallocate(memory, 0, num_bytes)
            for link in self._links:
                socket.send_fds(link, [b"m"], [memory])
        try:
            return mmap.mmap(memory, num_bytes)
        finally:
            os.close(memory)

    def wait(self, call: int, size: int, mask: int = _ALL) -> int:
        """Wait until all processes have come here with the same call and size.

        Args:
            call: number of the sum within the step.
            size: its bytes.
            mask: of bits.

        Returns:
            The bits that are set in the masks of all processes.

        Raises:
            PeerLostError: one of them is gone.
            ValueError: one came with another call or size.
        """
        arrived = time.monotonic()
        try:
            if self.rank:
                self._links[0].sendall(_HEADER.pack(call, size, mask))
                mask = self._compare(call, size, self._receive(self._links[0]))
            else:
                for link in self._links:
                    mask &= self._compare(call, size, self._receive(link))
                for link in self._links:
                    link.sendall(_HEADER.pack(call, size, mask))
            self.waited_secs += time.monotonic() - arrived
            return mask
        except OSError as error:
            raise PeerLostError(
                f"another process does not answer: {error or type(error).__name__}"
            ) from error

    def _receive(self, link: socket.socket) -> bytes:
        received = link.recv(_HEADER.size, socket.MSG_WAITALL)
        if len(received) < _HEADER.size:
            raise PeerLostError("another process has gone")
        return received

    def _compare(self, call: int, size: int, theirs: bytes) -> int:
        """Return the mask of another process that has come with the same call and size."""
        other_call, other_size, mask = _HEADER.unpack(theirs)
        if (call, size) != (other_call, other_size):
            raise ValueError(
                f"the processes add up different gradients: number {call} of {size} bytes here, "
                f"number {other_call} of {other_size} there"
            )
        return int(mask)
