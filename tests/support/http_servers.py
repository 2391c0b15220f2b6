"""HTTP servers of the tests, each in a thread."""

import json
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer, ThreadingHTTPServer
from typing import TypeVar

_Server = TypeVar("_Server", bound=HTTPServer)
_POLL_SECS = 0.05


@contextmanager
def running(server):
    """Run a server while the block lasts."""
    with server:
        thread = threading.Thread(target=server.serve_forever, args=(_POLL_SECS,), daemon=True)
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


@contextmanager
def mlflow_server():
    """Give the address of what answers as MLflow's server does, and the requests that it gets."""
    requests = []
    info = {"run_id": "r", "run_uuid": "r", "experiment_id": "1", "status": "RUNNING"}
    answer = {
        "experiment": {"experiment_id": "1", "name": "e", "lifecycle_stage": "active"},
        "run": {"info": info, "data": {}}, "run_info": info, "metrics": [],
    }  # fmt: skip

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            content = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            requests.append(f"{self.path} {self.headers}".encode() + content)
            text = json.dumps(answer).encode()
            self.send_response(200 if "/mlflow/" in self.path else 404)
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        do_POST = do_GET

        def log_message(self, format, *args):
            pass

    with running(ThreadingHTTPServer(("127.0.0.1", 0), Handler)) as server:
        yield f"http://127.0.0.1:{server.server_port}", requests
