"""The run directory: found by the identity of an experiment, locked while in use, and repaired.

`config.yaml` is the whole configuration, and the only one of its files with secrets. Damaged files
are set aside before a run resumes, so that they are as if missing.
"""

from __future__ import annotations

import math
import os
import shutil
import zlib
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from trainer.annotations import Free
from trainer.config import loading, yaml_text
from trainer.config.schema import Experiment
from trainer.errors import ConfigError, DamagedError
from trainer.files import (
    Lock,
    LockedError,
    check_holder,
    is_held_by,
    lock_holder,
    read_json,
    read_text,
    regular_file,
    write_atomically,
    write_json,
    writing,
)
from trainer.runs import identity, provenance
from trainer.runs.checkpoint_marker import committed_steps
from trainer.runs.identity import Change, joined_path, run_address, run_path

_FOLDERS = (
    "checkpoints", "events", "events/evaluator", "logs", "predictions", "faults",
)  # fmt: skip
_RECORDS = ("run.json", "result.json", "failure.json", "placement.json", "left_out.json")
_FILES = (".json", ".jsonl", ".png", ".txt", "_run_id")
"""How the names of files end; the content is read with care, or not at all."""
_IRREPLACEABLE = ("dataset.json", "adapted.json")
REPEAT = "repeat the command that began the run, which writes it again"
_SEAL = "# crc32 of what follows: "
"""The first line, so that a file that was cut shows it."""
_LOCK_WAIT_SECS = 5.0  # a worker whose supervisor was killed needs a moment to notice


def _set_aside(path: Path) -> Path:
    names = (path.with_name(f"{path.name}.damaged-{number}") for number in range(1, 1_000_000))
    return path.rename(next(name for name in names if not os.path.lexists(name)))


def _damaged(run_dir: Path) -> Iterator[tuple[Path, str]]:
    for path in (run_dir / name for name in _FOLDERS):
        if os.path.lexists(path) and not path.is_dir():
            yield path, "it is no directory"
    for path in (run_dir / name for name in _RECORDS):
        try:
            read_json(path)
        except FileNotFoundError:
            pass
        except DamagedError as error:
            yield path, error.reason
    logs = run_dir / "logs"
    files = [path for path in run_dir.iterdir() if path.name.endswith(_FILES)]
    for path in [*sorted(files), *(logs.iterdir() if logs.is_dir() else ())]:
        try:
            if path.name not in _IRREPLACEABLE:
                open(path, "rb", opener=regular_file).close()
        except OSError as error:
            yield path, error.strerror or str(error)


def read_experiment(path: Path) -> Experiment:
    """Return the experiment as the command that began it had it, or raise a DamagedError."""
    file = path / "config.yaml"
    try:
        config = read_config(path)
    except FileNotFoundError as error:
        raise DamagedError(file, "it is missing", REPEAT) from error
    try:
        return loading.restore(config)
    except ConfigError as error:
        raise DamagedError(file, error.problems[0]) from error


def read_config(path: Path) -> dict[str, Any]:
    """Return config.yaml of a run, or raise a FileNotFoundError or a DamagedError."""
    file = path / "config.yaml"
    seal, _, text = (content := read_text(file)).partition("\n")
    is_sealed = seal.startswith(_SEAL)
    if is_sealed and seal != f"{_SEAL}{zlib.crc32(text.encode()):08x}":
        raise DamagedError(file, "its content has changed since it was written")
    try:
        config = yaml_text.load(text if is_sealed else content)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        problem = getattr(error, "problem", None) or str(error).partition("\n")[0]
        raise DamagedError(file, f"it is not YAML: {problem}") from error
    if not isinstance(config, dict):
        raise DamagedError(file, "it holds no configuration")
    return config


def write_config(path: Path, experiment: Experiment) -> None:
    """Write config.yaml, for its owner alone."""
    text = yaml.safe_dump(loading.plain(experiment), sort_keys=False)
    content = f"{_SEAL}{zlib.crc32(text.encode()):08x}\n{text}"
    write_atomically(path / "config.yaml", content, mode=0o600)


