"""The loop of the fork server, in this process and without forks, and what it refuses."""

import os
import socket
import sys
import threading
from types import SimpleNamespace

import pytest
from tensorflow.python.eager import context

from trainer.cluster import fork_server
from trainer.cluster.fork_server import Fork
from trainer.worker import forking
from trainer.worker.forking import Server

REQUEST = Fork("toy", [], {"NAME": "value"}, [0], "/scratch", 1.5)


@pytest.fixture
def ends(tmp_path, monkeypatch):
    """A server, the path of its socket, and its owner's end."""
    monkeypatch.setitem(sys.modules, "toy", SimpleNamespace(prepare=lambda: None))
    listener = fork_server.listen(tmp_path / "socket")
    owner, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    server = Server(listener, other)
    with listener, owner, other:
        yield server, tmp_path / "socket", owner


@pytest.fixture
def forks(ends, monkeypatch):
    """The forks that were tried: the first fails, and with it the owner ends."""
    tried = []

    def refuse():
        tried.append(True)
        ends[2].close()
        raise OSError("Cannot allocate memory")

    monkeypatch.setattr(os, "fork", refuse)
    return tried


def ask(path, descriptors=(0, 0, 0, 0)):
    connection = fork_server.connect(path)
    fork_server.send(connection, REQUEST, descriptors)
    return connection


def test_request_whose_command_is_gone_is_dropped(ends, forks):
    server, path, _ = ends
    ask(path).close()
    with ask(path):
        assert server.serve() is None
    assert len(forks) == 1


def test_server_that_cannot_fork_makes_the_command_start_a_process(ends, forks):
    server, path, _ = ends
    with ask(path) as connection:
        assert server.serve() is None
        assert fork_server.receive(connection) == (None, [])


def test_request_of_another_user_is_not_read(ends, monkeypatch):
    server, path, owner = ends
    connection = ask(path)
    monkeypatch.setattr(fork_server, "peer_uid", lambda connection: os.getuid() + 1)
    owner.close()
    with connection:
        assert server.serve() is None
        with pytest.raises(ConnectionResetError):  # closed, and unread
            connection.recv(1)


@pytest.mark.parametrize(
    ("threads", "created", "opened", "reason"),
    [
        (2, None, "/dev/null", "has started threads"),
        (1, object(), "/dev/null", "has created TensorFlow's context"),
        (1, None, "/dev/nvidia0", "has opened GPUs: /dev/nvidia0"),
    ],
)
def test_process_that_has_begun_something_does_not_fork(
    monkeypatch, threads, created, opened, reason
):
    monkeypatch.setattr(threading, "active_count", lambda: threads)
    monkeypatch.setattr(context, "_context", created)
    path = SimpleNamespace(realpath=lambda path: opened)
    monkeypatch.setattr(forking, "os", SimpleNamespace(path=path))
    with pytest.raises(RuntimeError, match=reason):
        forking._check_forkable()
