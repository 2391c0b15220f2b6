"""Files of the user's cache that keep what was made of others: tokens, and indexes of records.

Several processes may make the same one at a time: each puts a complete file in place. Where the
folder cannot be written, it is made each time.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import tempfile
import zipfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import numpy as np

from trainer.datasets.splits.paths import files_identity
from trainer.user_cache import FOLDER, make_room, mark_used

logger = logging.getLogger(__name__)

Folder = str | Path | None
"""Where files are kept; None: in the user's cache."""


def key_of(rule: Sequence[Any], files: Iterable[Path]) -> str:
    """Return a name that changes with a rule, and with the paths, sizes and times of files."""
    text = json.dumps([*rule, files_identity(files)])
    return hashlib.sha256(text.encode()).hexdigest()[:24]


def kept_arrays(
    name: str, build: Callable[[], dict[str, np.ndarray]], folder: Folder = None
) -> dict[str, np.ndarray]:
    """Return arrays by name, as a file keeps them, or built and kept there."""
    file = _place(folder, f"{name}.npz")
    try:
        with np.load(file, allow_pickle=False) as archive:
            arrays = dict(archive)
        mark_used(file)
        return arrays
    except FileNotFoundError:
        pass
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
        logger.warning("cannot read %s (%s): it is rebuilt", file, error)
    arrays = build()
    _keep(file, lambda out: np.savez(out, **arrays))  # type: ignore[arg-type]
    return arrays


def kept_sequence(
    name: str, dtype: np.dtype, build: Callable[[], Iterable[np.ndarray]], folder: Folder = None
) -> np.ndarray:
    """Return an array that is built of parts, [T], mapped from a file."""
    file = _place(folder, f"{name}.bin")
    if file.is_file():
        mark_used(file)
    elif not _keep(file, lambda out: out.writelines(part.data for part in build())):
        return np.concatenate([np.zeros(0, dtype), *build()])
    if not file.stat().st_size:
        return np.zeros(0, dtype)  # which cannot be mapped
    return np.memmap(file, dtype, "r")


def _place(folder: Folder, name: str) -> Path:
    return Path(folder or FOLDER).expanduser() / name


def _keep(file: Path, write: Callable[[IO[bytes]], None]) -> bool:
    """Write a file; return whether its folder can be written."""
    try:
        with _replacing(file) as out:
            write(out)
        make_room(file, file.stat().st_size)
    except OSError as error:
        logger.warning("cannot keep %s in %s (%s)", file.name, file.parent, error)
        return False
    return True


@contextmanager
def _replacing(file: Path) -> Iterator[IO[bytes]]:
    """Open a new file that takes the place of `file` when it is complete."""
    file.parent.mkdir(parents=True, exist_ok=True)
    descriptor, partial = tempfile.mkstemp(".tmp", f".{file.stem}-", file.parent)
    try:
        with os.fdopen(descriptor, "wb") as out:
            yield out
        os.chmod(partial, 0o644)
        os.replace(partial, file)
    except BaseException:
        os.unlink(partial)
        raise
