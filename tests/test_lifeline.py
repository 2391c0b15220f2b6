import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.processes import ROOT, wait_gone
from trainer import signals

WORKER = """
import ctypes, os, signal, socket, sys
from trainer import lifeline

connection = socket.socket(fileno=int(sys.argv[1]))
lifeline.tie(connection, sys.argv[2])
(watcher,) = open(f"/proc/self/task/{os.getpid()}/children").read().split()
print(watcher, flush=True)
"""
DOES = {
    "keeps Python's lock": "ctypes.PyDLL(None).pause()",
    "is stopped": "os.kill(os.getpid(), signal.SIGSTOP)",
    "waits": "signal.pause()",
}


@pytest.fixture
def worker(tmp_path):
    """Starts a worker that does something, and gives it, the supervisor's end of its connection, and its watcher's id."""
    started = []

    def start(does):
        ours, theirs = socket.socketpair()
        with theirs, signals.held():
            code = [sys.executable, "-c", WORKER + does, str(theirs.fileno()), str(tmp_path / "scratch")]
            process = subprocess.Popen(code, cwd=ROOT, pass_fds=[theirs.fileno()], stdout=subprocess.PIPE, text=True)
        started.append(process)
        return process, ours, int(process.stdout.readline())

    (tmp_path / "scratch").mkdir()
    (tmp_path / "scratch" / "file").touch()
    yield start
    for process in started:
        process.kill()
        process.communicate(timeout=60)


@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
class TestTie:
    @pytest.mark.parametrize("does", DOES)
    def test_a_worker_ends_with_its_supervisor_whatever_it_does_and_leaves_no_files(self, worker, tmp_path, does):
        process, supervisor, watcher = worker(DOES[does])
        supervisor.close()
        assert process.wait(timeout=60) == -signal.SIGKILL
        wait_gone(watcher)
        assert list(tmp_path.iterdir()) == []

    @pytest.mark.parametrize(("does", "code"), [("sys.exit(3)", 3), ("os.kill(os.getpid(), 9)", -9)])
    def test_of_a_worker_that_ends_by_itself_nothing_is_left_but_what_its_supervisor_removes(self, worker, tmp_path, does, code):
        process, _supervisor, watcher = worker(does)
        assert process.wait(timeout=60) == code
        wait_gone(watcher)
        assert (tmp_path / "scratch" / "file").exists()

    def test_the_watcher_does_not_hold_the_workers_output(self, worker):
        process, _supervisor, _watcher = worker("os.close(1); os.close(2); signal.pause()")
        assert process.stdout.read() == ""
        assert process.poll() is None

    def test_whoever_asks_all_processes_to_stop_does_not_end_the_watch(self, worker):
        process, supervisor, watcher = worker("signal.pause()")
        for number in (signal.SIGTERM, signal.SIGINT):
            os.kill(watcher, number)
        assert Path(f"/proc/{watcher}").exists()
        supervisor.close()
        assert process.wait(timeout=60) == -signal.SIGKILL
