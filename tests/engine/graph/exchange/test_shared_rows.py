"""Sums in shared memory: right to the bit, given away without a copy; lost processes are found."""

import socket
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from trainer.engine.graph.exchange.shared_rows import (
    PeerLostError,
    Rendezvous,
    SharedRows,
    Timeouts,
)
from trainer.engine.graph.step.shard_tree import chain_sum, tree_sum


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


def test_first_process_that_has_gone_is_named():
    member = Rendezvous("gone", 1, ["worker-0", "worker-1"], Timeouts())
    with pytest.raises(PeerLostError, match=r"^worker-0 has gone: Connection refused$"):
        member.open(1.0)


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


@pytest.mark.parametrize("rendezvous", [3], indirect=True)
def test_size_may_change_from_step_to_step(rendezvous):
    members, pool = rendezvous
    rows = rows_of(members)
    for size in (100, 5000, 3, 70_000, 0):
        mine = [[np.full([size, 2], rank + 1, np.float32)] for rank in range(3)]
        for result in one_sum(rows, pool, mine):
            assert result[0].shape == (size, 2)
            assert (result[0] == 6).all()


@pytest.mark.parametrize("rendezvous", [2], indirect=True)
def test_process_that_is_waited_for_is_named(rendezvous, caplog):
    members, _ = rendezvous
    members[0]._timeouts = Timeouts(0.05, 0.1)
    with pytest.raises(PeerLostError, match=r"^worker-1: silent for 0.1 s$"):
        members[0].wait(1, 8)
    assert caplog.messages == ["worker-1: not heard of for 0.05 s; this process waits"]
