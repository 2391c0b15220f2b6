"""Who works together: the processes of a run, their addresses, and which of them is the chief. No TensorFlow.

The environment of a process is read and written here alone.
"""

from __future__ import annotations

import errno
import itertools
import json
import os
import re
import shlex
import socket
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from glob import glob
from typing import Any

from trainer import schedulers, tf_config
from trainer.errors import ConfigError

_PORT = 2222
_DEFAULTS = {
    "TF_CPP_MIN_LOG_LEVEL": "1",
    # Trackers keep what they are told on this machine, and tell nobody how they are used.
    "WANDB_MODE": "offline",
    "WANDB_ERROR_REPORTING": "false",
    "MLFLOW_DISABLE_TELEMETRY": "true",
}


@dataclass(frozen=True)
class Task:
    """One process of a run.

    Attributes:
        job: chief, worker, ps or evaluator.
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
    def tasks(self) -> list[Task]:
        """All processes but those that evaluate."""
        return [Task(job, index) for job, addresses in self.jobs.items() for index in range(len(addresses))]

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
        ConfigError: it is declared wrongly, or this process cannot listen at its address.
    """
    if text := os.environ.get("TF_CONFIG"):
        cluster = parse(text, "TF_CONFIG")
    elif found := schedulers.slurm(os.environ) or schedulers.kubernetes(os.environ, socket.getfqdn, len(tasks(None))):
        cluster = _assembled(tasks(len(found.addresses)), found.addresses, found.source)[found.number]
    else:
        return None
    _check_port(cluster)
    return cluster


def parse(text: str, source: str) -> Cluster:
    """Makes a cluster of what TF_CONFIG says, and checks it.

    Args:
        text: its JSON.
        source: who says so, for messages.

    Raises:
        ConfigError: it is wrong.
    """
    try:
        content = json.loads(text)
    except ValueError as error:
        raise ConfigError(f"{source}: not JSON: {error}") from error
    if problems := list(tf_config.problems(content)):
        raise ConfigError(*(f"{source}: {problem}" for problem in problems))
    # Who evaluates may be listed, but is no part of what TensorFlow connects.
    jobs = {job: addresses for job, addresses in content["cluster"].items() if addresses and job != "evaluator"}
    return Cluster(Task(content["task"]["type"], content["task"]["index"]), jobs, source)


def commands(addresses: Sequence[str], tasks: Sequence[Task], argv: Sequence[str]) -> list[tuple[str, str]]:
    """Gives what to type on each host to start a cluster there by hand.

    Args:
        addresses: host or host:port, one for each task.
        tasks: what each of them does.
        argv: the command line without a cluster; its `strategy.hosts` is left out.

    Returns:
        For each host its address and the line for its shell.

    Raises:
        ConfigError: an address is wrong.
    """
    words = [word for word in argv if not word.lstrip("+").startswith("strategy.hosts=")]
    complete = [address for address in addresses if re.search(r":[0-9]+$", address)]
    taken, places = set(complete), []
    for address in addresses:
        if address not in complete:
            address = next(free for port in itertools.count(_PORT) if (free := f"{address}:{port}") not in taken)
            taken.add(address)
        places.append(address)
    clusters = _assembled(tasks, places, "strategy.hosts")
    parse(clusters[0].tf_config(), "strategy.hosts")
    lines = [f"TF_CONFIG={shlex.quote(cluster.tf_config())} {shlex.join(words)}" for cluster in clusters]
    return list(zip(places, lines, strict=True))


def local(tasks: Sequence[Task]) -> list[Cluster]:
    """Makes a cluster on this machine, at free ports of 127.0.0.1; gives it as each of its tasks sees it."""
    addresses = []
    with ExitStack() as stack:
        # All at once, so that no port is given twice.
        for _ in tasks:
            free = stack.enter_context(socket.socket())
            free.bind(("127.0.0.1", 0))
            addresses.append(f"127.0.0.1:{free.getsockname()[1]}")
    return _assembled(tasks, addresses, "local")


def tpu_configured() -> str | None:
    """Gives the TPU that the environment declares, or `local` for one of this machine; None: there is none."""
    # In the order in which TensorFlow looks for them.
    for name in ("KUBE_GOOGLE_CLOUD_TPU_ENDPOINTS", "TPU_NAME"):
        if value := os.environ.get(name):
            return value
    return "local" if glob("/dev/accel[0-9]*") or glob("/dev/vfio/[0-9]*") else None


def has_cursor() -> bool:
    """Whether the terminal, if there is one, can do more than show one line below another."""
    return os.environ.get("TERM") != "dumb"


def wants_color() -> bool:
    """Whether the terminal can show colours, and its user has nothing against them (https://no-color.org)."""
    return has_cursor() and not os.environ.get("NO_COLOR")


