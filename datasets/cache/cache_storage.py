"""Bytes that processes share in a file of the user's cache; they begin as zeros."""

from __future__ import annotations

import fcntl
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from trainer.datasets.splits.paths import replacing
from trainer.user_cache import FOLDER, make_room, mark_used

logger = logging.getLogger(__name__)


def open_bytes(name: str, size: int) -> np.ndarray | None:
    """Return the bytes of that name, [size] uint8, which other processes may be writing too.

    Args:
        name: of what they hold; the same in all processes that share them.
        size: how many there are, at least 1.

    Returns:
        An array, read-only if the file belongs to somebody else; None: the folder of the cache
        cannot be written and has no such file, which was logged.

    Raises:
        ValueError: they do not fit.
    """
    folder = FOLDER.expanduser()
    try:
        return _open_file(folder / f"examples-{name}.bin", size)
    except OSError as error:
        logger.warning("cannot keep examples in %s (%s): they are not cached", folder, error)
        return None


def _open_file(file: Path, size: int) -> np.ndarray:
    try:
        with _locked(file.with_suffix(".lock")):
            if not file.is_file() or file.stat().st_size != size:
                _make(file, size)
        mark_used(file)
        return np.memmap(file, np.uint8, "r+")
    except OSError:
        if not file.is_file():
            raise
        return np.memmap(file, np.uint8, "r")


def _make(file: Path, size: int) -> None:
    """Put a file of zeros in place, with all its space, for a full disk would end the process."""
    make_room(file, size)
    status = os.statvfs(file.parent)
    if size > (free := status.f_bavail * status.f_frsize):
        raise ValueError(
            f"cache (disk) needs {_gib(size)}, but {file.parent} has {_gib(free)} free; make room "
            "there, use smaller images, or dataset.cache=none"
        )
    with replacing(file) as out:
        os.posix_fallocate(out.fileno(), 0, size)


def _gib(size: int) -> str:
    return f"{size / 2**30:.2f} GiB"


@contextmanager
def _locked(file: Path) -> Iterator[None]:
    """Hold a file's lock, which ends with the process."""
    file.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
