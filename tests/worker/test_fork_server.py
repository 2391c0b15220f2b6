"""The loop of the fork server, in this process and without forks, and what it refuses."""

import os
import socket
import sys
import threading
from types import SimpleNamespace

import pytest
from tensorflow.python.eager import context

from trainer.cluster import fork_protocol
from trainer.cluster.fork_protocol import Describe, Description, Fork, Keep, Stop
from trainer.worker import fork_server
from trainer.worker.fork_server import ForkServer


@pytest.fixture
def ends(tmp_path, monkeypatch):
    """A server, the path of its socket, and its owner's end."""
    monkeypatch.setitem(sys.modules, "toy", SimpleNamespace(prepare=lambda: None))
    listener = fork_protocol.listen(tmp_path / "socket")
    owner, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    server = ForkServer(listener, other)
    with listener, owner, other:
        yield server, tmp_path / "socket", owner


def ask(path, message, descriptors=()):
    connection = fork_protocol.connect(path)
    fork_protocol.send(connection, message, descriptors)
    return connection


def test_server_ends_with_its_owner(ends):
    server, _, owner = ends
    owner.close()
    assert server.serve() is None


def test_server_that_is_kept_outlives_its_owner_for_its_time(ends, tmp_path):
    server, _, owner = ends
    with fork_protocol.listen(tmp_path / "kept") as listener:
        fork_protocol.send(owner, Keep(0.0, str(tmp_path / "kept")), [listener.fileno()])
    owner.close()
    with ask(tmp_path / "kept", Describe()) as connection:
        assert server.serve() is None
        assert fork_protocol.receive(connection)[0] == Description(os.getpid(), 0, 0.0)
    assert server.paths == [tmp_path / "kept"]


def test_server_stops_on_request(ends):
    server, path, _ = ends
    with ask(path, Stop()):
        assert server.serve() is None


def test_request_whose_command_is_gone_is_dropped(ends, monkeypatch):
    server, path, _ = ends
    monkeypatch.setattr(os, "fork", lambda: pytest.fail("nobody needs it"))
    ask(path, Fork("toy", [], {}, [0], "", 0.0)).close()
    with ask(path, Stop()):
        assert server.serve() is None


def test_server_that_cannot_fork_lets_the_command_do_without(ends, monkeypatch):
    server, path, owner = ends

    def refuse():
        owner.close()
        raise OSError("Cannot allocate memory")

    monkeypatch.setattr(os, "fork", refuse)
    with ask(path, Fork("toy", [], {}, [0], "", 0.0), [0, 0, 0, 0]) as connection:
        assert server.serve() is None
        assert fork_protocol.receive(connection) == (None, [])


def test_child_gets_its_descriptors_and_none_of_the_server(ends, monkeypatch):
    server, path, _ = ends
    monkeypatch.setattr(os, "fork", lambda: 0)
    request = Fork("toy", [], {"NAME": "value"}, [0], "/scratch", 1.5)
    with ask(path, request, [0, 1, 2, 0, 1]) as connection:
        child = server.serve()
        assert child.request == request
        given = [child.directory, child.connection, child.output, child.errors, *child.namespaces]
        assert len(set(given)) == 5
        for descriptor in given:
            os.close(descriptor)
        assert fork_protocol.receive(connection) == (None, [])
    assert fork_protocol.connect(path) is None


def test_request_of_another_user_is_not_read(ends, monkeypatch):
    server, path, owner = ends
    monkeypatch.setattr(fork_protocol, "peer_uid", lambda connection: os.getuid())
    connection = ask(path, Stop())
    monkeypatch.setattr(fork_protocol, "peer_uid", lambda connection: os.getuid() + 1)
    owner.close()
    with connection:
        assert server.serve() is None
        assert not server._keep_secs


@pytest.mark.parametrize(
    ("threads", "created", "reason"),
    [(2, None, "has started threads"), (1, object(), "has created TensorFlow's context")],
)
def test_process_that_has_begun_something_does_not_fork(monkeypatch, threads, created, reason):
    monkeypatch.setattr(threading, "active_count", lambda: threads)
    monkeypatch.setattr(context, "_context", created)
    with pytest.raises(RuntimeError, match=reason):
        fork_server._check_forkable()


def test_process_that_has_opened_a_gpu_does_not_fork(monkeypatch):
    monkeypatch.setattr(threading, "active_count", lambda: 1)
    monkeypatch.setattr(context, "_context", None)
    monkeypatch.setattr(fork_server, "os", SimpleNamespace(path=SimpleNamespace(
        realpath=lambda path: "/dev/nvidia0")))  # fmt: skip
    with pytest.raises(RuntimeError, match="has opened GPUs: /dev/nvidia0"):
        fork_server._check_forkable()
