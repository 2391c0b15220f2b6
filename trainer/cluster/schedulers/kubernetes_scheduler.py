"""Kubernetes: the pods of an indexed Job or JobSet."""

from __future__ import annotations

import socket
from collections.abc import Mapping

from trainer.cluster.schedulers.scheduler import Allocation, index_of, integer
from trainer.errors import ConfigError

PORT = 2222
PODS = "STEADFAST_PODS"
"""The variable with the number of pods of a Job."""
_INDEX = "JOB_COMPLETION_INDEX"


def allocation(environment: Mapping[str, str], count: int) -> Allocation | None:
    """Return the pods of an indexed Job or JobSet, or None outside one.

    The host names of the pods differ in the number at the end.

    Args:
        count: number of pods, if STEADFAST_PODS is not set. 0: unknown.

    Raises:
        ConfigError: the number of pods is unknown, or the index or the host name does not fit.
    """
    if _INDEX not in environment or "SLURM_STEP_ID" in environment:  # a step in a pod is Slurm's
        return None
    hint = f"set {PODS} in the pods, or strategy.workers, by the Job's completions"
    size = f"the strategy has {count} processes"
    if PODS in environment:
        count = integer("Kubernetes", environment, PODS)
        size = f"{PODS} is {count}"
    elif not count:
        raise ConfigError(
            f"Kubernetes: an indexed Job ({_INDEX}) does not tell its pods how many "
            f"they are; {hint}, or strategy=one_device if each trains alone"
        )
    index = index_of("Kubernetes", environment, _INDEX, count, size, f"; {hint}")
    full = socket.getfqdn()  # which can take seconds
    name, dot, domain = full.partition(".")
    stem = name.removesuffix(f"-{index}")
    if stem == name:
        raise ConfigError(
            f"Kubernetes: host name ({full}) must end in -{index}, the completion index; "
            "do not use hostNetwork"
        )
    return Allocation(
        "Kubernetes",
        [f"{stem}-{number}{dot}{domain}:{PORT}" for number in range(count)],
        index,
    )


def starts_jobs_again(environment: Mapping[str, str]) -> bool:
    """Return whether this is a pod of an indexed Job."""
    return _INDEX in environment


def warning(environment: Mapping[str, str]) -> str | None:
    """Return None: a pod that trains alone has no others."""
    return None
