"""The protocols of what knows the replicas and processes of a run; parts of others in `protocols`.

They are structural: a user's class needs no base class and imports nothing from here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import tensorflow as tf


class Worker(Protocol):
    """One process of those that train together."""

    @property
    def worker(self) -> int:
        """The number of this process, from 0; a chief that hands out steps is 0."""

    @property
    def num_workers(self) -> int:
        """The number of processes that run every step together."""

    @property
    def is_chief(self) -> bool:
        """Whether this process writes the files of the run."""


class Replica(Protocol):
    """One replica in a step, and its exchange with the others.

    Attributes:
        num_replicas: replicas that share the step.
        replica: number of this one, from 0; a scalar tensor where one trace is for all.
        worker: number of the process that it belongs to, from 0; likewise.
    """

    num_replicas: int
    replica: int | tf.Tensor
    worker: int | tf.Tensor

    def all_reduce(self, value: Any, op: str = "sum") -> Any:
        """Reduce a nest of tensors over all replicas; `op`: sum, mean, min or max."""

    def map_reduce(self, fn: Callable[[Any], Any], value: Any, op: str = "sum") -> Any:
        """Apply `fn` to this replica's value and reduce the result."""

    def reduce_scatter(self, value: Any, op: str = "sum", axis: int = 0) -> Any:
        """Reduce a nest of tensors over all replicas, and return this replica's part along `axis`.

        The length of the axis must be a multiple of `num_replicas`.
        """

    def all_gather(self, value: Any, axis: int = 0) -> Any:
        """Stack the values of all replicas along a new axis."""

    def map_gather(self, fn: Callable[[Any], Any], value: Any, axis: int = 0) -> Any:
        """Apply `fn` to this replica's value and stack the results of all replicas."""

    def broadcast(self, value: Any, source: int = 0) -> Any:
        """Return the value of replica `source`."""
