"""Parameter server: workers update variables on servers asynchronously."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from trainer.annotations import Free, Ge, Gt, Le, OneOf
from trainer.cluster.spec import Cluster, ProcessId
from trainer.config.schema import Experiment
from trainer.errors import ConfigError
from trainer.optimizers import OF_WHOLE_LAYERS
from trainer.strategies import compatibility
from trainer.strategies.strategy import Refusals, Strategy

if TYPE_CHECKING:
    import tensorflow as tf


class ParameterServer(Strategy):
    """Trains asynchronously: a chief assigns steps to workers.

    The workers read and update variables on parameter servers. A step is one worker's batch;
    batches of different workers are not added up, so the numbers depend on which worker is first.

    Args:
        workers: how many workers to start here. Ignored where a cluster is declared.
        ps: how many parameter servers to start here; see `workers`.
        partitioner: whether large variables are split over the servers: none; min_size (shards of
            at least `shard_bytes`); max_size (of at most `shard_bytes`); fixed_shards (`max_shards`
            each).
        shard_bytes: see `partitioner`.
        max_shards: the largest number of shards of one variable; null: one for each server.
        isolate: whether a cluster that is started here gets its own network, which nothing
            outside can reach; auto: where the system allows it and nothing in the run needs the
            network.
        start_timeout_secs: seconds to wait for the other processes to start.
    """

    uses_declared_cluster: ClassVar[bool] = True
    unsupported: ClassVar[Mapping[str, str]] = {
        **compatibility.NO_AUDIT,
        "eager": compatibility.NOT_EAGER,
        "batch.shards": "each of its workers makes updates of its own batches, so there is no "
        "global batch to divide; add batch.shards=null",
        "env": "a learner's replicas run each step together; choose multi_worker",
        "deterministic": "workers update the variables in no fixed order, so that no run repeats; "
        "add deterministic=false",
        **dict.fromkeys(
            ("divergence.action=rollback", "divergence.action=skip"),
            "other workers have continued by the time that a bad step is found; "
            "add divergence.action=stop",
        ),
        "divergence.spike_sigma": "the losses of its workers have no order; "
        "add divergence.spike_sigma=null",
        **{
            key: "its workers get steps from the chief, so no step runs on all replicas; "
            f"add {key}=null"
            for key in ("summary.histograms", "summary.images")
        },
    }
    service_jobs: ClassVar[frozenset[str]] = frozenset({"worker", "ps"})
    restartable_jobs: ClassVar[frozenset[str]] = frozenset({"worker"})
    asynchronous: ClassVar[bool] = True
    refuses_streams: ClassVar[str | None] = (
        "its workers train chunks of steps in any order, and a stream is read from its start"
    )
    refuses_loops: ClassVar[str | None] = (
        "its workers make steps independently, so no replicas make one together"
    )
    optimizer_reduces: ClassVar[bool] = True

    def __init__(
        self,
        *,
        workers: Annotated[int, Ge(1), Le(1024)] = 2,
        ps: Annotated[int, Ge(1), Le(1024)] = 1,
        partitioner: Annotated[str, OneOf("none", "min_size", "max_size", "fixed_shards")] = "none",
        shard_bytes: Annotated[int, Ge(1)] = 262144,
        max_shards: Annotated[int | None, Ge(1)] = None,
        isolate: Annotated[Literal["auto", True, False], Free()] = "auto",
        start_timeout_secs: Annotated[float, Gt(0), Free()] = 300.0,
    ) -> None:
        self.workers = workers
        self.ps = ps
        self.isolate = isolate
        self.start_timeout_secs = start_timeout_secs
        self._partitioner = partitioner
        self._shard_bytes = shard_bytes
        self._max_shards = max_shards
        self.parameters_apart = f"on {ps} server{'s, divided among them' if ps > 1 else ''}"

    def process_ids(self, count: int | None) -> list[ProcessId]:
        """Return one chief, then the parameter servers, then workers."""
        workers = self.workers if count is None else count - 1 - self.ps
        if workers < 1:
            raise ConfigError(
                f"{count} processes are too few for a chief, strategy.ps ({self.ps}) servers "
                "and a worker; start more"
            )
        return [
            ProcessId("chief", 0),
            *(ProcessId("ps", index) for index in range(self.ps)),
            *(ProcessId("worker", index) for index in range(workers)),
        ]

    def check(self, cluster: Cluster) -> None:
        for job in ("chief", "ps", "worker"):
            if cluster.jobs and not cluster.jobs.get(job):
                jobs = ", ".join(cluster.jobs)
                raise ConfigError(
                    f"{cluster.source}: strategy=parameter_server needs the job {job}; "
                    f"the cluster has {jobs}"
                )

    def refused(self, experiment: Experiment, models: Collection[tf.keras.Model]) -> Refusals:
        yield from compatibility.one_copy(experiment, models)
        if self._partitioner == "none":
            return
        if experiment.precision != "float32" and compatibility.trains_tf_keras(experiment, models):
            yield (
                "precision strategy.partitioner",
                "tf_keras cannot cast a variable that is in pieces; "
                "add precision=float32 or strategy.partitioner=none",
            )
        if str((experiment.optimizer or {}).get("_target_")).endswith(OF_WHOLE_LAYERS):
            yield (
                "optimizer._target_ strategy.partitioner",
                "an update depends on the whole layer, and the layer is in pieces; "
                "add strategy.partitioner=none or another optimizer",
            )

    def traffic(
        self, gradients: float, weights: float, num_replicas: int, *, in_tree: bool
    ) -> tuple[float, str]:
        """Return the size of the variables and of the gradient, for any number of workers."""
        return gradients + weights, "the variables from the servers, and the gradient to them"

    def create(self, cluster: Cluster) -> tf.distribute.Strategy:
        """Create the strategy in the chief: connect to the servers and workers."""
        import tensorflow as tf

        from trainer.engine.graph.state.variables import SplitParameters

        tf.get_logger().setLevel("WARNING")  # it logs a line for every call
        resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
        partitioners = tf.distribute.experimental.partitioners
        max_shards = self._max_shards or len(cluster.jobs["ps"])
        if self._partitioner == "min_size":
            return SplitParameters(
                resolver, partitioners.MinSizePartitioner(self._shard_bytes, max_shards=max_shards)
            )
        if self._partitioner == "max_size":
            return SplitParameters(
                resolver, partitioners.MaxSizePartitioner(self._shard_bytes, max_shards=max_shards)
            )
        if self._partitioner == "fixed_shards":
            return SplitParameters(resolver, partitioners.FixedShardsPartitioner(max_shards))
        return tf.distribute.ParameterServerStrategy(resolver)
