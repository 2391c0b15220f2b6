"""Rules of the run: its name, its folder or object store, the run it continues, its mode.

No TensorFlow.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path

from trainer.config import addresses
from trainer.config.schema import NAMED_GROUPS, Experiment
from trainer.config.validation import unknown_name
from trainer.files import component

NAME_RULE = "use letters, digits, '.', '_' and '-', at most 100"


def check(experiment: Experiment) -> Iterator[str]:
    """Yield the problems of an experiment, one line each."""
    yield from _check_names(experiment)
    yield from _check_resume(experiment)
    yield from _check_mode(experiment)
    yield from _check_place(experiment)


def run_problem(resume: str) -> str | None:
    """Return why `resume` is not a run directory, or None if it is one.

    What is in an object store is read when the run is brought from there.
    """
    if addresses.is_remote(resume):
        return addresses.problem("resume", resume)
    path = Path(resume).expanduser()
    if (path / "config.yaml").is_file():
        return None
    problem = "no run there: it has no config.yaml" if path.exists() else "no such run directory"
    return f"resume ({resume}): {problem}; give the path of a run directory, or auto, or never"


def _check_names(experiment: Experiment) -> Iterator[str]:
    for key, name in (("name", experiment.name), ("sweep.name", experiment.sweep.name)):
        if name is not None and not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}", name):
            yield f"{key} ({name}) must be usable in a directory's name; {NAME_RULE}"
    for group in NAMED_GROUPS:
        nodes = getattr(experiment, group)
        for name in nodes if isinstance(nodes, Mapping) else ():
            try:
                component(name)
            except ValueError as error:
                yield f"{group}: {error}; files of the run are named after it"


def _check_resume(experiment: Experiment) -> Iterator[str]:
    names = experiment.resume_allow
    if experiment.resume not in ("auto", "never"):
        if line := run_problem(experiment.resume):
            yield line
        keys = asdict(experiment)
        for name in names:
            if line := unknown_name(name, keys):
                yield f"resume_allow: {line}"
    elif names:
        yield f"resume_allow ({names}) needs a run; add resume=<run directory>"


def _check_mode(experiment: Experiment) -> Iterator[str]:
    mode = experiment.mode
    if experiment.resume == "never" and experiment.needs_run:
        yield f"mode ({mode}) needs a run; add resume=<run directory>"
    if mode == "verify" and experiment.fault:
        names = ", ".join(f"fault.{name}" for name in experiment.fault)
        yield f"mode ({mode}) is for runs without faults of their own; remove {names}"


def _check_place(experiment: Experiment) -> Iterator[str]:
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
    if experiment.mode == "verify":
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