def online_tracker(writers: Sequence[str]) -> str | None:
    """Says by which variable of the environment one of the writers may be online, or None if all are on this machine."""
    store, mode = os.environ.get("MLFLOW_TRACKING_URI", ""), os.environ.get("WANDB_MODE", "")
    if "mlflow" in writers and store and not store.startswith(("sqlite:", "file:", "/", ".")):
        return f"MLFLOW_TRACKING_URI ({store}) may be on the network"
    if "wandb" in writers and mode == "online":
        return "WANDB_MODE is online"
    return None


def worker_environment(scratch: str | None = None) -> dict[str, str]:
    """Gives the environment of a process of ours; `scratch`: the directory for its temporary files, if it has its own."""
    environment = dict(os.environ) if scratch is None else {**os.environ, "TMPDIR": scratch}
    # A stale TF_CONFIG of the shell must not reach a strategy of one process: TensorFlow would wait for a cluster.
    environment.pop("TF_CONFIG", None)
    # A log that is read while the run goes on, and after a kill, must not sit in a buffer.
    environment["PYTHONUNBUFFERED"] = "1"
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, [_import_root(), environment.get("PYTHONPATH")]))
    return environment


def point_environment(threads: int | None, gpus: Sequence[str] | None) -> dict[str, str]:
    """Gives the environment of a process that runs a point of a sweep; a cluster that is declared concerns it too.

    Args:
        threads: into how many parts TensorFlow divides an operation, unless the user has said so; None: it chooses.
        gpus: those that it may use; None: all.
    """
    environment = worker_environment()
    if declared := os.environ.get("TF_CONFIG"):
        environment["TF_CONFIG"] = declared
    if threads is not None:
        environment.setdefault("TF_NUM_INTRAOP_THREADS", str(threads))
    if gpus is not None:
        environment["CUDA_VISIBLE_DEVICES"] = ",".join(gpus)
    return environment


def gpus() -> list[str]:
    """Gives the NVIDIA GPUs that this process may use, as in CUDA_VISIBLE_DEVICES."""
    here = sorted((path.removeprefix("/dev/nvidia") for path in glob("/dev/nvidia[0-9]*")), key=int)
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if not here or visible is None:
        return here
    # As CUDA has it: what follows a wrong one does not count.
    return list(itertools.takewhile(lambda name: name and name != "-1", (name.strip() for name in visible.split(","))))


def share_imports() -> None:
    """Lets the processes that others start from this one find this package."""
    os.environ["PYTHONPATH"] = worker_environment()["PYTHONPATH"]


def prepare_environment() -> None:
    """Sets what libraries read at their import: the Keras line (docs/adr/0001-tf-keras.md), quiet logs, nothing sent unasked."""
    os.environ["TF_USE_LEGACY_KERAS"] = "1"
    for name, value in _DEFAULTS.items():
        os.environ.setdefault(name, value)


def enter(cluster: Cluster) -> None:
    """Sets what TensorFlow reads when it joins a cluster."""
    os.environ.pop("TF_CONFIG", None)
    if cluster.jobs:
        os.environ["TF_CONFIG"] = cluster.tf_config()
        # A connection that is refused fails at once where TensorFlow expects that, and waits where it does not.
        os.environ["GRPC_FAIL_FAST"] = "use_caller"


def _assembled(tasks: Sequence[Task], addresses: Sequence[str], source: str) -> list[Cluster]:
    """Makes a cluster of tasks and their addresses; gives it as each of them sees it."""
    jobs: dict[str, list[str]] = {}
    for task, address in zip(tasks, addresses, strict=True):
        if task.job != "evaluator":
            jobs.setdefault(task.job, []).append(address)
    return [Cluster(task, jobs, source) for task in tasks]


def _check_port(cluster: Cluster) -> None:
    """Checks that nobody listens at this process's port: TensorFlow would fail much later, and not say why."""
    if cluster.task.job not in cluster.jobs:
        return
    address = cluster.jobs[cluster.task.job][cluster.task.index]
    port = int(address.rpartition(":")[2])
    for family in (socket.AF_INET, socket.AF_INET6):
        try:
            with socket.socket(family) as probe:
                # What a connection that has ended leaves behind for a minute is no obstacle; TensorFlow binds in this way too.
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                probe.bind(("", port))
        except OSError as error:
            # A machine without IPv6 is none of our business.
            if error.errno == errno.EADDRINUSE:
                raise ConfigError(
                    f"{cluster.source}: port {port} of {cluster.task} ({address}) is in use on this machine; "
                    f"the declaration is stale, or an earlier task is still alive"
                ) from error


def _import_root() -> str:
    """Gives the folder from which this very package was imported, so that a worker imports the same one."""
    return os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
