"""A WebHDFS server in this process: the files of a name node and a data node in memory.

It speaks the part of the REST API
(https://hadoop.apache.org/docs/stable/hadoop-project-dist/hadoop-hdfs/WebHDFS.html) that
`trainer.runs.hdfs_store` uses. Every change is atomic. A rename does not replace a file, and moves
into a folder that exists. An upload that is cut leaves what has arrived.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, quote, unquote, urlsplit

from tests.support.http_servers import running

_NAME_NODE = "/webhdfs/v1"
_DATA_NODE = "/data-node"

LOST = "lost"
"""A fault: the request is carried out, and its answer lost."""
CUT = "cut"
"""A fault of WRITE: the connection ends in the middle of the upload."""

HALF = "half"
"""A fault of WRITE: half of the content is kept, and nothing said of it."""

Fault = str | tuple[int, str] | None
"""LOST, CUT, HALF, or status and exception of the answer: then nothing is carried out."""


class HdfsServer(ThreadingHTTPServer):
    """A tree of files.

    Attributes:
        files: path -> content.
        folders: the paths of the folders; the root is not among them.
        before: called with operation and path before a request is carried out; returns its fault.
            The operations of the data node are WRITE and READ.
        users: who has sent requests.
    """

    daemon_threads = True
    request_queue_size = 64  # with the 5 of the library, clients that come at once are refused

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.files: dict[str, bytes] = {}
        self.folders: set[str] = set()
        self.before: Callable[[str, str], Fault] = lambda operation, path: None
        self.users: set[str] = set()
        self.mutex = threading.Lock()

    @property
    def address(self) -> str:
        """The address of the root."""
        return f"hdfs://127.0.0.1:{self.server_port}"

    def write(self, path: str, content: bytes) -> None:
        parent = path.rpartition("/")[0]
        self.files[path] = content
        while parent:
            self.folders.add(parent)
            parent = parent.rpartition("/")[0]

    def rename(self, source: str, target: str) -> bool:
        if target in self.folders:
            target = f"{target}/{source.rpartition('/')[2]}"
        parent = target.rpartition("/")[0]
        if source not in self.files or target in self.files or parent not in {"", *self.folders}:
            return False
        self.files[target] = self.files.pop(source)
        return True

    def entries(self, path: str) -> dict[str, dict[str, Any]]:
        """Return the names right below a path, and what is there."""
        found = {}
        for known in (*self.files, *self.folders):
            parent, _, name = known.rpartition("/")
            if parent == path:
                kind = "FILE" if known in self.files else "DIRECTORY"
                length = len(self.files.get(known, b""))
                found[name] = {"pathSuffix": name, "type": kind, "length": length}
        return found


class _Handler(BaseHTTPRequestHandler):
    server: HdfsServer
    protocol_version = "HTTP/1.1"

    def _handle(self) -> None:
        url = urlsplit(self.path)
        query = {key: values[0] for key, values in parse_qs(url.query).items()}
        on_data_node = url.path.startswith(_DATA_NODE)
        path = unquote(url.path).removeprefix(_DATA_NODE).removeprefix(_NAME_NODE).rstrip("/")
        operation = query["op"]
        if on_data_node:
            operation = {"CREATE": "WRITE", "OPEN": "READ"}[operation]
        self.server.users.add(query["user.name"])
        fault = self.server.before(operation, path)
        if isinstance(fault, tuple):
            # As a real one, it does not read what it refuses.
            self.close_connection = True
            self._refuse(*fault)
            return
        if fault == CUT:
            begin = self.rfile.read(int(self.headers["Content-Length"]) // 2)
            with self.server.mutex:
                self.server.write(path, begin)
            self.close_connection = True
            return
        body = self._body() if operation == "WRITE" else b""
        body = body[: len(body) // 2] if fault == HALF else body
        with self.server.mutex:
            answer = getattr(self, f"_{operation.lower()}")(path, query, body)
        if fault == LOST:
            self.close_connection = True
        else:
            answer()

    do_GET = do_PUT = do_DELETE = _handle

    def _body(self) -> bytes:
        size = int(self.headers["Content-Length"])
        body = self.rfile.read(size)
        self.close_connection = len(body) < size
        return body

    def _create(self, path: str, query: dict[str, str], body: bytes) -> Callable[[], None]:
        assert self.headers["Content-Length"] in (None, "0")
        return self._to_data_node

    def _write(self, path: str, query: dict[str, str], body: bytes) -> Callable[[], None]:
        if path in self.server.files and query["overwrite"] == "false":
            return lambda: self._refuse(403, "FileAlreadyExistsException")
        self.server.write(path, body)
        return lambda: self._send(201, b"")

    def _open(self, path: str, query: dict[str, str], body: bytes) -> Callable[[], None]:
        if path not in self.server.files:
            return lambda: self._refuse(404, "FileNotFoundException")
        return self._to_data_node

    def _read(self, path: str, query: dict[str, str], body: bytes) -> Callable[[], None]:
        if path not in self.server.files:
            return lambda: self._refuse(404, "FileNotFoundException")
        content = self.server.files[path]
        return lambda: self._send(200, content)

    def _rename(self, path: str, query: dict[str, str], body: bytes) -> Callable[[], None]:
        is_renamed = self.server.rename(path, query["destination"])
        return lambda: self._send(200, {"boolean": is_renamed})

    def _delete(self, path: str, query: dict[str, str], body: bytes) -> Callable[[], None]:
        assert query["recursive"] == "false"
        if self.server.entries(path):
            return lambda: self._refuse(403, "PathIsNotEmptyDirectoryException")
        is_there = path in self.server.files or path in self.server.folders
        self.server.files.pop(path, None)
        self.server.folders.discard(path)
        return lambda: self._send(200, {"boolean": is_there})

    def _liststatus(self, path: str, query: dict[str, str], body: bytes) -> Callable[[], None]:
        if path and path not in self.server.folders:
            return lambda: self._refuse(404, "FileNotFoundException")
        entries = list(self.server.entries(path).values())
        return lambda: self._send(200, {"FileStatuses": {"FileStatus": entries}})

    def _to_data_node(self) -> None:
        url = urlsplit(self.path)
        path = quote(unquote(url.path.removeprefix(_NAME_NODE)))
        self.send_response(307)
        place = f"http://127.0.0.1:{self.server.server_port}{_DATA_NODE}{path}?{url.query}"
        self.send_header("Location", place)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def _refuse(self, status: int, exception: str) -> None:
        remote = {"exception": exception, "javaClassName": f"java.{exception}", "message": "no\nat"}
        self._send(status, {"RemoteException": remote})

    def _send(self, status: int, content: bytes | dict[str, Any]) -> None:
        body = content if isinstance(content, bytes) else json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *arguments: object) -> None:
        """Log nothing."""


def hdfs_server() -> AbstractContextManager[HdfsServer]:
    """Run a server while the block lasts."""
    return running(HdfsServer())
