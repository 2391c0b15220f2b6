"""The learner's server and its clients: batches, weights, counts, and the end."""

import json
import socket
import threading

import numpy as np
import pytest

from trainer.buffers.queue import Queue
from trainer.engine.array_messages import send
from trainer.engine.learner_client import Finished, LearnerClient
from trainer.engine.learner_server import ADDRESS_FILE, Closed, LearnerServer

LENGTH = 3
NAMES = ("reward", "staleness")
NO_FRAMES = np.zeros(4, np.int64)


def server_of(run_dir, *, num_replicas=1, per_replica=2, **options):
    return LearnerServer(
        run_dir, Queue(**options), NAMES, LENGTH, num_replicas=num_replicas,
        per_replica=per_replica, host="127.0.0.1",
    )  # fmt: skip


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


def test_replicas_get_parts_of_the_same_batch(server, client):
    version, weights = client.exchange({}, -1)
    assert (version, [array.tolist() for array in weights]) == (5, [[0.5]])
    client.exchange(unrolls(1, 2, 3, 4), 5)
    second = client.part(5, 1)  # as another process would
    first = server.part(5, 0)
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
    assert first.part(0, 0)[-1].tolist() == [9, 0, 0, 3]
    client.exchange(unrolls(4, 5), 1)
    counts = first.part(1, 0)[-1]
    assert counts.tolist() == [15, 3, 0, 0]
    generated, dropped, lost, waiting = counts
    assert generated == 2 * 2 * LENGTH + dropped + lost + waiting
    first.close(finished=False)
    client.close()
    second = server_of(tmp_path)
    second.begin(1, np.array([9, 0, 0, 3]), [])
    client.exchange(unrolls(6, 7), 1)
    assert second.part(1, 0)[-1].tolist() == [15, 0, 3, 0]
    second.close(finished=True)


def test_actor_waits_while_the_queue_is_full(tmp_path, client):
    server = server_of(tmp_path, per_replica=1, capacity=1)
    server.begin(0, NO_FRAMES, [])
    sender = threading.Thread(target=client.exchange, args=(unrolls(1, 2, 3), 0))
    sender.start()
    assert [server.part(step, 0)[0][0, 0] for step in range(2)] == [1, 2]
    sender.join(30)
    assert not sender.is_alive()
    server.close(finished=True)


def test_end_is_told_to_all_that_wait(server, client):
    client.exchange({}, -1)
    server.close(finished=True)
    with pytest.raises(Finished):
        client.exchange(unrolls(1), 5)
    with pytest.raises(Closed):
        server.part(5, 0)


def test_client_finds_the_next_learner_and_sends_it_nothing_old(tmp_path, client):
    first = server_of(tmp_path)
    first.begin(8, NO_FRAMES, [np.array(1.0)])
    client.exchange({}, -1)
    client.close()  # as if the learner were gone
    first.close(finished=False)
    second = server_of(tmp_path)
    second.begin(4, NO_FRAMES, [np.array(2.0)])
    version, (weight,) = client.exchange({}, -1)
    assert (version, float(weight)) == (4, 2.0)
    second.close(finished=True)


def test_stranger_without_the_password_gets_no_answer(server, tmp_path):
    address = json.loads((tmp_path / ADDRESS_FILE).read_text())
    assert (tmp_path / ADDRESS_FILE).stat().st_mode & 0o077 == 0
    with socket.create_connection((address["host"], address["port"]), 10) as stranger:
        send(stranger, {"token": "guessed"})
        stranger.settimeout(10)
        assert stranger.recv(1) == b""
