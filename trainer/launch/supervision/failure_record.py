"""Which process made an attempt fail, and what it reported."""

from __future__ import annotations

from trainer.cluster.spec import ProcessId
from trainer.launch.processes.worker_process import log_of
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
