"""A server for Google's storage client that honors conditions, in this process.

It speaks the part of the JSON API (https://cloud.google.com/storage/docs/json_api) that
`trainer.store.schemes.gs` uses: uploads in one request, downloads, metadata, lists and removals,
each with `ifGenerationMatch`.
"""

from __future__ import annotations

import base64
import json
import struct
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, unquote, urlsplit

import google_crc32c

from tests.support.http_servers import running

_BUCKET = "/b/bucket/o"


class GcsServer(ThreadingHTTPServer):
    """The objects of the bucket `bucket`.

    Attributes:
        objects: name -> content and generation.
        conditions: number of requests with a condition.
        lost_answers: of how many of the next uploads the answer is lost.
        damaged_downloads: how many of the next downloads arrive with other bytes.
    """

    daemon_threads = True
    request_queue_size = 64  # with the 5 of the library, clients that come at once are refused

    def __init__(self):
        super().__init__(("127.0.0.1", 0), _Handler)
        self.objects = {}
        self.conditions = 0
        self.lost_answers = 0
        self.damaged_downloads = 0
        self._generation = 0
        self._mutex = threading.Lock()

    def put(self, name, content, expected):
        """Make an object; return its generation, or None if another than expected is there."""
        with self._mutex:
            if expected is not None:
                self.conditions += 1
                if self.objects.get(name, (b"", 0))[1] != int(expected):
                    return None
            self._generation += 1
            self.objects[name] = (content, self._generation)
            return self._generation


class _Handler(BaseHTTPRequestHandler):
    server: GcsServer
    protocol_version = "HTTP/1.1"

    def do_POST(self):
        _, query = self._parts()
        body = self.rfile.read(int(self.headers["Content-Length"]))
        boundary = self.headers["Content-Type"].rpartition("boundary=")[2].strip('"').encode()
        metadata, content = (
            part.partition(b"\r\n\r\n")[2].removesuffix(b"\r\n")
            for part in body.split(b"--" + boundary)[1:3]
        )
        described = json.loads(metadata)
        if described.get("crc32c", _crc32c(content)) != _crc32c(content):
            self._send(400, {"error": {"message": "the checksum does not match"}})
            return
        name = described["name"]
        generation = self.server.put(name, content, query.get("ifGenerationMatch"))
        if generation is None:
            self._send(412, {"error": {"message": "conditionNotMet"}})
        elif self.server.lost_answers:
            self.server.lost_answers -= 1
            self.close_connection = True
        else:
            self._send(200, _resource(name, content, generation))

    def do_GET(self):
        name, query = self._parts()
        if not name:
            names = sorted(self.server.objects)
            listed = [name for name in names if name.startswith(query.get("prefix", ""))]
            start = len(query.get("prefix", ""))
            below = {name for name in listed if query.get("delimiter", "\0") in name[start:]}
            folders = {name[: name.index("/", start) + 1] for name in below}
            items = [_resource(n, *self.server.objects[n]) for n in listed if n not in below]
            self._send(200, {"items": items, "prefixes": sorted(folders)})
            return
        found = self._find(name, query)
        if found is None:
            return
        if query.get("alt") != "media":
            self._send(200, _resource(name, *found))
        elif self.server.damaged_downloads:
            self.server.damaged_downloads -= 1
            self._send(200, bytes(len(found[0])), found[0])
        else:
            self._send(200, found[0])

    def do_DELETE(self):
        name, query = self._parts()
        if self._find(name, query) is not None:
            del self.server.objects[name]
            self._send(204, b"")

    def _parts(self):
        """Return the name of the object in the address, and the parameters."""
        url = urlsplit(self.path)
        query = {key: values[0] for key, values in parse_qs(url.query).items()}
        return unquote(url.path.partition(_BUCKET)[2].removeprefix("/")), query

    def _find(self, name, query):
        """Return an object, or None after an error was sent: it is missing, or has changed."""
        found = self.server.objects.get(name)
        if found is None:
            self._send(404, {"error": {"message": "Not Found"}})
        elif query.get("ifGenerationMatch", str(found[1])) != str(found[1]):
            self._send(412, {"error": {"message": "conditionNotMet"}})
            return None
        return found

    def _send(self, status, content, hashed=None):
        """Send an answer, with the checksum of `hashed` instead of its own if that is given."""
        body = content if isinstance(content, bytes) else json.dumps(content).encode()
        self.send_response(status)
        kind = "application/octet-stream" if isinstance(content, bytes) else "application/json"
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("X-Goog-Hash", f"crc32c={_crc32c(body if hashed is None else hashed)}")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *arguments):
        """Log nothing."""


def _resource(name, content, generation):
    return {
        "kind": "storage#object",
        "name": name,
        "bucket": "bucket",
        "generation": str(generation),
        "size": str(len(content)),
        "crc32c": _crc32c(content),
    }


def _crc32c(content):
    return base64.b64encode(struct.pack(">I", google_crc32c.value(content))).decode()


def gcs_server():
    """Run a server while the block lasts."""
    return running(GcsServer())
