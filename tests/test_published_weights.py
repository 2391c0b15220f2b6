"""Published weights: from the cache, from a server, or refused in one line."""

from __future__ import annotations

import hashlib
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from tests.support.http_servers import running
from trainer import published_weights
from trainer.errors import ConfigError
from trainer.published_weights import Weights, fetch, find

CONTENT = b"\x89HDF\r\n\x1a\n" + bytes(range(256)) * 5000
MD5, SHA256 = hashlib.md5(CONTENT).hexdigest(), hashlib.sha256(CONTENT).hexdigest()
NO_SERVER = "http://127.0.0.1:9/x.h5"


class Handler(BaseHTTPRequestHandler):
    """Serves `CONTENT` as /x.h5, cut as /cut.h5, and a page as /page.h5."""

    server: Server

    def do_GET(self) -> None:
        self.server.requests.append(self.path)
        self.server.may_answer.wait(20)
        if self.path not in ("/x.h5", "/cut.h5", "/page.h5"):
            self.send_error(404)
            return
        content = b"<html>log in</html>" if self.path == "/page.h5" else CONTENT
        self.send_response(200)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content[:1000] if self.path == "/cut.h5" else content)

    def log_message(self, *arguments: object) -> None:
        pass


class Server(ThreadingHTTPServer):
    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.requests: list[str] = []
        self.may_answer = threading.Event()
        self.may_answer.set()

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


@pytest.fixture
def server() -> Iterator[Server]:
    with running(Server()) as server:
        yield server


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("KERAS_HOME", str(tmp_path))
    return tmp_path / "models"


def visible(cache: Path) -> list[str]:
    return [file.name for file in cache.iterdir() if not file.name.endswith(".lock")]


@pytest.mark.parametrize("checksum", ["", MD5, SHA256])
def test_file_is_downloaded_once(server: Server, cache: Path, checksum: str) -> None:
    weights = Weights("x.h5", f"{server.address}/x.h5", checksum)
    lines: list[str] = []
    assert fetch(weights, lines.append) == fetch(weights, lines.append) == cache / "x.h5"
    assert lines == [f"Downloading {server.address}/x.h5 to {cache}"]
    assert server.requests == ["/x.h5"]
    assert (cache / "x.h5").read_bytes() == CONTENT
    assert visible(cache) == ["x.h5"]


def test_cached_file_needs_no_network_and_no_lock(cache: Path) -> None:
    cache.mkdir()
    (cache / "x.h5").write_bytes(CONTENT)
    assert fetch(Weights("x.h5", NO_SERVER, SHA256)) == cache / "x.h5"
    assert [file.name for file in cache.iterdir()] == ["x.h5"]


def test_cached_file_with_another_checksum_is_replaced(server: Server, cache: Path) -> None:
    cache.mkdir()
    (cache / "x.h5").write_bytes(CONTENT[:-1])
    fetch(Weights("x.h5", f"{server.address}/x.h5", MD5))
    assert (cache / "x.h5").read_bytes() == CONTENT


@pytest.mark.parametrize(
    ("url", "checksum", "problem"),
    [
        ("{}/cut.h5", "", r"it cannot be downloaded \(IncompleteRead\(0 bytes read, 1279008"),
        ("{}/page.h5", "", "what it holds is no HDF5 file"),
        ("{}/x.h5", "0" * 32, f"what it holds has another checksum than {'0' * 32}"),
        ("{}/none.h5", "", r"it cannot be downloaded \(Not Found\)"),
        (NO_SERVER, "", r"it cannot be downloaded \(\[Errno 111\] Connection refused\)"),
    ],
)
def test_file_that_is_not_whole_is_not_kept(
    server: Server, cache: Path, url: str, checksum: str, problem: str
) -> None:
    url = url.format(server.address)
    with pytest.raises(ConfigError, match=problem) as raised:
        fetch(Weights("x.h5", url, checksum))
    (line,) = raised.value.problems
    assert line.endswith(f"get {url} on a machine that can, and put it here as {cache}/x.h5")
    assert visible(cache) == []


WAITING = """
import sys
from trainer import published_weights as module

acquire = module.Lock.acquire

def waiting(*arguments):
    print("asks for the lock", flush=True)
    return acquire(*arguments)

module.Lock.acquire = waiting
print(module.fetch(module.Weights("x.h5", sys.argv[1], "")))
"""


def test_one_of_two_processes_downloads(server: Server, cache: Path) -> None:
    server.may_answer.clear()
    command = [sys.executable, "-c", WAITING, f"{server.address}/x.h5"]
    processes = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    try:
        for process in processes:
            assert process.stdout is not None
            assert process.stdout.readline() == "asks for the lock\n"
        server.may_answer.set()
        for process in processes:
            assert process.communicate(timeout=30)[0] == f"{cache}/x.h5\n"
    finally:
        for process in processes:
            process.kill()
            process.wait()
    assert server.requests == ["/x.h5"]


@pytest.mark.parametrize(
    ("network", "size", "options", "file"),
    [
        ("ResNet50", (160, 160), {}, "resnet50_weights_tf_dim_ordering_tf_kernels_notop.h5"),
        ("MobileNet", (160, 160), {}, "mobilenet_1_0_160_tf_no_top.h5"),
        ("MobileNet", (96, 96), {}, "mobilenet_1_0_224_tf_no_top.h5"),
        ("MobileNet", (160, 192), {}, "mobilenet_1_0_224_tf_no_top.h5"),
        ("MobileNet", None, {}, "mobilenet_1_0_224_tf_no_top.h5"),
        (
            "MobileNetV2",
            (96, 96),
            {"alpha": 1, "with_classifier": True},
            "mobilenet_v2_weights_tf_dim_ordering_tf_kernels_1.0_96.h5",
        ),
    ],
)
def test_file_is_that_of_network_and_size(
    network: str, size: tuple[int, int] | None, options: dict[str, float], file: str
) -> None:
    weights = find(network, size, **options)  # type: ignore[arg-type]
    assert weights.file == file
    assert weights.url.startswith(f"{published_weights._HOST}tensorflow/keras-applications/")
    assert weights.url.endswith(f"/{file}")


def test_width_that_is_not_published_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"^weights \(imagenet\): Keras publishes .* alpha=0\.6;"):
        find("MobileNetV2", alpha=0.6)
