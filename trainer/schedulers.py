"""What Slurm and Kubernetes tell a process: where the others are, and which of them it is. No TensorFlow.

What each of them does they do not say; the strategy does.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

from trainer.errors import ConfigError

_RANGES = r"\[[0-9]+(?:-[0-9]+)?(?:,[0-9]+(?:-[0-9]+)?)*\]"
_HOST = rf"(?:[^\s,\[\]]|{_RANGES})+"
_KUBERNETES_PORT = 2222


class Found(NamedTuple):
    """The processes that a scheduler started together.

    Attributes:
        source: the scheduler, for messages.
        addresses: where each of them is to listen, host:port.
        number: which of them this process is.
    """

    source: str
    addresses: list[str]
    number: int


def slurm(environment: Mapping[str, str]) -> Found | None:
    """Finds the tasks of a step that `srun` started.

    Raises:
        ConfigError: the variables do not fit together, or do not say which task is on which node.
    """
    # An allocation and a batch script have the job's variables too, but nothing else runs there: only a step's count.
    if "SLURM_STEP_ID" not in environment or (count := _integer("Slurm", environment, "SLURM_STEP_NUM_TASKS", "1")) < 2:
        return None
    nodes, per_node = (environment.get(name, "") for name in ("SLURM_STEP_NODELIST", "SLURM_STEP_TASKS_PER_NODE"))
    hosts, counts = _hosts(nodes), _counts(per_node)
    if len(hosts) != len(counts) or sum(counts) != count:
        raise ConfigError(
            f"Slurm: SLURM_STEP_TASKS_PER_NODE ({per_node}) must have a number for each of {len(hosts)} nodes, {count} tasks in all"
        )
    number = _number("Slurm", environment, "SLURM_PROCID", count, f"the step has {count} tasks")
    seats = [(host, local) for host, tasks in zip(hosts, counts, strict=True) for local in range(tasks)]
    distribution = environment.get("SLURM_DISTRIBUTION", "block")
    if distribution.startswith(("plane", "arbitrary")):
        raise ConfigError(f"Slurm: SLURM_DISTRIBUTION ({distribution}) must be block or cyclic; use srun --distribution=block")
    if distribution.startswith("cyclic"):
        seats.sort(key=lambda seat: seat[1])  # stable: the first of each node, then the second of each
    # Jobs and steps on one node must differ: 16 ports for each, then the next.
    job, step = _integer("Slurm", environment, "SLURM_JOB_ID"), _integer("Slurm", environment, "SLURM_STEP_ID")
    base = 20000 + 16 * ((31 * job + step) % 625)
    return Found("Slurm", [f"{host}:{base + local}" for host, local in seats], number)


def kubernetes(environment: Mapping[str, str], hostname: Callable[[], str], count: int) -> Found | None:
    """Finds the pods of an indexed Job, or of a JobSet's: their host names differ in the number at the end.

    Args:
        environment: the variables of this process.
        hostname: gives the host name with its domain; asked in a Job only, for it can take seconds.
        count: how many there are, which a pod is not told.

    Raises:
        ConfigError: the index or the host name does not fit.
    """
    if "JOB_COMPLETION_INDEX" not in environment:
        return None
    hint = "; set strategy.workers so that they are as many as the Job's completions"
    index = _number("Kubernetes", environment, "JOB_COMPLETION_INDEX", count, f"the strategy has {count} processes", hint)
    full = hostname()
    name, dot, domain = full.partition(".")
    stem = name.removesuffix(f"-{index}")
    if stem == name:
        raise ConfigError(f"Kubernetes: host name ({full}) must end in -{index}, the completion index; do not use hostNetwork")
    return Found("Kubernetes", [f"{stem}-{number}{dot}{domain}:{_KUBERNETES_PORT}" for number in range(count)], index)


def _hosts(text: str) -> list[str]:
    """Expands Slurm's short form of host names: `gpu[01-03,7],login1`."""
    if not re.fullmatch(rf"{_HOST}(,{_HOST})*", text):
        raise ConfigError(f"Slurm: SLURM_STEP_NODELIST ({text}) must be a list of hosts, such as gpu[01-03,7],login1")
    names = []
    for host in re.findall(_HOST, text):
        parts = re.split(rf"({_RANGES})", host)
        names += ["".join(name) for name in itertools.product(*(_expanded(part) if part[:1] == "[" else [part] for part in parts))]
    return names


def _expanded(ranges: str) -> Iterator[str]:
    for part in ranges.strip("[]").split(","):
        first, _, last = part.partition("-")
        yield from (f"{number:0{len(first)}}" for number in range(int(first), int(last or first) + 1))


def _counts(text: str) -> list[int]:
    """Expands Slurm's short form of the tasks on each node: `2(x3),1` is 2, 2, 2, 1."""
    counts = []
    for part in text.split(","):
        if not (match := re.fullmatch(r"([0-9]+)(?:\(x([0-9]+)\))?", part)):
            raise ConfigError(f"Slurm: SLURM_STEP_TASKS_PER_NODE ({text}) must be a list of numbers, such as 2(x3),1")
        counts += [int(match[1])] * int(match[2] or 1)
    return counts


def _integer(source: str, environment: Mapping[str, str], name: str, default: str = "missing") -> int:
    value = environment.get(name, default)
    if not re.fullmatch(r"[0-9]+", value):
        raise ConfigError(f"{source}: {name} ({value}) must be an integer")
    return int(value)


def _number(source: str, environment: Mapping[str, str], name: str, count: int, what: str, hint: str = "") -> int:
    number = _integer(source, environment, name)
    if number >= count:
        raise ConfigError(f"{source}: {name} ({number}) is out of range: {what}, 0 to {count - 1}{hint}")
    return number
