"""Checkpoints that can be trusted: written whole or not at all, and restored only if every file is what its marker says."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import tensorflow as tf

from trainer.errors import CheckpointError
from trainer.markers import begin, clear_away, commit, committed, marker, recover, remove, unfinished, verify
from trainer.peers import Peers
from trainer.policies import Best, Keep, Saved, to_remove
from trainer.shards import whole
from trainer.snapshot import Camera, Snapshot

_LOST = (tf.errors.UnavailableError, tf.errors.AbortedError, tf.errors.DeadlineExceededError)
"""A process that holds variables is gone: no fault of the disk's, or of the checkpoint's."""


class Checkpoints:
    """The checkpoints of one run.

    Taking the state reads variables, which can make the replicas communicate: every process takes part, the chief alone writes.

    Args:
        directory: where they are; the same for every process.
        trackables: what is saved, by name.
        keep: what retention keeps; none: everything.
        peers: the processes that save and restore together; None: this one is alone.
        background: whether training goes on while a checkpoint is written.
        saved_once: a file elsewhere that says that there has been a checkpoint: then to find none is a loss and no beginning.
        before_commit: called when the files of a checkpoint are written and its marker is not.
        after_commit: called with the step of a checkpoint that counts from now on.

    Attributes:
        directory: where they are.
        skipped: why newer checkpoints than the restored one were not used, one line each.
    """

    def __init__(
        self,
        directory: Path,
        trackables: Mapping[str, Any],
        keep: Sequence[Keep] = (),
        peers: Peers | None = None,
        *,
        background: bool = False,
        saved_once: Path | None = None,
        before_commit: Callable[[], None] = lambda: None,
        after_commit: Callable[[int], None] = lambda step: None,
    ) -> None:
        self.directory, self._keep, self._peers = directory, keep, peers
        self._saved_once, self._before_commit, self._after_commit = saved_once, before_commit, after_commit
        self.skipped: list[str] = []
        self._damaged: set[int] = set()
        self._checkpoint = tf.train.Checkpoint(**trackables)
        self._camera = Camera(self._checkpoint)
        self._thread = ThreadPoolExecutor(1, "checkpoint") if background else None
        self._writing: Future[None] | None = None

    def save(self, step: int, metrics: Mapping[str, float] | None) -> None:
        """Saves the state as the checkpoint of `step`, then applies the retention policy; in the background, if so made.

        Args:
            step: number of updates made.
            metrics: metrics of the test split at this step, by which the best checkpoints are known; None: not evaluated.

        Raises:
            CheckpointError: it, or the one before it, could not be written; the older ones are untouched.
        """
        self.wait()  # one at a time: a disk that is too slow holds the training up and not the memory
        snapshot = self._camera.take()
        if not self._is_chief:
            self._after_commit(step)
        elif self._thread is None:
            self._write(snapshot, step, metrics)
        else:
            self._writing = self._thread.submit(self._write, snapshot, step, metrics)

    def check(self) -> None:
        """Raises the error of a checkpoint that could not be written in the background, if that is known by now."""
        if self._writing is not None and self._writing.done():
            self.wait()

    def wait(self) -> None:
        """Returns when what was saved counts.

        Raises:
            CheckpointError: it could not be written.
        """
        writing, self._writing = self._writing, None
        if writing is not None:
            writing.result()

    def _write(self, snapshot: Snapshot, step: int, metrics: Mapping[str, float] | None) -> None:
        try:
            self.directory.mkdir(exist_ok=True)  # not its parents: a run directory that was removed does not come back as half of one
            snapshot.write(str(self.directory / begin(self.directory, step)))
            self._before_commit()
            commit(self.directory, step, metrics, snapshot.variables())
            if self._saved_once is not None:
                self._saved_once.touch()
            # Only now that there is a newer one: the damaged would push the good ones out of the newest.
            for damaged in self._damaged - {step}:
                remove(self.directory, damaged)
            self._damaged.clear()
            self._retain()
        except (OSError, tf.errors.OpError) as error:
            with contextlib.suppress(OSError):
                clear_away(self.directory, step)
            raise CheckpointError(
                f"the checkpoint of step {step} could not be written to {self.directory}: {_first_line(error)}"
            ) from error
        self._after_commit(step)

    def restore_latest(self, at_most: int | None = None) -> int | None:
        """Restores the newest checkpoint that verifies.

        Args:
            at_most: none of a later step; those are removed, for the run will come by there again. None: any.

        Returns:
            Its step; None if there has never been a checkpoint.

        Raises:
            CheckpointError: in every process: there are checkpoints, or have been, but none that verifies, or one that does not fit
                the state.
        """
        self.wait()
        newest, problem = self._newest(at_most) if self._is_chief else (None, "")
        if self._peers is not None:
            # The chief's word: a shared file system may show the others something older.
            (step,) = self._peers.chiefs(-1 if newest is None else newest)
            newest, problem = None if step < 0 else step, self._peers.chiefs_text(problem)
        if problem:
            raise CheckpointError(problem)
        if newest is not None:
            self.restore(newest)
            for step in committed(self.directory) if self._is_chief else ():
                if at_most is not None and step > at_most:
                    remove(self.directory, step)
        return newest

    @property
    def _is_chief(self) -> bool:
        return self._peers is None or self._peers.is_chief

    def _newest(self, at_most: int | None) -> tuple[int | None, str]:
        """Gives the newest step that verifies, and why the run must not go on without, if there is none."""
        self.skipped.clear()
        recover(self.directory)
        steps = committed(self.directory)
        for step in sorted({*steps, *unfinished(self.directory)}, reverse=True):
            if at_most is not None and step > at_most:
                continue
            problem = verify(self.directory, step)
            if problem is None:
                return step, ""
            self.skipped.append(f"skipped the checkpoint of step {step}: {problem}")
            self._damaged.add(step)
        if not steps and (self._saved_once is None or not self._saved_once.exists()):
            return None, ""  # one that was cut short may be there: it was to be the first
        if at_most is not None and not self.skipped:
            return None, ""  # they have gone their way, by the retention policy
        why = "; ".join(self.skipped) or "none is there, though the run has saved some"
        return None, f"no checkpoint in {self.directory} can be trusted ({why}); bring one back, or start afresh with resume=never"

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
        saved = self._saved()
        return [step for policy in self._keep if isinstance(policy, Best) for step in policy.ranked(saved)]

    def _saved(self) -> list[Saved]:
        return [Saved(step, marker(self.directory, step)["metrics"]) for step in committed(self.directory)]

    def _retain(self) -> None:
        for step in [*to_remove(self._saved(), self._keep), *unfinished(self.directory)]:
            remove(self.directory, step)


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


def _misfit(error: BaseException) -> str:
    """Says in one line which variables do not match; TensorFlow says it in many."""
    text = str(error)
    if unclaimed := re.search(r"Unresolved object in checkpoint \(root\)\.(\S+):", text):
        return f"it has {unclaimed[1]}, which nothing here claims"
    if lacking := sorted(set(re.findall(r"<tf\.Variable '([^']+?)(?:/replica_\d+)?:0'", text))):
        return f"it lacks {', '.join(lacking)}"
    return _first_line(error)


def _first_line(error: BaseException) -> str:
    # Without what TensorFlow adds for its developers.
    return re.sub(r"\{\{.*?\}\} | \[Op:\w+\]", "", str(error).strip().split("\n")[0])
