"""Divides cores and GPUs between the points that train in parallel."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

from trainer.errors import ConfigError

T = TypeVar("T")


@dataclass(frozen=True)
class ResourceShare:
    """The cores and GPUs of one point.

    Attributes:
        cores: numbers of the processor cores; empty for all.
        gpus: the GPUs, as in CUDA_VISIBLE_DEVICES; None for all.
        threads: number of threads into which TensorFlow divides an operation; None for one a core.
            The result of a sum depends on it to the bit, so it is the number of all cores: the
            numbers of a point do not depend on how many points train in parallel.
    """

    cores: tuple[int, ...] = ()
    gpus: tuple[str, ...] | None = None
    threads: int | None = None


def available_cores() -> list[int]:
    """Return the cores that this process may use; empty where the system cannot tell."""
    return sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []


def divide(jobs: int, cores: Sequence[int], gpus: Sequence[str]) -> list[ResourceShare]:
    """Return the share of each of `jobs` points that train in parallel.

    Points share cores if there are more points than cores. They cannot share GPUs, because
    TensorFlow takes the whole memory of one.

    Raises:
        ConfigError: there are GPUs, but fewer than points.
    """
    if jobs == 1:
        return [ResourceShare()]
    if gpus and jobs > len(gpus):
        raise ConfigError(
            f"sweep.jobs ({jobs}) must be at most the number of GPUs ({len(gpus)}), because a "
            "point takes the whole memory of a GPU; devices.gpus=0 trains on the CPU"
        )
    return [
        ResourceShare(
            cores=_part(cores, index, jobs),
            gpus=_part(gpus, index, jobs) if gpus else None,
            threads=len(cores) or None,
        )
        for index in range(jobs)
    ]


def _part(items: Sequence[T], index: int, num_parts: int) -> tuple[T, ...]:
    """Return one of `num_parts` parts of about equal size; if there are too few items, one item."""
    if len(items) < num_parts:
        return (items[index % len(items)],) if items else ()
    start = index * len(items) // num_parts
    end = (index + 1) * len(items) // num_parts
    return tuple(items[start:end])
