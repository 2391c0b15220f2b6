"""Messages of arrays; the learner's server and its clients: batches, weights, counts, the end."""

import json
import socket
import threading

import numpy as np
import pytest
import tensorflow as tf

from trainer.reinforcement.buffers.queue import Queue
from trainer.reinforcement.connection import (
    ADDRESS_FILE,
    Closed,
    Finished,
    LearnerClient,
    LearnerServer,
    receive,
    send,
)

LENGTH = 3
NAMES = ("reward", "staleness")
NO_FRAMES = np.zeros(4, np.int64)


def server_of(run_dir, *, num_replicas=1, per_replica=2, **options):
    return LearnerServer(
        run_dir, Queue(**options), names=NAMES, length=LENGTH, num_replicas=num_replicas,
        per_replica=per_replica, host="127.0.0.1",
    )  # fmt: skip


LARGE = np.ones(4_000_000)
"""More than the buffers of a socket hold."""


@pytest.fixture
def pair():
    left, right = socket.socketpair()
    with left, right:
        yield left, right


def test_arrays_arrive_as_they_were_sent_also_after_timeouts(pair):
    arrays = [
        np.arange(6, dtype=np.float32).reshape(2, 3)[:, ::2], np.zeros((0, 4), np.int64),
        np.array(7, np.uint8), LARGE,
    ]  # fmt: skip
    pair[0].settimeout(0.01)
    has_waited = threading.Event()
    sender = threading.Thread(target=send, args=(pair[0], {"a": 1}, arrays, has_waited.set))
    sender.start()
    assert has_waited.wait(60)
    header, received = receive(pair[1])
    sender.join()
    assert header == {"a": 1}
    for array, other in zip(arrays, received, strict=True):
        np.testing.assert_array_equal(array, other)
        assert array.dtype == other.dtype


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b'{"arrays": [["O", [9]]]}', "cannot be received"),
        (b'{"arrays": [["f4", [9]]]}', "cannot be received"),  # too many bytes
        (None, "too long"),
    ],
)
def test_what_is_no_message_is_refused(pair, content, problem):
    pair[0].sendall(len(content).to_bytes(8, "big") + content if content else b"GET / HTTP/1.1\r\n")
    with pytest.raises(ValueError, match=problem):
        receive(pair[1], max_bytes=8)


@pytest.fixture
def server(tmp_path):
    with_server = server_of(tmp_path, num_replicas=2)
    with_server.begin(5, NO_FRAMES, [np.array([0.5])])
    yield with_server
    with_server.close(finished=False)


@pytest.fixture
def client(tmp_path):
    end = threading.Event()  # ends what would wait for ever in a test that fails

    def wait():
        assert not end.is_set()

    timer = threading.Timer(60, end.set)
    timer.start()
    with_client = LearnerClient(tmp_path, wait)
    yield with_client
    with_client.close()
    timer.cancel()


def unrolls(*numbers):
    return {"reward": np.array([[number] * LENGTH for number in numbers], np.float32)}


def test_replicas_get_shards_of_the_same_batch(server, client):
    version, weights = client.exchange({}, -1)
    assert (version, [array.tolist() for array in weights]) == (5, [[0.5]])
    client.exchange(unrolls(1, 2, 3, 4), 5)
    second = client.shard(5, 1)  # as another process would
    first = server.shard(5, 0)
    assert first[0][:, 0].tolist() == [1, 2]
    assert second[0][:, 0].tolist() == [3, 4]
    assert first[1].tolist() == second[1].tolist() == [0, 0]
    assert first[2].tolist() == second[2].tolist() == [12, 0, 0, 0]


def test_actor_gets_weights_only_if_there_are_newer_ones(server, client):
    client.exchange({}, -1)
    server.publish(np.array([1.0]))  # those of step 5, which it has
    assert client.exchange(unrolls(1), 5) == (5, [])
    server.publish(np.array([2.0]))
    version, weights = client.exchange(unrolls(2), 5)
    assert (version, weights[0].tolist()) == (6, [2.0])


def test_counts_add_up_and_what_waited_is_lost_in_the_next_attempt(tmp_path, client):
    first = server_of(tmp_path, max_staleness=0, capacity=4)
    first.begin(0, NO_FRAMES, [])
    client.exchange(unrolls(1, 2, 3), 0)
    assert first.shard(0, 0)[-1].tolist() == [9, 0, 0, 3]
    client.exchange(unrolls(4, 5), 1)
    counts = first.shard(1, 0)[-1]
    assert counts.tolist() == [15, 3, 0, 0]
    generated, dropped, lost, waiting = counts
    assert generated == 2 * 2 * LENGTH + dropped + lost + waiting
    first.close(finished=False)
    client.close()
    second = server_of(tmp_path)
    second.begin(1, np.array([9, 0, 0, 3]), [])
    client.exchange(unrolls(6, 7), 1)
    assert second.shard(1, 0)[-1].tolist() == [15, 0, 3, 0]
    second.close(finished=True)


def test_actor_waits_while_the_queue_is_full(tmp_path, client):
    server = server_of(tmp_path, per_replica=1, capacity=1)
    server.begin(0, NO_FRAMES, [])
    sender = threading.Thread(target=client.exchange, args=(unrolls(1, 2, 3), 0))
    sender.start()
    assert [server.shard(step, 0)[0][0, 0] for step in range(2)] == [1, 2]
    sender.join(30)
    assert not sender.is_alive()
    server.close(finished=True)


def test_end_is_sent_to_all_that_wait(server, client):
    client.exchange({}, -1)
    server.close(finished=True)
    with pytest.raises(Finished):
        client.exchange(unrolls(1), 5)
    with pytest.raises(Closed):
        server.shard(5, 0)


def test_stranger_without_the_password_gets_no_answer(server, tmp_path):
    address = json.loads((tmp_path / ADDRESS_FILE).read_text())
    assert (tmp_path / ADDRESS_FILE).stat().st_mode & 0o077 == 0
    with socket.create_connection((address["host"], address["port"]), 10) as stranger:
        send(stranger, {"token": "guessed"})
        stranger.settimeout(10)
        assert stranger.recv(1) == b""


def test_published_weights_outlive_the_updates_of_a_compiled_loop(tmp_path):
    server = server_of(tmp_path)
    published = []
    variable = tf.Variable(tf.zeros([1000]))
    optimizer = tf.keras.optimizers.legacy.SGD(1.0)

    def publish(weights):
        server.publish(weights)
        published.append(weights)

    @tf.function(autograph=False)
    def run():
        def step(number):
            taken = tf.numpy_function(publish, [variable.read_value()], [])
            with tf.control_dependencies([taken]):
                optimizer.apply_gradients([(-tf.ones([1000]), variable)])
            return number + 1

        tf.while_loop(lambda number: number < 5, step, [0])

    run()
    assert [weights.tolist() for weights in published] == [
        [float(number)] * 1000 for number in range(5)
    ]
