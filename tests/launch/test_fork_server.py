"""A real fork server: its workers are what fresh processes are, and end when they must."""

import os
import queue
import signal
import stat
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from trainer.cli.compose import compose
from trainer.cluster import fork_server
from trainer.cluster.fork_server import ForkServer
from trainer.cluster.messages import SignalReceived
from trainer.cluster.network_namespace import IsolationError, Namespace
from trainer.cluster.spec import Cluster
from trainer.launch.processes import WorkerProcess

TIMEOUT_SECS = 120


@pytest.fixture
def shared():
    """The server of all tests of this process."""
    return ForkServer.acquire()


@pytest.fixture
def start():
    """Start workers, and end them with the test."""
    workers = []

    def begin(*arguments):
        workers.append(WorkerProcess(*arguments))
        return workers[-1]

    yield begin
    for worker in workers:
        worker.kill()


def until(condition):
    """Wait until a condition holds."""
    end = time.monotonic() + TIMEOUT_SECS
    while not condition():
        assert time.monotonic() < end, "it did not come"
        time.sleep(0.002)


def pid_of(worker):
    """Return a worker's process as soon as it has begun and has taken over what it was given."""
    until(lambda: worker.pid)
    pid = worker.pid
    until(lambda: not os.readlink(f"/proc/{pid}/fd/1").startswith("/dev/null"))
    return pid


def status(pid):
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}


def test_forked_worker_has_what_it_was_given(shared, start, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    cores = os.sched_getaffinity(0)
    one = {min(cores)}
    os.sched_setaffinity(0, one)
    try:
        worker = start(shared)
    finally:
        os.sched_setaffinity(0, cores)
    assert worker.is_forked
    pid = pid_of(worker)
    until(lambda: os.readlink(f"/proc/{pid}/cwd") == str(tmp_path))
    until(lambda: os.sched_getaffinity(pid) == one)
    parent = status(pid)["PPid"]
    assert "trainer.worker.forking" in Path(f"/proc/{parent}/cmdline").read_text()
    assert os.getsid(pid) == pid
    assert os.readlink(f"/proc/{pid}/fd/0") == "/dev/null"


@pytest.mark.parametrize(
    ("name", "is_forked"),
    [("OMP_NUM_THREADS", False), ("CUDA_VISIBLE_DEVICES", True), ("ANY_OTHER", True)],
)
def test_variable_that_is_read_at_import_must_not_differ(
    shared, start, monkeypatch, name, is_forked
):
    monkeypatch.setenv(name, "3")
    assert start(shared).is_forked == is_forked


def test_forked_worker_enters_the_network_namespace(shared, start):
    try:
        namespace = Namespace()
    except IsolationError as error:
        pytest.skip(str(error))
    with namespace:
        worker = start(shared, namespace)
        assert worker.is_forked
        pid = pid_of(worker)
        inside = os.readlink(f"/proc/{pid}/ns/net")
        assert inside == os.readlink(f"/proc/self/fd/{namespace.descriptors()[-1]}")
        assert inside != os.readlink("/proc/self/ns/net")


@pytest.mark.parametrize("is_forked", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_signals_while_a_worker_starts_neither_kill_it_nor_are_lost(
    shared, start, tmp_path, is_forked
):
    worker = start(shared) if is_forked else start()
    messages = queue.SimpleQueue()
    if is_forked:
        pid_of(worker)
    worker.signal(signal.SIGQUIT)
    worker.signal(signal.SIGTERM)
    with (tmp_path / "lock").open("w") as lock:
        worker.assign(SimpleNamespace(path=tmp_path, lock=lock), compose([]), Cluster(), messages)
        received = messages.get(timeout=TIMEOUT_SECS)
    assert received == (Cluster().process_id, SignalReceived(signal.SIGTERM))


def test_folder_is_private_and_new_even_if_others_are_left(monkeypatch, tmp_path):
    monkeypatch.delenv("STEADFAST_FORK_SERVER")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    left = [tmp_path / f"steadfast-{os.getuid()}", tmp_path / "steadfast-of-a-killed-command"]
    for folder in left:
        (folder / "digest").mkdir(parents=True)
        (folder / "digest" / "socket").touch()
    monkeypatch.setattr(fork_server, "connect", lambda path: pytest.fail(f"{path} is looked at"))
    servers = [ForkServer.acquire() for _ in range(2)]
    try:
        folders = {server.directory for server in servers}
        assert len({*folders, *left}) == 4
        assert {stat.S_IMODE(folder.stat().st_mode) for folder in folders} == {0o700}
    finally:
        for server in servers:
            server.release()
    assert sorted(tmp_path.iterdir()) == left
    assert all((folder / "digest" / "socket").is_file() for folder in left)


OWNER = """
import os, sys, time
from trainer.cluster.fork_server import ForkServer

server = ForkServer.acquire()
print(server._process.pid, server.directory, flush=True)
time.sleep(99)
"""


def test_folder_of_a_command_that_was_killed_with_its_server_is_removed_by_the_next(
    tmp_path, monkeypatch
):
    monkeypatch.delenv("STEADFAST_FORK_SERVER")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    variables = {**os.environ, "TMPDIR": str(tmp_path)}
    owners = [
        subprocess.Popen([sys.executable, "-c", OWNER], env=variables, stdout=subprocess.PIPE)
        for _ in range(2)
    ]
    try:
        servers = [owner.stdout.readline().decode().split() for owner in owners]
        os.kill(int(servers[0][0]), signal.SIGKILL)
        owners[0].kill()
        owners[0].wait(TIMEOUT_SECS)
        folders = [Path(folder) for _, folder in servers]
        assert all(map(Path.exists, folders))
        for folder in folders:
            os.utime(folder, (0, 0))  # a new one may not have its lock yet
        ForkServer.acquire().release()
        assert [*tmp_path.glob("steadfast-*")] == folders[1:]  # that of a living command
    finally:
        for owner in owners:
            owner.kill()
            owner.communicate(timeout=TIMEOUT_SECS)
