"""Files that are whole or absent, records that prove to be so, and locks on files."""

from __future__ import annotations

import errno
import fcntl
import json
import math
import os
import re
import socket
import stat
import tempfile
import time
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from io import FileIO
from pathlib import Path
from typing import Any

from trainer.errors import ConfigError, DamagedError, StorageError
from trainer.text import first_line

MAX_RECORD_BYTES = 256 << 20
"""A larger record is not read."""
MAX_LINE_BYTES = 1 << 20
"""A longer line is read in parts, which are no lines of ours."""

_LOCK_POLL_SECS = 0.05
_MAX_NAME_BYTES = 255
_NOT_IN_NAME = re.compile(r"[/\\\x00-\x1f\x7f-\x9f\ud800-\udfff]")
_SEAL = "crc32"
"""The last key of each record: the checksum of the others."""

_STORAGE_ERRORS = {
    errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EROFS, errno.EACCES, errno.EPERM,
    errno.ESTALE, errno.ENODEV, errno.EMFILE, errno.ENFILE,
}  # fmt: skip


def component(name: object) -> str:
    """Return a name that may be joined to a folder's path: it stays inside, as one entry of it.

    Whoever joins a name that comes from elsewhere (a store, a record, an archive, a
    configuration) asks this function.

    Raises:
        ValueError: it is none.
    """
    if (
        not isinstance(name, str)
        or name in ("", ".", "..")
        or _NOT_IN_NAME.search(name)
        or len(name.encode()) > _MAX_NAME_BYTES
    ):
        raise ValueError(
            f"{ascii(name)[:80]} is not a file name: it must be one part of a path, without "
            f"control characters, and at most {_MAX_NAME_BYTES} bytes long"
        )
    return name


def inner_path(name: object) -> str:
    """Return a path as written in POSIX, or raise a ValueError: each part must be a `component`."""
    return "/".join(map(component, name.split("/") if isinstance(name, str) else [name]))


def storage_problem(error: BaseException) -> str | None:
    """Return an error of storage in one line; None: it is another, a fault of the program."""
    if isinstance(error, StorageError):
        return str(error)
    if not isinstance(error, OSError) or error.errno not in _STORAGE_ERRORS:
        return None
    name = f"{error.filename}: " if error.filename else ""
    return f"{name}{error.strerror}"


@contextmanager
def writing(path: Path, *others: type[Exception]) -> Iterator[None]:
    """Turn an error of the file system into a StorageError that names the file and the reason.

    Args:
        others: further exceptions that the block raises when the file cannot be written.
    """
    try:
        yield
    except Exception as error:
        if isinstance(error, StorageError) or not isinstance(error, (OSError, *others)):
            raise
        reason = getattr(error, "strerror", None) or first_line(error)
        raise StorageError(f"{path} could not be written: {reason}") from error


@contextmanager
def making_temporary_files() -> Iterator[None]:
    """Turn an error of `tempfile` into a StorageError with the fix."""
    try:
        yield
    except OSError as error:
        folder = tempfile.tempdir or "TMPDIR, /tmp or /var/tmp"  # none of which may be usable
        raise StorageError(
            f"no temporary file can be made in {folder}: {error.strerror}; free space there, or "
            "set TMPDIR to another directory"
        ) from error


