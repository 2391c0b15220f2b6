"""The commit marker of a checkpoint: its step, variables and metrics, and the hash of each file.

checkpoints/ckpt-<step>.index, ckpt-<step>.data-*     TensorFlow's own format
checkpoints/ckpt-<step>.json                          the marker

A checkpoint is committed when its marker exists: first the data, then fsync, then the marker by
rename.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trainer.errors import DamagedError
from trainer.files import (
    clear_temporaries,
    component,
    fsync_directory,
    read_json,
    regular_file,
    write_json,
)

_NEW = "new-"


def begin_write(directory: Path, step: int) -> str:
    """Prepare for writing a checkpoint.

    Returns:
        The prefix of its files. If that step has a committed checkpoint, the new one is written
        next to it, so that the old one stays until the new one is complete. This happens when a
        stop in an evaluation has saved and the repeated step saves again.
    """
    if _new_marker(directory, step).exists():  # an error has interrupted its replacement
        _replace(directory, step)
    if marker_file(directory, step).exists():
        return f"{_NEW}ckpt-{step}"
    remove(directory, step)
    return f"ckpt-{step}"


def commit(
    directory: Path,
    step: int,
    metrics: Mapping[str, float] | None,
    variables: Mapping[str, Any] | None = None,
) -> None:
    """Commit a written checkpoint: its files are flushed, then their marker appears by rename.

    Args:
        variables: name -> {"shape", "dtype", "crc32"}.
    """
    new_files = _new_files(directory, step)
    files = {}
    for path in new_files or data_files(directory, step):
        with path.open("rb+") as file:
            os.fsync(file.fileno())
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        files[path.name.removeprefix(_NEW)] = {"bytes": path.stat().st_size, "sha256": digest}
    fsync_directory(directory)
    content = {
        "step": step,
        "time": time.time(),
        "metrics": dict(metrics or {}),
        "files": files,
        "variables": dict(variables or {}),
    }
    write_json((_new_marker if new_files else marker_file)(directory, step), content)
    if new_files:
        _replace(directory, step)


def recover(directory: Path) -> None:
    """Finish or undo what a kill has interrupted, while nothing is written.

    Complete checkpoints written next to others replace those; incomplete ones are removed.
    """
    clear_temporaries(directory)
    for marker in directory.glob(f"{_NEW}ckpt-*.json"):
        _replace(directory, int(marker.stem.rpartition("-")[2]))
    for path in directory.glob(f"{_NEW}ckpt-*"):
        path.unlink()


def _replace(directory: Path, step: int) -> None:
    """Replace a checkpoint by the one written next to it; may be repeated after a kill."""
    _remove(marker_file(directory, step))
    marker = _new_marker(directory, step)
    for path in _new_files(directory, step):
        if path != marker:
            place = directory / path.name.removeprefix(_NEW)
            _remove(place)
            path.replace(place)
    fsync_directory(directory)
    marker.replace(marker_file(directory, step))
    fsync_directory(directory)


def committed_steps(directory: Path) -> list[int]:
    """Return the steps of the committed checkpoints in a directory, ascending."""
    return sorted(
        int(match[1])
        for path in directory.glob("ckpt-*.json")
        if (match := re.fullmatch(r"ckpt-(\d+)\.json", path.name))
    )


def unfinished_steps(directory: Path) -> set[int]:
    """Return the steps that have files but no marker: being written, or cut short by a kill."""
    steps = {
        int(match[1])
        for path in directory.glob("ckpt-*")
        if (match := re.match(r"ckpt-(\d+)\.", path.name))
    }
    return steps - set(committed_steps(directory))


def read_marker(directory: Path, step: int) -> dict[str, Any]:
    """Return the marker of a checkpoint; its sections are empty if it is damaged or missing."""
    empty: dict[str, Any] = {"metrics": {}, "files": {}, "variables": {}}
    try:
        content = read_json(marker_file(directory, step))
        files = content["files"].values()
        is_valid = (
            content["step"] == step
            and isinstance(content["metrics"], dict)
            and all({"bytes", "sha256"} <= set(file) for file in files)
            and all(map(component, content["files"]))
        )
    except (FileNotFoundError, DamagedError, ValueError, TypeError, KeyError, AttributeError):
        return empty
    return {**empty, **content} if is_valid else empty


def verify(directory: Path, step: int) -> str | None:
    """Return what is wrong with a checkpoint, or None if every file is as its marker describes."""
    if not marker_file(directory, step).exists():
        return "it has no marker: it was not finished, or the marker was removed"
    content = read_marker(directory, step)
    if not content["files"]:
        return "its marker is damaged"
    for name, expected in content["files"].items():
        path = directory / name
        if not path.is_file():
            return f"{name} is missing"
        if path.is_symlink():
            return f"{name} is a symbolic link"
        if path.stat().st_size != expected["bytes"]:
            return f"{name} has {path.stat().st_size} bytes instead of {expected['bytes']}"
        with open(path, "rb", opener=regular_file) as file:
            if hashlib.file_digest(file, "sha256").hexdigest() != expected["sha256"]:
                return f"the content of {name} has changed"
    return None


def copy_checkpoint(source: Path, step: int, directory: Path) -> None:
    """Copy a checkpoint to another directory, unless it is there; files are linked if possible.

    Raises:
        OSError: it cannot be read, or written there.
    """
    if marker_file(directory, step).exists():
        return
    directory.mkdir(parents=True, exist_ok=True)
    remove(directory, step)  # what a kill has left
    for path in (*data_files(source, step), marker_file(source, step)):
        try:
            os.link(path, directory / path.name)
        except OSError:
            temporary = directory / f".{path.name}.{os.getpid()}.tmp"
            shutil.copyfile(path, temporary)
            temporary.replace(directory / path.name)
    fsync_directory(directory)


def marker_digest(directory: Path, step: int) -> str:
    """Return the SHA-256 of a marker, which names this checkpoint alone, or raise an OSError."""
    return hashlib.sha256(marker_file(directory, step).read_bytes()).hexdigest()


def abort_write(directory: Path, step: int) -> None:
    """Remove the files of a checkpoint that is not committed: a full disk needs their space."""
    if _new_marker(directory, step).exists():
        return  # it is complete, and the one that it replaces may be gone: see `recover`
    for path in _new_files(directory, step):
        path.unlink(missing_ok=True)
    if not marker_file(directory, step).exists():
        remove(directory, step)


def remove(directory: Path, step: int) -> None:
    """Remove a checkpoint, the marker first: a half removed checkpoint must not be committed."""
    markers = (marker_file(directory, step), _new_marker(directory, step))
    for path in (*markers, *data_files(directory, step)):
        _remove(path)


def _remove(path: Path) -> None:
    if path.is_dir():  # in the place of a file that is lost
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def data_files(directory: Path, step: int) -> list[Path]:
    """Return the files of a checkpoint without its marker, sorted."""
    return sorted(path for path in directory.glob(f"ckpt-{step}.*") if path.suffix != ".json")


def _new_files(directory: Path, step: int) -> list[Path]:
    return sorted(directory.glob(f"{_NEW}ckpt-{step}.*"))


def _new_marker(directory: Path, step: int) -> Path:
    return directory / f"{_NEW}{marker_file(directory, step).name}"


def marker_file(directory: Path, step: int) -> Path:
    """Return the marker of a checkpoint, which need not exist."""
    return directory / f"ckpt-{step}.json"
