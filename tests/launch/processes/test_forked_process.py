"""The parent's side of a forked process, with a server that the test plays."""

import errno
import os
import signal
import socket
import subprocess
import sys
import threading
import time

import pytest

from trainer.cluster import fork_protocol
from trainer.errors import RESTARTABLE
from trainer.launch.processes.fork_server import ForkedProcess

WAIT_SECS = 20
FOREVER = [sys.executable, "-c", "import time; time.sleep(99)"]


class Server:
    """Plays the server of one process.

    Attributes:
        events: what has been called, in order.
    """

    def __init__(self):
        self.connection, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.connection.settimeout(WAIT_SECS)
        self.events = []
        self.children = []
        self.process = ForkedProcess(
            other, lambda: self.events.append("release"), lambda: self.start("fresh")
        )

    def start(self, event="forked"):
        self.events.append(event)
        self.children.append(subprocess.Popen(FOREVER))
        return self.children[-1]

    def fork(self):
        child = self.start()
        descriptor = os.pidfd_open(child.pid)
        fork_protocol.send(self.connection, child.pid, [descriptor])
        os.close(descriptor)
        return child

    def close(self):
        self.connection.close()
        for child in self.children:
            child.kill()
            child.wait()


@pytest.fixture
def server():
    played = Server()
    yield played
    played.close()


def wait_for_pid(process):
    end = time.monotonic() + WAIT_SECS
    while not process.pid:
        assert time.monotonic() < end, "it has not begun"
        time.sleep(0.002)
    return process.pid


def test_end_of_a_process_is_waited_for_no_longer_than_wanted(server):
    server.fork()
    wait_for_pid(server.process)
    server.process.kill()  # its server does not report it: it waits in the kernel
    with pytest.raises(subprocess.TimeoutExpired):
        server.process.wait(0.01)


def test_process_killed_before_it_begins_never_does(server):
    server.process.send_signal(signal.SIGTERM)  # has no effect
    server.process.kill()
    assert server.process.wait() == -signal.SIGKILL
    assert server.connection.recv(1) == b""
    assert server.events == ["release"]
    assert server.process.pid == 0


def test_process_is_started_afresh_if_the_server_ends_before_it_forks(server):
    server.connection.close()
    assert wait_for_pid(server.process) == server.children[0].pid
    server.process.send_signal(signal.SIGTERM)
    assert server.process.wait() == -signal.SIGTERM
    assert server.events == ["fresh", "release"]


def test_process_counts_as_killed_if_the_server_ends_after_it_forked(server):
    server.fork()
    wait_for_pid(server.process)
    server.connection.close()
    assert server.process.wait() == -signal.SIGKILL
    assert server.events == ["forked", "release"]


def test_process_that_cannot_be_started_afresh_ends_as_one_to_be_started_again(server, monkeypatch):
    def fail(event):
        raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")

    monkeypatch.setattr(server, "start", fail)
    server.connection.close()
    ended = threading.Thread(target=server.process.wait, daemon=True)
    ended.start()
    ended.join(WAIT_SECS)
    assert server.process.poll() == RESTARTABLE
    assert server.events == ["release"]
