"""What is known of how an attempt failed."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from trainer.cluster.spec import ProcessId


class Failure(NamedTuple):
    """The failure of an attempt: of the process that failed first, not of those that lost it.

    Attributes:
        process: the name of the process, such as `worker-1`.
        end: how it ended, such as `was killed by SIGKILL`.
        log: its log.
    """

    process: str
    end: str
    log: Path


class FailureRecord:
    """The failure of one attempt.

    Attributes:
        process_id: the process that caused it; None: none failed.
        how: how that process ended, as in `was killed by SIGKILL`.
        reports: what processes have reported of their ends, in one line and in full.
    """

    def __init__(self) -> None:
        self.process_id: ProcessId | None = None
        self.how = ""
        self.reports: dict[ProcessId, tuple[str, str]] = {}

    def blame(self, process_id: ProcessId, how: str) -> None:
        """Name the process that caused the failure."""
        self.process_id = process_id
        self.how = how
