"""Auto: whichever strategy fits what is here."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, ClassVar

from trainer.cluster import Cluster, Task, tpu_configured
from trainer.strategies.base import Strategy
from trainer.strategies.mirrored import Mirrored
from trainer.strategies.multi_worker import MultiWorker
from trainer.strategies.one_device import OneDevice
from trainer.strategies.parameter_server import ParameterServer
from trainer.strategies.tpu import Tpu


class Auto(Strategy):
    """A TPU if one is declared, else the cluster if one is, else all GPUs if there are several, else one device.

    Args:
        workers: how many processes there are, for Kubernetes, which does not say so. Of no account elsewhere.
    """

    joins: ClassVar[bool] = True

    def __init__(self, *, workers: Annotated[int | None, ">= 1"] = None) -> None:
        self._workers = workers

    def tasks(self, count: int | None) -> list[Task]:
        """Processes that a scheduler has started are workers."""
        return [Task("worker", index) for index in range(self._workers or 0 if count is None else count)]

    def resolve(self, cluster: Cluster, count_gpus: Callable[[], int] | None = None) -> tuple[Strategy, str | None]:
        """Chooses by what is declared, then by the number of GPUs."""
        if tpu := tpu_configured():
            return Tpu(), f"auto chose tpu: {tpu}"
        if "ps" in cluster.jobs:
            return ParameterServer(), f"auto chose parameter_server: {cluster.source} declares parameter servers"
        if cluster.jobs:
            return MultiWorker(), f"auto chose multi_worker: {cluster.source} declares {len(cluster.trainers)} workers"
        if count_gpus is None:
            # Whichever of the two below it will be, it is one process, and that is all there is to say of it.
            return Strategy(), None
        if (gpus := count_gpus()) > 1:
            return Mirrored(), f"auto chose mirrored: {gpus} GPUs"
        return OneDevice(), f"auto chose one_device: {'one GPU' if gpus else 'no GPU'}"
