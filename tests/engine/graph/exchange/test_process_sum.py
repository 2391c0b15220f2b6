"""Sums over processes: right to the bit, given away without a copy; lost processes are named."""

import socket
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import tensorflow as tf

from trainer.engine.graph.checks.graph_check import all_graphs
from trainer.engine.graph.exchange import process_sum
from trainer.engine.graph.exchange.process_sum import Peers, ProcessSum, groups_of_hosts
from trainer.engine.graph.exchange.shared_rows import (
    PeerLostError,
    Rendezvous,
    SharedRows,
    Timeouts,
)
from trainer.engine.graph.step.shard_tree import chain_sum, tree_sum

MB = 250_000  # float32 numbers


class Links:
    """The links of a process whose peers have the same gradients; notes what is summed."""

    def __init__(self):
        self.sizes = []

    def all_reduce(self, total, own, add_up):
        self.sizes.append(sum(values.size for _, values in own))
        for columns, values in own:
            total[columns] = 2 * values


def summed(links, gradients, others):
    exchange = ProcessSum(Peers(None, links, 1), chain_sum)
    return tf.function(lambda: exchange(None, gradients, others), autograph=False)()


def test_last_layers_are_sent_first_and_all_get_their_own_sum():
    links = Links()
    gradients = [tf.fill([size], float(i)) for i, size in enumerate((5, MB, MB, 3 * MB, 7))]
    sums, others = summed(links, gradients, [tf.fill([3], 9.0)])
    assert links.sizes == [7 + 3 * MB, 2 * MB, 5 + 3]
    for number, (total, gradient) in enumerate(zip(sums, gradients, strict=True)):
        assert total.shape == gradient.shape
        assert (total.numpy() == 2 * number).all()
    assert (others[0].numpy() == 18).all()


def test_rows_whose_number_is_unknown_before_the_step_are_summed():
    def step(count):
        return summed(Links(), [tf.fill([count, 4], 1.5), tf.ones([2])], [])[0]

    function = tf.function(step, autograph=False, input_signature=[tf.TensorSpec([], tf.int32)])
    for count in (3, 50, 0):
        rows, vector = function(tf.constant(count))
        np.testing.assert_array_equal(rows, np.full([count, 4], 3.0))
        assert vector.shape == (2,)


def test_tensorflow_does_not_compute_in_memory_that_it_was_given():
    """It does in what an operation has allocated, and other processes read the same sum."""
    given = []

    class Noting(Links):
        def all_reduce(self, total, own, add_up):
            super().all_reduce(total, own, add_up)
            given.append(total)

    def step():
        (total,), _ = summed(Noting(), [tf.random.normal([MB]) * 0.0 + 1.0], [])
        return tf.sqrt(total * 3.0) + 1.0

    tf.function(step, autograph=False)()
    assert (given[0] == 2.0).all()


@pytest.mark.parametrize(
    ("hosts", "in_tree", "groups"),
    [
        ("aabb", False, [[0, 1], [2, 3]]),
        ("abab", False, [[0, 2], [1, 3]]),
        ("aaab", False, [[0, 1, 2], [3]]),
        ("aabb", True, [[0, 1], [2, 3]]),
        ("abab", True, [[0], [1], [2], [3]]),  # no subtrees
        ("aaabbb", True, [[0], [1], [2], [3], [4], [5]]),
        ("aabbc", True, [[0, 1], [2, 3], [4]]),
        ("abb", True, [[0], [1], [2]]),
        ("aaa", True, [[0, 1, 2]]),
    ],
)
def test_processes_of_a_host_are_a_group_if_they_may_be_added_first(hosts, in_tree, groups):
    assert groups_of_hosts(hosts, in_tree=in_tree) == groups


def test_sums_that_do_not_depend_on_one_another_are_in_the_order_of_the_trace():
    exchange = ProcessSum(Peers(None, Links(), 1), chain_sum)

    def step(number, total):
        sums, _ = exchange(None, [tf.ones([3]), tf.ones([3 * MB])], [])
        others, _ = exchange(None, [tf.ones([5])], [])
        return number + 1, total + sums[0][0] + sums[1][0] + others[0][0]

    def loop():
        return tf.while_loop(lambda number, _: number < 3, step, (0, 0.0))

    traced = tf.function(loop, autograph=False).get_concrete_function()
    sums = [x for graph in all_graphs(traced.graph) for x in graph.get_operations()]
    first, second, third = (x for x in sums if x.type == "PyFunc")
    assert first in second.control_inputs
    assert second in third.control_inputs


class Notifications:
    """What all threads see, as TensorFlow's service shows it to all processes."""

    texts: dict[str, str] = {}  # noqa: RUF012 - new for each test
    changed = threading.Condition()

    def __init__(self, secs):
        self.secs = secs

    def put(self, name, text):
        with self.changed:
            assert name not in self.texts
            self.texts[name] = text
            self.changed.notify_all()

    def get(self, name):
        with self.changed:
            assert self.changed.wait_for(lambda: name in self.texts, self.secs)
            return self.texts[name]


@pytest.fixture
def notifications(monkeypatch):
    monkeypatch.setattr(Notifications, "texts", {})
    monkeypatch.setattr(process_sum, "Notifications", Notifications)