class RunInUseError(ConfigError):
    """Another process uses a run."""

    def __init__(self, run: Path | str, holder: str) -> None:
        super().__init__(f"{run} is in use by {holder}; wait for it, or stop it")
        self.run = run
        self.holder = holder


@dataclass(eq=False)
class RunDirectory:
    """The directory of one run, locked by this object and by the workers that inherit the lock.

    Attributes:
        name: how the user names it: the path, or the address of what it mirrors.
        created: the directories that were created for it, the innermost first.
        old_run: the directory to which an earlier run of the same name was moved; None: there
            was none.
        holder: what `lock` has written into its file; empty: nothing is locked.
        changes: the keys in which the experiment differs from the existing run.
    """

    path: Path
    name: str
    is_new: bool
    lock: Lock
    created: list[Path]
    old_run: Path | None
    holder: str = ""
    changes: list[Change] = field(default_factory=list)
    repairs: list[str] = field(default_factory=list)
    _continued_at: int | None = None
    _recorded: bool = False

    def step_past(self, experiment: Experiment) -> int | None:
        """Return the newest step if it is past the length of `experiment`, else None."""
        needed = _needed_steps(self.path, experiment)
        newest = self._newest()
        return newest if needed is not None and newest is not None and newest > needed else None

    def release(self) -> None:
        """Release the lock; workers that inherited it keep it."""
        self.lock.close()

    def check_lock(self) -> None:
        """Raise a ConfigError if the lock was given to another host."""
        if self.holder:
            check_holder(lock_file(self.path), self.holder)

    def record_continuation(self, overrides: list[str], config_dir: str | None) -> list[str]:
        """Record a continuation in run.json; return lines: changed keys, other code or versions."""
        self._continued_at = self._newest()
        self._recorded = True
        lines = provenance.add_entry(
            self.path, overrides, config_dir, self._continued_at, self.changes
        )
        changed = [item for item in self.changes if not isinstance(item.effect, Free)]
        messages = [f"Changed: {change}" for change in changed]
        if self._continued_at is not None:
            messages += [f"warning: {line}" for line in lines]
        return messages

    def withdraw(self) -> None:
        """Remove the record of this command if it has saved nothing: its changes do not count."""
        if self._recorded and self._has_lock() and self._newest() == self._continued_at:
            provenance.withdraw_entry(self.path)

    def _has_lock(self) -> bool:
        return is_held_by(lock_file(self.path), self.holder)

    def _newest(self) -> int | None:
        return max(committed_steps(self.path / "checkpoints"), default=None)

    def discard(self) -> None:
        """Remove a new directory in which nothing was trained, and restore an earlier run."""
        metrics = self.path / "metrics.jsonl"  # exists, empty, as soon as its writer is opened
        has_trained = (self.path / "checkpoints").exists() or (
            metrics.exists() and metrics.stat().st_size > 0
        )
        if self.is_new and not has_trained and self._has_lock():
            # Not all of it, if another host still writes its log there.
            shutil.rmtree(self.path, ignore_errors=True)
            if self.old_run is not None and not self.path.exists():
                self.old_run.rename(self.path)
            for parent in self.created[1:]:
                try:
                    parent.rmdir()  # fails if another run has been created there
                except OSError:
                    break


def read_result(path: Path, experiment: Experiment) -> dict[str, Any] | None:
    """Return result.json of a run if it has at least the length that `experiment` requests."""
    result = recorded_result(path)
    if result is None:
        return None
    for key, length in result["train"].items():
        total = getattr(experiment.train, key, None)
        if total is not None and length is not None:
            return result if length >= total else None
    needed = _needed_steps(path, experiment)
    return result if needed is not None and result["step"] >= needed else None


