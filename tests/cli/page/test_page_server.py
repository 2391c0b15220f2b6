"""The page as HTML, and its server: answers who has the token, refuses everybody else."""

import http.client
import json
import re
import socket
from contextlib import closing
from pathlib import Path
from urllib.parse import quote

import pytest

from tests.support.fake_runs import make_runs
from tests.support.http_servers import running
from trainer.cli.page import page_server
from trainer.cli.page.page_server import PageServer, live_page, report_page
from trainer.cli.page.run_data import Summaries

TIMEOUT_SECS = 20


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """A server of two runs."""
    runs = {run.path.name: run.path for run in make_runs(tmp_path_factory.mktemp("runs"), 2, 40)}
    with running(PageServer(0, Summaries("runs", lambda: runs))) as server:
        yield server


def ask(server, path, method="GET", **headers):
    """Return status, headers and content of an answer."""
    link = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=TIMEOUT_SECS)
    with closing(link):
        link.request(method, path, headers=headers)
        answer = link.getresponse()
        return answer.status, answer.headers, answer.read().decode()


def get(server, path, **query):
    words = "&".join(f"{name}={quote(value)}" for name, value in query.items())
    status, _, text = ask(server, f"{path}?token={server.token}&{words}")
    assert status == 200, text
    return json.loads(text)


def test_page_and_its_data_are_answered(server):
    assert server.url == f"http://127.0.0.1:{server.server_port}/?token={server.token}"
    status, headers, text = ask(server, f"/?token={server.token}")
    assert (status, headers["Content-Type"]) == (200, "text/html; charset=utf-8")
    assert text.startswith("<!doctype html>")
    assert headers["Content-Security-Policy"].startswith("default-src 'none'")
    assert (headers["Cache-Control"], headers["Referrer-Policy"]) == ("no-store", "no-referrer")
    first, second = (run["id"] for run in get(server, "/api/runs")["runs"])
    series = get(server, "/api/series", id=first)
    assert series["points"]["test/accuracy"]["step"] == [200, 400]
    assert get(server, "/api/series", id=first, offset=series["offset"])["points"] == {}
    directory = get(server, "/api/details", id=second)["directory"]
    assert directory.endswith(second)
    log = Path(directory, "logs", "worker-0.log")
    log.parent.mkdir(exist_ok=True)
    log.write_text("begin\nend\n")
    for process, text in (("worker-0", "begin\nend\n"), ("../logs/worker-0", "begin\nend\n"),
                          ("../run.json", ""), ("worker-1", "")):  # fmt: skip
        assert get(server, "/api/log", id=second, process=process) == {"text": text}
    status, headers, text = ask(server, f"/?token={server.token}", "HEAD")
    assert (status, text, int(headers["Content-Length"]) > 100) == (200, "", True)


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/", 403),
        ("/?token=", 403),
        ("/?token=x", 403),
        ("/?token=%ff%C3%A4", 403),
        ("/api/runs", 403),
        ("HTTP://[x?token={token}", 400),
        ("/other?token={token}", 404),
        ("/../etc/passwd?token={token}", 404),
        ("/api/details?token={token}", 404),
        *(
            (f"/api/{name}?token={{token}}&id={quote(run, safe='')}", 404)
            for name in ("series", "details")
            for run in ("..", ".", "../runs", "/etc", "a/../..", "\0", "cnn-digits-00000000/logs")
        ),
    ],
)
def test_request_without_right_or_outside_the_folder_is_refused(server, path, status):
    code, headers, text = ask(server, path.format(token=server.token))
    assert (code, headers["Content-Type"]) == (status, "text/plain; charset=utf-8")
    assert len(text.splitlines()) == 1
    assert server.token not in text


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS"])
def test_server_only_reads(server, method):
    assert ask(server, f"/api/runs?token={server.token}", method)[0] == 501


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:{port}", "127.0.0.1.evil", "10.0.0.1", ""]
)
def test_page_of_another_host_is_refused_in_spite_of_the_token(server, host):
    # Such as one whose name was made to mean this machine.
    path = f"/api/runs?token={server.token}"
    assert ask(server, path, Host=host.format(port=server.server_port))[0] == 403
    for own in ("localhost", "127.0.0.1:8080"):  # the port of an SSH tunnel
        assert ask(server, path, Host=own)[0] == 200


def test_browser_that_goes_away_is_no_error(server, capfd):
    whole = f"GET {server.url[-99:]} HTTP/1.1\r\n".encode()
    assert server.server_address[0] == "127.0.0.1"  # only this machine is served
    for request in (b"", b"GET / HT", b"nonsense\r\n\r\n", whole):
        with closing(socket.create_connection(server.server_address, TIMEOUT_SECS)) as link:
            link.sendall(request)
            link.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    assert ask(server, f"/api/runs?token={server.token}")[0] == 200
    assert capfd.readouterr().err == ""


def test_fault_is_logged_in_a_line_and_ends_nothing(server, monkeypatch):
    def fail(*arguments):
        raise RuntimeError("no\nmore")

    with monkeypatch.context() as patch:
        patch.setattr(page_server, "read_series", fail)
        run = get(server, "/api/runs")["runs"][0]["id"]
        status, _, text = ask(server, f"/api/series?token={server.token}&id={run}")
    assert (status, text) == (500, "RuntimeError: no\n")
    assert get(server, "/api/series", id=run)["points"]


EVIL = "</script><img src=x onerror=alert(1)><!-- \u2028 &amp; \ud800"


def data_of(text):
    (content,) = re.findall(r'<script type="application/json" id="data">(.*?)</script>', text)
    return json.loads(content)


def test_report_holds_its_data_and_nothing_gets_out_of_it():
    data = {"folder": EVIL, "runs": [{"name": EVIL, "value": float("nan")}]}
    text = report_page(EVIL.replace("\ud800", ""), data)
    assert data_of(text) == {"folder": EVIL, "runs": [{"name": EVIL, "value": None}]}
    assert "<img" not in text
    assert "\u2028" not in text.partition("</title>")[2]
    assert "data-live" not in re.findall("<body[^>]*>", text)[0]
    assert text.startswith("<!doctype html>")


def test_page_runs_and_fetches_only_its_own():
    live, policy = live_page("runs")
    report = report_page("runs", {})
    assert "data-live" in re.findall("<body[^>]*>", live)[0]
    assert 'id="data"' not in live
    namespace = "http://www.w3.org/2000/svg"
    for text in (live.replace(namespace, ""), report.replace(namespace, "")):
        (nonce,) = set(re.findall(r'nonce="([^"]+)"', text))
        assert f"&#39;nonce-{nonce}&#39;" in text
        assert not re.findall(r"<script(?! nonce=| type=\"application/json\")", text)
        assert not re.findall(r"""(?:src|href)=["'](?!data:|#)|https?://|url\(""", text)
    assert "connect-src" not in report
    assert policy.startswith("default-src 'none'; style-src 'nonce-")
    assert "http" not in policy
    assert live_page("runs")[1] != policy
