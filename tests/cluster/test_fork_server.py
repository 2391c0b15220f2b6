"""Messages between commands and a fork server, and the sockets that carry them."""

import os
import socket
from contextlib import closing

import pytest

from trainer.cluster import fork_server
from trainer.cluster.fork_server import Fork, connect, listen, receive, send

WORDS, VARIABLES = ["--socket", fork_server.SOCKET], {"HOME": "/home/ada", "EMPTY": ""}
MESSAGES = [Fork("a.module", WORDS, VARIABLES, [0, 3], "/tmp/scratch", 12.5), 43, -9]


@pytest.fixture
def pair():
    ends = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ends[0], ends[1]:
        yield ends


@pytest.mark.parametrize("message", MESSAGES, ids=str)
def test_message_arrives_as_it_was_sent(pair, message):
    send(pair[0], message)
    assert receive(pair[1]) == (message, [])


def test_descriptors_arrive_and_are_not_inherited_by_programs(pair, tmp_path):
    (tmp_path / "file").write_text("content")
    with (tmp_path / "file").open() as file:
        send(pair[0], 1, [file.fileno(), file.fileno()])
    _, descriptors = receive(pair[1])
    assert [os.pread(descriptor, 99, 0) for descriptor in descriptors] == [b"content"] * 2
    assert not any(os.get_inheritable(descriptor) for descriptor in descriptors)
    for descriptor in descriptors:
        os.close(descriptor)


def test_server_of_another_user_is_not_used(tmp_path, monkeypatch):
    with closing(listen(tmp_path / "socket")):
        monkeypatch.setattr(fork_server, "peer_uid", lambda connection: os.getuid() + 1)
        assert connect(tmp_path / "socket") is None