def _needed_steps(path: Path, experiment: Experiment) -> int | None:
    """Return the steps that `experiment` requests, or None if its epochs are unknown yet."""
    train = experiment.train
    if train.epochs is None:
        return train.steps
    length = train.steps_per_epoch
    with suppress(DamagedError):
        length = length or provenance.read(path).get("steps_per_epoch")
    return math.ceil(train.epochs * length - 1e-6) if length else None


def recorded_result(path: Path) -> dict[str, Any] | None:
    """Return result.json of a directory, or None if it is missing or damaged."""
    try:
        result = {"metrics": {}, **read_json(path / "result.json")}
    except (FileNotFoundError, DamagedError):
        return None
    is_whole = isinstance(result["metrics"], dict) and isinstance(result.get("train"), dict)
    return result if is_whole else None


def write_result(path: Path, experiment: Experiment, result: Mapping[str, Any]) -> None:
    """Write result.json of a finished run, or raise a StorageError."""
    # With the length of this command: one that requests more steps is not finished by it.
    length = {"steps": experiment.train.steps, "epochs": experiment.train.epochs}
    write_json(path / "result.json", {**result, "train": length})


def open_run(experiment: Experiment, overrides: list[str], config_dir: str | None) -> RunDirectory:
    """Find or create the directory of an experiment, and lock it.

    Raises:
        RunInUseError: another process holds it.
        ConfigError: its run cannot continue as this experiment.
        StorageError: it cannot be written to.
    """
    path = run_path(experiment)
    if not experiment.trains and not has_run(path):
        raise ConfigError(
            f"mode ({experiment.mode}) needs a run, and no run has these values in "
            f"{experiment.runs_dir}; train it first, or add resume=<run directory>"
        )
    with writing(path):
        return _open_at(path, experiment, overrides, config_dir)


def _open_at(
    path: Path, experiment: Experiment, overrides: list[str], config_dir: str | None
) -> RunDirectory:
    # A directory without config.yaml was created by another process of this run.
    old_run = _move_aside(path) if experiment.resume == "never" and has_run(path) else None
    created = [folder for folder in (path, *path.parents) if not folder.exists()]
    try:
        path.mkdir(parents=True, exist_ok=True)
        lock = _lock(path)
    except BaseException:
        if old_run is not None:
            with suppress(OSError):  # fails unless the directory is missing or empty
                old_run.rename(path)
        raise
    # Checked under the lock: its last holder may have created the run.
    is_new = not has_run(path)
    name = run_address(experiment) or str(path)
    holder = lock_holder(lock_file(path))
    run = RunDirectory(
        path, name, is_new=is_new, lock=lock, created=created, old_run=old_run, holder=holder
    )
    try:
        if run.is_new:
            provenance.create(run.path, overrides, config_dir, with_diff=experiment.record.diff)
            # Last, because config.yaml makes the directory a run.
            write_config(run.path, experiment)
        else:
            run.repairs = _repair(run.path, experiment)
            run.changes = _check_same(run.path, experiment)
            if experiment.trains and not (run.path / "run.json").exists():
                run.repairs.append(f"{run.path / 'run.json'} was lost and is started again")
                provenance.create(run.path, overrides, config_dir, with_diff=experiment.record.diff)
    except BaseException:
        # What prevents writing may prevent removal; the first error is the cause.
        with suppress(OSError):
            run.discard()
        run.release()
        raise
    return run


def join_run(experiment: Experiment, process: str) -> RunDirectory:
    """Return the directory for a process that is not the chief, which alone holds the lock."""
    path = joined_path(experiment, process)
    name = run_address(experiment) or str(path)
    with writing(path):
        path.mkdir(parents=True, exist_ok=True)
        # Nothing is locked: the worker is handed a descriptor in any case.
        unlocked = Lock(open(os.devnull, "rb", buffering=0))  # noqa: SIM115
        return RunDirectory(path, name, is_new=False, lock=unlocked, created=[], old_run=None)


