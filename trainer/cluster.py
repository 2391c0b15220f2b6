"""Who works together: the processes of a run, their addresses, and which of them is the chief. No TensorFlow.

The environment of a process is read and written here alone.
"""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any


JOBS = ("chief", "worker", "ps", "evaluator")


@dataclass(frozen=True)
class Task:
    """One process of a run.

    Attributes:
        job: one of JOBS.
        index: its number within the job, from 0.
    """

    job: str
    index: int

    def __str__(self) -> str:
        """Its name, as in the log's: `worker-0`."""
        return f"{self.job}-{self.index}"


@dataclass(frozen=True)
class Cluster:
    """All processes that train together, as one of them sees it.

    Attributes:
        task: the one who sees.
        jobs: the addresses, host:port, of each job's tasks; empty for a process that trains alone.
        source: who declared it, for messages.
    """

    task: Task = Task("worker", 0)
    jobs: Mapping[str, Sequence[str]] = field(default_factory=dict)
    source: str = "local"

    @property
    def is_chief(self) -> bool:
        """Whether this process alone leaves files: the `chief` if there is that job, else worker 0 (TensorFlow's rule)."""
        return self.task.job == "chief" or (self.task == Task("worker", 0) and "chief" not in self.jobs)

    @property
    def trainers(self) -> list[Task]:
        """All who train, the chief first; none for a process that trains alone."""
        return [Task(job, index) for job in ("chief", "worker") for index in range(len(self.jobs.get(job, ())))]

    @property
    def others(self) -> dict[Task, str]:
        """The addresses of all others that train."""
        tasks = {Task(job, index): address for job, addresses in self.jobs.items() for index, address in enumerate(addresses)}
        return {task: address for task, address in tasks.items() if task != self.task and task.job != "evaluator"}

    def tf_config(self) -> str:
        """Gives what TensorFlow reads from TF_CONFIG."""
        jobs = {job: list(addresses) for job, addresses in self.jobs.items()}
        return json.dumps({"cluster": jobs, "task": {"type": self.task.job, "index": self.task.index}})

    def plain(self) -> dict[str, Any]:
        """Gives it as plain containers, for JSON; `restore` takes them."""
        return {"task": [self.task.job, self.task.index], "jobs": {job: list(a) for job, a in self.jobs.items()}, "source": self.source}


def restore(content: Mapping[str, Any]) -> Cluster:
    """Makes a cluster of what `plain` gave."""
    return Cluster(Task(*content["task"]), content["jobs"], content["source"])


def declared(tasks: Callable[[int | None], list[Task]]) -> Cluster | None:
    """Finds the cluster that whatever started this process has declared, and checks it.

    Args:
        tasks: gives the tasks of a cluster of so many processes (None: as many as are configured), for schedulers that say how
            many there are but not what each is.

    Raises:
        ConfigError: it is declared wrongly.
    """
    raise NotImplementedError


def local(tasks: Sequence[Task]) -> list[Cluster]:
    """Makes a cluster on this machine, at free ports of 127.0.0.1; gives it as each of its tasks sees it."""
    jobs: dict[str, list[str]] = {}
    with ExitStack() as stack:
        # All at once, so that no port is given twice.
        for task in tasks:
            if task.job != "evaluator":
                free = stack.enter_context(socket.socket())
                free.bind(("127.0.0.1", 0))
                jobs.setdefault(task.job, []).append(f"127.0.0.1:{free.getsockname()[1]}")
    return [Cluster(task, jobs) for task in tasks]


def worker_environment() -> dict[str, str]:
    """Gives the environment of a worker process."""
    environment = dict(os.environ)
    # A stale TF_CONFIG of the shell must not reach a strategy of one process: TensorFlow would wait for a cluster.
    environment.pop("TF_CONFIG", None)
    # A log that is read while the run goes on, and after a kill, must not sit in a buffer.
    environment["PYTHONUNBUFFERED"] = "1"
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, [_import_root(), environment.get("PYTHONPATH")]))
    return environment


def prepare_environment() -> None:
    """Sets what TensorFlow reads at its import: the Keras line (docs/adr/0001-tf-keras.md), quiet logs."""
    os.environ["TF_USE_LEGACY_KERAS"] = "1"
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "1")


def enter(cluster: Cluster) -> None:
    """Sets what TensorFlow reads when it joins a cluster."""
    os.environ.pop("TF_CONFIG", None)
    if cluster.jobs:
        os.environ["TF_CONFIG"] = cluster.tf_config()
        # A connection that is refused fails at once where TensorFlow expects that, and waits where it does not.
        os.environ["GRPC_FAIL_FAST"] = "use_caller"


def _import_root() -> str:
    """Gives the folder from which this very package was imported, so that a worker imports the same one."""
    return os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
