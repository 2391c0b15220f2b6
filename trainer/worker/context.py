"""What every builder needs to know of this process."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from trainer.cluster.messages import Channel
from trainer.cluster.spec import Cluster
from trainer.config.schema import Experiment
from trainer.runs.state_memory import MemoryFiles


@dataclass(frozen=True)
class WorkerContext:
    """One worker process of a run.

    Attributes:
        experiment: the effective configuration.
        channel: messages to the supervisor.
        cluster: the cluster as this process sees it; by default it is alone.
        is_stopping: whether this process was asked to save and leave, not to go on otherwise.
        memory_files: where its state outlives it; None: nowhere.
        stand_by: waits until this process takes part in the run; until then another attempt does,
            and it must leave the run directory alone. None: it takes part from its start.
    """

    experiment: Experiment
    run_dir: Path
    channel: Channel
    cluster: Cluster = field(default_factory=Cluster)
    is_stopping: Callable[[], bool] = lambda: False
    memory_files: MemoryFiles | None = None
    stand_by: Callable[[], object] | None = None
