"""Batch arithmetic, pure integers: global batch = replicas x per-replica batch; per-replica batch = accumulate x micro-batch."""

from __future__ import annotations

from dataclasses import dataclass

from trainer.errors import ConfigError
from trainer.schema import Batch


@dataclass(frozen=True)
class BatchSizes:
    """The sizes of one update.

    Attributes:
        global_size: examples in one update.
        num_replicas: replicas that share it.
        accumulate: micro-batches that each replica adds up before the update.
    """

    global_size: int
    num_replicas: int
    accumulate: int

    @property
    def per_replica(self) -> int:
        return self.global_size // self.num_replicas

    @property
    def micro(self) -> int:
        return self.per_replica // self.accumulate

    def __str__(self) -> str:
        """One line of arithmetic for the user: `128 examples a step = 2 replicas x 64`."""
        text = f"{self.global_size} examples a step = {self.num_replicas} replica{'s' * (self.num_replicas > 1)} x {self.per_replica}"
        return text if self.accumulate == 1 else f"{text}, each as {self.accumulate} micro-batches of {self.micro}"


def resolve(batch: Batch, num_replicas: int) -> BatchSizes:
    """Works out the sizes for a number of replicas.

    Raises:
        ConfigError: the batch cannot be divided evenly; names the two nearest sizes that can.
    """
    if batch.per_replica is not None:
        if batch.per_replica % batch.accumulate:
            raise ConfigError(_indivisible("batch.per_replica", batch.per_replica, "batch.accumulate", batch.accumulate, batch.accumulate))
        return BatchSizes(batch.per_replica * num_replicas, num_replicas, batch.accumulate)
    assert batch.global_size is not None, "config.check lets exactly one of the two be set"
    unit = num_replicas * batch.accumulate
    if batch.global_size % unit:
        by = "the number of replicas" if batch.accumulate == 1 else f"replicas ({num_replicas}) x batch.accumulate ({batch.accumulate})"
        raise ConfigError(_indivisible("batch.global_size", batch.global_size, by, unit, unit))
    return BatchSizes(batch.global_size, num_replicas, batch.accumulate)


def require_same_global(batch: Batch, before: int | None, now: int) -> None:
    """Makes sure that a run goes on with its own global batch where that follows from the number of replicas.

    Args:
        batch: the sizes as configured.
        before: how many replicas the run had; None: not known.
        now: how many it has.

    Raises:
        ConfigError: it would be another batch, and so other updates.
    """
    size = batch.per_replica
    if size is not None and before not in (None, now):
        raise ConfigError(
            f"batch.per_replica ({size}) makes {size * now} examples a step on {now} replica{'s' * (now > 1)}, but the run was trained "
            f"with {size * before} on {before}; add batch.global_size={size * before}"
        )


def _indivisible(name: str, value: int, by: str, divisor: int, unit: int) -> str:
    below = value // unit * unit
    nearest = f"{below} or {below + unit}" if below else f"{unit} or {2 * unit}"
    return f"{name} ({value}) must be divisible by {by} ({divisor}); use {nearest}"
