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

from trainer.files import fsync_directory, write_atomically


def commit(directory: Path, step: int, metrics: Mapping[str, float] | None, variables: Mapping[str, Any] | None = None) -> None:
    """Makes a written checkpoint count: its files reach the disk, then their marker appears by rename.

    Args:
        directory: where its files are.
        step: number of updates made.
        metrics: of the test split at this step, if it was evaluated.
        variables: what is in it: name -> {"shape", "dtype", "crc32"}.
    """
    files = {}
    for file in data_files(directory, step):
        with file.open("rb+") as opened:
            os.fsync(opened.fileno())
            digest = hashlib.file_digest(opened, "sha256").hexdigest()
        files[file.name] = {"bytes": file.stat().st_size, "sha256": digest}
    fsync_directory(directory)
    content = {"step": step, "time": time.time(), "metrics": dict(metrics or {}), "files": files, "variables": dict(variables or {})}
    write_atomically(_path(directory, step), json.dumps(content, indent=1))


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


def remove(directory: Path, step: int) -> None:
    """Removes a checkpoint, the marker first: what is half removed must not count as whole."""
    _path(directory, step).unlink(missing_ok=True)
    for file in data_files(directory, step):
        file.unlink(missing_ok=True)


def data_files(directory: Path, step: int) -> list[Path]:
    """Gives the files of a checkpoint but its marker."""
    return sorted(file for file in directory.glob(f"ckpt-{step}.*") if file.suffix != ".json")


def _path(directory: Path, step: int) -> Path:
    return directory / f"ckpt-{step}.json"
