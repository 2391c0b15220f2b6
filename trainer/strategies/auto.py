"""Auto: the strategy that fits the machine and the declared cluster."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, ClassVar

from trainer.annotations import Ge, Le
from trainer.cluster.environment import tpu_configured
from trainer.cluster.spec import Cluster, ProcessId
from trainer.strategies.mirrored import Mirrored
from trainer.strategies.multi_worker import MultiWorker
from trainer.strategies.one_device import OneDevice
from trainer.strategies.parameter_server import ParameterServer
from trainer.strategies.strategy import Strategy
from trainer.strategies.tpu import Tpu


class Auto(Strategy):
    """Chooses a strategy.

    A TPU if one is declared, else the cluster if one is, else all GPUs if there are several, else
    one device.

    Args:
        workers: how many processes there are, for Kubernetes, which does not declare it. Ignored
            elsewhere.
    """

    uses_declared_cluster: ClassVar[bool] = True

    def __init__(self, *, workers: Annotated[int | None, Ge(1), Le(1024)] = None) -> None:
        self._workers = workers

    def process_ids(self, count: int | None) -> list[ProcessId]:
        return [
            ProcessId("worker", index)
            for index in range(self._workers or 0 if count is None else count)
        ]

    def resolve(
        self, cluster: Cluster, count_gpus: Callable[[], int] | None = None
    ) -> tuple[Strategy, str | None]:
        if tpu := tpu_configured():
            return Tpu(), f"auto chose tpu: {tpu}"
        if "ps" in cluster.jobs:
            reason = f"{cluster.source} declares parameter servers"
            return ParameterServer(), f"auto chose parameter_server: {reason}"
        if cluster.jobs:
            reason = f"{cluster.source} declares {len(cluster.trainers)} workers"
            return MultiWorker(), f"auto chose multi_worker: {reason}"
        if count_gpus is None:
            # It will be one of the two below. Both are one process.
            return Strategy(), None
        if (gpus := count_gpus()) > 1:
            return Mirrored(), f"auto chose mirrored: {gpus} GPUs"
        return OneDevice(), f"auto chose one_device: {'one GPU' if gpus else 'no GPU'}"
