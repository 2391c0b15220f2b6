"""Buffers: the queue, its order and its limits; the replay, its ring, draws and counts."""

import numpy as np
import pytest

from trainer.protocols import Unroll
from trainer.reinforcement.buffers.queue import Queue
from trainer.reinforcement.buffers.replay import Replay


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


def unroll(number):
    return Unroll(
        {"reward": np.full([3], number, np.float32), "action": np.full([3, 2], number)}, number
    )


def filled(count, batch_size=4, **options):
    """Return a replay to which the unrolls 0 ... count - 1 were added, unlimited by draws."""
    replay = Replay(**{"capacity": 8, "min_size": 2, "samples_per_insert": 1e6, **options})
    replay.begin(batch_size)
    for number in range(count):
        replay.add(unroll(number))
    return replay


def numbers(unrolls):
    return [int(x.arrays["reward"][0]) for x in unrolls]


def test_newest_unrolls_are_kept_whole():
    taken = filled(11).take(0, 200)
    assert set(numbers(taken)) == set(range(3, 11))
    for one in taken:
        assert one.version == one.arrays["reward"][0] == one.arrays["action"][2, 1]
        assert one.arrays["action"].shape == (3, 2)
        assert one.arrays["action"].dtype == np.int64


def test_draw_follows_from_seed_step_and_content():
    first = numbers(filled(8, seed=1).take(5, 50))
    other = filled(8, seed=1)
    other.take(4, 50)
    assert numbers(other.take(5, 50)) == first, "whatever was drawn before"
    assert numbers(filled(8, seed=2).take(5, 50)) != first
    assert numbers(filled(8, seed=1).take(6, 50)) != first


def test_draws_are_uniform():
    counts = np.bincount(numbers(filled(8).take(0, 8000)), minlength=8)
    # Each is binomial with a standard deviation of 30.
    assert np.all(np.abs(counts - 1000) < 5 * 30)


def test_counts_tell_what_was_never_trained_on():
    replay = filled(8)
    assert (replay.waiting, replay.dropped) == (8, 0)
    trained = set(numbers(replay.take(0, 3)))
    assert replay.waiting == 8 - len(trained)
    for number in range(8, 16):
        replay.add(unroll(number))
    assert replay.dropped == 8 - len(trained)
    assert replay.waiting == 8
    replay.begin(4)
    assert (replay.waiting, replay.dropped) == (0, 0)
    assert replay.take(0, 1) is None


@pytest.mark.parametrize("learner_share", [0.01, 0.5, 0.99])
@pytest.mark.parametrize(("batch_size", "ratio"), [(4, 10.0), (16, 0.5)])
def test_draws_per_unroll_do_not_depend_on_speed(batch_size, ratio, learner_share):
    replay = Replay(capacity=40, min_size=20, samples_per_insert=ratio)
    replay.begin(batch_size)
    rng = np.random.default_rng(0)
    inserts = samples = step = 0
    for _ in range(4_000):
        took = None
        learner_is_next = rng.random() < learner_share
        if learner_is_next:
            took = replay.take(step, batch_size)
            step += took is not None
            samples += batch_size * (took is not None)
        if (not learner_is_next or took is None) and replay.has_room():
            replay.add(unroll(inserts))
            inserts += 1
        assert inserts >= 20 or samples == 0
        if inserts >= 20:
            assert abs(ratio * (inserts - 20) - samples) <= max(batch_size, ratio) + 1e-6
    assert inserts > 25, "nobody waited for ever"
    assert samples > 50
