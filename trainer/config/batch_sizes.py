"""Batch sizes: global = replicas x per replica, and per replica = accumulate x micro-batch.

With shards: global = shards x shard, each replica has shards / replicas of them, and a shard is
accumulate x micro-batch.

Pure integers, no TensorFlow.
"""

from __future__ import annotations

from dataclasses import dataclass

from trainer.config.schema import Batch
from trainer.errors import ConfigError


@dataclass(frozen=True)
class BatchSizes:
    """The batch sizes of one step.

    Attributes:
        accumulate: micro-batches whose gradients each replica, or shard, adds up in a step.
        shards: parts that the global batch is always computed in; None: one for each replica.
    """

    global_size: int
    num_replicas: int
    accumulate: int
    shards: int | None = None

    @property
    def per_replica(self) -> int:
        """Examples in one step on each replica."""
        return self.global_size // self.num_replicas

    @property
    def micro(self) -> int:
        """Examples in one micro-batch."""
        return self.evaluated // self.accumulate

    @property
    def evaluated(self) -> int:
        """Examples that each replica evaluates at a time: its batch, or a shard."""
        return self.global_size // (self.shards or self.num_replicas)

    def __str__(self) -> str:
        """Return them for the user: `128 = 2 replicas x 64`, in examples a step."""
        replicas = _plural(self.num_replicas, "replica")
        text = f"{self.global_size} = {replicas} x {self.per_replica}"
        if self.shards is not None:
            count = _plural(self.shards // self.num_replicas, "shard")
            text = f"{self.global_size} = {replicas} x {count} x {self.evaluated}"
        if self.accumulate == 1:
            return text
        return f"{text}, each as {self.accumulate} micro-batches of {self.micro}"


def in_groups(sizes: BatchSizes, group_size: int) -> BatchSizes:
    """Return the sizes if no group of neighbors is divided, which the dataset joins in training.

    Raises:
        ConfigError: one would be.
    """
    if sizes.evaluated % group_size:
        part = "each shard's" if sizes.shards else "each replica's"
        unit = group_size * (sizes.shards or sizes.num_replicas)
        nearest = -(-sizes.global_size // unit) * unit
        raise ConfigError(
            f"{part} part of the batch ({sizes.evaluated}) must be a multiple of {group_size}, for "
            f"the augmentation joins neighbors; add batch.global_size={nearest}"
        )
    return sizes


def resolve_batch_sizes(batch: Batch, num_replicas: int) -> BatchSizes:
    """Return the batch sizes for a number of replicas.

    Raises:
        ConfigError: the batch cannot be divided evenly, or the shards not in one tree; suggests the
            two nearest sizes.
    """
    shards = batch.shards
    if shards is not None:
        _check_shards(shards, num_replicas)
    if batch.per_replica is not None:
        own_shards = 1 if shards is None else shards // num_replicas
        unit = own_shards * batch.accumulate
        if batch.per_replica % unit:
            divisor_name = "batch.accumulate"
            if shards is not None:
                divisor_name = f"shards of a replica ({own_shards}) x {divisor_name}"
            raise _indivisible("batch.per_replica", batch.per_replica, divisor_name, unit)
        global_size = batch.per_replica * num_replicas
        return BatchSizes(global_size, num_replicas, batch.accumulate, shards)
    assert batch.global_size is not None, "trainer.config.rules requires one of the two"
    unit = (shards or num_replicas) * batch.accumulate
    if batch.global_size % unit:
        divisor_name = "the number of replicas"
        if shards is not None:
            divisor_name = f"batch.shards ({shards}) x batch.accumulate ({batch.accumulate})"
        elif batch.accumulate > 1:
            divisor_name = f"replicas ({num_replicas}) x batch.accumulate ({batch.accumulate})"
        raise _indivisible("batch.global_size", batch.global_size, divisor_name, unit)
    return BatchSizes(batch.global_size, num_replicas, batch.accumulate, shards)


def divides(batch: Batch, num_replicas: int) -> bool:
    """Return whether the batch can be divided among so many replicas."""
    try:
        resolve_batch_sizes(batch, num_replicas)
    except ConfigError:
        return False
    return True


def _check_shards(shards: int, num_replicas: int) -> None:
    """Raise a ConfigError with the nearest numbers unless each replica has a subtree of the sum."""
    counts = sorted({1, *_halved(shards)})
    if num_replicas in counts:
        return
    smaller = num_replicas << max(0, (shards // num_replicas).bit_length() - 1)
    sizes = [smaller, 2 * smaller] if smaller < shards else [smaller]
    fewer = max(count for count in counts if count < num_replicas)
    more = min((count for count in counts if count > num_replicas), default=None)
    replicas = f"{fewer}" if more is None else f"{fewer} or {more}"
    raise ConfigError(
        f"batch.shards ({shards}) must be a power of two times the number of replicas "
        f"({num_replicas}); use batch.shards={' or '.join(map(str, sizes))}, or {replicas} replicas"
    )


def _halved(count: int) -> list[int]:
    return [count] if count % 2 else [count, *_halved(count // 2)]


def check_same_global_batch(batch: Batch, before: int | None, now: int) -> None:
    """Check that a resumed run keeps its global batch if that depends on the number of replicas.

    Raises:
        ConfigError: the global batch, and with it every update, would change.
    """
    size = batch.per_replica
    if size is not None and before not in (None, now):
        raise ConfigError(
            f"batch.per_replica ({size}) makes {size * now} examples a step on "
            f"{_plural(now, 'replica')}, but the run was trained with {size * before} on {before}; "
            f"add batch.global_size={size * before}"
        )


def _indivisible(name: str, value: int, divisor_name: str, divisor: int) -> ConfigError:
    smaller = value // divisor * divisor or divisor
    return ConfigError(
        f"{name} ({value}) must be divisible by {divisor_name} ({divisor}); "
        f"use {smaller} or {smaller + divisor}"
    )


def _plural(count: int, noun: str) -> str:
    return f"{count} {noun}{'s' * (count > 1)}"
