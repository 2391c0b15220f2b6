"""Checkpoints that can be trusted: data, fsync, then a marker by rename. A checkpoint exists when its marker does.

checkpoints/ckpt-<step>.index, ckpt-<step>.data-*     TensorFlow's own format
checkpoints/ckpt-<step>.json                          the marker: sizes and SHA-256 of every file, metrics
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
import shutil
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import tensorflow as tf

from trainer import policies
from trainer.errors import CheckpointError
from trainer.files import fsync_directory, write_atomically
from trainer.peers import Peers
from trainer.schema import Checkpoint as CheckpointConfig
from trainer.shards import whole

_LOST = (tf.errors.UnavailableError, tf.errors.AbortedError, tf.errors.DeadlineExceededError)
"""A process that holds variables is gone: no fault of the disk's, or of the checkpoint's."""


class Checkpoints:
    """The checkpoints of one run.

    Saving reads variables, which can make the replicas communicate: every process takes part, the chief alone commits.

    Args:
        directory: where they are; the same for every process.
        trackables: what is saved, by name.
        config: what to keep.
        peers: the processes that save and restore together; None: this one is alone.
        scratch: where a process that is not the chief writes what TensorFlow makes it write; it is removed at once.
        elsewhere: whether other processes hold the variables. TensorFlow would trace such a save anew each time, and they would keep
            every trace in memory.

    Attributes:
        directory: where they are.
        skipped: why newer checkpoints than the restored one were not used, one line each.
    """

    def __init__(
        self,
        directory: Path,
        trackables: Mapping[str, Any],
        config: CheckpointConfig,
        peers: Peers | None = None,
        scratch: Path | None = None,
        *,
        elsewhere: bool = False,
    ) -> None:
        self.directory, self.config, self._peers, self._scratch = directory, config, peers, scratch
        self.skipped: list[str] = []
        self._damaged: set[int] = set()
        self._checkpoint = tf.train.Checkpoint(**trackables)
        self._write = tf.function(self._checkpoint.write, autograph=False) if elsewhere else self._checkpoint.write

    def save(self, step: int, metrics: Mapping[str, float] | None) -> None:
        """Writes and commits the state as the checkpoint of `step`, then applies the retention policy.

        Args:
            step: number of updates made.
            metrics: metrics of the test split at this step, by which the best checkpoints are known; None: not evaluated.

        Raises:
            CheckpointError: it could not be written; the older ones are untouched.
        """
        if self._scratch is not None:
            self._take_part(self._scratch)
            return
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
            self.remove(step)
            self._write(tf.constant(str(self.directory / f"ckpt-{step}")))
            commit(self.directory, step, metrics)
            # Only now that there is a newer one: the damaged would push the good ones out of the newest `keep`.
            for damaged in self._damaged - {step}:
                self.remove(damaged)
            self._damaged.clear()
            self._retain()
        except _LOST:
            raise
        except (OSError, tf.errors.OpError) as error:
            raise CheckpointError(
                f"the checkpoint of step {step} could not be written to {self.directory}: {_first_line(error)}"
            ) from error
        self._barrier()

    def _take_part(self, scratch: Path) -> None:
        """Does what the chief's save needs of the other processes, and returns when it is committed."""
        shutil.rmtree(scratch, ignore_errors=True)
        scratch.mkdir(mode=0o700)
        try:
            self._checkpoint.write(str(scratch / "ckpt"))
        finally:
            shutil.rmtree(scratch, ignore_errors=True)
        self._barrier()

    def _barrier(self) -> None:
        # Whoever goes on sees the marker, and nobody leaves while the chief is still writing.
        if self._peers is not None:
            self._peers.barrier()

    def restore_latest(self) -> int | None:
        """Restores the newest checkpoint that verifies.

        Returns:
            Its step; None if there is no checkpoint at all.

        Raises:
            CheckpointError: there are checkpoints but none that verifies, or one that does not fit the state.
        """
        newest = self._newest() if self._peers is None or self._peers.is_chief else None
        if self._peers is not None:
            # The chief's word: a shared file system may show the others something older.
            (step,) = self._peers.chiefs(-1 if newest is None else newest)
            newest = None if step < 0 else step
        if newest is not None:
            self.restore(newest)
        return newest

    def _newest(self) -> int | None:
        steps = committed(self.directory)
        for step in reversed(steps):
            if problem := verify(self.directory, step):
                self.skipped.append(f"skipped the checkpoint of step {step}: {problem}")
                self._damaged.add(step)
            else:
                return step
        if steps:
            raise CheckpointError(
                f"no checkpoint in {self.directory} can be trusted ({'; '.join(self.skipped)}); resume=never starts afresh"
            )
        return None

    def restore(self, step: int) -> None:
        """Restores the checkpoint of a step, every variable of it and of the state.

        Raises:
            CheckpointError: a variable is missing on either side or has another shape; names it.
        """
        path = str(self.directory / f"ckpt-{step}")
        try:
            self._checkpoint.read(path).assert_consumed()
        except _LOST:
            raise
        except (AssertionError, ValueError, tf.errors.OpError) as error:
            raise CheckpointError(f"the checkpoint of step {step} does not fit this experiment: {_misfit(error)}") from error

    def steps(self) -> list[int]:
        """Gives the steps of the committed checkpoints, ascending."""
        return committed(self.directory)

    def best(self) -> list[int]:
        """Gives the steps of the best checkpoints by the configured metric, the best first."""
        metric, sign = self.config.best.metric, 1 if self.config.best.mode == "min" else -1
        # What is not a number is neither better nor worse than anything.
        scored = [
            (sign * value, step)
            for step in committed(self.directory)
            if not math.isnan(value := marker(self.directory, step)["metrics"].get(metric, math.nan))
        ]
        return [step for _, step in sorted(scored)[: self.config.best.keep]]

    def remove(self, step: int) -> None:
        """Removes a checkpoint, the marker first: what is half removed must not count as whole."""
        (self.directory / f"ckpt-{step}.json").unlink(missing_ok=True)
        for file in _data_files(self.directory, step):
            file.unlink()

    def _retain(self) -> None:
        steps = committed(self.directory)
        for step in policies.to_remove(steps, self.config.keep, set(self.best())):
            self.remove(step)
        # What has no marker was being written when a process was killed.
        unfinished = {int(match[1]) for file in self.directory.glob("ckpt-*") if (match := re.match(r"ckpt-(\d+)\.", file.name))}
        for step in unfinished - set(steps):
            self.remove(step)