def write_atomically(
    path: Path, content: str | bytes, *, mode: int = 0o666, durable: bool = True
) -> None:
    """Replace a file atomically: a reader, or a restart after a power cut, sees the old or the new.

    Args:
        mode: who may read and write it, less what the process's mask takes away.
        durable: whether it must survive a power cut; False: for a file that is soon written again.

    Raises:
        StorageError: it cannot be written; the old content is still there.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    with writing(path):
        try:
            with open(
                temporary, "wb", opener=lambda name, flags: os.open(name, flags, mode)
            ) as file:
                file.write(content.encode() if isinstance(content, str) else content)
                file.flush()
                if durable:
                    os.fsync(file.fileno())
            os.replace(temporary, path)
        except BaseException:
            # What prevents writing may prevent removal; the first error is the cause.
            with suppress(OSError):
                temporary.unlink(missing_ok=True)
            raise
        if durable:
            fsync_directory(path.parent)


def regular_file(name: str, flags: int) -> int:
    """Open a regular file: the `opener` of every file of a run.

    No link is followed: in the run of another user it would show or send a file of yours. A named
    pipe would block its reader. What is only written may also go to a device.

    Raises:
        OSError: something else is there, or the file cannot be opened.
    """
    with suppress(FileNotFoundError):
        mode = os.lstat(name).st_mode
        if flags & os.O_ACCMODE == os.O_WRONLY and stat.S_ISCHR(os.stat(name).st_mode):
            return os.open(name, flags)
        if not stat.S_ISREG(mode):
            kinds = {stat.S_IFDIR: "a directory", stat.S_IFLNK: "a symbolic link"}
            kind = kinds.get(stat.S_IFMT(mode), "no regular file")
            raise OSError(errno.EINVAL, f"it is {kind}", name)
    return os.open(name, flags | os.O_NONBLOCK | os.O_NOFOLLOW, 0o666)


def read_bytes(path: Path, limit: int = MAX_RECORD_BYTES) -> bytes:
    """Return the content of a file of a run.

    Raises:
        FileNotFoundError: there is none.
        DamagedError: something else is in its place, it has more bytes than the limit, or it
            cannot be read.
    """
    try:
        with open(path, "rb", opener=regular_file) as file:
            if (size := os.fstat(file.fileno()).st_size) > limit:
                raise DamagedError(path, f"it has {size:,} bytes, more than {limit:,}")
            return file.read(size)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise DamagedError(path, error.strerror or str(error)) from error


def read_text(path: Path) -> str:
    """Return the content of a text file of a run; see `read_bytes`."""
    try:
        return read_bytes(path).decode()
    except UnicodeDecodeError as error:
        raise DamagedError(path, "it is not UTF-8 text") from error


def write_json(path: Path, record: Mapping[str, Any], *, durable: bool = True) -> None:
    """Write a record with its checksum; see `write_atomically`."""
    content = {**record, _SEAL: _checksum(record)}
    write_atomically(path, json.dumps(content, indent=1), durable=durable)


def read_json(path: Path) -> dict[str, Any]:
    """Return a record; see `read_bytes`."""
    return parse_json(read_bytes(path), path)


def parse_json(content: bytes, name: object) -> dict[str, Any]:
    """Return a record from what `write_json` has written as `name`, or raise a DamagedError."""
    try:
        record = json.loads(content.decode())
    except UnicodeDecodeError as error:
        raise DamagedError(name, "it is not UTF-8 text") from error
    except (ValueError, RecursionError) as error:
        raise DamagedError(name, f"it is not JSON: {error}") from error
    if not isinstance(record, dict):
        raise DamagedError(name, "it is not a JSON object")
    seal = record.pop(_SEAL, None)
    if seal is not None and seal != _checksum(record):
        raise DamagedError(name, "its content has changed since it was written")
    return record


def finite_only(value: Any) -> Any:
    """Return a value for JSON, which has no NaN and nothing infinite: null replaces them."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {str(key): finite_only(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [finite_only(part) for part in value]
    return value


def _checksum(record: Mapping[str, Any]) -> str:
    return f"{zlib.crc32(json.dumps(record).encode()):08x}"


def clear_temporaries(directory: Path) -> None:
    """Remove what a kill during `write_atomically` has left; no process may be writing there."""
    for file in directory.glob(".*.tmp"):
        file.unlink(missing_ok=True)


