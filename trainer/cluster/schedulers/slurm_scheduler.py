"""Slurm: the tasks of a step that `srun` has started, and what becomes of a job."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping

from trainer.cluster.schedulers.scheduler import Allocation, index_of, integer
from trainer.errors import ConfigError

_RANGES = r"\[[0-9]+(?:-[0-9]+)?(?:,[0-9]+(?:-[0-9]+)?)*\]"
_HOST = rf"(?:[^\s,\[\]]|{_RANGES})+"


def allocation(environment: Mapping[str, str], count: int) -> Allocation | None:
    """Return the tasks of the step that `srun` has started, or None outside a step.

    Raises:
        ConfigError: the variables contradict each other, or hide which task is on which node.
    """
    # An allocation and a batch script have the variables of the job too, but they run only one
    # process: only the variables of a step count.
    if (
        "SLURM_STEP_ID" not in environment
        or (count := integer("Slurm", environment, "SLURM_STEP_NUM_TASKS", "1")) < 2
    ):
        return None
    nodes, per_node = (
        environment.get(name, "") for name in ("SLURM_STEP_NODELIST", "SLURM_STEP_TASKS_PER_NODE")
    )
    hosts = _hosts(nodes)
    counts = _task_counts(per_node)
    if len(hosts) != len(counts) or sum(counts) != count:
        raise ConfigError(
            f"Slurm: SLURM_STEP_TASKS_PER_NODE ({per_node}) must have a number for each of "
            f"{len(hosts)} nodes, {count} tasks in all"
        )
    index = index_of("Slurm", environment, "SLURM_PROCID", count, f"the step has {count} tasks")
    tasks = [
        (host, local)
        for host, host_count in zip(hosts, counts, strict=True)
        for local in range(host_count)
    ]
    distribution = environment.get("SLURM_DISTRIBUTION", "block")
    if distribution.startswith(("plane", "arbitrary")):
        raise ConfigError(
            f"Slurm: SLURM_DISTRIBUTION ({distribution}) must be block or cyclic; "
            "use srun --distribution=block"
        )
    if distribution.startswith("cyclic"):
        # The sort is stable: the first task of each node, then the second of each.
        tasks.sort(key=lambda task: task[1])
    # Jobs and steps on one node need different ports: each has 16, or more if it has more tasks. So
    # do the starts of one job: on a node that was cut off, tasks of an earlier one may be alive,
    # and must not be met.
    job = integer("Slurm", environment, "SLURM_JOB_ID")
    step = integer("Slurm", environment, "SLURM_STEP_ID")
    restarts = integer("Slurm", environment, "SLURM_RESTART_COUNT", "0")
    num_ports = 16 * -(-max(counts) // 16)
    base = 20000 + num_ports * ((31 * job + step + 331 * restarts) % max(1, 10000 // num_ports))
    return Allocation("Slurm", [f"{host}:{base + local}" for host, local in tasks], index)


def starts_jobs_again(environment: Mapping[str, str]) -> bool:
    """Return whether this is a job of Slurm, or its batch script or allocation."""
    return "SLURM_JOB_ID" in environment


def warning(environment: Mapping[str, str]) -> str | None:
    """Return a warning if a job has more nodes than a command uses that starts its own processes.

    A step of a part of the nodes is meant so; one of a single task on each of several is not.
    """
    name = "SLURM_STEP_NUM_NODES" if "SLURM_STEP_ID" in environment else "SLURM_JOB_NUM_NODES"
    nodes = environment.get(name, "1")
    if not nodes.isdigit() or int(nodes) < 2:
        return None
    return (
        f"Slurm has given {nodes} nodes, and this command uses this one alone; start "
        "strategy=multi_worker with srun, as `slurm` writes it, or request one node"
    )


def _hosts(text: str) -> list[str]:
    """Expand Slurm's short form of host names: `gpu[01-03,7],login1`."""
    if not re.fullmatch(rf"{_HOST}(,{_HOST})*", text):
        raise ConfigError(
            f"Slurm: SLURM_STEP_NODELIST ({text}) must be a list of hosts, "
            "such as gpu[01-03,7],login1"
        )
    names = []
    for host in re.findall(_HOST, text):
        parts = re.split(rf"({_RANGES})", host)
        choices = [_expand_ranges(part) if part[:1] == "[" else [part] for part in parts]
        names += ["".join(name) for name in itertools.product(*choices)]
    return names


def _expand_ranges(ranges: str) -> Iterator[str]:
    for part in ranges.strip("[]").split(","):
        first, _, last = part.partition("-")
        yield from (
            f"{number:0{len(first)}}" for number in range(int(first), int(last or first) + 1)
        )


def _task_counts(text: str) -> list[int]:
    """Expand Slurm's short form of the tasks on each node: `2(x3),1` is 2, 2, 2, 1."""
    counts = []
    for part in text.split(","):
        if not (match := re.fullmatch(r"([0-9]+)(?:\(x([0-9]+)\))?", part)):
            raise ConfigError(
                f"Slurm: SLURM_STEP_TASKS_PER_NODE ({text}) must be a list of numbers, "
                "such as 2(x3),1"
            )
        counts += [int(match[1])] * int(match[2] or 1)
    return counts
