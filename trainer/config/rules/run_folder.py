"""Checks of the folder in which a run is kept, on this machine or in an object store."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from trainer.config import addresses
from trainer.config.schema import Experiment


def check(experiment: Experiment) -> Iterator[str]:
    """Yield why an experiment's run cannot be kept where it is to be, one line each."""
    if experiment.resume not in ("auto", "never"):
        if addresses.is_remote(experiment.resume):
            yield from _check_folder("store.work_dir", experiment.store.work_dir)
        return
    if not addresses.is_remote(experiment.runs_dir):
        yield from _check_folder("runs_dir", experiment.runs_dir)
        return
    if line := addresses.problem("runs_dir", experiment.runs_dir):
        yield line
    yield from _check_folder("store.work_dir", experiment.store.work_dir)
    if experiment.mode in ("verify", "benchmark"):
        yield (
            f"mode ({experiment.mode}) trains runs of its own, which need a folder of this "
            f"machine, not runs_dir ({experiment.runs_dir}); add runs_dir=runs"
        )


def _check_folder(key: str, folder: str) -> Iterator[str]:
    path = Path(folder).expanduser()
    existing = next(
        folder
        for folder in (path, *path.absolute().parents)
        if folder.exists() or folder.is_symlink()
    )
    fix = f"choose another with {key}=<directory>"
    if not existing.is_dir():
        yield f"{key} ({folder}) must be a directory, but {existing} is a file; {fix}"
    elif not os.access(existing, os.W_OK | os.X_OK):
        yield f"{key} ({folder}) must be writable, but {existing} is not; {fix}"
