"""Connections between processes of different hosts, which prove that they are of the same run.

Every process listens at the address that the cluster names for it, on its own port, and
connects to those before it. Both ends prove with an HMAC that they have the run's token, without
sending it; others are disconnected. What travels afterward is not encrypted.
"""

from __future__ import annotations

import contextlib
import hmac
import os
import selectors
import socket
import struct
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from trainer.engine.graph.exchange.shared_rows import (
    AddUp,
    PeerLostError,
    Pieces,
    Timeouts,
    add_columns,
    part_of,
    within,
)

_MAGIC = b"steadfast exchange 1"
_NONCE_BYTES = 32
_HELLO = struct.Struct(f"<{len(_MAGIC)}sq{_NONCE_BYTES}s")
_PROOF_BYTES = 32
_HANDSHAKE_SECS = 10.0
_LOOK_SECS = 0.2
_CHECK_SECS = 1.0  # between two checks whether a silent peer's host is cut off
_HEADER = struct.Struct("<qq")
_MOST_VECTORS = 512  # in one call of the system
_TCP_INFO = struct.Struct("2xB53xI")  # of Linux: tcpi_retransmits, tcpi_last_ack_recv


@dataclass(eq=False, repr=False)
class PeerLinks:
    """The connections of one process to its peers.

    Attributes:
        waited_secs: how long it has waited for the others to arrive at an exchange.
    """

    rank: int
    names: Sequence[str]
    host: str
    token: bytes
    timeouts: Timeouts

    def __post_init__(self) -> None:
        self.count = len(self.names)
        self.waited_secs = 0.0
        self._received: list[Any] = []
        self._links: dict[int, socket.socket] = {}
        self._calls = 0
        family = socket.getaddrinfo(self.host, None)[0][0]
        backlog = max(1, self.count)
        self._listener = socket.create_server((self.host, 0), family=family, backlog=backlog)
        self.port: int = self._listener.getsockname()[1]

    def open(self, addresses: Mapping[int, tuple[str, int]], secs: float) -> None:
        """Connect all peers; each of them calls this.

        Args:
            addresses: host and port of each peer before this one, by rank.

        Raises:
            PeerLostError: a peer could not be reached, or did not come; names it.
        """
        deadline = time.monotonic() + secs
        arrivals = _Arrivals(self._listener, self.rank, self.count, self.token)
        try:
            for rank in range(self.rank):
                self._links[rank] = self._connect(rank, addresses[rank], deadline)
            self._links |= arrivals.wait(deadline)
        finally:
            arrivals.close()
        here = {self.rank, *self._links}
        if missing := [name for i, name in enumerate(self.names) if i not in here]:
            raise PeerLostError(f"{', '.join(missing)} did not connect within {secs:g} s")
        for link in self._links.values():
            link.setblocking(False)
            _keep_alive(link, self.timeouts.cut_off_secs)

    def all_reduce(self, total: Any, own: Pieces, add_up: AddUp) -> None:
        """Write the sum over all peers into a contiguous float32 vector.

        Each peer gets its part of all vectors, adds them up in the order of the peers, and sends
        the sum to all: 2 (n - 1) messages of 1/n of the vector, as few bytes as are possible
        (Patarasuk and Yuan 2009), and one order of additions for all elements.

        Args:
            own: what this peer has in its columns, sent from where it is, or in `total` itself.
                All peers have the same columns; what is in others is undefined.

        Raises:
            PeerLostError: a peer has gone, is silent or adds up another vector; `total` has an
                undefined content.
        """
        parts = [part_of(len(total), rank, self.count) for rank in range(self.count)]
        part = parts[self.rank]
        mine = [(slice(x.start - part.start, x.stop - part.start), y) for x, y in within(own, part)]
        rows = self._buffers(part.stop - part.start)
        self._exchange(
            len(total),
            {rank: [y for _, y in within(own, parts[rank])] for rank in self._links},
            {rank: [rows[rank][x] for x, _ in mine] for rank in self._links},
        )
        ordered = [None if rank == self.rank else rows[rank] for rank in range(self.count)]
        add_columns(ordered, mine, total[part], add_up)
        self._exchange(
            len(total),
            {rank: [total[part]] for rank in self._links},
            {rank: [total[parts[rank]]] for rank in self._links},
        )

    def _buffers(self, size: int) -> dict[int, Any]:
        """Return what is received into, for each peer; kept, for new memory is slow at first."""
        if not self._received or len(self._received[0]) < size:
            self._received = [np.empty(size, np.float32) for _ in self._links]
        rows = [row[:size] for row in self._received]
        return dict(zip(self._links, rows, strict=True))

    def close(self) -> None:
        """Close all connections; from any thread: an exchange that is under way fails."""
        self._listener.close()
        for link in self._links.values():
            with contextlib.suppress(OSError):
                link.shutdown(socket.SHUT_RDWR)

    def _connect(self, rank: int, address: tuple[str, int], deadline: float) -> socket.socket:
        name = self.names[rank]
        problem: Exception | None = None
        while (left := deadline - time.monotonic()) > 0:
            try:
                link = socket.create_connection(address, min(left, _HANDSHAKE_SECS))
                _prove(link, self.token, self.rank, rank, is_caller=True)
                return link
            except (OSError, ValueError) as error:
                problem = error
                time.sleep(_LOOK_SECS)
        raise PeerLostError(
            f"{name} at {address[0]}:{address[1]} cannot be reached: {problem}; let the hosts "
            "connect on all ports, or add strategy.communication=ring"
        )

    def _exchange(
        self, size: int, outgoing: Mapping[int, list[Any]], incoming: Mapping[int, list[Any]]
    ) -> None:
        """Send parts of a vector to each peer while others are received from each."""
        self._calls += 1
        header = _HEADER.pack(self._calls, size)
        began = time.monotonic()
        transfers = {
            rank: _Transfer(link, header, outgoing[rank], incoming[rank])
            for rank, link in self._links.items()
        }
        with selectors.DefaultSelector() as selector:
            for rank, transfer in transfers.items():
                selector.register(transfer.link, transfer.events(), rank)
            while selector.get_map():
                ready = self._wait(selector)
                for key, events in ready:
                    self._advance(selector, transfers[key.data], key.data, events)
        self.waited_secs += max((x.met_at for x in transfers.values()), default=began) - began

    def _wait(self, selector: selectors.BaseSelector) -> list[tuple[selectors.SelectorKey, int]]:
        warn_secs, silent_secs = self.timeouts.warn_secs, self.timeouts.silent_secs
        began = time.monotonic()
        is_late = False
        while (waited := time.monotonic() - began) < silent_secs:
            if ready := selector.select(min(_CHECK_SECS, silent_secs - waited)):
                return ready
            for rank in [key.data for key in selector.get_map().values()]:
                if _is_cut_off(self._links[rank], self.timeouts.cut_off_secs):
                    raise PeerLostError(f"{self.names[rank]} has gone: its host is cut off")
            if not is_late and waited >= warn_secs:
                is_late = True
                self.timeouts.warn(self._awaited(selector))
        raise PeerLostError(f"{self._awaited(selector)}: silent for {silent_secs:g} s")

    def _awaited(self, selector: selectors.BaseSelector) -> str:
        return ", ".join(self.names[key.data] for key in selector.get_map().values())

    def _advance(
        self, selector: selectors.BaseSelector, transfer: _Transfer, rank: int, events: int
    ) -> None:
        try:
            if events & selectors.EVENT_WRITE:
                transfer.send()
            if events & selectors.EVENT_READ:
                transfer.receive()
        except BlockingIOError:
            return  # it was not ready after all
        except OSError as error:
            if isinstance(error, PeerLostError):
                raise
            reason = error.strerror or str(error)
            raise PeerLostError(f"{self.names[rank]} has gone: {reason}") from error
        wanted = transfer.events()
        if not wanted:
            selector.unregister(transfer.link)
        elif wanted != selector.get_key(transfer.link).events:
            selector.modify(transfer.link, wanted, rank)


