"""HTTP servers of the tests, each in a thread."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import HTTPServer
from typing import TypeVar

_Server = TypeVar("_Server", bound=HTTPServer)
_POLL_SECS = 0.05


@contextmanager
def running(server: _Server) -> Iterator[_Server]:
    """Run a server while the block lasts."""
    with server:
        thread = threading.Thread(target=server.serve_forever, args=(_POLL_SECS,), daemon=True)
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()
