"""The run directory: found by identity, locked while it is in use, with where it came from written into it. No TensorFlow."""

from __future__ import annotations

import fcntl
import importlib.metadata
import json
import os
import platform
import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import yaml

from trainer import config, identity
from trainer.errors import ConfigError
from trainer.files import write_atomically
from trainer.schema import Experiment

_PACKAGES = ("tensorflow", "tf-keras", "tensorboard", "numpy", "hydra-core", "omegaconf", "steadfast")
_LOCK_WAIT_SECS = 5.0  # a worker whose supervisor was killed needs a moment to notice


class RunDirectory:
    """One run's directory, held by a lock for as long as this object, or a worker that inherited the lock, lives.

    Attributes:
        path: the directory.
        is_new: whether it was made a run just now.
        made: the directories that were created for it, the innermost first.
        aside: where an earlier run of the same name has been moved to; None: there was none.
    """

    def __init__(self, path: Path, *, is_new: bool, lock: int, made: list[Path], aside: Path | None) -> None:
        self.path, self.is_new, self.lock, self.made, self.aside = path, is_new, lock, made, aside

    def result(self, experiment: Experiment) -> dict[str, Any] | None:
        """Gives result.json if the run is finished for the length that `experiment` asks for."""
        return result_of(self.path, experiment)

    def release(self) -> None:
        """Gives up the lock."""
        os.close(self.lock)

    def discard(self) -> None:
        """Removes a directory that was created just now and in which nothing has been trained; one moved aside comes back."""
        if self.is_new and not (self.path / "checkpoints").exists():
            shutil.rmtree(self.path)
            if self.aside is not None:
                self.aside.rename(self.path)
            for parent in self.made[1:]:
                try:
                    parent.rmdir()  # only while empty: another run may have come to it
                except OSError:
                    break


def result_of(path: Path, experiment: Experiment) -> dict[str, Any] | None:
    """Gives a run directory's result.json if the run is finished for the length that `experiment` asks for."""
    try:
        result = json.loads((path / "result.json").read_text())
    except (OSError, ValueError):
        return None
    same = all(result.get("train", {}).get(key) == getattr(experiment.train, key) for key in ("steps", "epochs"))
    return result if same else None


def open_run(experiment: Experiment, overrides: list[str], config_dir: str | None) -> RunDirectory:
    """Finds or makes the directory of an experiment and locks it.

    Raises:
        ConfigError: another process holds it, or it holds another experiment.
    """
    path = _path(experiment)
    allowed = identity.FREE if experiment.resume in ("auto", "never") else identity.FREE + identity.RESUMABLE
    # One that is no run yet was made by another process of this one.
    aside = _move_aside(path) if experiment.resume == "never" and (path / "config.yaml").exists() else None
    made = [place for place in (path, *path.parents) if not place.exists()]
    path.mkdir(parents=True, exist_ok=True)
    lock = _lock(path)
    # Asked under the lock: who held it until now may have made this a run.
    run = RunDirectory(path, is_new=not (path / "config.yaml").exists(), lock=lock, made=made, aside=aside)
    try:
        if run.is_new:
            _describe(run.path, experiment, overrides, config_dir)
        else:
            _check_same(run.path, experiment, allowed)
    except BaseException:
        run.release()
        raise
    return run


def join_run(experiment: Experiment) -> RunDirectory:
    """Gives the directory to a process that is not the chief: it leaves nothing there but its log, and the chief holds the lock."""
    path = _path(experiment)
    path.mkdir(parents=True, exist_ok=True)
    return RunDirectory(path, is_new=False, lock=os.open(path, os.O_RDONLY), made=[], aside=None)


def _path(experiment: Experiment) -> Path:
    if experiment.resume in ("auto", "never"):
        return Path(experiment.runs_dir).expanduser() / identity.run_name(experiment)
    return Path(experiment.resume).expanduser()


def _move_aside(path: Path) -> Path:
    os.close(_lock(path))
    number = next(n for n in range(1, 1_000_000) if not path.with_name(f"{path.name}.old-{n}").exists())
    return path.rename(path.with_name(f"{path.name}.old-{number}"))


def _lock(path: Path) -> int:
    descriptor = os.open(path / ".lock", os.O_RDWR | os.O_CREAT, 0o644)
    deadline = time.monotonic() + _LOCK_WAIT_SECS
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if _is_at(descriptor, path / ".lock"):
                break
            # Its last holder has removed the directory: this is a lock on nothing.
            os.close(descriptor)
            path.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(path / ".lock", os.O_RDWR | os.O_CREAT, 0o644)
        except BlockingIOError:
            if time.monotonic() > deadline:
                holder = os.pread(descriptor, 32, 0).decode() or "unknown"
                os.close(descriptor)
                raise ConfigError(f"{path} is in use by another process (pid {holder}); wait for it, or stop it") from None
            time.sleep(0.05)
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, str(os.getpid()).encode(), 0)
    return descriptor


def _is_at(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False


def _check_same(path: Path, experiment: Experiment, allowed: tuple[str, ...]) -> None:
    saved = config.restore(yaml.safe_load((path / "config.yaml").read_text()))
    differences = identity.changes(saved, experiment, allowed)
    if differences:
        key, before, now = differences[0]
        more = f" (and {len(differences) - 1} more)" if len(differences) > 1 else ""
        raise ConfigError(
            f"{path} was trained with {key}={before}, not {now}{more}; leave it as it was, "
            f"or start a new run (init_from={path} takes its weights)"
        )


def _describe(path: Path, experiment: Experiment, overrides: list[str], config_dir: str | None) -> None:
    """Writes config.yaml and run.json, once; config.yaml last, because it is what makes the directory a run."""
    description = {
        "argv": sys.argv,
        "overrides": overrides,
        "config_dir": config_dir,
        "started": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "host": socket.gethostname(),
        "python": platform.python_version(),
        "versions": {name: version for name in _PACKAGES if (version := _version(name))},
        "git": _git(),
        "devices": None,
        "num_replicas": None,
    }
    write_atomically(path / "run.json", json.dumps(description, indent=1))
    write_atomically(path / "config.yaml", yaml.safe_dump(config.plain(experiment), sort_keys=False))


def add_devices(path: Path, devices: list[str], num_replicas: int) -> None:
    """Completes run.json with what only TensorFlow can tell."""
    if not (path / "run.json").exists():
        return
    description = json.loads((path / "run.json").read_text())
    if description["devices"] is None:
        write_atomically(path / "run.json", json.dumps({**description, "devices": devices, "num_replicas": num_replicas}, indent=1))


def num_replicas(path: Path) -> int:
    """Gives the number of replicas that `add_devices` has told; 1 where nobody has."""
    try:
        return json.loads((path / "run.json").read_text())["num_replicas"] or 1
    except FileNotFoundError:
        return 1


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _git() -> dict[str, Any] | None:
    """Gives commit and uncommitted changes of the project in the current directory; None outside a repository."""

    def git(*arguments: str) -> str:
        return subprocess.run(["git", *arguments], capture_output=True, text=True, check=True, timeout=10, errors="replace").stdout

    try:
        return {"sha": git("rev-parse", "HEAD").strip(), "diff": git("diff", "HEAD")[:1_000_000]}
    except (OSError, subprocess.SubprocessError):
        return None
