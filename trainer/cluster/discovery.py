"""Discovery: the cluster of this process, as TF_CONFIG or a scheduler declares it."""

from __future__ import annotations

import itertools
import json
import re
import shlex
from collections.abc import Callable, Mapping, Sequence

from trainer.cluster import ports, tf_config
from trainer.cluster.schedulers import scheduler
from trainer.cluster.schedulers.scheduler import Allocation
from trainer.cluster.spec import ACTOR, BESIDE, LOCAL, Cluster, ProcessId
from trainer.errors import ConfigError

_DEFAULT_PORT = 2222


def declared_cluster(
    process_ids: Callable[[int | None], list[ProcessId]], environment: Mapping[str, str]
) -> Cluster | None:
    """Return the cluster that the environment declares, or None if it declares none.

    Args:
        process_ids: returns the processes of a cluster of this size (None: of the configured
            size), for schedulers, which know how many there are but not their jobs.
        environment: the environment variables of this process.

    Raises:
        ConfigError: the declaration is wrong, or the port of this process is in use.
    """
    if text := environment.get("TF_CONFIG"):
        cluster = parse_tf_config(text, "TF_CONFIG")
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
        text: JSON.
        source: what declares it, for messages.

    Raises:
        ConfigError: the declaration is wrong; one line for each problem.
    """
    try:
        content = json.loads(text)
    except ValueError as error:
        raise ConfigError(f"{source}: not JSON: {error}") from error
    if problems := list(tf_config.problems(content)):
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
        hosts: host or host:port, one for each process; a host without a port gets a free one.
        process_ids: the processes, in the same order.
        argv: this command line; its `strategy.hosts` is left out.

    Returns:
        For each process its address and the command to type on that host.

    Raises:
        ConfigError: an address is wrong.
    """
    words = [word for word in argv if not word.lstrip("+").startswith("strategy.hosts=")]
    addresses = _with_ports(hosts)
    clusters = clusters_of(process_ids, addresses, "strategy.hosts")
    parse_tf_config(clusters[0].tf_config(), "strategy.hosts")
    lines = [
        f"TF_CONFIG={shlex.quote(cluster.tf_config())} {shlex.join(words)}" for cluster in clusters
    ]
    return list(zip(addresses, lines, strict=True))


def local_clusters(process_ids: Sequence[ProcessId]) -> list[Cluster]:
    """Return a cluster on free ports of this machine, as each of its processes sees it."""
    return clusters_of(process_ids, ports.free_addresses(len(process_ids)), LOCAL)


def _with_ports(hosts: Sequence[str]) -> list[str]:
    has_port = [re.search(r":[0-9]+$", host) is not None for host in hosts]
    used = {host for host, complete in zip(hosts, has_port, strict=True) if complete}
    addresses = []
    for host, complete in zip(hosts, has_port, strict=True):
        candidates = (f"{host}:{port}" for port in itertools.count(_DEFAULT_PORT))
        address = host if complete else next(free for free in candidates if free not in used)
        used.add(address)
        addresses.append(address)
    return addresses


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
