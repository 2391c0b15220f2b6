"""A proxy before a server that cuts, stalls and refuses connections, by a seed."""

import random
import socket
import threading
from contextlib import closing, contextmanager, suppress

_REFUSAL = b"HTTP/1.1 503 Slow Down\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
_CHUNK = 4096


class FaultyProxy:
    """Passes connections on to a port of this machine.

    Attributes:
        port: where it listens.
        faults: how many of each kind there were.
        is_faulty: whether it still makes faults.
    """

    def __init__(self, target, seed):
        self._target = target
        self._chance = random.Random(seed)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self.faults = {"refused": 0, "stalled": 0, "request cut": 0, "answer cut": 0}
        self.is_faulty = True

    @contextmanager
    def serving(self):
        """Serve while the block lasts."""
        thread = threading.Thread(target=self._serve, daemon=True)
        thread.start()
        try:
            yield self
        finally:
            self._listener.shutdown(socket.SHUT_RDWR)
            self._listener.close()
            thread.join(60)

    def _serve(self):
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            kind = self._chance.choice([*self.faults, *[None] * 6]) if self.is_faulty else None
            limit = self._chance.randrange(1, 60_000)
            threading.Thread(target=self._pass, args=(client, kind, limit), daemon=True).start()

    def _pass(self, client, kind, limit):
        if kind is not None:
            self.faults[kind] += 1
        with closing(client):
            if kind == "refused":
                with suppress(OSError):
                    client.recv(_CHUNK)
                    client.sendall(_REFUSAL)
                return
            if kind == "stalled":
                with suppress(OSError):
                    while client.recv(_CHUNK):  # until the client gives up
                        pass
                return
            with closing(socket.create_connection(("127.0.0.1", self._target))) as server:
                up = limit if kind == "request cut" else None
                down = limit // 20 if kind == "answer cut" else None
                back = threading.Thread(target=_copy, args=(server, client, down), daemon=True)
                back.start()
                _copy(client, server, up)
                back.join(60)


def _copy(source, target, limit):
    """Copy bytes, at most `limit`; then end both connections."""
    with suppress(OSError):
        while limit is None or limit > 0:
            data = source.recv(_CHUNK if limit is None else min(_CHUNK, limit))
            if not data:
                break
            target.sendall(data)
            limit = None if limit is None else limit - len(data)
    for end in (source, target):
        with suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)
