"""Links between hosts: sums to the bit, strangers kept out, lost and silent peers named."""

import errno
import os
import socket
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from functools import reduce

import numpy as np
import pytest

from tests.support.namespaces import namespaces
from tests.support.processes import ROOT
from trainer.engine.graph.exchange.peer_links import PeerLinks
from trainer.engine.graph.exchange.shared_rows import PeerLostError, Timeouts
from trainer.engine.graph.step.shard_tree import chain_sum, tree_sum

TOKEN = b"a token of 32 bytes, or whatever"
HOST = "127.0.0.1"
TIMEOUTS = Timeouts(1.0, 10.0)


def backward(parts, add_two):
    return reduce(add_two, parts[::-1])


@contextmanager
def connected(count, token=lambda rank: TOKEN, secs=10.0, timeouts=TIMEOUTS):
    """Yield the links of so many processes, played by threads, and their pool."""
    names = [f"worker-{rank}" for rank in range(count)]
    links = [PeerLinks(rank, names, HOST, token(rank), timeouts) for rank in range(count)]

    def open_one(own):
        own.open({rank: (HOST, links[rank].port) for rank in range(own.rank)}, secs)

    with ExitStack() as stack, ThreadPoolExecutor(count) as pool:
        for own in links:
            stack.callback(own.close)
        list(pool.map(open_one, links))
        yield links, pool


def add(own, values):
    """Sum a vector over the peers in place."""
    own.all_reduce(values, [(slice(0, len(values)), values)], chain_sum)


def vectors(count, size):
    draw = np.random.default_rng(size)
    return [draw.normal(size=size).astype(np.float32) for _ in range(count)]


@pytest.mark.parametrize("add_up", [chain_sum, tree_sum, backward])
@pytest.mark.parametrize(
    ("count", "ends"), [(5, (5, 1000, 90_000)), (2, (1000,)), (3, (1001,)), (5, (3,)), (4, (0,))]
)
def test_every_peer_gets_the_sum_in_the_given_order_and_what_it_sends_stays(count, ends, add_up):
    begins = [0, *(-(-end // 16) * 16 for end in ends[:-1])]  # of the columns of each tensor
    columns = [slice(*bounds) for bounds in zip(begins, ends, strict=True)]
    mine = vectors(count, ends[-1])
    for values in mine:
        values.flags.writeable = False

    def sum_up(own, values):
        total = np.zeros(ends[-1], np.float32)
        own.all_reduce(total, [(x, values[x]) for x in columns], add_up)
        return total

    with connected(count) as (links, pool):
        totals = [*pool.map(sum_up, links, mine), *pool.map(sum_up, links, mine)]
    expected = add_up([x.copy() for x in mine], np.add)
    assert all(total[x].tobytes() == expected[x].tobytes() for total in totals for x in columns)


def test_who_does_not_know_the_token_is_not_connected():
    lost = r"^worker-(1 did not connect|0 at 127.0.0.1:\d+ cannot)"
    with (
        pytest.raises(PeerLostError, match=lost),
        connected(2, token=lambda rank: TOKEN[rank:], secs=0.5),
    ):
        pass


def test_strangers_keep_nobody_out():
    names = ["worker-0", "worker-1"]
    first = PeerLinks(0, names, HOST, TOKEN, TIMEOUTS)
    with (
        socket.create_connection((HOST, first.port)),  # says nothing
        socket.create_connection((HOST, first.port)) as loud,
        ThreadPoolExecutor(2) as pool,
    ):
        loud.sendall(b"GET / HTTP/1.1\r\n\r\n" * 100)
        second = PeerLinks(1, names, HOST, TOKEN, TIMEOUTS)
        opened = [pool.submit(first.open, {}, 5.0)]
        opened.append(pool.submit(second.open, {0: (HOST, first.port)}, 5.0))
        assert [done.result(10) for done in opened] == [None, None]
        first.close()
        second.close()


def test_lost_peer_is_named_by_all_others():
    with connected(3) as (links, pool):
        waiting = [
            pool.submit(add, own, x) for own, x in zip(links[:2], vectors(2, 100), strict=True)
        ]
        links[2].close()
        for waits in waiting:
            with pytest.raises(PeerLostError, match=r"^worker-2 has gone: "):
                waits.result(10)


def test_silent_peer_is_named():
    with connected(2, timeouts=Timeouts(1.0, 0.2)) as (links, _):
        with pytest.raises(PeerLostError, match=r"^worker-1: silent for 0.2 s$"):
            add(links[0], vectors(1, 10)[0])


class Late(Timeouts):
    """Notes when a peer is warned of."""

    noticed = threading.Event()

    def warn(self, names):
        self.noticed.set()


def test_live_peer_that_is_late_is_waited_for_also_where_it_does_not_read():
    """Longer than a host may be silent: its kernel takes what fits its buffer, then answers."""
    size = 1 << 23
    with connected(2, timeouts=Late(1.0, 60.0, cut_off_secs=0.5)) as (links, pool):
        values = [np.ones(size, np.float32) for _ in links]
        early = pool.submit(add, links[0], values[0])
        assert Late.noticed.wait(30)
        add(links[1], values[1])
        early.result(30)
    assert all(np.all(x == 2.0) for x in values)


CUT_OFF = """
import subprocess
import numpy as np
from tests.engine.graph.exchange import test_peer_links as support

with support.connected(2, timeouts=support.Timeouts(1.0, 60.0, cut_off_secs=2)) as (links, pool):
    for _ in range(2):  # the first one is over: the peer answers
        print([*pool.map(support.add, links, support.vectors(2, 1000))], flush=True)
    subprocess.run(["ip", "link", "set", "lo", "down"], check=True)
    try:
        support.add(links[0], support.vectors(1, 1000)[0])
    except support.PeerLostError as error:
        print(error)
"""


@pytest.mark.slow
def test_host_that_is_cut_off_is_noticed_before_it_counts_as_silent():
    with namespaces("ip link set lo up") as network:
        program = network.start(
            sys.executable, "-c", CUT_OFF, environment={**os.environ, "PYTHONPATH": str(ROOT)}
        )
        out, err = program.communicate(timeout=50)
    assert "worker-1 has gone: its host is cut off" in out, out + err


def test_flood_of_connections_keeps_no_peer_out(monkeypatch):
    """Accepting fails when there are too many open files; then strangers are disconnected."""
    accept = socket.socket.accept
    failures = iter([errno.EMFILE, errno.EMFILE])

    def accept_or_fail(listener):
        if number := next(failures, 0):
            raise OSError(number, os.strerror(number))
        return accept(listener)

    monkeypatch.setattr(socket.socket, "accept", accept_or_fail)
    with connected(2) as (links, pool):
        first, second = pool.map(add, links, vectors(2, 10))
    assert np.array_equal(first, second)
    assert next(failures, None) is None  # both happened


def test_different_vectors_are_an_error_and_no_hang():
    with connected(2) as (links, pool):
        waiting = [
            pool.submit(add, own, np.zeros(size, np.float32))
            for own, size in zip(links, (40, 44), strict=True)
        ]
        for waits in waiting:
            with pytest.raises(PeerLostError, match=r"^the processes add up different vectors: "):
                waits.result(10)
