"""The lock of a sweep's folder, held while the sweep runs: one command at a time uses it."""

from __future__ import annotations

import socket
from dataclasses import dataclass, field
from pathlib import Path

from trainer.files import Lock, LockedError, is_locked, writing


@dataclass(frozen=True)
class SweepLock:
    """A file that a command keeps locked while its sweep runs; a killed process loses the lock.

    Attributes:
        path: the file.
        host: where the sweep runs; on other hosts the state of the lock is unknown.
    """

    path: Path
    host: str = field(default_factory=socket.gethostname)

    def acquire(self, wait_secs: float = 0.0) -> Lock | None:
        """Lock the file.

        Args:
            wait_secs: how long to wait for another process to let go.

        Returns:
            None if another process holds the lock.

        Raises:
            StorageError: the file cannot be created.
        """
        try:
            with writing(self.path):
                return Lock.acquire(self.path, wait_secs)
        except LockedError:
            return None

    def is_held(self) -> bool:
        """Return whether the sweep runs; on another host, True."""
        return self.host != socket.gethostname() or is_locked(self.path)
