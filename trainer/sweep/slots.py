"""Divides the cores and GPUs that a sweep may use between the points that train at a time. No TensorFlow."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

from trainer.errors import ConfigError

T = TypeVar("T")


@dataclass(frozen=True)
class Slot:
    """What one point at a time may use.

    Attributes:
        cores: the processor cores; none: all that there are.
        gpus: the GPUs, as in CUDA_VISIBLE_DEVICES; None: all that there are.
        threads: into how many parts TensorFlow divides an operation; None: as many as there are cores. Sums depend on it to the bit, so a
            point divides as if it had all cores: it comes to the same numbers however many train beside it.
    """

    cores: tuple[int, ...] = ()
    gpus: tuple[str, ...] | None = None
    threads: int | None = None


def cores() -> list[int]:
    """Gives the cores that this process may use; none where the system does not tell."""
    return sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []


def divide(jobs: int, cores: Sequence[int], gpus: Sequence[str]) -> list[Slot]:
    """Gives what each of `jobs` points may use at a time.

    Points share cores if there are more points than cores. They cannot share GPUs: TensorFlow takes the whole memory of one.

    Raises:
        ConfigError: there are GPUs, but too few.
    """
    if jobs == 1:
        return [Slot()]
    if gpus and jobs > len(gpus):
        raise ConfigError(
            f"sweep.jobs ({jobs}) must be at most the number of GPUs ({len(gpus)}), because a point takes the whole memory of a GPU; "
            "CUDA_VISIBLE_DEVICES= trains on the CPU"
        )
    return [Slot(_share(cores, number, jobs), _share(gpus, number, jobs) if gpus else None, len(cores) or None) for number in range(jobs)]


def _share(things: Sequence[T], number: int, count: int) -> tuple[T, ...]:
    """Gives neighbouring things, about as many to each; one that others have too if there are too few."""
    if len(things) < count:
        return tuple(things[number % len(things) : number % len(things) + 1]) if things else ()
    return tuple(things[number * len(things) // count : (number + 1) * len(things) // count])
