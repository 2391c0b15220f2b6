"""Where a run is: its directory on this machine, and its address in an object store."""

from __future__ import annotations

from pathlib import Path

from trainer.config import addresses
from trainer.config.schema import Experiment
from trainer.runs import identity


def run_address(experiment: Experiment) -> str | None:
    """Return the address of an experiment's run in an object store; None: it is a local one."""
    if experiment.resume not in ("auto", "never"):
        return experiment.resume if addresses.is_remote(experiment.resume) else None
    if not addresses.is_remote(experiment.runs_dir):
        return None
    return addresses.join(experiment.runs_dir, identity.run_name(experiment))


def run_path(experiment: Experiment) -> Path:
    """Return the directory of an experiment on this machine, which need not exist."""
    if address := run_address(experiment):
        return addresses.work_folder(experiment.store.work_dir, address)
    if experiment.resume in ("auto", "never"):
        return Path(experiment.runs_dir).expanduser() / identity.run_name(experiment)
    return Path(experiment.resume).expanduser()


def joined_path(experiment: Experiment, process: str) -> Path:
    """Return the directory of a process that is not the chief: of a run in a store, its own."""
    path = run_path(experiment)
    # Not the chief's: machines may have one home directory.
    return path.with_name(f"{path.name}.{process}") if run_address(experiment) else path
