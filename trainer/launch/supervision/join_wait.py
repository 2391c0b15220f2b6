"""The processes that wait at the start, and those that they wait for."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from trainer.cluster.ports import is_listening
from trainer.cluster.spec import Cluster, ProcessId

_CHECK_SECS = 5.0  # between two checks


@dataclass(frozen=True)
class Awaited:
    """A process that waits for others.

    Attributes:
        process_id: the process.
        missing: the others, with their addresses.
        secs: how long it has waited.
        is_over: whether it waits no longer.
    """

    process_id: ProcessId
    missing: str
    secs: float
    is_over: bool


class JoinWait:
    """Who waits for whom, in one attempt.

    Attributes:
        check_at: when to call `check`, by the clock; infinity while no process waits.

    Args:
        members: the processes that are started here.
        timeout_secs: how long a process may wait.
        clock: seconds, monotonic.
    """

    def __init__(
        self,
        members: Mapping[ProcessId, Cluster],
        timeout_secs: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._members = members
        self._timeout_secs = timeout_secs
        self._clock = clock
        self._since: dict[ProcessId, float] = {}
        self._present: set[ProcessId] = set()
        self._next_check_at = 0.0

    @property
    def is_waiting(self) -> bool:
        """Whether any process waits."""
        return bool(self._since)

    @property
    def check_at(self) -> float:
        return self._next_check_at if self._since else float("inf")

    def enter_phase(self, process_id: ProcessId, phase: str) -> bool:
        """Take the phase of a process; return whether the process waits for others in it."""
        self._present.add(process_id)
        if phase != "join" or not self._members[process_id].jobs:
            self._since.pop(process_id, None)
            return False
        if not self._since:
            self._schedule()
        self._since.setdefault(process_id, self._clock())
        return True

    def end(self, process_id: ProcessId) -> None:
        """Remove a process that has ended."""
        self._since.pop(process_id, None)
        self._present.discard(process_id)

    def check(self) -> Awaited | None:
        """Return the process that has waited longest; None: all that it needs are there."""
        self._schedule()
        process_id, since = next(iter(self._since.items()))
        missing = [
            f"{other} ({address})"
            for other, address in self._members[process_id].others.items()
            if not self._is_there(other, address)
        ]
        if not missing:
            return None
        secs = self._clock() - since
        return Awaited(process_id, ", ".join(missing), secs, is_over=secs >= self._timeout_secs)

    def _schedule(self) -> None:
        now = self._clock()
        deadline = min(self._since.values(), default=now) + self._timeout_secs
        self._next_check_at = now + _CHECK_SECS
        if now < deadline:
            self._next_check_at = min(self._next_check_at, deadline)

    def _is_there(self, process_id: ProcessId, address: str) -> bool:
        if process_id in self._members:
            return process_id in self._present
        return is_listening(address)
