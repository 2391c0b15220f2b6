"""Gradients summed in shared memory: right to the bit; lost and different processes are found."""

import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from trainer.engine.graph.exchange import gradient_exchange
from trainer.engine.graph.exchange.gradient_exchange import (
    GradientBuffer,
    PeerLostError,
    Rendezvous,
)
from trainer.engine.graph.step.shard_tree import chain_sum, tree_sum


@pytest.fixture
def rendezvous(request):
    """The opened rendezvous of as many processes as the parameter says, played by threads."""
    count = request.param
    opened = [
        Rendezvous(f"test-{threading.get_native_id()}-{request.node.name}", rank, count)
        for rank in range(count)
    ]
    with ThreadPoolExecutor(count) as pool:
        list(pool.map(Rendezvous.open, opened))
        yield opened, pool
        for member in opened:
            for link in member._links:
                link.close()


def sums(members, pool, tensors, call=1, add_up=chain_sum):
    """Sum `tensors[rank]`, a list for each process."""
    buffers = [
        GradientBuffer(member, call, [x.size for x in mine], add_up)
        for member, mine in zip(members, tensors, strict=True)
    ]
    return list(pool.map(lambda buffer, mine: buffer.sum(*mine), buffers, tensors))


def gradients(count, seed=0):
    random = np.random.default_rng(seed)
    return [
        [random.normal(size=shape).astype(np.float32) for shape in ((3, 5), (7,), (), (1,))]
        for _ in range(count)
    ]


@pytest.mark.parametrize("add_up", [chain_sum, tree_sum])
@pytest.mark.parametrize("rendezvous", [2, 5], indirect=True)
def test_every_process_gets_sum_in_the_given_order(rendezvous, add_up):
    members, pool = rendezvous
    mine = gradients(len(members))
    expected = [add_up(values, np.add) for values in zip(*mine, strict=True)]
    for result in sums(members, pool, mine, add_up=add_up):
        for total, wanted in zip(result, expected, strict=True):
            assert total.shape == wanted.shape
            assert total.tobytes() == wanted.astype(np.float32).tobytes()


@pytest.mark.parametrize("rendezvous", [2], indirect=True)
def test_wait_is_measured_between_arrival_and_the_last_one(rendezvous, monkeypatch):
    members, pool = rendezvous
    clock = {"now": 0.0}
    monkeypatch.setattr(gradient_exchange.time, "monotonic", lambda: clock["now"])
    receive = members[0]._receive

    def other_comes_late(link):
        clock["now"] += 7.0
        return receive(link)

    monkeypatch.setattr(members[0], "_receive", other_comes_late)
    list(pool.map(lambda member: member.wait(1, 8), members))
    assert members[0].waited_secs == 7.0


@pytest.mark.parametrize("rendezvous", [2], indirect=True)
def test_returned_sum_does_not_change_with_the_next(rendezvous):
    members, pool = rendezvous
    first, second = gradients(2, 1), gradients(2, 2)
    buffers = [
        GradientBuffer(member, 1, [x.size for x in first[0]], chain_sum) for member in members
    ]
    before = list(pool.map(lambda buffer, mine: buffer.sum(*mine), buffers, first))
    kept = [x.copy() for x in before[0]]
    list(pool.map(lambda buffer, mine: buffer.sum(*mine), buffers, second))
    assert all((x == y).all() for x, y in zip(before[0], kept, strict=True))


@pytest.mark.parametrize("rendezvous", [2], indirect=True)
def test_two_sums_of_a_step_do_not_mix(rendezvous):
    members, pool = rendezvous
    one, other = gradients(2, 1), gradients(2, 2)
    assert sums(members, pool, one, call=1)[0][0] == pytest.approx(one[0][0] + one[1][0])
    assert sums(members, pool, other, call=2)[1][0] == pytest.approx(other[0][0] + other[1][0])


@pytest.mark.parametrize("rendezvous", [2], indirect=True)
def test_different_gradients_are_an_error_and_no_hang(rendezvous):
    members, pool = rendezvous
    buffers = [
        GradientBuffer(members[0], 1, [4], chain_sum),
        GradientBuffer(members[1], 1, [6], chain_sum),
    ]
    waiting = [
        pool.submit(buffer.sum, np.zeros(size, np.float32))
        for buffer, size in zip(buffers, (4, 6), strict=True)
    ]
    with pytest.raises(
        ValueError,
        match=r"^the processes add up different gradients: number 1 of 16 bytes here, "
        r"number 1 of 24 there$",
    ):
        waiting[0].result(timeout=30)
    for link in members[0]._links:
        link.close()
    with pytest.raises((PeerLostError, ValueError)):
        waiting[1].result(timeout=30)


@pytest.mark.parametrize("rendezvous", [3], indirect=True)
def test_lost_process_is_noticed_by_all(rendezvous):
    members, pool = rendezvous
    waiting = [pool.submit(member.wait, 1, 8) for member in members[:2]]
    members[2]._links[0].close()
    with pytest.raises(PeerLostError):
        waiting[0].result(timeout=30)
    for link in members[0]._links:  # as when its process ends
        link.close()
    with pytest.raises(PeerLostError):
        waiting[1].result(timeout=30)
