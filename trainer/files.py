"""Files that are either there, whole, or not there. No TensorFlow."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from trainer.errors import StorageError


@contextmanager
def writing(path: Path, *others: type[Exception]) -> Iterator[None]:
    """Tells of a file that cannot be written which it is and why, in one line: the disk is full, read-only, or gone.

    Args:
        path: the file, or the directory of those that are written.
        others: what else than an OSError the block raises in such a case.

    Raises:
        StorageError: instead of them.
    """
    try:
        yield
    except Exception as error:
        if isinstance(error, StorageError) or not isinstance(error, (OSError, *others)):
            raise
        reason = getattr(error, "strerror", None) or str(error).split("\n")[0]
        raise StorageError(f"{path} could not be written: {reason}") from error


def write_atomically(path: Path, text: str) -> None:
    """Writes a file so that a reader, or a restart after a power cut, sees the old or the new content and nothing between.

    Raises:
        StorageError: it cannot be written; the old content is there.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    with writing(path):
        try:
            with temporary.open("w", encoding="utf-8") as opened:
                opened.write(text)
                opened.flush()
                os.fsync(opened.fileno())
            os.replace(temporary, path)
        except BaseException:
            with suppress(OSError):  # what hinders the writing may hinder the removal; the cause is the former
                temporary.unlink(missing_ok=True)
            raise
        fsync_directory(path.parent)


def clear_temporaries(directory: Path) -> None:
    """Removes what a kill in `write_atomically` has left in a directory; to be called while nobody writes there."""
    for file in directory.glob(".*.tmp"):
        file.unlink(missing_ok=True)


def fsync_directory(directory: Path) -> None:
    """Makes the names in a directory durable."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