class _Transfer:
    """Vectors to a peer, and others from it, both after the same header."""

    def __init__(
        self, link: socket.socket, header: bytes, outgoing: list[Any], incoming: list[Any]
    ) -> None:
        self.link = link
        self.met_at = 0.0
        out, into = ([memoryview(x).cast("B") for x in some] for some in (outgoing, incoming))
        self._expected = header
        self._header = bytearray(_HEADER.size)
        self._out = [memoryview(header), *out]
        self._into = [memoryview(self._header), *into]
        self._num_into = len(into)

    def events(self) -> int:
        """Return what the transfer waits for; 0: it is over."""
        return selectors.EVENT_WRITE * bool(self._out) | selectors.EVENT_READ * bool(self._into)

    def send(self) -> None:
        """Send what the socket takes."""
        count = self.link.sendmsg(self._out[:_MOST_VECTORS])
        self._out = _without(self._out, count)

    def receive(self) -> None:
        """Receive what has come."""
        count, *_ = self.link.recvmsg_into(self._into[:_MOST_VECTORS])
        if count == 0:
            raise ConnectionResetError("it has closed the connection")
        self._into = _without(self._into, count)
        if self.met_at or len(self._into) > self._num_into:
            return
        self.met_at = time.monotonic()
        if bytes(self._header) != self._expected:
            mine, theirs = _HEADER.unpack(self._expected), _HEADER.unpack(self._header)
            raise PeerLostError(
                f"the processes add up different vectors: number {mine[0]} of {mine[1]} elements "
                f"here, number {theirs[0]} of {theirs[1]} there"
            )


