"""Parameter server: the variables live on servers, and each worker updates them whenever it has a gradient."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from trainer.cluster import Cluster, Task
from trainer.errors import ConfigError
from trainer.strategies.base import Strategy

if TYPE_CHECKING:
    import tensorflow as tf


class ParameterServer(Strategy):
    """Trains asynchronously: a chief hands out steps to workers, which read and update variables on parameter servers.

    A step is one worker's batch; batches of different workers are not added up, so the numbers depend on who was first.

    Args:
        workers: how many workers to start here. Of no account where a cluster is declared.
        ps: how many parameter servers to start here; likewise.
        partitioner: whether large variables are split over the servers: none; min_size (shards of at least `shard_bytes`);
            max_size (of at most `shard_bytes`); fixed_shards (`max_shards` each).
        shard_bytes: see `partitioner`.
        max_shards: at most so many shards of one variable; null: one for each server.
        hosts: print the command for each of these hosts (host or host:port) and leave: the chief, the servers, the workers.
        isolate: whether a cluster that is started here gets a network of its own, out of reach for others: auto: where the system
            allows it and nothing in the run needs the network.
        start_timeout_secs: how long to wait for the others to start.
    """

    joins: ClassVar[bool] = True
    cannot: ClassVar[frozenset[str]] = frozenset(
        {
            "loss_scaling",
            "partitioned_precision",
            "jit",
            "accumulate_communication",
            "deterministic",
            "inline",
            "undo",
            "spikes",
            "histograms",
            "images",
        }
    )
    servers: ClassVar[frozenset[str]] = frozenset({"worker", "ps"})
    replaceable: ClassVar[frozenset[str]] = frozenset({"worker"})
    asynchronous: ClassVar[bool] = True
    optimizer_reduces: ClassVar[bool] = True

    def __init__(
        self,
        *,
        workers: Annotated[int, ">= 1"] = 2,
        ps: Annotated[int, ">= 1"] = 1,
        partitioner: Annotated[str, "none | min_size | max_size | fixed_shards"] = "none",
        shard_bytes: Annotated[int, ">= 1"] = 262144,
        max_shards: Annotated[int | None, ">= 1"] = None,
        hosts: list[str] | None = None,
        isolate: Literal["auto", True, False] = "auto",
        start_timeout_secs: Annotated[float, "> 0"] = 300.0,
    ) -> None:
        self.workers, self.ps, self.hosts, self.isolate, self.start_timeout_secs = workers, ps, hosts, isolate, start_timeout_secs
        self._partitioner, self._shard_bytes, self._max_shards = partitioner, shard_bytes, max_shards

    def tasks(self, count: int | None) -> list[Task]:
        """One chief, then the parameter servers, then workers."""
        workers = self.workers if count is None else count - 1 - self.ps
        if workers < 1:
            raise ConfigError(f"{count} processes are too few for a chief, strategy.ps ({self.ps}) servers and a worker; start more")
        return [Task("chief", 0), *(Task("ps", index) for index in range(self.ps)), *(Task("worker", index) for index in range(workers))]

    def check(self, cluster: Cluster) -> None:
        """Refuses a cluster in which a role is missing."""
        for job in ("chief", "ps", "worker"):
            if cluster.jobs and not cluster.jobs.get(job):
                jobs = ", ".join(cluster.jobs)
                raise ConfigError(f"{cluster.source}: strategy=parameter_server needs the job {job}; the cluster has {jobs}")

    def start(self, cluster: Cluster) -> tf.distribute.Strategy:
        """Creates the strategy in the chief: connects to the servers and workers."""
        import tensorflow as tf

        from trainer.shards import SplitParameters

        tf.get_logger().setLevel("WARNING")  # it has a line for every call
        resolver, partitioners = tf.distribute.cluster_resolver.TFConfigClusterResolver(), tf.distribute.experimental.partitioners
        most = self._max_shards or len(cluster.jobs["ps"])
        if self._partitioner == "min_size":
            return SplitParameters(resolver, partitioners.MinSizePartitioner(self._shard_bytes, max_shards=most))
        if self._partitioner == "max_size":
            return SplitParameters(resolver, partitioners.MaxSizePartitioner(self._shard_bytes, max_shards=most))
        if self._partitioner == "fixed_shards":
            return SplitParameters(resolver, partitioners.FixedShardsPartitioner(most))
        return tf.distribute.ParameterServerStrategy(resolver)
