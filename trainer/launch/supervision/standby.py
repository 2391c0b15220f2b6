"""The standby: the next attempt, started ahead while the present one trains.

Its processes connect, build and compile, and wait where a restart begins to differ: before they
restore. They write nothing into the run directory until then.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Generic, Protocol, TypeVar

from trainer.cluster import discovery
from trainer.cluster.environment import visible_gpus
from trainer.cluster.host_memory import available_bytes
from trainer.cluster.spec import Cluster, ProcessId
from trainer.launch.resolved_run import no_standby
from trainer.launch.run_context import RunContext

_FIRST_SECS = 30.0
"""How long the first attempt trains before it gets a standby: a shorter run does without."""
_LATER_SECS = 2.0
"""How long a later one does: what has failed once is expected to fail again."""
_SHARE_OF_MEMORY = 0.5
"""The share of the free memory that `restart.standby=auto` takes."""


def is_possible(context: RunContext) -> bool:
    """Return whether a run can have a standby at all.

    Its processes are started here, and could not share an accelerator with those that train. A loop
    of the user's own, and actors, may do anything before they restore.
    """
    experiment, strategy = context.experiment, context.strategy
    return (
        experiment.mode == "train"
        and no_standby(experiment, strategy) is None
        and context.declared is None
        and not (strategy.uses_gpus and visible_gpus())
    )


class StartedAhead(Protocol):
    """What a standby is, an `Attempt`."""

    members: list[Cluster]

    def prepare(self) -> None: ...
    def is_usable(self, process_ids: Sequence[ProcessId]) -> bool: ...
    def resident_bytes(self) -> int: ...
    def discard(self) -> None: ...


AnyAttempt = TypeVar("AnyAttempt", bound=StartedAhead)


class Standby(Generic[AnyAttempt]):
    """The next attempt of a run, if it is there.

    Attributes:
        due_at: when to call `start`, by the clock; infinity: not now.

    Args:
        policy: auto, always or never, as in `restart.standby`.
        create: returns an attempt with these processes.
        clock: seconds, monotonic.
    """

    def __init__(
        self,
        policy: str,
        create: Callable[[list[Cluster]], AnyAttempt],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.due_at = float("inf")
        self._policy = policy
        self._create = create
        self._clock = clock
        self._delay_secs = 0.0 if policy == "always" else _FIRST_SECS
        self._is_wanted = policy != "never"
        self._attempt: AnyAttempt | None = None

    def expect(self) -> None:
        """Have one started after a while, once for each attempt: the present one trains."""
        if self._is_wanted:
            self._is_wanted = False
            self.due_at = self._clock() + self._delay_secs

    def start(self, present: StartedAhead) -> None:
        """Start it beside the present attempt, with as many processes, if the memory allows."""
        self.due_at = float("inf")
        free = available_bytes()
        needed = present.resident_bytes()
        if self._policy == "auto" and free is not None and needed > _SHARE_OF_MEMORY * free:
            return
        attempt = self._create(_members_like(present.members))
        try:
            attempt.prepare()
        except OSError:  # no process, descriptor or log can be had: a restart goes without
            attempt.discard()
        else:
            self._attempt = attempt

    def take(self, process_ids: Sequence[ProcessId]) -> AnyAttempt | None:
        """Return it for the next attempt; None: it is not there, or has other processes."""
        attempt, self._attempt = self._attempt, None
        if attempt is not None and not attempt.is_usable(process_ids):
            attempt.discard()
            attempt = None
        return attempt

    def renew(self) -> None:
        """Have another one started when the next attempt trains: an attempt has failed."""
        self.due_at = float("inf")
        self._is_wanted = self._policy != "never"
        self._delay_secs = min(self._delay_secs, _LATER_SECS)

    def close(self) -> None:
        """End it for good."""
        self._policy = "never"
        self._is_wanted = False
        self.due_at = float("inf")
        if self._attempt is not None:
            self._attempt.discard()
            self._attempt = None


def _members_like(members: Sequence[Cluster]) -> list[Cluster]:
    """Return the same processes at new addresses."""
    beside = [member for member in members if member.process_id.is_beside]
    training = [member for member in members if not member.process_id.is_beside]
    if training[0].jobs:
        training = discovery.local_clusters([member.process_id for member in training])
    return [*training, *beside]
