import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.processes import ROOT, wait_gone
from trainer.cluster import signals

WORKER = """
import ctypes, os, signal, socket, sys
from trainer.worker import parent_watch

connection = socket.socket(fileno=int(sys.argv[1]))
parent_watch.watch_parent(connection, sys.argv[2])
(watcher,) = open(f"/proc/self/task/{os.getpid()}/children").read().split()
print(watcher, flush=True)
"""
pytestmark = pytest.mark.skipif("sys.platform != 'linux'", reason="looks into /proc")
ACTIONS = {
    "keeps Python's lock": "ctypes.PyDLL(None).pause()",
    "is stopped": "os.kill(os.getpid(), signal.SIGSTOP)",
    "waits": "signal.pause()",
}


@pytest.fixture
def worker(tmp_path):
    """Start a worker; return it, the supervisor's end of its connection, and its watcher's id."""
    processes = []

    def start(action):
        ours, theirs = socket.socketpair()
        with theirs, signals.blocked():
            code = [
                sys.executable,
                "-c",
                WORKER + action,
                str(theirs.fileno()),
                str(tmp_path / "scratch"),
            ]
            process = subprocess.Popen(
                code, cwd=ROOT, pass_fds=[theirs.fileno()], stdout=subprocess.PIPE, text=True
            )
        processes.append(process)
        return process, ours, int(process.stdout.readline())

    (tmp_path / "scratch").mkdir()
    (tmp_path / "scratch" / "file").touch()
    yield start
    for process in processes:
        process.kill()
        process.communicate(timeout=60)


@pytest.mark.parametrize("action", ACTIONS)
def test_worker_ends_with_its_supervisor_and_leaves_no_files(worker, tmp_path, action):
    process, supervisor, watcher = worker(ACTIONS[action])
    supervisor.close()
    assert process.wait(timeout=60) == -signal.SIGKILL
    wait_gone(watcher)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("action", "code"), [("sys.exit(3)", 3), ("os.kill(os.getpid(), 9)", -9)])
def test_watcher_ends_with_its_worker_and_keeps_the_files(worker, tmp_path, action, code):
    process, _supervisor, watcher = worker(action)
    assert process.wait(timeout=60) == code
    wait_gone(watcher)
    assert (tmp_path / "scratch" / "file").exists()


def test_watcher_does_not_hold_the_output_of_the_worker_open(worker):
    process, _supervisor, _watcher = worker("os.close(1); os.close(2); signal.pause()")
    assert process.stdout.read() == ""
    assert process.poll() is None


def test_watcher_ignores_requests_to_stop(worker):
    process, supervisor, watcher = worker("signal.pause()")
    for number in (signal.SIGTERM, signal.SIGINT):
        os.kill(watcher, number)
    assert Path(f"/proc/{watcher}").exists()
    supervisor.close()
    assert process.wait(timeout=60) == -signal.SIGKILL
