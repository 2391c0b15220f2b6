"""Multi-worker: a replica of the model on every device of every process, with equal updates."""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from trainer.annotations import Free, Ge, Gt, Le, OneOf
from trainer.cluster import environment
from trainer.cluster.signals import preserve_sigterm
from trainer.cluster.spec import Cluster, ProcessId
from trainer.config.schema import Experiment
from trainer.errors import ConfigError
from trainer.logical_devices import register
from trainer.strategies import compatibility, devices
from trainer.strategies.strategy import Refusals, Strategy

if TYPE_CHECKING:
    import tensorflow as tf

    from trainer.engine.graph.step.step_options import Exchange


_NO_GPUS = "strategy.communication (nccl) needs GPUs, and there are none here; use auto or ring"
_NOT_DIRECT = (
    "strategy.communication (direct) is for several processes on Linux, without GPUs and "
    "strategy.compress; use auto"
)


class MultiWorker(Strategy):
    """Trains on several processes: started here, or declared as a cluster.

    Args:
        workers: how many processes to start here, on free ports, the GPUs divided between them.
            Ignored where a cluster is declared.
        communication: how gradients are added up. direct: in shared memory within a host, over TCP
            between hosts, for processes without GPUs; ring (TensorFlow's, over gRPC); nccl (GPUs);
            auto: direct where possible, else TensorFlow's choice; or a class or function that
            returns a custom exchange.
        timeout_secs: seconds after which a reduction that is not finished is an error; None: when
            TensorFlow notices.
        bytes_per_pack: TensorFlow's hint for splitting a reduction; 0: as one.
        compress: none; bfloat16 or float16: gradients are sent in 16 bits.
        isolate: whether a cluster that is started here gets its own network, which nothing
            outside can reach; auto: where the system allows it and nothing in the run needs the
            network.
        start_timeout_secs: seconds to wait for the other processes to start.
        devices_per_replica: divide the model between so many devices of each process, which is then
            one replica; a CPU is split into so many virtual devices.
        placement: which layers are on which of them: a mapping of regular expressions, matched with
            the layers' paths, to the devices' numbers from 0; or balanced, by their weights.
    """

    uses_declared_cluster: ClassVar[bool] = True

    def __init__(  # noqa: PLR0913 - each parameter is a key of the configuration
        self,
        *,
        workers: Annotated[int, Ge(1), Le(1024)] = 2,
        communication: Annotated[
            str | Callable[[], Exchange], OneOf("auto", "direct", "ring", "nccl")
        ] = "auto",
        timeout_secs: Annotated[float | None, Gt(0), Free()] = None,
        bytes_per_pack: Annotated[int, Ge(0)] = 0,
        compress: Annotated[str, OneOf("none", "bfloat16", "float16")] = "none",
        isolate: Annotated[Literal["auto", True, False], Free()] = "auto",
        start_timeout_secs: Annotated[float, Gt(0), Free()] = 300.0,
        devices_per_replica: Annotated[int, Ge(1), Le(1024)] = 1,
        placement: Literal["balanced"] | dict[str, int] = "balanced",
    ) -> None:
        self.workers = workers
        self.isolate = isolate
        self.start_timeout_secs = start_timeout_secs
        self.devices_per_replica = devices_per_replica
        self._placement = placement
        self._communication = communication
        self._timeout_secs = timeout_secs
        self._bytes_per_pack = bytes_per_pack
        self._compress = None if compress == "none" else compress
        self._cluster: Cluster | None = None  # whose processes add up directly, if they do

    def process_ids(self, count: int | None) -> list[ProcessId]:
        return [
            ProcessId("worker", index) for index in range(self.workers if count is None else count)
        ]

    def check(self, cluster: Cluster) -> None:
        devices.check_placement(self.devices_per_replica, self._placement)
        if callable(self._communication) and self._compress is not None:
            raise ConfigError(
                f"strategy.compress ({self._compress}) is for TensorFlow's exchange, and "
                "strategy.communication is your own; add strategy.compress=none"
            )
        if self._communication == "direct" and self._compress is not None:
            raise ConfigError(_NOT_DIRECT)
        if "ps" in cluster.jobs:
            raise ConfigError(
                f"{cluster.source}: the job ps needs strategy=parameter_server, "
                "or must go from the cluster"
            )

    def refused(self, experiment: Experiment, models: Collection[tf.keras.Model]) -> Refusals:
        """Yield what communicates within compiled code, and shards whose sums are rounded."""
        yield from compatibility.no_jit_of_communication(experiment, models)
        if experiment.batch.shards is not None and self._compress is not None:
            yield (
                "batch.shards strategy.compress",
                "what is rounded on its way depends on how many replicas send it; "
                "add strategy.compress=none or batch.shards=null",
            )

    def check_devices(self) -> None:
        if self._communication == "nccl" and not environment.may_have_gpus():
            raise ConfigError(_NO_GPUS)

    def gradient_exchange(self, *, in_tree: bool) -> Exchange | None:
        """Return the user's own exchange, that in 16 bits, or the direct one; collective."""
        import tensorflow as tf

        from trainer.engine.graph.exchange.collectives import CompressedExchange
        from trainer.engine.graph.exchange.process_sum import ProcessSum, connect
        from trainer.engine.graph.exchange.shared_rows import Timeouts
        from trainer.engine.graph.step.shard_tree import chain_sum, tree_sum

        if callable(self._communication):
            if in_tree:
                raise ConfigError(
                    "batch.shards needs sums in the order of its tree, and strategy.communication "
                    "is a custom exchange; add batch.shards=null"
                )
            exchange = self._communication()
            if not callable(exchange):
                raise ConfigError(
                    "strategy.communication must make a function that sums gradients, and makes a "
                    f"{type(exchange).__name__}; see trainer/protocols"
                )
            return exchange
        if self._compress is not None:
            return CompressedExchange(tf.as_dtype(self._compress))
        if self._cluster is None:
            return None
        trainers = self._cluster.trainers
        peers = connect(
            {str(x): self._cluster.jobs[x.job][x.index] for x in trainers},
            trainers.index(self._cluster.process_id),
            self.start_timeout_secs,
            Timeouts(self.warn_secs),
            in_tree=in_tree,
        )
        return ProcessSum(peers, tree_sum if in_tree else chain_sum)

    def traffic(
        self, gradients: float, weights: float, num_replicas: int, *, in_tree: bool
    ) -> tuple[float, str]:
        """Return the size of an all-reduce; of an all-gather where TensorFlow's is not in order."""
        is_direct = self._communication in ("auto", "direct") and not environment.visible_gpus()
        if in_tree and not is_direct:
            text = "each gets the gradients of all others, n - 1 times their size"
            return (num_replicas - 1) * gradients, text
        if self._compress is None:
            return super().traffic(gradients, weights, num_replicas, in_tree=False)
        size, text = super().traffic(gradients / 2, weights, num_replicas, in_tree=False)
        return size, f"{text}, in {self._compress}"

    def create(self, cluster: Cluster) -> tf.distribute.Strategy:
        """Create the strategy; return when all processes have."""
        import tensorflow as tf

        gpus = self._divide_gpus(cluster)
        if self._communication == "nccl" and not gpus:
            raise ConfigError(_NO_GPUS)
        names = self._replica_names(len(gpus))
        self._cluster = cluster if self._is_direct(cluster, len(gpus)) else None
        is_named = self._communication in ("ring", "nccl")
        implementation = str(self._communication) if is_named else "auto"
        options = tf.distribute.experimental.CommunicationOptions(
            bytes_per_pack=self._bytes_per_pack,
            timeout_seconds=self._timeout_secs,
            implementation=tf.distribute.experimental.CommunicationImplementation[
                implementation.upper()
            ],
        )
        # TensorFlow would take SIGTERM for its own service that is not used here.
        with preserve_sigterm():
            strategy = tf.distribute.MultiWorkerMirroredStrategy(
                **self._resolver(names), communication_options=options
            )
        if self.devices_per_replica > 1:
            groups = devices.device_groups(names, self.devices_per_replica, self._placement)
            register(strategy, groups)
        if strategy.num_replicas_in_sync > 1:
            self.communication = self._communication_text()
        return strategy

    def _replica_names(self, num_gpus: int) -> list[str]:
        """Return the devices of this process's replica; none if it needs no several."""
        if self.devices_per_replica == 1:
            return []
        if not num_gpus:
            return devices.split_cpu(self.devices_per_replica)
        if num_gpus != self.devices_per_replica:
            raise ConfigError(
                f"strategy.devices_per_replica ({self.devices_per_replica}) must be the number of "
                f"GPUs of each process ({num_gpus}): a process is one replica; use another number "
                "of workers, devices.gpus, or devices.gpus=0"
            )
        return [f"GPU:{number}" for number in range(num_gpus)]

    def _resolver(self, names: list[str]) -> dict[str, Any]:
        """Return the argument by which TensorFlow sees one GPU of several; none if it is not so."""
        import tensorflow as tf

        if not any(name.startswith("GPU:") for name in names):
            return {}
        resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
        resolver.num_accelerators = lambda *args, **options: {"GPU": 1}
        return {"cluster_resolver": resolver}

    def _divide_gpus(self, cluster: Cluster) -> list[tf.config.PhysicalDevice]:
        """Return this process's GPUs: its share if all processes were started here."""
        import tensorflow as tf

        gpus = devices.visible_gpus()
        if not cluster.is_local or not gpus:
            return gpus
        if self.workers > len(gpus):
            raise ConfigError(
                f"strategy.workers ({self.workers}) must be at most the number of GPUs "
                f"({len(gpus)}); use fewer, or devices.gpus=0 to train on the CPU"
            )
        share = len(gpus) // self.workers
        first = cluster.process_id.index * share
        gpus = gpus[first : first + share]
        tf.config.set_visible_devices(gpus, "GPU")
        return gpus

    def _is_direct(self, cluster: Cluster, num_gpus: int) -> bool:
        """Return whether the processes add up directly."""
        is_possible = (
            sys.platform == "linux"
            and len(cluster.trainers) > 1
            and not num_gpus
            and self._compress is None
        )
        if self._communication == "direct" and not is_possible:
            raise ConfigError(_NOT_DIRECT)
        return is_possible and self._communication in ("auto", "direct")

    def _communication_text(self) -> str:
        if self._cluster is not None:
            trainers = self._cluster.trainers
            hosts = [self._cluster.jobs[x.job][x.index].rpartition(":")[0] for x in trainers]
            places = len(set(hosts))
            if places == len(hosts):
                return "TCP"
            return "shared memory" if places == 1 else "shared memory, TCP between hosts"
        if callable(self._communication):
            return "a custom exchange"
        # TensorFlow's own choice is the ring: it uses NCCL between processes only on request.
        text = "NCCL" if self._communication == "nccl" else "ring"
        return text if self._compress is None else f"{text}, gradients in {self._compress}"
