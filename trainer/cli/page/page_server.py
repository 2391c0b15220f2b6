"""The page as HTML, and its server: reads, on this machine only, for clients with its token.

No TensorFlow.
"""

from __future__ import annotations

import importlib.resources
import json
import re
import secrets
import sys
from collections.abc import Callable, Mapping
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, NoReturn
from urllib.parse import parse_qs, urlsplit

from jinja2 import Environment
from markupsafe import Markup

from trainer import __version__
from trainer.cli.page.run_data import Summaries, details, read_log, read_series
from trainer.files import finite_only
from trainer.runs.recorded_metrics import GROUPS
from trainer.text import first_line

_TEMPLATES = importlib.resources.files(__package__).joinpath("templates")
_POLICY = "default-src 'none'; style-src 'nonce-{0}'; script-src 'nonce-{0}'; img-src data:"
_UNSAFE = {ord("<"): "\\u003c", ord(">"): "\\u003e", ord("&"): "\\u0026"}
"""What could end the script element that holds JSON, or begin another; only texts have it."""


def live_page(folder: str) -> tuple[str, str]:
    """Return the page that fetches its data from the server, and its Content-Security-Policy."""
    nonce = secrets.token_urlsafe(16)
    policy = f"{_POLICY.format(nonce)}; connect-src 'self'; base-uri 'none'; form-action 'none'"
    return _page(folder, nonce, policy, None), f"{policy}; frame-ancestors 'none'"


def report_page(title: str, data: Mapping[str, Any]) -> str:
    """Return the page that holds its data and needs no network.

    Args:
        data: `folder`, `now`, `runs`, and by id `series` and `details`.
    """
    nonce = secrets.token_urlsafe(16)
    # All of it ASCII, without the signs of HTML, for a script element.
    text = json.dumps(finite_only(data), separators=(",", ":"), allow_nan=False)
    policy = f"{_POLICY.format(nonce)}; base-uri 'none'"
    return _page(title, nonce, policy, Markup(text.translate(_UNSAFE)))


def _page(title: str, nonce: str, policy: str, data: Markup | None) -> str:
    names = sorted(file.name for file in _TEMPLATES.iterdir() if file.name.endswith(".js"))
    # An edited template counts at the next load.
    environment = Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True)
    return environment.from_string(_text("page.html")).render(
        title=title,
        nonce=nonce,
        policy=policy,
        is_live=data is None,
        groups=json.dumps(GROUPS),
        style=Markup(_text("page.css")),
        scripts=[Markup(_text(name)) for name in names],
        data=data,
        version=__version__,
    )


def _text(name: str) -> str:
    return _TEMPLATES.joinpath(name).read_text(encoding="utf-8")


_ADDRESS = "127.0.0.1"
_LOCAL_HOST = re.compile(r"(127\.0\.0\.1|localhost|\[::1\])(:\d{1,5})?", re.IGNORECASE)
"""What a browser calls this machine. A page elsewhere whose name was made to mean it is refused."""

_IDLE_SECS = 60.0
_HEADERS = {
    "Cache-Control": "no-store",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "Cross-Origin-Resource-Policy": "same-origin",
}


class _RefusedError(Exception):
    def __init__(self, status: HTTPStatus, message: str) -> None:
        super().__init__(message)
        self.status = status


class PageServer(ThreadingHTTPServer):
    """Serves the page of the runs of a folder until it is closed.

    Args:
        port: of this machine's own address; 0: any that is free.

    Raises:
        OSError: the port is in use, or may not be used.
    """

    daemon_threads = True
    request_queue_size = 1024  # a connection beyond it is only tried again after seconds

    def __init__(self, port: int, summaries: Summaries) -> None:
        self.summaries = summaries
        self.token = secrets.token_urlsafe(24)
        super().__init__((_ADDRESS, port), _Handler)

    @property
    def url(self) -> str:
        """The address of the page, with its token."""
        return f"http://{_ADDRESS}:{self.server_port}/?token={self.token}"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Report an error in a line; a browser that has gone is no error."""
        error = sys.exception()
        if error and not isinstance(error, ConnectionError | TimeoutError):
            print(f"warning: {type(error).__name__}: {first_line(error)}", file=sys.stderr)


class _Handler(BaseHTTPRequestHandler):
    server: PageServer
    protocol_version = "HTTP/1.1"
    server_version, sys_version = "Steadfast", ""
    timeout = _IDLE_SECS

    def do_GET(self) -> None:
        try:
            self._send(HTTPStatus.OK, *self._answer())
        except _RefusedError as error:
            self.send_error(error.status, str(error))
        except ConnectionError:
            raise
        except Exception as error:  # the page retries, and shows that meanwhile
            self.send_error(500, f"{type(error).__name__}: {first_line(error)}")

    do_HEAD = do_GET

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Send an error as a line of text, and close the connection."""
        self.close_connection = True
        text = message or HTTPStatus(code).phrase
        self._send(HTTPStatus(code), f"{text}\n".encode(), "text/plain", {"Connection": "close"})

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing: the terminal belongs to the address."""

    def _answer(self) -> tuple[bytes, str, Mapping[str, str]]:
        path, query = self._checked()
        if path == "/":
            text, policy = live_page(self.server.summaries.folder)
            return text.encode(), "text/html", {"Content-Security-Policy": policy}
        routes: dict[str, Callable[[], dict[str, Any]]] = {
            "/api/runs": self.server.summaries.payload,
            "/api/series": lambda: read_series(self._run(query), query.get("offset", "0")),
            "/api/details": lambda: details(self._run(query)),
            "/api/log": lambda: read_log(self._run(query), query.get("process", "")),
        }
        if path not in routes:
            _refuse(HTTPStatus.NOT_FOUND, "there is no such page")
        content = json.dumps(finite_only(routes[path]()), separators=(",", ":"), allow_nan=False)
        return content.encode(), "application/json", {}

    def _checked(self) -> tuple[str, dict[str, str]]:
        """Return path and query of a request that has the right to be answered."""
        if not _LOCAL_HOST.fullmatch(self.headers.get("Host", "")):
            _refuse(HTTPStatus.FORBIDDEN, "request 127.0.0.1, as in the address that was printed")
        try:
            url = urlsplit(self.path)
            query = {name: values[-1] for name, values in parse_qs(url.query).items()}
        except ValueError:
            _refuse(HTTPStatus.BAD_REQUEST, "this is no address")
        token = query.get("token", "")
        if not secrets.compare_digest(token.encode(), self.server.token.encode()):
            _refuse(HTTPStatus.FORBIDDEN, "use the whole address that was printed, with its token")
        return url.path, query

    def _run(self, query: Mapping[str, str]) -> Path:
        """Return the directory of the run that is requested: one of those that are listed."""
        path = self.server.summaries.listing().get(query.get("id", ""))
        return path or _refuse(HTTPStatus.NOT_FOUND, "there is no such run")

    def _send(
        self, status: HTTPStatus, content: bytes, kind: str, headers: Mapping[str, str]
    ) -> None:
        self.send_response(status)
        values = {"Content-Type": f"{kind}; charset=utf-8", "Content-Length": str(len(content))}
        for name, value in {**values, **_HEADERS, **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)


def _refuse(status: HTTPStatus, message: str) -> NoReturn:
    raise _RefusedError(status, message)