@pytest.mark.usefixtures("notifications")
@pytest.mark.parametrize("add_up", [chain_sum, tree_sum])
@pytest.mark.parametrize("hosts", ["1122", "1123", "1212", "111", "12"])
def test_all_get_the_sum_wherever_they_are(hosts, add_up):
    addresses = {f"worker-{i}": f"127.0.0.{host}:{i}" for i, host in enumerate(hosts)}
    draw = np.random.default_rng(0)
    mine = [[draw.integers(-9, 9, [7, 50]).astype(np.float32)] for _ in hosts]

    def work(index):
        in_tree = add_up is tree_sum
        peers = process_sum.connect(addresses, index, 10.0, Timeouts(), in_tree=in_tree)
        rows = SharedRows(peers.on_host, 1, peers.num_parts)
        links = peers.between_hosts
        over_hosts = links and (lambda total, own: links.all_reduce(total, own, add_up))
        return rows.sum(mine[index], add_up, over_hosts)[0]

    with ThreadPoolExecutor(len(hosts)) as pool:
        for total in pool.map(work, range(len(hosts))):
            np.testing.assert_array_equal(total, sum(x for (x,) in mine))


def close(member):
    """Close the links of a process, as when it ends."""
    for link in member._links.values():
        link.shutdown(socket.SHUT_RDWR)


@pytest.fixture
def rendezvous(request):
    """The opened rendezvous of as many processes as the parameter says, and their threads."""
    names = [f"worker-{rank}" for rank in range(request.param)]
    address = f"test-{threading.get_native_id()}-{request.node.name}"
    timeouts = Timeouts(1.0, 30.0)
    members = [Rendezvous(address, rank, names, timeouts) for rank in range(request.param)]
    with ThreadPoolExecutor(request.param) as pool:
        list(pool.map(lambda member: member.open(10.0), members))
        yield members, pool
    list(map(close, members))


def rows_of(members):
    return [SharedRows(member, 1, len(members)) for member in members]


def one_sum(rows, pool, tensors, add_up=chain_sum):
    """Sum `tensors[rank]`, a list for each process; return the list that each gets."""
    return list(pool.map(lambda own, mine: own.sum(mine, add_up, None), rows, tensors))


def gradients(count, seed=0):
    random = np.random.default_rng(seed)
    return [
        [random.normal(size=shape).astype(np.float32) for shape in ((3, 5), (7,), (), (1,), (40,))]
        for _ in range(count)
    ]


@pytest.mark.parametrize("add_up", [chain_sum, tree_sum])
@pytest.mark.parametrize("rendezvous", [2, 5], indirect=True)
def test_every_process_gets_sum_in_the_given_order(rendezvous, add_up):
    members, pool = rendezvous
    mine = gradients(len(members))
    expected = [add_up(values, np.add) for values in zip(*mine, strict=True)]
    for result in one_sum(rows_of(members), pool, mine, add_up):
        for total, wanted in zip(result, expected, strict=True):
            assert total.shape == wanted.shape
            assert total.tobytes() == wanted.astype(np.float32).tobytes()


@pytest.mark.parametrize("rendezvous", [2], indirect=True)
def test_sum_that_is_held_does_not_change_and_none_is_copied_before_all_are_held(rendezvous):
    members, pool = rendezvous
    rows = rows_of(members)
    held = []
    for seed in range(6):
        mine = gradients(2, seed)
        results = one_sum(rows, pool, mine)
        held.append((results[0], [a + b for a, b in zip(*mine, strict=True)]))
        shared = [
            np.shares_memory(result[0], own._rows)
            for result, own in zip(results, rows, strict=True)
        ]
        assert shared == [seed < 2] * 2  # the other process holds nothing, but all use the same
        del results
    for result, expected in held:
        assert all((x == y).all() for x, y in zip(result, expected, strict=True))
    held.clear()
    results = one_sum(rows, pool, gradients(2))
    assert np.shares_memory(results[0][0], rows[0]._rows)


@pytest.mark.parametrize("rendezvous", [3], indirect=True)
def test_mask_has_the_bits_that_all_have(rendezvous):
    members, pool = rendezvous
    masks = pool.map(lambda member, mask: member.wait(1, 8, mask), members, (7, 6, 12))
    assert list(masks) == [4, 4, 4]


def test_process_that_ends_while_it_connects_is_not_taken_for_another():
    names = ["worker-0", "worker-1"]
    members = [Rendezvous("ending", rank, names, Timeouts()) for rank in range(2)]
    with socket.socket(socket.AF_UNIX) as ending:
        ending.connect("\0steadfast-ending")
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda member: member.open(10.0), members))
    list(map(close, members))


@pytest.mark.parametrize("rendezvous", [2], indirect=True)
def test_different_gradients_are_an_error_and_no_hang(rendezvous):
    members, pool = rendezvous
    waiting = [
        pool.submit(SharedRows(member, 1, 2).sum, [np.zeros(size, np.float32)], chain_sum, None)
        for member, size in zip(members, (16, 32), strict=True)
    ]
    with pytest.raises(PeerLostError, match=r"^the processes add up different gradients: "):
        waiting[0].result(timeout=30)
    close(members[0])
    with pytest.raises((PeerLostError, ValueError)):
        waiting[1].result(timeout=30)


@pytest.mark.parametrize("rendezvous", [3], indirect=True)
def test_lost_process_is_noticed_by_all(rendezvous):
    members, pool = rendezvous
    waiting = [pool.submit(member.wait, 1, 8) for member in members[:2]]
    close(members[2])
    with pytest.raises(PeerLostError, match=r"^worker-2 has gone$"):
        waiting[0].result(timeout=30)
    close(members[0])
    with pytest.raises(PeerLostError, match=r"^worker-0 has gone"):
        waiting[1].result(timeout=30)


@pytest.mark.parametrize("rendezvous", [2], indirect=True)
def test_process_that_is_waited_for_is_named(rendezvous, caplog):
    members, _ = rendezvous
    members[0]._timeouts = Timeouts(0.05, 0.1)
    with pytest.raises(PeerLostError, match=r"^worker-1: silent for 0.1 s$"):
        members[0].wait(1, 8)
    assert caplog.messages == ["worker-1: no message for 0.05 s; this process waits"]