def commit(directory: Path, step: int, metrics: Mapping[str, float] | None) -> None:
    """Makes a written checkpoint count: its files reach the disk, then their marker appears by rename."""
    files = {}
    for file in _data_files(directory, step):
        with file.open("rb+") as opened:
            os.fsync(opened.fileno())
        files[file.name] = {"bytes": file.stat().st_size, "sha256": _sha256(file)}
    fsync_directory(directory)
    content = {"step": step, "time": time.time(), "metrics": dict(metrics or {}), "files": files}
    write_atomically(directory / f"ckpt-{step}.json", json.dumps(content, indent=1))


def committed(directory: Path) -> list[int]:
    """Gives the steps of the committed checkpoints in a directory, ascending."""
    return sorted(int(match[1]) for file in directory.glob("ckpt-*.json") if (match := re.fullmatch(r"ckpt-(\d+)\.json", file.name)))


def marker(directory: Path, step: int) -> dict[str, Any]:
    """Reads a checkpoint's marker; one that cannot be read, or is none of this step, says nothing."""
    nothing: dict[str, Any] = {"metrics": {}, "files": {}}
    try:
        content = json.loads((directory / f"ckpt-{step}.json").read_text())
        files = content["files"].values()
        sound = content["step"] == step and isinstance(content["metrics"], dict) and all({"bytes", "sha256"} <= set(file) for file in files)
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return nothing
    return content if sound else nothing


def verify(directory: Path, step: int) -> str | None:
    """Says what is wrong with a committed checkpoint, or None if every file is what its marker says."""
    content = marker(directory, step)
    if not content["files"]:
        return "its marker is damaged"
    for name, expected in content["files"].items():
        file = directory / name
        if not file.is_file():
            return f"{name} is missing"
        if file.stat().st_size != expected["bytes"]:
            return f"{name} has {file.stat().st_size} bytes instead of {expected['bytes']}"
        if _sha256(file) != expected["sha256"]:
            return f"the content of {name} has changed"
    return None


def restore_weights(source: Path, models: Mapping[str, tf.keras.Model]) -> tuple[int, list[str]]:
    """Takes the weights of the models, and nothing else, from a run directory or a checkpoint's path prefix.

    A run that kept averages gives its averaged weights: they are what it was evaluated with.

    Returns:
        The step of the checkpoint, and why newer ones were not used, one line each.

    Raises:
        CheckpointError: no checkpoint there that verifies, or one whose models have other variables.
    """
    directory, steps = (source / "checkpoints", None) if source.is_dir() else (source.parent, re.findall(r"ckpt-(\d+)", source.name))
    skipped = []
    for step in reversed([int(s) for s in steps] if steps else committed(directory)):
        if problem := verify(directory, step):
            skipped.append(f"skipped the checkpoint of step {step}: {problem}")
            continue
        path = str(directory / f"ckpt-{step}")
        averaged = {name.split("/")[1] for name, _ in tf.train.list_variables(path) if name.startswith("averages/")}
        try:
            tf.train.Checkpoint(models=dict(models)).read(path).assert_existing_objects_matched().expect_partial()
            for name in averaged & set(models):
                averages = tf.train.Checkpoint(averages={name: whole(models[name].trainable_variables)})
                averages.read(path).assert_existing_objects_matched().expect_partial()
        except (AssertionError, ValueError, tf.errors.OpError) as error:
            raise CheckpointError(
                f"init_from ({source}): the checkpoint of step {step} does not fit this model: {_misfit(error)}"
            ) from error
        return step, skipped
    raise CheckpointError(f"init_from ({source}): there is no checkpoint that verifies")


def _data_files(directory: Path, step: int) -> list[Path]:
    return sorted(file for file in directory.glob(f"ckpt-{step}.*") if file.suffix != ".json")


def _sha256(file: Path) -> str:
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()


def _misfit(error: BaseException) -> str:
    """Says in one line which variables do not match; TensorFlow says it in many."""
    text = str(error)
    if unclaimed := re.search(r"Unresolved object in checkpoint \(root\)\.(\S+):", text):
        return f"it has {unclaimed[1]}, which nothing here claims"
    if lacking := sorted(set(re.findall(r"<tf\.Variable '([^']+?)(?:/replica_\d+)?:0'", text))):
        return f"it lacks {', '.join(lacking)}"
    return _first_line(error)


def _first_line(error: BaseException) -> str:
    return str(error).strip().split("\n")[0]
