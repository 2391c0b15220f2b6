"""Discovery: the cluster of this process, as TF_CONFIG or a scheduler declares it."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from trainer.annotations import OneOf
from trainer.cluster import ports
from trainer.cluster.schedulers import scheduler
from trainer.cluster.schedulers.scheduler import Allocation
from trainer.cluster.spec import ACTOR, BESIDE, EVALUATOR, LOCAL, TF_CONFIG, Cluster, ProcessId
from trainer.config.options import constraints
from trainer.errors import ConfigError

_DEFAULT_PORT = 2222

_JOBS = ("chief", "worker", "ps", EVALUATOR, ACTOR)

# The keys that TensorFlow reads, and "job", which Google Cloud adds.
_KEYS = ("cluster", "task", "environment", "rpc_layer", "session_master", "job")
_ADDRESS = re.compile(r"(?:\[[0-9a-fA-F:.]+\]|[^\s:/\[\]]+):([0-9]+)")
_EXAMPLE = '{"worker": ["a:2222", "b:2222"]}'
_TASK_EXAMPLE = '{"type": "worker", "index": 0}'


def declared_cluster(
    process_ids: Callable[[int | None], list[ProcessId]], environment: Mapping[str, str]
) -> Cluster | None:
    """Return the cluster that the environment declares, or None if it declares none.

    Args:
        process_ids: returns the processes of a cluster of this size (None: of the configured
            size), for schedulers, which know how many there are but not their jobs.

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

    Args:
        source: what declares it, for messages.

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


def start_commands(
    hosts: Sequence[str], process_ids: Sequence[ProcessId], argv: Sequence[str]
) -> list[tuple[str, str]]:
    """Return the shell commands that start a cluster by hand.

    Args:
        hosts: host or host:port, one for each process; the port is 2222 by default.
        process_ids: the processes, in the same order.
        argv: this command line; its `strategy.hosts` is left out.

    Returns:
        For each process its address and the command to type on that host.

    Raises:
        ConfigError: an address is wrong.
    """
    words = [word for word in argv if not word.lstrip("+").startswith("strategy.hosts=")]
    addresses = [
        host if re.search(r":[0-9]+$", host) else f"{host}:{_DEFAULT_PORT}" for host in hosts
    ]
    clusters = clusters_of(process_ids, addresses, "strategy.hosts")
    parse_tf_config(clusters[0].tf_config(), "strategy.hosts")
    lines = [
        f"TF_CONFIG={shlex.quote(cluster.tf_config())} {shlex.join(words)}" for cluster in clusters
    ]
    return list(zip(addresses, lines, strict=True))


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
    """Yield what is wrong with the parsed JSON; consequences of another problem are left out."""
    if not isinstance(content, dict):
        yield f'{json.dumps(content)} must be an object with "cluster" and "task"'
        return
    for key in content:
        if key not in _KEYS:
            hint = constraints.did_you_mean(key, _KEYS) or "; it has cluster and task"
            yield f"unknown key '{key}'{hint}"
    jobs = content.get("cluster")
    if not isinstance(jobs, dict) or not jobs:
        value = _format(content, "cluster")
        yield f'"cluster" ({value}) must map jobs to their addresses, such as {_EXAMPLE}'
        return
    yield from list(_job_problems(jobs)) or _task_problems(content, jobs)


def _job_problems(jobs: Mapping[str, Any]) -> Iterator[str]:
    owners: dict[str, str] = {}
    for job, addresses in jobs.items():
        if problem := _name_problem("job", job):
            yield problem
        elif not isinstance(addresses, list):
            value = json.dumps(addresses)
            yield f'job {job} ({value}) must be a list of addresses, such as ["a:2222"]'
        else:
            for index, address in enumerate(addresses):
                task = f"{job}-{index}"
                yield from _address_problems(task, str(address))
                if (owner := owners.setdefault(str(address), task)) != task:
                    yield f"{task} has the same address as {owner} ({address}); each needs its own"
            if job in ("chief", EVALUATOR) and len(addresses) > 1:
                yield f"the cluster has {len(addresses)} {job}s; there can be only one"
    present = _present(jobs)
    # A job whose name is wrong may be the one that is missing.
    if (
        set(jobs) <= set(_JOBS)
        and "worker" not in present
        and ("chief" not in present or "ps" in present)
    ):
        others = " and ".join(present) or "empty jobs"
        yield f"the cluster has no worker, only {others}; add the job worker"


def _address_problems(task: str, address: str) -> Iterator[str]:
    if match := _ADDRESS.fullmatch(address):
        if not 1 <= int(match[1]) <= 65535:
            yield f"port of {task} ({address}) must be from 1 to 65535"
    else:
        scheme = re.match(r"\w+://", address)
        hint = f"without {scheme[0]}" if scheme else "such as a:2222"
        yield f"address of {task} ({address}) must be host:port, {hint}"


def _task_problems(content: Mapping[str, Any], jobs: Mapping[str, list[str]]) -> Iterator[str]:
    task = content.get("task")
    if not isinstance(task, dict):
        value = _format(content, "task")
        yield f'"task" ({value}) must say which process this is, such as {_TASK_EXAMPLE}'
        return
    job = str(task.get("type", "missing"))
    index = task.get("index")
    # An evaluator need not be in the cluster.
    count = len(jobs.get(job) or [EVALUATOR])
    if problem := _name_problem("task type", job):
        yield problem
    elif not jobs.get(job) and job not in BESIDE:
        yield f"task type ({job}) is not in the cluster, which has {', '.join(_present(jobs))}"
    elif not isinstance(index, int) or isinstance(index, bool):
        yield f"task index ({_format(task, 'index')}) must be an integer, such as 0"
    elif not 0 <= index < count:
        yield f"task index ({index}) is out of range: the cluster has {_range(count, job)}"


def _present(jobs: Mapping[str, Any]) -> list[str]:
    return [job for job in _JOBS if jobs.get(job)]


def _name_problem(key: str, job: str) -> str | None:
    if job == "master":
        return f"{key} (master) is TensorFlow 1's name; write chief"
    return constraints.check_value(key, job, OneOf(*_JOBS))


def _range(count: int, job: str) -> str:
    if count == 1:
        return f"1 {job}, number 0"
    plural = job if job == "ps" else f"{job}s"
    return f"{count} {plural}, 0 to {count - 1}"


def _format(content: Mapping[str, Any], key: str) -> str:
    return json.dumps(content[key]) if key in content else "missing"
