"""The parent's side of a worker: how it ended is what it has reported."""

import queue
import signal
import socket
import subprocess
from contextlib import suppress
from types import SimpleNamespace
from unittest.mock import Mock

import pytest

from trainer.cli.compose import compose
from trainer.cluster.messages import Crash, Exit, Line, Outcome, encode
from trainer.cluster.spec import Cluster
from trainer.errors import RESTARTABLE
from trainer.launch.processes import worker_process
from trainer.runs.directory import join_run

SECS = 60


def test_process_that_waits_in_the_kernel_is_named_and_not_waited_for(monkeypatch):
    stuck = Mock(pid=123)
    stuck.wait.side_effect = subprocess.TimeoutExpired("a process", 0)
    monkeypatch.setattr(worker_process, "start_process", lambda *arguments: stuck)
    assert worker_process.WorkerProcess().discard(0.0) == "process 123"
    stuck.kill.assert_called_once_with()


@pytest.fixture
def messages_of(tmp_path, monkeypatch):
    """Return a function that returns what is told of a worker that ends with a code."""

    def end(code, *sent, start_error=None):
        ours, theirs = socket.socketpair()
        fake = SimpleNamespace(wait=lambda: code)

        def start(connection, release, start_fresh):
            if start_error:
                with suppress(OSError):
                    start_fresh()
            release()
            return fake

        experiment = compose([f"runs_dir={tmp_path}"])
        with monkeypatch.context() as patch:
            patch.setattr(worker_process.socket, "socketpair", lambda: (ours, theirs.dup()))
            patch.setattr(worker_process, "start_process", start)
            patch.setattr(worker_process.subprocess, "Popen", Mock(side_effect=start_error))
            process = worker_process.WorkerProcess()
        messages = queue.SimpleQueue()
        theirs.sendall(b"".join(map(encode, sent)))
        process.assign(join_run(experiment, "worker-0"), experiment, Cluster(), messages)
        theirs.close()
        received = []
        while not (received and isinstance(received[-1], Exit)):
            received.append(messages.get(timeout=SECS)[1])
        return received

    return end


def test_worker_that_cannot_be_started_now_is_started_again(messages_of):
    warning, end = messages_of(75, start_error=OSError(12, "Cannot allocate memory"))
    assert warning == Line(
        "warning: a process could not be started: [Errno 12] Cannot allocate memory"
    )
    assert end == Exit(RESTARTABLE)


@pytest.mark.parametrize("code", [0, 143])
def test_outcome_of_a_worker_is_what_it_has_reported(messages_of, code):
    assert messages_of(code, Outcome(code)) == [Exit(code)]


@pytest.mark.parametrize("code", [0, 75])
def test_exit_without_a_report_is_a_crash_whatever_its_code(messages_of, code):
    crash, end = messages_of(code)
    assert crash == Crash(
        f"worker-0 left with exit code {code} in the middle of its work",
        f"worker-0 left with exit code {code} in the middle of its work",
        "worker-0",
    )
    assert end == Exit(1)


def test_signal_that_killed_a_worker_is_told_unless_it_had_reported(messages_of):
    assert messages_of(-signal.SIGKILL) == [Exit(-signal.SIGKILL)]
    assert messages_of(-signal.SIGKILL, Outcome(0)) == [Exit(0)]
