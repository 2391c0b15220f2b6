"""The commit marker of a checkpoint: what its files and variables are, and whether they still are that. No TensorFlow.

checkpoints/ckpt-<step>.index, ckpt-<step>.data-*     TensorFlow's own format
checkpoints/ckpt-<step>.json                          the marker: sizes and SHA-256 of every file, variables, metrics

A checkpoint exists when its marker does: data, fsync, then the marker by rename.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trainer.files import clear_temporaries, fsync_directory, write_atomically

_NEW = "new-"


def begin(directory: Path, step: int) -> str:
    """Prepares for writing a checkpoint.

    Returns:
        What its files' names begin with. Where a checkpoint of that step counts already (a stop in an evaluation saves before what
        is due at the step, its repetition after that), the new one is written beside it: it stays until the new one is whole.
    """
    if _path(directory, step).exists():
        return f"{_NEW}ckpt-{step}"
    remove(directory, step)
    return f"ckpt-{step}"


def commit(directory: Path, step: int, metrics: Mapping[str, float] | None, variables: Mapping[str, Any] | None = None) -> None:
    """Makes a written checkpoint count: its files reach the disk, then their marker appears by rename.

    Args:
        directory: where its files are.
        step: number of updates made.
        metrics: of the test split at this step, if it was evaluated.
        variables: what is in it: name -> {"shape", "dtype", "crc32"}.
    """
    written, files = _new_files(directory, step), {}
    for file in written or data_files(directory, step):
        with file.open("rb+") as opened:
            os.fsync(opened.fileno())
            digest = hashlib.file_digest(opened, "sha256").hexdigest()
        files[file.name.removeprefix(_NEW)] = {"bytes": file.stat().st_size, "sha256": digest}
    fsync_directory(directory)
    content = {"step": step, "time": time.time(), "metrics": dict(metrics or {}), "files": files, "variables": dict(variables or {})}
    marker = _path(directory, step)
    write_atomically(marker.with_name(f"{_NEW}{marker.name}") if written else marker, json.dumps(content, indent=1))
    if written:
        _replace(directory, step)


def recover(directory: Path) -> None:
    """Puts whole checkpoints that were written beside others in their place, where a kill interrupted that, and removes half ones.

    To be called while nothing is written.
    """
    clear_temporaries(directory)
    for marker in directory.glob(f"{_NEW}ckpt-*.json"):
        _replace(directory, int(marker.stem.rpartition("-")[2]))
    for file in directory.glob(f"{_NEW}ckpt-*"):
        file.unlink()


def _replace(directory: Path, step: int) -> None:
    """Puts a whole checkpoint in the place of another; what is done already stays done."""
    _path(directory, step).unlink(missing_ok=True)
    marker = directory / f"{_NEW}{_path(directory, step).name}"
    for file in _new_files(directory, step):
        if file != marker:
            file.replace(directory / file.name.removeprefix(_NEW))
    fsync_directory(directory)
    marker.replace(_path(directory, step))
    fsync_directory(directory)


def committed(directory: Path) -> list[int]:
    """Gives the steps of the committed checkpoints in a directory, ascending."""
    return sorted(int(match[1]) for file in directory.glob("ckpt-*.json") if (match := re.fullmatch(r"ckpt-(\d+)\.json", file.name)))


def unfinished(directory: Path) -> set[int]:
    """Gives the steps of which there are files but no marker: they were being written when a process was killed."""
    found = {int(match[1]) for file in directory.glob("ckpt-*") if (match := re.match(r"ckpt-(\d+)\.", file.name))}
    return found - set(committed(directory))


def marker(directory: Path, step: int) -> dict[str, Any]:
    """Reads a checkpoint's marker; one that cannot be read, or is none of this step, says nothing."""
    nothing: dict[str, Any] = {"metrics": {}, "files": {}, "variables": {}}
    try:
        content = json.loads(_path(directory, step).read_text())
        files = content["files"].values()
        sound = content["step"] == step and isinstance(content["metrics"], dict) and all({"bytes", "sha256"} <= set(file) for file in files)
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return nothing
    return {**nothing, **content} if sound else nothing


def verify(directory: Path, step: int) -> str | None:
    """Says what is wrong with a checkpoint, or None if every file is what its marker says."""
    if not _path(directory, step).exists():
        return "it has no marker: it was not finished, or the marker was removed"
    content = marker(directory, step)
    if not content["files"]:
        return "its marker is damaged"
    for name, expected in content["files"].items():
        file = directory / name
        if not file.is_file():
            return f"{name} is missing"
        if file.stat().st_size != expected["bytes"]:
            return f"{name} has {file.stat().st_size} bytes instead of {expected['bytes']}"
        with file.open("rb") as opened:
            if hashlib.file_digest(opened, "sha256").hexdigest() != expected["sha256"]:
                return f"the content of {name} has changed"
    return None


def clear_away(directory: Path, step: int) -> None:
    """Removes what was written of a checkpoint that does not count: on a full disk its space is needed."""
    for file in _new_files(directory, step):
        file.unlink(missing_ok=True)
    if not _path(directory, step).exists():
        remove(directory, step)


def remove(directory: Path, step: int) -> None:
    """Removes a checkpoint, the marker first: what is half removed must not count as whole."""
    _path(directory, step).unlink(missing_ok=True)
    for file in data_files(directory, step):
        file.unlink(missing_ok=True)


def data_files(directory: Path, step: int) -> list[Path]:
    """Gives the files of a checkpoint but its marker."""
    return sorted(file for file in directory.glob(f"ckpt-{step}.*") if file.suffix != ".json")


def _new_files(directory: Path, step: int) -> list[Path]:
    return sorted(directory.glob(f"{_NEW}ckpt-{step}.*"))


def _path(directory: Path, step: int) -> Path:
    return directory / f"ckpt-{step}.json"
