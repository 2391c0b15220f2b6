"""Batch sizes: their arithmetic, their text, and the suggestions for an indivisible size."""

import re

import pytest

from trainer.config import batch_sizes
from trainer.config.batch_sizes import BatchSizes, in_groups
from trainer.config.schema import Batch
from trainer.errors import ConfigError


@pytest.mark.parametrize(
    ("batch", "replicas", "sizes", "line"),
    [
        (Batch(global_size=128), 1, (128, 128, 128), "1 replica x 128"),
        (Batch(global_size=128), 4, (128, 32, 32), "4 replicas x 32"),
        (Batch(global_size=96, accumulate=3), 2, (96, 48, 16),
         "2 replicas x 48, each as 3 micro-batches of 16"),
        (Batch(None, per_replica=10), 3, (30, 10, 10), "3 replicas x 10"),
        (Batch(None, per_replica=12, accumulate=4), 2, (24, 12, 3),
         "2 replicas x 12, each as 4 micro-batches of 3"),
        (Batch(global_size=48, shards=8), 4, (48, 12, 6), "4 replicas x 2 shards x 6"),
        (Batch(global_size=48, shards=12, accumulate=2), 3, (48, 16, 2),
         "3 replicas x 4 shards x 4, each as 2 micro-batches of 2"),
        (Batch(global_size=48, shards=3), 1, (48, 48, 16), "1 replica x 3 shards x 16"),
        (Batch(None, per_replica=12, shards=8), 4, (48, 12, 6), "4 replicas x 2 shards x 6"),
    ],
)  # fmt: skip
def test_batch_is_divided(batch, replicas, sizes, line):
    resolved = batch_sizes.resolve_batch_sizes(batch, replicas)
    assert (resolved.global_size, resolved.per_replica, resolved.micro) == sizes
    assert str(resolved) == f"{sizes[0]} = {line}"
    assert batch_sizes.divides(batch, replicas)


@pytest.mark.parametrize(
    ("batch", "replicas", "key", "fix"),
    [
        (Batch(global_size=128), 3, "batch.global_size (128)",
         "the number of replicas (3); use 126 or 129"),
        (Batch(global_size=48, shards=12), 2, "batch.shards (12)",
         "use batch.shards=8 or 16, or 1 or 3 replicas"),
        (Batch(global_size=50, shards=4, accumulate=2), 2, "batch.global_size (50)",
         "batch.shards (4) x batch.accumulate (2) (8); use 48 or 56"),
        (Batch(None, per_replica=6, shards=8), 2, "batch.per_replica (6)", "use 4 or 8"),
        (Batch(None, per_replica=10, accumulate=4), 2, "batch.per_replica (10)", "use 8 or 12"),
    ],
)  # fmt: skip
def test_indivisible_size_suggests_two_nearest(batch, replicas, key, fix):
    with pytest.raises(ConfigError) as caught:
        batch_sizes.resolve_batch_sizes(batch, replicas)
    (problem,) = caught.value.problems
    assert problem.startswith(key)
    assert problem.endswith(fix)
    assert not batch_sizes.divides(batch, replicas)


@pytest.mark.parametrize("key", ["global_size", "per_replica"])
def test_suggested_sizes_are_valid_and_nearest(key):
    def resolve(size, replicas, accumulate):
        return batch_sizes.resolve_batch_sizes(
            Batch(**{"global_size": None, key: size}, accumulate=accumulate), replicas
        )

    refused = 0
    for replicas in range(1, 6):
        for accumulate in range(1, 6):
            for size in range(1, 70):
                try:
                    sizes = resolve(size, replicas, accumulate)
                except ConfigError as error:
                    refused += 1
                    below, above = map(int, re.search(r"use (\d+) or (\d+)$", str(error)).groups())
                    assert 0 < below < above
                    resolve(below, replicas, accumulate)
                    resolve(above, replicas, accumulate)
                    if below < size:
                        for between in range(below + 1, above):
                            with pytest.raises(ConfigError):
                                resolve(between, replicas, accumulate)
                else:
                    assert sizes.global_size == sizes.num_replicas * sizes.accumulate * sizes.micro
                    assert sizes.micro >= 1
    assert refused > 300


def test_check_same_global_batch_refuses_another():
    per_replica = Batch(global_size=None, per_replica=16)
    batch_sizes.check_same_global_batch(per_replica, None, 3)
    batch_sizes.check_same_global_batch(per_replica, 3, 3)
    batch_sizes.check_same_global_batch(Batch(global_size=48), 3, 1)
    with pytest.raises(ConfigError, match=r"^batch.per_replica \(16\) makes 16 .*_size=48$"):
        batch_sizes.check_same_global_batch(per_replica, 3, 1)


@pytest.mark.parametrize(
    ("sizes", "line"),
    [
        (BatchSizes(6, 2, 1), r"each replica's part of the batch \(3\) must be a multiple of 2, .*"
         r"add batch\.global_size=8"),
        (BatchSizes(12, 2, 1, 4), r"each shard's part of the batch \(3\).*global_size=16"),
    ],
)  # fmt: skip
def test_groups_of_neighbors_are_not_divided(sizes, line):
    assert in_groups(sizes, 1) == sizes
    assert in_groups(BatchSizes(8, 2, 1), 2).per_replica == 4
    with pytest.raises(ConfigError, match=line):
        in_groups(sizes, 2)
