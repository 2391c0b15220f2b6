"""The interface of a strategy: processes, devices, and what the engine needs of them.

Every strategy is one class in one file here, or in a user's own package. The parent process creates
the object too, so only `create` may touch TensorFlow.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from typing import TYPE_CHECKING, ClassVar, TypeAlias

from trainer.cluster.spec import Cluster, ProcessId

if TYPE_CHECKING:
    import tensorflow as tf

    from trainer.config.schema import Experiment
    from trainer.engine.graph.step.step_options import Exchange

Refusals: TypeAlias = Iterator[tuple[str, str]]
"""Of each combination its keys, separated by spaces, and the reason, which ends in a fix."""


class Strategy:
    """A strategy of one process; others override what differs.

    Attributes:
        uses_declared_cluster: whether it runs on a cluster that the environment declares.
        unsupported: what is wrong or crashes under it: a key of the configuration that may not be
            set, or `<key>=<value>`, to the reason and what to add instead.
        service_jobs: jobs whose processes do not train, but run what the chief sends them.
        restartable_jobs: jobs whose lost processes are started again alone; the loss of any other
            process ends the attempt.
        asynchronous: whether the chief schedules chunks of steps, instead of all processes running
            the same step together.
        static_shapes: whether its devices have no tensors whose shape depends on values.
        optimizer_reduces: whether the optimizer's own reduction over the replicas cannot be left
            out, because they all share one copy of each variable.
        uses_gpus: whether its replicas are on this machine's GPUs, or on the CPU without any.
        allows_standby: whether another set of processes can be built next to those that train.
        input_outside: whether the input must be a tf.data pipeline outside the replicas, even for
            data in memory.
        refuses_loops: why a training loop of the user's own cannot run under it; None: it can.
        refuses_streams: why it cannot train on a stream; None: it can.
        start_timeout_secs: how long a process waits for the others to start.
        warn_secs: for how long a process waits for another one in a step before it warns.
        isolate: whether a cluster that is started here gets its own network: auto, True or
            False.
        devices_per_replica: number of devices between which each replica divides its model.
        communication: how replicas communicate, in words for the user; set by `create`. None:
            there is nothing to choose, or one replica.
        parameters_apart: where variables are kept and updated if not on each replica, in words.
    """

    uses_declared_cluster: ClassVar[bool] = False
    unsupported: ClassVar[Mapping[str, str]] = {}
    service_jobs: ClassVar[frozenset[str]] = frozenset()
    restartable_jobs: ClassVar[frozenset[str]] = frozenset()
    asynchronous: ClassVar[bool] = False
    static_shapes: ClassVar[bool] = False
    optimizer_reduces: ClassVar[bool] = False
    uses_gpus: ClassVar[bool] = True
    allows_standby: ClassVar[bool] = True
    input_outside: ClassVar[bool] = False
    refuses_loops: ClassVar[str | None] = None
    refuses_streams: ClassVar[str | None] = None
    start_timeout_secs: float = 0.0
    warn_secs: float = 150.0
    isolate: str | bool = False
    devices_per_replica: int = 1
    communication: str | None = None
    parameters_apart: str | None = None

    def resolve(
        self, cluster: Cluster, count_gpus: Callable[[], int] | None = None
    ) -> tuple[Strategy, str | None]:
        """Return the strategy to use, and a line with the reason if it was chosen.

        Call it before anything else here but `process_ids`.

        Args:
            cluster: the cluster as this process sees it, perhaps without jobs.
            count_gpus: returns the number of GPUs; None in a process without TensorFlow, where a
                choice that depends on it stays open.
        """
        return self, None

    def num_replicas(self) -> int | None:
        """Return the number of replicas; None if only TensorFlow can count them (GPUs)."""
        return None

    def process_ids(self, count: int | None) -> list[ProcessId]:
        """Return `count` processes of a cluster, or as many as configured; [] without one."""
        return []

    def check(self, cluster: Cluster) -> None:
        """Check, without TensorFlow, what would otherwise fail after minutes or never be noticed.

        Raises:
            ConfigError: it cannot work here.
        """

    def refused(self, experiment: Experiment, models: Collection[tf.keras.Model]) -> Refusals:
        """Yield what else is wrong or crashes under it: keys, and the reason and fix.

        Args:
            models: all models; none while they have not been built.
        """
        yield from ()

    def check_devices(self) -> None:
        """Check, without TensorFlow, that there are the devices; mode=plan needs none.

        Raises:
            ConfigError: there are not.
        """

    def gradient_exchange(self, *, in_tree: bool) -> Exchange | None:
        """Return what sums gradients over the replicas after `create`; None: one reduction does it.

        Args:
            in_tree: whether sums must have the order of the tree over shards.
        """
        return None

    def traffic(
        self, gradients: float, weights: float, num_replicas: int, *, in_tree: bool
    ) -> tuple[float, str]:
        """Return how much a replica sends to others in a step, without TensorFlow.

        Args:
            gradients: bytes of the gradient of all trainable variables.
            weights: bytes of all variables of the models.
            in_tree: whether sums have the order of the tree over shards.

        Returns:
            Bytes, and how they travel, in words. An all-reduce of S bytes over n replicas sends at
            least 2 (n - 1) / n S (Patarasuk and Yuan 2009).
        """
        share = 2 * (num_replicas - 1) / num_replicas
        return share * gradients, "an all-reduce of the gradient, 2 (n - 1) / n of its size"

    def create(self, cluster: Cluster) -> tf.distribute.Strategy:
        """Create TensorFlow's strategy, before anything else uses TensorFlow's devices.

        Returns when the other processes of the cluster have joined.

        Raises:
            ConfigError: it cannot work on this machine's devices.
        """
        raise NotImplementedError
