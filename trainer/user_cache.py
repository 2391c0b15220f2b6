"""Copies of data in the user's cache: which there are, and which go when it is full."""

from __future__ import annotations

import logging
import os
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from trainer.text import format_bytes

logger = logging.getLogger(__name__)

FOLDER = Path("~/.cache/steadfast")
# Not all of it: runs of an object store work there too, by default.
_PATTERNS = ("examples-*.bin", "text-*.npz", "tokens-*.bin", "records-*.npz")
_SHARE = 0.5
"""Of the space that is free or the cache's, how much it may take."""


class CachedFile(NamedTuple):
    """A file of the cache.

    Attributes:
        used: when it was last used, Unix time.
    """

    used: float
    size: int
    path: Path


def cached_files(folder: Path) -> list[CachedFile]:
    """Return the files of a cache, the least recently used first."""
    files = []
    for path in (path for pattern in _PATTERNS for path in folder.glob(pattern)):
        with suppress(OSError):
            status = path.stat()
            files.append(CachedFile(status.st_mtime, status.st_blocks * 512, path))
    return sorted(files)


def mark_used(path: Path) -> None:
    """Record that a file of the cache is used now."""
    with suppress(OSError):  # another user's
        os.utime(path)


def make_room(path: Path, size: int) -> None:
    """Remove the least recently used files of a cache that would take too much with a new one.

    A process that has one open keeps what it has.
    """
    files = [file for file in cached_files(path.parent) if file.path != path]
    status = os.statvfs(path.parent)
    taken = sum(file.size for file in files)
    limit = _SHARE * (status.f_bavail * status.f_frsize + taken)
    for file in files:
        if taken + size <= limit:
            return
        with suppress(OSError):
            file.path.unlink()
            taken -= file.size
            logger.warning(
                "removed %s (%s), the least recently used copy of data in %s, to make room",
                *(file.path.name, format_bytes(file.size), path.parent),
            )
