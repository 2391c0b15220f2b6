"""The reference ring all-reduce of the benchmarks: sums, messages and bytes."""

import threading

import numpy as np
import pytest

from benchmarks.ring import Ring, links, run_processes

TIMEOUT_SECS = 60


def in_threads(count, work):
    """Return the results of `work(ring, rank)`, each ring in a thread of its own."""
    results = [None] * count
    ends = links(count)

    def run(rank):
        results[rank] = work(Ring(rank, count, *ends[rank]), rank)

    threads = [threading.Thread(target=run, args=(rank,), daemon=True) for rank in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(TIMEOUT_SECS)
    for pair in ends:
        for end in pair:
            end.close()
    assert None not in results
    return results


def vectors(count, size):
    return np.random.default_rng(size).integers(-100, 100, [count, size]).astype(np.float32)


# Divisible or not, shorter than the ring, and longer than the buffer of a socket.
@pytest.mark.parametrize("size", [0, 1, 4, 60, 61, 200_003])
@pytest.mark.parametrize("count", [2, 3, 4, 5])
def test_sum_takes_the_fewest_messages_and_bytes(count, size):
    own = vectors(count, size)

    def work(ring, rank):
        values = own[rank].copy()
        ring.all_reduce(values)
        return values, ring.sent, ring.chunks(size)

    results = in_threads(count, work)
    for rank, (values, sent, chunks) in enumerate(results):
        np.testing.assert_array_equal(values, own.sum(axis=0))  # whole numbers: no rounding
        assert sent.messages == 2 * (count - 1)
        lengths = [chunk.stop - chunk.start for chunk in chunks]
        assert max(lengths) - min(lengths) <= 1
        left_out = lengths[(rank + 1) % count] + lengths[(rank + 2) % count]
        assert sent.num_bytes == 4 * (2 * size - left_out)
    total = sum(sent.num_bytes for _, sent, _ in results)
    assert total == 4 * 2 * (count - 1) * size
    if size % count == 0:
        share = total // count
        assert [sent.num_bytes for _, sent, _ in results] == [share] * count


@pytest.mark.parametrize("count", [2, 3, 5])
def test_reduce_scatter_leaves_each_process_the_sum_of_one_chunk(count):
    own = vectors(count, 61)

    def work(ring, rank):
        values = own[rank].copy()
        chunk = ring.reduce_scatter(values)
        return chunk, values[chunk], ring.sent.messages

    results = in_threads(count, work)
    for chunk, values, messages in results:
        np.testing.assert_array_equal(values, own.sum(axis=0)[chunk])
        assert messages == count - 1
    covered = sorted(index for chunk, *_ in results for index in range(chunk.start, chunk.stop))
    assert covered == list(range(61))


def test_ring_of_processes_counts_the_same():
    first, second, third = run_processes(3, 1000, repeats=1)
    assert [result.error for result in (first, second, third)] == [0.0] * 3
    assert [result.sent.messages for result in (first, second, third)] == [4] * 3
    assert sum(result.sent.num_bytes for result in (first, second, third)) == 4 * 4 * 1000


def test_process_whose_neighbor_has_gone_fails():
    (left, right), other = links(2)
    for end in other:
        end.close()
    with pytest.raises((ConnectionError, BrokenPipeError)):
        Ring(0, 2, left, right).all_reduce(np.ones(4, np.float32))
    left.close()
    right.close()
