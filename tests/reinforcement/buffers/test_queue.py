"""The queue: order, capacity, and unrolls that are too old."""

from trainer.protocols import Unroll
from trainer.reinforcement.buffers.queue import Queue


def fill(queue, *versions):
    for version in versions:
        queue.add(Unroll({}, version))


def versions(unrolls):
    return None if unrolls is None else [unroll.version for unroll in unrolls]


def test_queue_hands_out_each_unroll_once_in_order():
    queue = Queue(max_staleness=None)
    queue.begin(2)
    fill(queue, 3, 1, 2)
    assert versions(queue.take(9, 2)) == [3, 1]
    assert versions(queue.take(10, 2)) is None
    fill(queue, 4)
    assert versions(queue.take(10, 2)) == [2, 4]
    assert (queue.waiting, queue.dropped) == (0, 0)


def test_queue_drops_unrolls_whose_weights_are_too_many_updates_behind():
    queue = Queue(max_staleness=2)
    queue.begin(2)
    fill(queue, 5, 7, 8, 10)
    assert versions(queue.take(10, 2)) == [8, 10]
    assert (queue.waiting, queue.dropped) == (0, 2)


def test_queue_is_full_at_its_capacity_in_batches():
    queue = Queue(capacity=2)
    queue.begin(3)
    fill(queue, *range(5))
    assert queue.has_room()
    fill(queue, 5)
    assert not queue.has_room()
