"""The messages of a worker, as they go over the socket."""

import socket

from trainer.cluster.messages import (
    Channel,
    Evaluated,
    Line,
    Phase,
    Progress,
    decode,
    encode,
    to_socket,
)


def test_decode_ignores_a_line_that_was_cut_off():
    line = encode(Line("a line")).decode()
    assert all(decode(line[:end]) is None for end in range(len(line)))


def test_metrics_that_are_nan_are_decoded_as_nan():
    message = decode(encode(Evaluated(1, {"loss": float("nan")}, "")).decode())
    assert message.metrics["loss"] != message.metrics["loss"]


def test_channel_thins_out_frequent_messages_but_no_change_of_phase():
    messages = []
    now = [0.0]
    channel = Channel(messages.append, lambda: now[0])
    for tenth in range(21):  # two seconds
        now[0] = tenth / 10
        channel.phase("train", tenth)
        channel.progress(tenth + 1, 99, 1.0, None, {})
    channel.phase("evaluate", 21)
    channel.beat()
    phases = [message.step for message in messages if isinstance(message, Phase)]
    assert phases == [0, 3, 6, 9, 12, 15, 18, 21]
    positions = [message.step for message in messages if isinstance(message, Progress)]
    assert positions == [1, 4, 7, 10, 13, 16, 19]
    now[0] += 1
    channel.beat()
    assert messages[-1] == messages[-2] == Phase("evaluate", 21)


def test_supervisor_that_is_gone_is_no_error(caplog):
    supervisor_socket, worker_socket = socket.socketpair()
    send = to_socket(worker_socket)
    supervisor_socket.close()
    send(Line("nobody listens"))
    assert "the supervisor is gone" in caplog.messages
