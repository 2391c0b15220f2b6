"""Discovery: the cluster of this process, as TF_CONFIG or a scheduler declares it."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from trainer.annotations import OneOf
from trainer.cluster import ports
from trainer.cluster.schedulers import scheduler
from trainer.cluster.schedulers.scheduler import Allocation
from trainer.cluster.spec import ACTOR, BESIDE, EVALUATOR, LOCAL, TF_CONFIG, Cluster, ProcessId
from trainer.config.options import constraints
from trainer.errors import ConfigError

_JOBS = ("chief", "worker", "ps", EVALUATOR, ACTOR)

_ADDRESS = re.compile(r"(?:\[[0-9a-fA-F:.]+\]|[^\s:/\[\]]+):([0-9]+)")
_EXAMPLE = '{"cluster": {"worker": ["a:2222", "b:2222"]}, "task": {"type": "worker", "index": 0}}'


def declared_cluster(
    process_ids: Callable[[int | None], list[ProcessId]], environment: Mapping[str, str]
) -> Cluster | None:
    """Return the cluster that the environment declares, or None if it declares none.

    Args:
        process_ids: returns the processes of a cluster of this size (None: of the configured
            size), for schedulers, which have their number but not their jobs.

    Raises:
        ConfigError: the declaration is wrong, or the port of this process is in use.
    """
    if text := environment.get(TF_CONFIG):
        cluster = parse_tf_config(text, TF_CONFIG)
    else:
        allocation = scheduler.allocation(environment, len(process_ids(None)))
        if allocation is None:
            return None
        cluster = allocated_cluster(process_ids, allocation)
    _check_port(cluster)
    return cluster


def allocated_cluster(
    process_ids: Callable[[int | None], list[ProcessId]], allocation: Allocation
) -> Cluster:
    """Return the cluster of the processes that a scheduler has started, as one of them sees it."""
    members = process_ids(len(allocation.addresses))
    return clusters_of(members, allocation.addresses, allocation.source)[allocation.index]


def parse_tf_config(text: str, source: str) -> Cluster:
    """Return the cluster that a value of TF_CONFIG declares.

    With a wrong one TensorFlow would wait for ever, or train alone.

    Raises:
        ConfigError: the declaration is wrong; one line for each problem.
    """
    try:
        content = json.loads(text)
    except ValueError as error:
        raise ConfigError(f"{source}: not JSON: {error}") from error
    if problems := list(_problems(content)):
        raise ConfigError(*(f"{source}: {problem}" for problem in problems))
    # An evaluator or actor may be listed, but TensorFlow does not connect to it.
    jobs = {
        job: addresses
        for job, addresses in content["cluster"].items()
        if addresses and job not in BESIDE
    }
    task = content["task"]
    actors = len(content["cluster"].get(ACTOR, ()))
    return Cluster(ProcessId(task["type"], task["index"]), jobs, source, actors)


def local_clusters(process_ids: Sequence[ProcessId]) -> list[Cluster]:
    """Return a cluster on free ports of this machine, as each of its processes sees it."""
    return clusters_of(process_ids, ports.free_addresses(len(process_ids)), LOCAL)


def clusters_of(
    process_ids: Sequence[ProcessId], addresses: Sequence[str], source: str
) -> list[Cluster]:
    """Return the cluster of these processes and addresses, as each of them sees it."""
    jobs: dict[str, list[str]] = {}
    for process_id, address in zip(process_ids, addresses, strict=True):
        if not process_id.is_beside:
            jobs.setdefault(process_id.job, []).append(address)
    return [Cluster(process_id, jobs, source) for process_id in process_ids]


def _check_port(cluster: Cluster) -> None:
    """Raise a ConfigError if the port of this process is in use.

    TensorFlow would fail much later, and without the reason.
    """
    process_id = cluster.process_id
    if process_id.job not in cluster.jobs:
        return
    address = cluster.jobs[process_id.job][process_id.index]
    port = int(address.rpartition(":")[2])
    if ports.is_in_use(port):
        raise ConfigError(
            f"{cluster.source}: port {port} of {process_id} ({address}) is in use on this machine; "
            "the declaration is stale, or an earlier task is still alive"
        )


def _problems(content: Any) -> Iterator[str]:
    """Yield what is wrong with the parsed JSON; a wrong job hides what follows from it."""
    jobs, task = (
        content.get(key) if isinstance(content, dict) else None for key in ("cluster", "task")
    )
    if not isinstance(jobs, dict) or not isinstance(task, dict):
        yield f"it must be an object with cluster and task, such as {_EXAMPLE}"
        return
    problems = list(_job_problems(jobs))
    yield from problems or _task_problems(task, jobs)


def _job_problems(jobs: Mapping[str, Any]) -> Iterator[str]:
    owners: dict[str, str] = {}
    for job, addresses in jobs.items():
        if problem := constraints.check_value("job", job, OneOf(*_JOBS)):
            yield f"{problem}; TensorFlow 1's master is chief" if job == "master" else problem
            continue
        if not isinstance(addresses, list):
            yield f"job {job} ({json.dumps(addresses)}) must be a list of addresses"
            continue
        if job in ("chief", EVALUATOR) and len(addresses) > 1:
            yield f"the cluster has {len(addresses)} {job}s; there can be only one"
        for index, address in enumerate(map(str, addresses)):
            process = f"{job}-{index}"
            match = _ADDRESS.fullmatch(address)
            if not match or not 1 <= int(match[1]) <= 65535:
                yield f"address of {process} ({address}) must be host:port, such as a:2222"
            if (owner := owners.setdefault(address, process)) != process:
                yield f"{process} has the same address as {owner} ({address}); each needs its own"
    present = [job for job in _JOBS if jobs.get(job)]
    # A job whose name is wrong may be the one that is missing.
    if jobs.keys() <= set(_JOBS) and (
        "worker" not in present and ("chief" not in present or "ps" in present)
    ):
        yield f"the cluster has no worker, it has {', '.join(present) or 'no process'}; add one"


def _task_problems(task: Mapping[str, Any], jobs: Mapping[str, list[str]]) -> Iterator[str]:
    job, index = task.get("type"), task.get("index")
    present = [*BESIDE, *(name for name in jobs if jobs[name])]  # those need not be in the cluster
    count = len(jobs.get(str(job)) or [EVALUATOR])
    if job not in present:
        yield f"task type ({job}) must be one of the cluster: {', '.join(sorted(present))}"
    elif type(index) is not int or not 0 <= index < count:
        yield f"task index ({json.dumps(index)}) must be an integer from 0 to {count - 1}"
