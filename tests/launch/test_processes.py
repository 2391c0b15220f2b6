"""A process as its parent sees it: its messages, its end, and a fork server that the test plays."""

import os
import queue
import signal
import socket
import subprocess
import sys
import time

import pytest

from trainer.cluster.fork_server import SOCKET, send
from trainer.cluster.messages import Crash, Exit, Line, Outcome
from trainer.errors import CRASHED, RESTARTABLE
from trainer.launch import processes
from trainer.launch.processes import Child, ask_module

WAIT_SECS = 60
PROGRAM = """
import json, os, signal, socket, sys
connection = socket.socket(fileno=int(sys.argv[1]))
for line in connection.makefile("r"):
    exec(line)
"""


@pytest.fixture
def start(tmp_path):
    """Start a process that executes the lines that it is sent."""
    (tmp_path / "program.py").write_text(PROGRAM)
    children = []

    def begin(server=None):
        variables = {**os.environ, "PYTHONPATH": str(tmp_path)}
        with open(os.devnull, "w") as null:
            streams = [null.fileno()] * 2
            children.append(Child(["program", SOCKET], variables, streams, server=server))
        return children[-1]

    yield begin
    for child in children:
        child.kill()


def messages_of(child, name="worker-0"):
    """Return the messages of a process until it has ended."""
    messages = queue.SimpleQueue()
    child.follow(messages.put, name)
    received = []
    while not (received and isinstance(received[-1], Exit)):
        received.append(messages.get(timeout=WAIT_SECS))
    return received


def tell(child, *lines):
    for line in lines:
        child.send_line(f"{line}\n".encode())


def report(code):
    return f"""connection.sendall(b'{{"kind": "Outcome", "code": {code}}}\\n')"""


@pytest.mark.parametrize("code", [0, 143])
def test_outcome_of_a_process_is_what_it_has_reported(start, code):
    child = start()
    tell(child, report(code), f"os._exit({code})")
    assert messages_of(child) == [Exit(code)]


@pytest.mark.parametrize("code", [0, 75])
def test_exit_without_a_report_is_a_crash_with_any_code(start, code):
    text = f"worker-0 left with exit code {code} in the middle of its work"
    for name, crash in (("worker-0", [Crash(text, text, "worker-0")]), ("", [])):
        child = start()
        tell(child, f"os._exit({code})")
        assert messages_of(child, name) == [*crash, Exit(CRASHED)]


@pytest.mark.parametrize(("lines", "code"), [([], -9), ([report(0)], 0)])
def test_signal_that_killed_a_process_is_its_exit_code_unless_it_had_reported(start, lines, code):
    child = start()
    tell(child, *lines, "os.kill(os.getpid(), signal.SIGKILL)")
    assert messages_of(child) == [Exit(code)]
    child.send(Outcome(0))  # nobody is there, which is no error


class Server:
    """Plays the fork server of one process."""

    def fork(self, command, variables, scratch, descriptors):
        self.connection, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.connection.settimeout(WAIT_SECS)
        return other

    def begin(self, process):
        descriptor = os.pidfd_open(process.pid)
        send(self.connection, process.pid, [descriptor])
        os.close(descriptor)


@pytest.fixture
def server():
    return Server()


@pytest.fixture
def forked():
    code = "import time; time.sleep(99)"
    with subprocess.Popen([sys.executable, "-c", code]) as process:
        yield process
        process.kill()


def wait_for_pid(child):
    end = time.monotonic() + WAIT_SECS
    while not child.pid:
        assert time.monotonic() < end, "it has not begun"
        time.sleep(0.002)
    return child.pid


def test_process_that_waits_in_the_kernel_is_named_and_not_waited_for(start, server, forked):
    child = start(server)
    server.begin(forked)
    wait_for_pid(child)
    # Its server does not report its end.
    assert child.kill(0.01) == f"process {forked.pid}"
    server.connection.close()


def test_process_killed_before_it_begins_never_does(start, server):
    child = start(server)
    child.signal(signal.SIGTERM)  # has no effect
    assert child.kill() == ""
    assert child.wait(0) == -signal.SIGKILL
    assert server.connection.recv(1) == b""
    assert child.pid == 0


def test_process_is_started_afresh_if_the_server_ends_before_it_forks(start, server):
    child = start(server)
    server.connection.close()
    wait_for_pid(child)
    tell(child, report(0), "os._exit(0)")
    assert messages_of(child) == [Exit(0)]
    assert not child.has_lost_server


def test_process_counts_as_killed_if_the_server_ends_after_it_forked(start, server, forked):
    child = start(server)
    server.begin(forked)
    wait_for_pid(child)
    server.connection.close()
    assert messages_of(child) == [Exit(-signal.SIGKILL)]
    assert child.has_lost_server


def test_process_that_cannot_be_started_afresh_ends_as_one_to_be_started_again(
    start, server, monkeypatch
):
    def fail(*arguments, **options):
        raise OSError(12, "Cannot allocate memory")

    child = start(server)
    monkeypatch.setattr(processes.subprocess, "Popen", fail)
    server.connection.close()
    text = "warning: a process could not be started: [Errno 12] Cannot allocate memory"
    assert messages_of(child) == [Line(text), Exit(RESTARTABLE)]


@pytest.mark.parametrize(
    ("program", "code", "value", "problem"),
    [
        ("import sys, json; print(1); print(json.dumps(sys.stdin.read()))", 0, "a text", ""),
        ("import sys; print([1]); sys.exit(2)", 2, [1], ""),
        ("raise ValueError('no')", 1, None, "ValueError: no"),
        ("import sys; sys.exit(0)", 1, None, "program left with exit code 0 without an answer"),
    ],
)
def test_module_answers_by_the_last_line_of_its_output(
    tmp_path, monkeypatch, program, code, value, problem
):
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    (tmp_path / "program.py").write_text(program)
    answer = ask_module(["program"], "a text")
    assert (answer.code, answer.value) == (code, value)
    assert problem in answer.errors
