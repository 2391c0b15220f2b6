"""What a host does whose lock was given to another one: it saves nothing more.

On a shared file system, the server gives the lock of a host that it does not hear of any more to
another one. The first host may be alive, and come back.
"""

from __future__ import annotations

from pathlib import Path

from trainer.errors import ConfigError
from trainer.files import describe_holder, lock_holder


def check_holder(lock_file: Path, holder: str) -> None:
    """Do nothing if a run is still locked by the one that held its lock before.

    Args:
        lock_file: in the run directory.
        holder: what it held then.

    Raises:
        ConfigError: the lock was given to another host.
    """
    if not is_held_by(lock_file, holder):
        now = lock_holder(lock_file)
        raise ConfigError(
            f"{lock_file.parent} was taken over by another process (pid {describe_holder(now)}) "
            "while this one had lost its lock; nothing more is saved here, and the run goes on "
            "there"
        )


def is_held_by(lock_file: Path, holder: str) -> bool:
    """Return whether a lock was given to nobody else since its file held `holder`.

    A missing file says nothing: somebody may have removed the run.
    """
    return lock_holder(lock_file) in (holder, "")
