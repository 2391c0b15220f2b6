"""The processes that wait at the start, and those that they wait for."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import NamedTuple

from trainer.cluster.ports import is_listening
from trainer.cluster.spec import Cluster, ProcessId

_CHECK_SECS = 5.0  # between two checks


class Awaited(NamedTuple):
    """A process that waits for others, which are missing, with their addresses; and how long."""

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
        self.check_at = float("inf")
        self._members = members
        self._timeout_secs = timeout_secs
        self._clock = clock
        self._since: dict[ProcessId, float] = {}
        self._present: set[ProcessId] = set()

    @property
    def is_waiting(self) -> bool:
        """Whether any process waits."""
        return bool(self._since)

    def enter_phase(self, process_id: ProcessId, phase: str) -> bool:
        """Take the phase of a process; return whether the process waits for others in it."""
        self._present.add(process_id)
        if phase != "join" or not self._members[process_id].jobs:
            self._leave(process_id)
            return False
        is_first = not self._since
        self._since.setdefault(process_id, self._clock())
        if is_first:
            self._schedule()
        return True

    def end(self, process_id: ProcessId) -> None:
        """Remove a process that has ended."""
        self._leave(process_id)
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

    def _leave(self, process_id: ProcessId) -> None:
        self._since.pop(process_id, None)
        if not self._since:
            self.check_at = float("inf")

    def _schedule(self) -> None:
        now = self._clock()
        deadline = min(self._since.values()) + self._timeout_secs
        self.check_at = now + _CHECK_SECS
        if now < deadline:
            self.check_at = min(self.check_at, deadline)

    def _is_there(self, process_id: ProcessId, address: str) -> bool:
        if process_id in self._members:
            return process_id in self._present
        return is_listening(address)
