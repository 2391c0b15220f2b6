"""Gradients that meet in shared memory: right to the bit, and whoever is gone or does something else is noticed."""

import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from trainer.shared_memory import Meeting, PeerLostError, _Table


@pytest.fixture
def meetings(request):
    """As many processes as are asked for, played by threads, that have met."""
    count = request.param
    made = [Meeting(f"test-{threading.get_native_id()}-{request.node.name}", rank, count) for rank in range(count)]
    with ThreadPoolExecutor(count) as pool:
        list(pool.map(Meeting.open, made))
        yield made, pool
        for meeting in made:
            for link in meeting._links:
                link.close()


def sums(meetings, pool, tensors, call=1):
    """Adds up `tensors[rank]`, a list for each process."""
    tables = [_Table(meeting, call, [x.size for x in mine]) for meeting, mine in zip(meetings, tensors, strict=True)]
    return list(pool.map(lambda table, mine: table.sum(*mine), tables, tensors))


def gradients(count, seed=0):
    random = np.random.default_rng(seed)
    return [[random.normal(size=shape).astype(np.float32) for shape in ((3, 5), (7,), (), (1,))] for _ in range(count)]


@pytest.mark.parametrize("meetings", [2, 3, 5], indirect=True)
def test_every_process_gets_the_sum_in_the_order_of_the_processes(meetings):
    meetings, pool = meetings
    mine = gradients(len(meetings))
    expected = [sum(values[1:], values[0]) for values in zip(*mine, strict=True)]
    for result in sums(meetings, pool, mine):
        for total, wanted in zip(result, expected, strict=True):
            assert total.shape == wanted.shape
            assert total.tobytes() == wanted.astype(np.float32).tobytes()


@pytest.mark.parametrize("meetings", [2], indirect=True)
def test_a_sum_that_was_given_out_does_not_change_with_the_next(meetings):
    meetings, pool = meetings
    first, second = gradients(2, 1), gradients(2, 2)
    tables = [_Table(meeting, 1, [x.size for x in first[0]]) for meeting in meetings]
    before = list(pool.map(lambda table, mine: table.sum(*mine), tables, first))
    kept = [x.copy() for x in before[0]]
    list(pool.map(lambda table, mine: table.sum(*mine), tables, second))
    assert all((x == y).all() for x, y in zip(before[0], kept, strict=True))


@pytest.mark.parametrize("meetings", [2], indirect=True)
def test_two_places_in_a_step_do_not_mix(meetings):
    meetings, pool = meetings
    one, other = gradients(2, 1), gradients(2, 2)
    assert sums(meetings, pool, one, call=1)[0][0] == pytest.approx(one[0][0] + one[1][0])
    assert sums(meetings, pool, other, call=2)[1][0] == pytest.approx(other[0][0] + other[1][0])


@pytest.mark.parametrize("meetings", [2], indirect=True)
def test_different_gradients_are_an_error_and_no_hang(meetings):
    meetings, pool = meetings
    tables = [_Table(meetings[0], 1, [4]), _Table(meetings[1], 1, [6])]
    waiting = [pool.submit(table.sum, np.zeros(size, np.float32)) for table, size in zip(tables, (4, 6), strict=True)]
    with pytest.raises(ValueError, match=r"^the processes add up different gradients: number 1 of 16 bytes here, number 1 of 24 there$"):
        waiting[0].result(timeout=30)
    for link in meetings[0]._links:
        link.close()
    with pytest.raises((PeerLostError, ValueError)):
        waiting[1].result(timeout=30)


@pytest.mark.parametrize("meetings", [3], indirect=True)
def test_whoever_is_gone_is_noticed_by_all(meetings):
    meetings, pool = meetings
    waiting = [pool.submit(meeting.wait, 1, 8) for meeting in meetings[:2]]
    meetings[2]._links[0].close()
    with pytest.raises(PeerLostError):
        waiting[0].result(timeout=30)
    for link in meetings[0]._links:  # as when its process ends
        link.close()
    with pytest.raises(PeerLostError):
        waiting[1].result(timeout=30)
