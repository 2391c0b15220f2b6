"""Bytes that the processes of a host share: in memory, or in a file of the user's cache.

Both begin as zeros. In memory they are gone when the last process that has them open ends, however
it ends: there is no file that could be left behind.
"""

from __future__ import annotations

import fcntl
import logging
import mmap
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import numpy as np

from trainer.datasets.splits.paths import replacing
from trainer.user_cache import FOLDER, make_room, mark_used

logger = logging.getLogger(__name__)

_SHARE = 0.5  # of the memory that is available
_MEMORY_INFO = Path("/proc/meminfo")
_GROUP = Path("/sys/fs/cgroup")


def open_bytes(kind: str, name: str, size: int) -> np.ndarray | None:
    """Return the bytes of that name, [size] uint8, which other processes may be writing too.

    Args:
        kind: `memory` or `disk`.
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
        if kind == "memory":
            return _open_memory(folder, name, size)
        return _open_file(folder / f"examples-{name}.bin", size)
    except OSError as error:
        logger.warning("cannot keep examples in %s (%s): they are not cached", folder, error)
        return None


def _open_memory(folder: Path, name: str, size: int) -> np.ndarray:
    # Hosts may share the folder, but neither processes nor memory.
    with _locked(folder / f"memory-{name}-{socket.gethostname()}.lock") as registry:
        descriptor, holders = _of_other_process(registry, name, size)
        if descriptor is None:
            if size > _SHARE * (free := available_memory()):
                raise ValueError(
                    f"cache (memory) needs {_gib(size)}, more than half of the {_gib(free)} of "
                    "memory that are available; use dataset.cache=disk, or smaller images"
                )
            descriptor = os.memfd_create(_memory_name(name))
            os.ftruncate(descriptor, size)
        status = os.fstat(descriptor)
        # Never closed: other processes open it by this number.
        holders.append(f"{os.getpid()} {descriptor} {status.st_dev} {status.st_ino}")
        os.ftruncate(registry, 0)
        os.pwrite(registry, "\n".join(holders).encode(), 0)
    return np.frombuffer(mmap.mmap(descriptor, size), np.uint8)


def _memory_name(name: str) -> str:
    return f"steadfast-{name}"


def _of_other_process(registry: int, name: str, size: int) -> tuple[int | None, list[str]]:
    """Return the memory that another process has open, if one has, and the lines of those."""
    descriptor_of_file: int | None = None
    lines = []
    for line in os.pread(registry, 2**20, 0).decode().splitlines():
        try:
            process, number, *place = map(int, line.split())
            link = f"/proc/{process}/fd/{number}"
            if not os.readlink(link).startswith(f"/memfd:{_memory_name(name)} "):
                continue  # a process of a later start, or of another host of the same name
            descriptor = os.open(link, os.O_RDWR | os.O_CLOEXEC)
        except (OSError, ValueError):
            continue  # it has ended, is another user's now, or the line is damaged
        status = os.fstat(descriptor)
        if [status.st_dev, status.st_ino] == place and status.st_size == size:
            lines.append(line)
            if descriptor_of_file is None:
                descriptor_of_file = descriptor
                continue
        os.close(descriptor)
    return descriptor_of_file, lines


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


def available_memory() -> int:
    """Return the bytes of memory that this process may still take, of the host or its group."""
    lines = _MEMORY_INFO.read_text().splitlines()
    free = next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable"))
    with suppress(OSError, ValueError):  # no such group, or no limit
        limit = int((_GROUP / "memory.max").read_text())
        free = min(free, limit - int((_GROUP / "memory.current").read_text()))
    return free


def _gib(size: int) -> str:
    return f"{size / 2**30:.2f} GiB"


@contextmanager
def _locked(file: Path) -> Iterator[int]:
    """Hold a file's lock, which ends with the process, and yield its descriptor."""
    file.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield descriptor
    finally:
        os.close(descriptor)
