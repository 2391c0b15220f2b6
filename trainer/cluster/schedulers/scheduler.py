"""What a scheduler is: what started the processes of a run together.

A scheduler has the processes but not their jobs; the strategy assigns those.
"""

from __future__ import annotations

import functools
import importlib
import pkgutil
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import entry_points
from typing import Protocol, cast

from trainer.errors import ConfigError

_PACKAGE = "trainer.cluster.schedulers"
_ENTRY_POINTS = "steadfast.schedulers"
"""The group in which another project names its schedulers: `lsf = "my_project.lsf"`."""


@dataclass(frozen=True)
class Allocation:
    """The processes that a scheduler has started together."""

    source: str
    addresses: list[str]
    index: int


class Scheduler(Protocol):
    """A module with these functions; each takes the environment variables of this process."""

    def allocation(self, environment: Mapping[str, str], count: int) -> Allocation | None:
        """Return the processes that the scheduler has started with this one; None: it has not.

        Args:
            count: number of processes of the strategy as it is configured; 0: unknown.

        Raises:
            ConfigError: the variables contradict each other.
        """

    def starts_jobs_again(self, environment: Mapping[str, str]) -> bool:
        """Return whether this is a job of the scheduler, which may start one again before its end.

        That happens where it has lost sight of a node.
        """

    def warning(self, environment: Mapping[str, str]) -> str | None:
        """Return a warning for a command that starts its own processes in a job."""


@functools.cache
def schedulers() -> Sequence[Scheduler]:
    """Return the schedulers of this folder, and those of other projects."""
    folder = importlib.import_module(_PACKAGE).__path__
    names = [module.name for module in pkgutil.iter_modules(folder)]
    own = [f"{_PACKAGE}.{name}" for name in names if name.endswith("_scheduler")]
    others = [point.value for point in entry_points(group=_ENTRY_POINTS)]
    return [cast(Scheduler, importlib.import_module(name)) for name in (*own, *others)]


def allocation(environment: Mapping[str, str], count: int) -> Allocation | None:
    """Return the processes that a scheduler has started with this one; see `Scheduler`."""
    allocations = (scheduler.allocation(environment, count) for scheduler in schedulers())
    return next(filter(None, allocations), None)


def integer(
    source: str, environment: Mapping[str, str], name: str, default: str = "missing"
) -> int:
    """Return a variable as an integer, or raise a ConfigError that names `source`."""
    value = environment.get(name, default)
    if not re.fullmatch(r"[0-9]+", value):
        raise ConfigError(f"{source}: {name} ({value}) must be an integer")
    return int(value)


def index_of(
    source: str, environment: Mapping[str, str], name: str, count: int, size: str, hint: str = ""
) -> int:
    """Return the variable that numbers the processes, below `count`.

    Raises:
        ConfigError: it is out of range; the message has `size` and ends in `hint`.
    """
    index = integer(source, environment, name)
    if index >= count:
        raise ConfigError(
            f"{source}: {name} ({index}) is out of range: {size}, 0 to {count - 1}{hint}"
        )
    return index
