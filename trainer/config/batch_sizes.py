"""Batch sizes: global = replicas x per replica, and per replica = accumulate x micro-batch.

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
        global_size: examples in one step.
        num_replicas: replicas that share it.
        accumulate: micro-batches whose gradients each replica adds up in a step.
    """

    global_size: int
    num_replicas: int
    accumulate: int

    @property
    def per_replica(self) -> int:
        """Examples in one step on each replica."""
        return self.global_size // self.num_replicas

    @property
    def micro(self) -> int:
        """Examples in one micro-batch."""
        return self.per_replica // self.accumulate

    def __str__(self) -> str:
        """Return a line for the user: `128 examples a step = 2 replicas x 64`."""
        replicas = _plural(self.num_replicas, "replica")
        text = f"{self.global_size} examples a step = {replicas} x {self.per_replica}"
        if self.accumulate == 1:
            return text
        return f"{text}, each as {self.accumulate} micro-batches of {self.micro}"


def resolve_batch_sizes(batch: Batch, num_replicas: int) -> BatchSizes:
    """Return the batch sizes for a number of replicas.

    Raises:
        ConfigError: the batch cannot be divided evenly; suggests the two nearest sizes.
    """
    if batch.per_replica is not None:
        if batch.per_replica % batch.accumulate:
            raise _indivisible(
                "batch.per_replica", batch.per_replica, "batch.accumulate", batch.accumulate
            )
        return BatchSizes(batch.per_replica * num_replicas, num_replicas, batch.accumulate)
    assert batch.global_size is not None, "trainer.config.validation requires one of the two"
    unit = num_replicas * batch.accumulate
    if batch.global_size % unit:
        divisor_name = (
            "the number of replicas"
            if batch.accumulate == 1
            else f"replicas ({num_replicas}) x batch.accumulate ({batch.accumulate})"
        )
        raise _indivisible("batch.global_size", batch.global_size, divisor_name, unit)
    return BatchSizes(batch.global_size, num_replicas, batch.accumulate)


def check_same_global_batch(batch: Batch, before: int | None, now: int) -> None:
    """Check that a resumed run keeps its global batch if that depends on the number of replicas.

    Args:
        batch: the sizes as configured.
        before: number of replicas of the run so far; None: not known.
        now: number of replicas from now on.

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
