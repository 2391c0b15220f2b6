"""The run directory: found by identity, locked while it is in use, with where it came from written into it. No TensorFlow."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import yaml

from trainer import config, identity, provenance
from trainer.errors import ConfigError
from trainer.files import write_atomically, writing
from trainer.identity import Change, Kind
from trainer.markers import committed
from trainer.schema import Experiment

_LOCK_WAIT_SECS = 5.0  # a worker whose supervisor was killed needs a moment to notice


class RunDirectory:
    """One run's directory, held by a lock for as long as this object, or a worker that inherited the lock, lives.

    Attributes:
        path: the directory.
        is_new: whether it was made a run just now.
        made: the directories that were created for it, the innermost first.
        aside: where an earlier run of the same name has been moved to; None: there was none.
        changes: in what the experiment differs from the run that is there.
    """

    def __init__(self, path: Path, *, is_new: bool, lock: int, made: list[Path], aside: Path | None) -> None:
        self.path, self.is_new, self.lock, self.made, self.aside = path, is_new, lock, made, aside
        self.changes: list[Change] = []
        self._continued_at: int | None = None
        self._recorded = False

    def result(self, experiment: Experiment) -> dict[str, Any] | None:
        """Gives result.json if the run is finished for the length that `experiment` asks for."""
        return result_of(self.path, experiment)

    def release(self) -> None:
        """Gives up the lock."""
        os.close(self.lock)

    def record_continue(self, overrides: list[str], config_dir: str | None) -> list[str]:
        """Records in run.json that a command goes on training here.

        Returns:
            What the user should know of it, a line each.
        """
        self._continued_at, self._recorded = self._newest(), True
        lines = provenance.add_entry(self.path, overrides, config_dir, self._continued_at, self.changes)
        told = [f"Changed: {change}" for change in self.changes if change.kind is not Kind.FREE]
        return told + ([f"warning: {line}" for line in lines] if self._continued_at is not None else [])

    def withdraw(self) -> None:
        """Takes the record of this command back if nothing has been saved since: what it changed is no part of the run."""
        if self._recorded and self._newest() == self._continued_at:
            provenance.withdraw_entry(self.path)

    def _newest(self) -> int | None:
        return max(committed(self.path / "checkpoints"), default=None)

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
        ConfigError: another process holds it, or what was trained there cannot be continued as this experiment.
        StorageError: it cannot be written to.
    """
    path = path_of(experiment)
    if experiment.mode != "train" and not (path / "config.yaml").is_file():
        raise ConfigError(
            f"mode ({experiment.mode}) needs a run, and there is none with these values in {experiment.runs_dir}; train it first, "
            "or add resume=<run directory>"
        )
    with writing(path):
        return _open_at(path, experiment, overrides, config_dir)


def _open_at(path: Path, experiment: Experiment, overrides: list[str], config_dir: str | None) -> RunDirectory:
    # One that is no run yet was made by another process of this one.
    aside = _move_aside(path) if experiment.resume == "never" and (path / "config.yaml").exists() else None
    made = [place for place in (path, *path.parents) if not place.exists()]
    try:
        path.mkdir(parents=True, exist_ok=True)
        lock = _lock(path)
    except BaseException:
        if aside is not None:
            with suppress(OSError):  # onto nothing, or an empty directory, alone
                aside.rename(path)
        raise
    # Asked under the lock: who held it until now may have made this a run.
    run = RunDirectory(path, is_new=not (path / "config.yaml").exists(), lock=lock, made=made, aside=aside)
    try:
        if run.is_new:
            provenance.describe(run.path, overrides, config_dir)
            # Last, because it is what makes the directory a run.
            write_atomically(run.path / "config.yaml", yaml.safe_dump(config.plain(experiment), sort_keys=False))
        else:
            run.changes = _check_same(run.path, experiment)
    except BaseException:
        with suppress(OSError):  # what hinders the writing may hinder the removal; the cause is the former
            run.discard()
        run.release()
        raise
    return run


def join_run(experiment: Experiment) -> RunDirectory:
    """Gives the directory to a process that is not the chief: it leaves nothing there but its log, and the chief holds the lock."""
    path = path_of(experiment)
    with writing(path):
        path.mkdir(parents=True, exist_ok=True)
        return RunDirectory(path, is_new=False, lock=os.open(path, os.O_RDONLY), made=[], aside=None)


def path_of(experiment: Experiment) -> Path:
    """Gives the directory of an experiment, which need not exist."""
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


def trained_with(path: Path) -> dict[str, Any]:
    """Gives the leaves of a run's configuration: config.yaml, which is written once, and what later commands have changed."""
    saved = config.restore(yaml.safe_load((path / "config.yaml").read_text()))
    return {**identity.content(saved), **provenance.changed(provenance.read(path))}


def _check_same(path: Path, experiment: Experiment) -> list[Change]:
    """Gives what differs from the run, as far as that is allowed."""
    before, now = trained_with(path), identity.content(experiment)
    replicas = provenance.num_replicas(path)
    if replicas and before["batch.per_replica"] and now["batch.global_size"] == before["batch.per_replica"] * replicas:
        # The same batch, told as its size on all replicas: so that the run can go on with another number of them.
        before |= {key: now[key] for key in ("batch.global_size", "batch.per_replica")}
    found = identity.changes(before, now)
    if lines := identity.refusal(path, found, experiment):
        raise ConfigError(*lines)
    return found
