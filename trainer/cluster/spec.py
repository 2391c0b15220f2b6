"""The cluster: processes, addresses, and the chief."""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

EVALUATOR = "evaluator"
"""The job of a process that evaluates alongside the training and is no part of it."""

ACTOR = "actor"
"""The job of a process that steps environments, and sends what it sees to those that train."""

BESIDE = frozenset({EVALUATOR, ACTOR})
"""Jobs alongside the training: they join no other process, and may be restarted alone."""

LOCAL = "local"
"""The source of a cluster that this program starts on this machine."""

RAY = "Ray"
"""The source of a cluster that this program has placed on a Ray cluster."""

TF_CONFIG = "TF_CONFIG"
"""The source of a cluster whose processes were started one by one."""


@dataclass(frozen=True)
class ProcessId:
    """One process of a run.

    Attributes:
        job: chief, worker, ps, evaluator or actor.
    """

    job: str
    index: int

    @property
    def is_evaluator(self) -> bool:
        """Whether this process evaluates alongside the training."""
        return self.job == EVALUATOR

    @property
    def is_actor(self) -> bool:
        """Whether this process steps environments."""
        return self.job == ACTOR

    @property
    def is_beside(self) -> bool:
        """Whether this process joins no other."""
        return self.job in BESIDE

    def __str__(self) -> str:
        """Return the name of its log: `worker-0`."""
        return f"{self.job}-{self.index}"


@dataclass(frozen=True)
class Cluster:
    """All processes that train together, as one of them sees it.

    Attributes:
        jobs: the addresses, host:port, of the processes of each job; empty for a process that
            trains alone.
        actors: number of actors that it declares; each has its own supervisor.
    """

    process_id: ProcessId = ProcessId("worker", 0)
    jobs: Mapping[str, Sequence[str]] = field(default_factory=dict)
    source: str = LOCAL
    actors: int = 0

    @property
    def is_local(self) -> bool:
        """Whether this program starts all processes, on this machine; else each has its own."""
        return self.source == LOCAL

    @property
    def is_declared(self) -> bool:
        """Whether each process has its own command; else one command has placed them all."""
        return self.source not in (LOCAL, RAY)

    @property
    def is_scheduled(self) -> bool:
        """Whether a scheduler has started all processes, so that their outputs come together."""
        return self.is_declared and self.source != TF_CONFIG

    @property
    def is_chief(self) -> bool:
        """Whether this process writes the files of the run.

        That is the `chief` if there is such a job, else worker 0: TensorFlow's rule.
        """
        return self.process_id.job == "chief" or (
            self.process_id == ProcessId("worker", 0) and "chief" not in self.jobs
        )

    @property
    def trainers(self) -> list[ProcessId]:
        """The processes that train, the chief first; none for a process that trains alone."""
        return [
            ProcessId(job, index)
            for job in ("chief", "worker")
            for index in range(len(self.jobs.get(job, ())))
        ]

    @property
    def process_ids(self) -> list[ProcessId]:
        """All processes but evaluators."""
        return [
            ProcessId(job, index)
            for job, addresses in self.jobs.items()
            for index in range(len(addresses))
        ]

    @property
    def others(self) -> dict[ProcessId, str]:
        """The addresses of all processes but this one and the sidecars."""
        addresses = itertools.chain(*self.jobs.values())
        return {
            process_id: address
            for process_id, address in zip(self.process_ids, addresses, strict=True)
            if process_id != self.process_id and not process_id.is_beside
        }

    def tf_config(self) -> str:
        """Return the value of TF_CONFIG that declares this cluster to TensorFlow."""
        jobs = {job: list(addresses) for job, addresses in self.jobs.items()}
        return json.dumps(
            {"cluster": jobs, "task": {"type": self.process_id.job, "index": self.process_id.index}}
        )

    def to_dict(self) -> dict[str, Any]:
        """Return plain containers for JSON; `from_dict` reads them."""
        return {
            "task": [self.process_id.job, self.process_id.index],
            "jobs": {job: list(addresses) for job, addresses in self.jobs.items()},
            "source": self.source,
        }

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> Cluster:
        """Return the cluster that `to_dict` has described."""
        return cls(ProcessId(*content["task"]), content["jobs"], content["source"])
