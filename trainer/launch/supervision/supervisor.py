"""Runs the processes of a run, and restarts them after a failure that a restart may repair.

It imports no TensorFlow: the parent stays small, a crash or hang of TensorFlow cannot take it
along, and a sweep leaks nothing from one point to the next.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import closing

from trainer.cluster.signals import forward_to
from trainer.cluster.spec import Cluster, ProcessId
from trainer.errors import CRASHED
from trainer.launch.engines.ray_process import ManagedProcess
from trainer.launch.run_context import RunContext
from trainer.launch.supervision import exit_codes
from trainer.launch.supervision.attempt import Attempt, Failure, Standby, is_possible
from trainer.launch.supervision.memories import Memories
from trainer.runs.checkpoint_marker import committed_steps
from trainer.runs.ledger import Ledger

_LONGEST_PAUSE_SECS = 300.0


class RestartBudget:
    """A number of restarts; newer state to go on from renews it.

    Attributes:
        spent: restarts since the newest state.

    Args:
        newest_step: returns the newest step that a restart can go on from; 0: there is none.
        max_restarts: how many are allowed.
        clock: seconds, monotonic.
    """

    def __init__(
        self,
        newest_step: Callable[[], int],
        max_restarts: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.spent = 0
        self._clock = clock
        self._times: list[float] = []
        self._newest_step = newest_step
        self._max_restarts = max_restarts
        self._newest = newest_step()

    def spend(self) -> bool:
        """Count one more restart; return whether it is allowed."""
        if (newest := self._newest_step()) > self._newest:
            self._newest = newest
            self.spent = 0
        self.spent += 1
        self._times.append(self._clock())
        return self.spent <= self._max_restarts

    def warning(self) -> str:
        """Return a line if newer state hides that restarts are frequent; empty if they are not."""
        last_hour = sum(self._clock() - at < 3600 for at in self._times)
        if last_hour <= max(1, self._max_restarts):
            return ""
        return (
            f"warning: restart {len(self._times)} of this command, {last_hour} within an hour: a "
            "cause that returns, such as memory that grows, costs time with each; see the logs, "
            "and `dmesg` for processes that the kernel has killed"
        )


class Supervisor:
    """Runs attempts until one ends for good.

    Attributes:
        failure: that of the last attempt that failed, or None.

    Args:
        context: the command's run.
        members: returns the processes of an attempt.
        start: starts one process that has no assignment yet.
        ledger: records the restarts.
    """

    def __init__(
        self,
        context: RunContext,
        members: Callable[[], list[Cluster]],
        start: Callable[[ProcessId], ManagedProcess],
        ledger: Ledger,
    ) -> None:
        self._context = context
        self._console = context.console
        self._stop_requests = context.stop_requests
        self._restart = context.experiment.restart
        self._members = members
        self._start = start
        self._ledger = ledger
        self.failure: Failure | None = None
        self._memories = Memories.of_run(context)
        policy = self._restart.standby if is_possible(context) else "never"
        self._standby = Standby(policy, self._attempt)
        self._attempts = RestartBudget(self._newest_step, self._restart.max_restarts)
        # Not by the learner's steps: it goes on without an actor that always fails.
        self._actors = RestartBudget(
            self._newest_checkpoint, context.experiment.actors.max_restarts
        )

    def supervise(self) -> int:
        """Run the processes.

        Returns:
            The exit code for the user: 0, 1, 2, 130 or 143.

        Raises:
            ConfigError: another host has taken over the run.
        """
        with (
            forward_to(self._stop_requests.request),
            closing(self._memories),
            closing(self._standby),
        ):
            while True:
                self._context.directory.check_lock()
                members = self._members()
                if number := self._stop_requests.drain():  # it may have waited for places
                    return 128 + number
                process_ids = [member.process_id for member in members]
                attempt = self._standby.take(process_ids) or self._attempt(members)
                with self._stop_requests.waking(attempt.wake):
                    if number := self._stop_requests.drain():
                        return 128 + number
                    code = attempt.run()
                self._standby.renew()
                if failure := attempt.failure():
                    self.failure = failure
                if failure is None or not exit_codes.is_restartable(code):
                    return code
                self._console.line(
                    f"warning: {failure.process} {failure.end}; its log is {failure.log}"
                )
                if not self._may_restart(attempt, failure):
                    return CRASHED
                secs = _pause_secs(self._restart.backoff_secs, self._attempts.spent)
                if number := self._wait(secs):
                    return 128 + number

    def _attempt(self, members: list[Cluster]) -> Attempt:
        """Return an attempt with these processes."""
        return Attempt(
            self._context,
            members,
            self._start,
            self._may_replace,
            self._memories,
            self._standby,
        )

    def _may_restart(self, attempt: Attempt, failure: Failure) -> bool:
        """Count one more restart; return whether it is allowed, and tell the user if it is not."""
        if attempt.stopped_by():
            # It did not save: no exit code may say that it did.
            self._console.error(exit_codes.left_without_saving(self._context.directory.path))
            return False
        if self._attempts.spend():
            if warning := self._attempts.warning():
                self._console.line(warning)
            return True
        self._console.error(
            f"gave up after {self._restart.max_restarts} restarts (restart.max_restarts): "
            f"{failure.process} {failure.end}; the log is {failure.log}"
        )
        return False

    def _may_replace(self, process_id: ProcessId) -> bool:
        """Return whether a process may be started again alone."""
        return (self._actors if process_id.is_actor else self._attempts).spend()

    def _wait(self, secs: float) -> int:
        """Wait before a restart; return the signal that requested a stop meanwhile, or 0."""
        self._ledger.mark("restart")
        self._console.cause = ""  # the errors so far are not how the run ends
        pause = f" in {secs:g} s" if secs else ""
        self._console.line(f"Restarting{pause} from {self._origin()}.")
        return self._stop_requests.wait(secs)

    def _origin(self) -> str:
        """Return what a restart goes on from."""
        if step := self._newest_step():
            is_kept = self._memories.newest_step() == step
            return f"step {step:,}, in memory" if is_kept else "the newest checkpoint"
        return "the beginning"

    def _newest_step(self) -> int:
        """Return the newest step that a restart can go on from; 0: there is none."""
        return max(self._newest_checkpoint(), self._memories.newest_step())

    def _newest_checkpoint(self) -> int:
        """Return the step of the newest checkpoint; 0: there is none."""
        return max(committed_steps(self._context.directory.path / "checkpoints"), default=0)


def _pause_secs(first_secs: float, number: int) -> float:
    """Return the pause before restart `number` in a row: none, then doubled from `first_secs`."""
    if number == 1:
        return 0.0
    longest = max(first_secs, _LONGEST_PAUSE_SECS)
    doublings = min(number - 2, 60)  # far beyond the limit, and within what a float holds
    return min(first_secs * 2.0**doublings, longest)