def fsync_directory(directory: Path) -> None:
    """Flush the names in a directory to the disk."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


class LockedError(Exception):
    """Another process holds a lock."""

    def __init__(self, holder: str) -> None:
        super().__init__(f"locked by process {holder}")
        self.holder = holder


class Lock:
    """An exclusive lock on a file, made by `acquire`.

    The lock belongs to the open file: a process that gets its descriptor, as a child or through
    a socket, holds it too. It ends when every process has closed the descriptor or has ended, and
    here also when this object is no longer referenced.
    """

    def __init__(self, file: FileIO) -> None:
        self._file = file

    @classmethod
    def acquire(cls, path: Path, timeout_secs: float = 0.0) -> Lock:
        """Lock a file, which is created with its directories if it is missing.

        Args:
            path: the file; it then holds the process id and the host of the holder, and a number
                that no other holder has.
            timeout_secs: how long to wait for another holder; 0: try once.

        Raises:
            LockedError: another process still holds it.
            OSError: the file cannot be created.
        """
        deadline = time.monotonic() + timeout_secs
        while True:
            path.parent.mkdir(parents=True, exist_ok=True)
            file = open(path, "r+b", buffering=0, opener=_open_or_create)  # noqa: SIM115
            try:
                _wait_for_lock(file, deadline)
            except BaseException:
                file.close()
                raise
            if _is_at(file, path):
                break
            # The last holder has removed the directory: this locks a file that has no name.
            file.close()
        file.truncate(0)
        # Pods that replace one another have the same host name, and often the same process ids.
        holder = f"{os.getpid()} {socket.gethostname()} {os.urandom(8).hex()}"
        os.pwrite(file.fileno(), holder.encode(), 0)
        # Another host is shown it by NFS only when it has been flushed.
        os.fsync(file.fileno())
        return cls(file)

    def fileno(self) -> int:
        """Return the descriptor, for a process that shall hold the lock too."""
        return self._file.fileno()

    def close(self) -> None:
        """Give up the lock in this process; others that share it keep it."""
        self._file.close()


def lock_holder(path: Path) -> str:
    """Return what the last holder of a lock has written into its file, or empty."""
    try:
        return read_bytes(path).decode(errors="replace")
    except FileNotFoundError:
        return ""


def describe_holder(holder: str) -> str:
    """Return a holder for messages: its process id, and its host if that is another one."""
    pid, host, *_ = [*holder.split(" "), ""]
    if host in ("", socket.gethostname()):
        return pid or "unknown"
    return f"{pid} on {host}"


def check_holder(lock_file: Path, holder: str) -> None:
    """Do nothing if a run is still locked by the one that held its lock before.

    On a shared file system, the server gives the lock of a host that it does not hear of any more
    to another one. The first host may be alive, and come back: it must save nothing more.

    Raises:
        ConfigError: the lock was given to another host.
    """
    if not is_held_by(lock_file, holder):
        now = lock_holder(lock_file)
        raise ConfigError(
            f"{lock_file.parent} was taken over by another process (pid {describe_holder(now)}) "
            "while this one had lost its lock; nothing more is saved here, and the run continues "
            "there"
        )


def is_held_by(lock_file: Path, holder: str) -> bool:
    """Return whether no other process has held a lock since its file held `holder`.

    A missing file proves nothing: the user may have removed the run.
    """
    return lock_holder(lock_file) in (holder, "")


def is_locked(path: Path) -> bool:
    """Return whether a process holds a `Lock` on a file, which need not exist."""
    try:
        with open(path, "rb", opener=regular_file) as file:
            # Shared, so that two processes that check do not take each other for a holder.
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False


def _open_or_create(path: str, flags: int) -> int:
    return regular_file(path, flags | os.O_CREAT)


def _wait_for_lock(file: FileIO, deadline: float) -> None:
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if time.monotonic() >= deadline:
                raise LockedError(
                    describe_holder(os.pread(file.fileno(), 512, 0).decode(errors="replace"))
                ) from None
        time.sleep(_LOCK_POLL_SECS)


def _is_at(file: FileIO, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(file.fileno()), path.stat())
    except FileNotFoundError:
        return False
