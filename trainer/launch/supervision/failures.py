"""Processes that fail: which one is to blame, and which is started again alone."""

from __future__ import annotations

from collections.abc import Callable

from trainer.cluster.messages import Crash
from trainer.cluster.spec import ProcessId
from trainer.errors import WRONG_INPUT
from trainer.launch.processes.worker_process import log_of
from trainer.launch.run_context import RunContext
from trainer.launch.supervision import exit_codes
from trainer.launch.supervision.process_set import ProcessSet
from trainer.runs.crash_report import Failure
from trainer.runs.directory import RunDirectory


class FailureRecord:
    """The failure of one attempt.

    Attributes:
        process_id: the process that caused it; None: none failed.
        how: how that process ended, as in `was killed by SIGKILL`.
    """

    def __init__(self) -> None:
        self.process_id: ProcessId | None = None
        self.how = ""
        self._reports: dict[ProcessId, tuple[str, str]] = {}

    def report(self, process_id: ProcessId, cause: str, text: str) -> None:
        """Keep what a process reports of its end: in one line, and in full."""
        self._reports[process_id] = cause, text

    def report_of(self, process_id: ProcessId) -> tuple[str, str]:
        """Return what a process has reported of its end, in one line and in full; or nothing."""
        return self._reports.get(process_id, ("", ""))

    def forget(self, process_id: ProcessId) -> None:
        """Drop what a process has reported: it is restarted."""
        self._reports.pop(process_id, None)

    def blame(self, process_id: ProcessId, how: str) -> None:
        """Name the process that caused the failure."""
        self.process_id = process_id
        self.how = how

    def failure(self, directory: RunDirectory) -> Failure | None:
        """Return the failure for the crash report; None: no process failed."""
        if self.process_id is None:
            return None
        cause, text = self.report_of(self.process_id)
        log = log_of(directory, self.process_id)
        return Failure(str(self.process_id), self.how, log, cause, text)


class Replacement:
    """Decides who is started again alone, and tells why a lost actor was.

    An actor that has crashed is replaced too: it is its environment that has failed.

    Args:
        context: the command's run.
        living: the living processes.
        record: what processes have reported of their ends.
        may_replace: whether one more restart of a process is within its budget; counts it.
    """

    def __init__(
        self,
        context: RunContext,
        living: ProcessSet,
        record: FailureRecord,
        may_replace: Callable[[ProcessId], bool],
    ) -> None:
        self._context = context
        self._living = living
        self._record = record
        self._may_replace = may_replace

    def begins(self, process_id: ProcessId, code: int) -> bool:
        """Return whether a process that has failed is to be started again alone."""
        is_lost = exit_codes.is_restartable(code) or _is_lost_actor(process_id, code)
        if not is_lost or not self._living.is_restartable(process_id):
            return False
        if not self._may_replace(process_id):
            return False
        console = self._context.console
        _, text = self._record.report_of(process_id)
        for line in text.splitlines() if process_id.is_actor else ():
            console.line(f"{process_id}: {line}")
        how = exit_codes.describe(code)
        console.line(f"warning: {process_id} {how}; starting it again alone")
        return True

    def give_up(self, process_id: ProcessId, code: int) -> bool:
        """Tell how the last actor was lost, if this is it; return whether it is."""
        if not _is_lost_actor(process_id, code):
            return False
        console = self._context.console
        log = log_of(self._context.directory, process_id)
        cause, text = self._record.report_of(process_id)
        if text:
            console.show(Crash(text, cause, str(process_id)), log)
        how = exit_codes.describe(code)
        console.error(
            f"gave up after {self._context.experiment.actors.max_restarts} lost actors since the "
            f"newest checkpoint (actors.max_restarts): {process_id} {how}; its log is {log}"
        )
        return True


def _is_lost_actor(process_id: ProcessId, code: int) -> bool:
    return process_id.is_actor and code != WRONG_INPUT