class _Arrivals:
    """Accepts only the peers of this process."""

    def __init__(self, listener: socket.socket, rank: int, count: int, token: bytes) -> None:
        self._listener = listener
        self._rank = rank
        self._awaited = count - rank - 1
        self._token = token
        self._links: dict[int, socket.socket] = {}
        self._changed = threading.Condition()
        self._is_closed = False
        listener.settimeout(_LOOK_SECS)
        self._thread = threading.Thread(target=self._accept, daemon=True, name="peers")
        self._thread.start()

    def wait(self, deadline: float) -> dict[int, socket.socket]:
        """Return the connections when all have come, or those that have by the deadline."""
        with self._changed:
            self._changed.wait_for(
                lambda: len(self._links) == self._awaited, deadline - time.monotonic()
            )
            return dict(self._links)

    def close(self) -> None:
        """Accept no more."""
        self._is_closed = True
        self._thread.join()
        self._listener.close()

    def _accept(self) -> None:
        while not self._is_closed:
            try:
                link, _ = self._listener.accept()
            except TimeoutError:
                continue
            except OSError:
                time.sleep(_LOOK_SECS)  # too many open files, until strangers are disconnected
                continue
            # A thread for each: one that connects and sends nothing must not keep the others out.
            with contextlib.suppress(RuntimeError):  # too many: the connection is closed
                threading.Thread(target=self._admit, args=(link,), daemon=True).start()

    def _admit(self, link: socket.socket) -> None:
        try:
            link.settimeout(_HANDSHAKE_SECS)
            rank = _prove(link, self._token, self._rank, None, is_caller=False)
        except (OSError, ValueError):
            link.close()
            return
        with self._changed:
            self._links[rank] = link
            self._changed.notify_all()


def _prove(
    link: socket.socket, token: bytes, rank: int, peer: int | None, *, is_caller: bool
) -> int:
    """Prove to have the token, and have the other end prove it; return its rank.

    Each end sends its rank and a number that was never used, then an HMAC over both numbers, its
    own role first: so no proof can be sent back, or used a second time.
    """
    link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    own = _HELLO.pack(_MAGIC, rank, os.urandom(_NONCE_BYTES))
    link.sendall(own)
    other = _receive(link, _HELLO.size)
    magic, other_rank, _ = _HELLO.unpack(other)
    if magic != _MAGIC or (peer is not None and other_rank != peer) or other_rank == rank:
        raise ValueError("it is no peer of this run")
    roles = (b"caller", b"listener") if is_caller else (b"listener", b"caller")
    hellos = own + other if is_caller else other + own
    link.sendall(hmac.digest(token, roles[0] + hellos, "sha256"))
    expected = hmac.digest(token, roles[1] + hellos, "sha256")
    if not hmac.compare_digest(_receive(link, _PROOF_BYTES), expected):
        raise ConnectionRefusedError("it does not have the token of the run")
    return int(other_rank)


def _keep_alive(link: socket.socket, secs: float) -> None:
    """Have an idle connection fail when the other host does not answer for so long."""
    interval = max(1, int(secs) // 5)
    link.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    link.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, interval)
    link.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, interval)
    link.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 4)


def _is_cut_off(link: socket.socket, secs: float) -> bool:
    """Return whether what was sent has not been acknowledged for so long.

    TCP_USER_TIMEOUT would also end the connection to a host that answers, but whose process does
    not read: it may be compiling.
    """
    info = link.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO.size)
    retransmits, last_ack_msecs = _TCP_INFO.unpack(info)
    return retransmits > 0 and last_ack_msecs >= 1000 * secs


def _receive(link: socket.socket, size: int) -> bytes:
    content = b""
    while len(content) < size:
        more = link.recv(size - len(content))
        if not more:
            raise ConnectionResetError("it has closed the connection")
        content += more
    return content


def _without(parts: list[memoryview], count: int) -> list[memoryview]:
    while parts and count >= len(parts[0]):
        count -= len(parts[0])
        parts = parts[1:]
    return [parts[0][count:], *parts[1:]] if parts else []