def lock_file(path: Path) -> Path:
    """Return the file that is locked while a process uses the run in a directory."""
    return path / ".lock"


def fitted_file(path: Path) -> Path:
    """Return the file of what the dataset of the run in a directory was fitted to."""
    return path / "dataset.json"


def adapted_file(path: Path) -> Path:
    """Return the file of what the layers of the run in a directory were adapted to."""
    return path / "adapted.json"


SWEEP_SUMMARY = "summary.json"
"""What the folder of a sweep has, as that of a run has config.yaml."""


def has_run(path: Path) -> bool:
    """Return whether a directory holds a run, which may be damaged."""
    return os.path.lexists(path / "config.yaml") or bool(committed_steps(path / "checkpoints"))


def _move_aside(path: Path) -> Path:
    lock = _lock(path)
    try:  # locked until it has its new name: nothing else may begin to use it in between
        names = (path.with_name(f"{path.name}.old-{number}") for number in range(1, 1_000_000))
        return path.rename(next(name for name in names if not name.exists()))
    finally:
        lock.close()


def _lock(path: Path) -> Lock:
    try:
        with writing(lock_file(path)):
            return Lock.acquire(lock_file(path), _LOCK_WAIT_SECS)
    except LockedError as error:
        raise RunInUseError(path, f"another process (pid {error.holder})") from None


def trained_config(path: Path) -> dict[str, Any]:
    """Return the values of a run by dotted key, with later changes, or raise a DamagedError."""
    return _with_changes(path, read_experiment(path))


def _with_changes(path: Path, begun: Experiment) -> dict[str, Any]:
    """Return an experiment by dotted key, with the changes of later commands of its run."""
    return {
        **identity.leaves(begun),
        **provenance.changed_values(provenance.read(path)),
    }


def _repair(path: Path, experiment: Experiment) -> list[str]:
    """Repair an existing run, which must be locked; return a line for each damaged file.

    What is damaged is renamed. Checkpoints stay where they are: a run resumes from the newest that
    is whole. And nothing replaces what the data and the layers were fitted to or, in a command that
    names the run by its path, `config.yaml`.
    """
    repairs = [
        f"{file}: {problem}; it is {_set_aside(file).name} now, and the run continues without it"
        for file, problem in _damaged(path)
    ]
    config = path / "config.yaml"
    try:
        read_config(path)
    except (FileNotFoundError, DamagedError) as error:
        reason = error.reason if isinstance(error, DamagedError) else "it is missing"
        if experiment.resume not in ("auto", "never"):  # its values need not be the run's
            raise DamagedError(config, reason, REPEAT) from error
        if os.path.lexists(config):
            reason = f"{reason}; it is {_set_aside(config).name} now"
        # The name of the directory proves that this experiment is the same.
        write_config(path, experiment)
        repairs.append(f"{config}: {reason}, and was rewritten from this command")
    return repairs


def _check_same(path: Path, experiment: Experiment) -> list[Change]:
    """Return the changes from the run to an experiment; raise a ConfigError at a forbidden one."""
    begun = read_experiment(path)
    before = _with_changes(path, begun)
    now = identity.leaves(experiment)
    replicas = provenance.num_replicas(path)
    if (
        replicas
        and before["batch.per_replica"]
        and now["batch.global_size"] == before["batch.per_replica"] * replicas
    ):
        # The same global batch, so that another number of replicas may continue the run.
        before |= {key: now[key] for key in ("batch.global_size", "batch.per_replica")}
    changes = identity.changes(before, now)
    if problems := identity.change_problems(path, changes, experiment):
        if experiment.resume not in ("auto", "never") and not (path / "run.json").exists():
            raise DamagedError(path / "run.json", "it is missing", REPEAT)
        raise ConfigError(*problems)
    if experiment.resume == "auto" and identity.digest(begun) != identity.digest(experiment):
        raise ConfigError(
            f"{path} is of another run, whose values have the same hash; add name=<another name>"
        )
    return changes
