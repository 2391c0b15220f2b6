"""Multi-worker: a copy of the model on every device of every process, updated alike."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from trainer.cluster import Cluster, Task
from trainer.errors import ConfigError
from trainer.signals import sigterm_kept
from trainer.strategies.base import Strategy

if TYPE_CHECKING:
    import tensorflow as tf

    from trainer.shared_memory import Meeting
    from trainer.step import Exchange


class MultiWorker(Strategy):
    """Trains on several processes: those that are started here, or those of the cluster that this process is told of.

    Args:
        workers: how many to start here, on free ports, the GPUs divided between them. Of no account where a cluster is declared.
        communication: ring (gRPC); nccl (GPUs); shared_memory, for gradients between processes that were started here and have no
            GPU; auto: the last wherever it can, else TensorFlow's choice.
        timeout_secs: after how long a reduction that does not come about is an error; None: when TensorFlow notices.
        bytes_per_pack: TensorFlow's hint for splitting a reduction; 0: as one.
        compress: none; bfloat16 or float16: gradients travel in 16 bits.
        hosts: print the command for each of these hosts (host or host:port) and leave.
        isolate: whether a cluster that is started here gets a network of its own, out of reach for others: auto: where the system
            allows it and nothing in the run needs the network.
        start_timeout_secs: how long to wait for the others to start.
    """

    joins: ClassVar[bool] = True
    cannot: ClassVar[frozenset[str]] = frozenset({"compressed_loss_scaling", "jit_communication", "accumulate_communication", "inline"})

    def __init__(
        self,
        *,
        workers: Annotated[int, ">= 1"] = 2,
        communication: Annotated[str, "auto | ring | nccl | shared_memory"] = "auto",
        timeout_secs: Annotated[float | None, "> 0"] = None,
        bytes_per_pack: Annotated[int, ">= 0"] = 0,
        compress: Annotated[str, "none | bfloat16 | float16"] = "none",
        hosts: list[str] | None = None,
        isolate: Literal["auto", True, False] = "auto",
        start_timeout_secs: Annotated[float, "> 0"] = 300.0,
    ) -> None:
        self.workers, self.hosts, self.isolate, self.start_timeout_secs = workers, hosts, isolate, start_timeout_secs
        self._communication, self._timeout_secs, self._bytes_per_pack = communication, timeout_secs, bytes_per_pack
        self._compress = None if compress == "none" else compress
        self._meeting: Meeting | None = None

    def tasks(self, count: int | None) -> list[Task]:
        """All are workers."""
        return [Task("worker", index) for index in range(self.workers if count is None else count)]

    def check(self, cluster: Cluster) -> None:
        """Refuses a cluster with parameter servers."""
        if "ps" in cluster.jobs:
            raise ConfigError(f"{cluster.source}: the job ps needs strategy=parameter_server, or must go from the cluster")

    def exchange(self, peak: tf.Variable) -> Exchange | None:
        """Through memory where the processes share it, or in 16 bits."""
        import tensorflow as tf

        from trainer.compression import Compressed
        from trainer.shared_memory import SharedMemory

        if self._compress is not None:
            return Compressed(tf.as_dtype(self._compress), peak)
        return None if self._meeting is None else SharedMemory(self._meeting)

    def _meet(self, cluster: Cluster, num_gpus: int) -> Meeting | None:
        """Prepares for sharing memory, if that is possible and wanted."""
        from trainer.shared_memory import Meeting

        count = len(cluster.trainers)
        local = cluster.source == "local" and sys.platform == "linux"
        possible = local and count > 1 and not num_gpus and self._compress is None
        if self._communication == "shared_memory" and not possible:
            raise ConfigError(
                "strategy.communication (shared_memory) is for several processes started here, without GPUs and strategy.compress; use auto"
            )
        if not possible or self._communication == "ring":
            return None
        # The address is this attempt's alone.
        return Meeting(cluster.jobs["worker"][0], cluster.task.index, count)

    def start(self, cluster: Cluster) -> tf.distribute.Strategy:
        """Creates the strategy: returns when all processes have."""
        import tensorflow as tf

        gpus = tf.config.list_physical_devices("GPU")
        if cluster.source == "local" and gpus:
            if self.workers > len(gpus):
                raise ConfigError(f"strategy.workers ({self.workers}) must be at most the number of GPUs ({len(gpus)})")
            share = len(gpus) // self.workers
            gpus = gpus[cluster.task.index * share : (cluster.task.index + 1) * share]
            tf.config.set_visible_devices(gpus, "GPU")
        if self._communication == "nccl" and not gpus:
            raise ConfigError("strategy.communication (nccl) needs GPUs, and there are none here; use auto or ring")
        self._meeting = self._meet(cluster, len(gpus))
        implementation = "auto" if self._communication == "shared_memory" else self._communication
        options = tf.distribute.experimental.CommunicationOptions(
            bytes_per_pack=self._bytes_per_pack,
            timeout_seconds=self._timeout_secs,
            implementation=tf.distribute.experimental.CommunicationImplementation[implementation.upper()],
        )
        with sigterm_kept():  # TensorFlow takes it for a service of its own that is not used here
            strategy = tf.distribute.MultiWorkerMirroredStrategy(communication_options=options)
        if self._meeting is not None:
            self._meeting.open()  # the first one listens: the strategy has waited for it
        return strategy
