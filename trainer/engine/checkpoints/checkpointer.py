"""Checkpoints: written whole or not at all, and restored only if every file matches its marker."""

from __future__ import annotations

import contextlib
import errno
import logging
import re
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeAlias

import tensorflow as tf

from trainer.engine.checkpoints.snapshot import Snapshot, SnapshotReader
from trainer.engine.process_group import ProcessGroup
from trainer.errors import CheckpointError
from trainer.runs.checkpoint_marker import (
    abort_write,
    begin_write,
    commit,
    committed_steps,
    marker_digest,
    read_marker,
    recover,
    remove,
    unfinished_steps,
    verify,
)
from trainer.runs.checkpoint_retention import RetentionPolicy, SavedCheckpoint, steps_to_remove
from trainer.text import first_line

logger = logging.getLogger(__name__)

CONNECTION_ERRORS = (
    tf.errors.UnavailableError,
    tf.errors.AbortedError,
    tf.errors.DeadlineExceededError,
)
"""A process that holds variables is gone: no fault of the disk or of the checkpoint."""

_RETRY_SECS = (0.1, 0.5)
"""After these a write that has failed is tried again: a network file system may err once."""

_LASTING = (errno.ENOSPC, errno.EDQUOT, errno.EROFS)
"""Errors that last: no write is tried again after one."""


Hold: TypeAlias = Callable[[Snapshot], "Callable[[], None] | None"]
"""Keeps what is being written, if it can, until the function that it returns is called."""


class Checkpointer:
    """Saves, restores and retains the checkpoints of one run.

    A snapshot of the state reads variables, which can make the replicas communicate: so every
    process takes part in a save. The chief alone writes files.

    Attributes:
        skipped: why checkpoints newer than the restored one were not used, one line each.

    Args:
        keep: the retention policies; none: every checkpoint is kept.
        background: whether training continues while a checkpoint is written; None: if the state is
            held meanwhile, so that no kill loses the checkpoint.
        saved_once: a file outside the folder that shows that a checkpoint has been saved: if it
            exists and no checkpoint does, they were lost, and the run must not start afresh.
    """

    def __init__(
        self,
        directory: Path,
        trackables: Mapping[str, Any],
        keep: Sequence[RetentionPolicy] = (),
        process_group: ProcessGroup | None = None,
        *,
        background: bool | None = False,
        saved_once: Path | None = None,
    ) -> None:
        self.directory = directory
        self._keep = keep
        self._process_group = process_group or ProcessGroup(tf.distribute.get_strategy())
        self._saved_once = saved_once
        self.skipped: list[str] = []
        self._damaged: set[int] = set()
        self._checkpoint = tf.train.Checkpoint(**trackables)
        self.reader = SnapshotReader(self._checkpoint)
        self._background = background
        self._thread = ThreadPoolExecutor(1, "checkpoint")
        self._writing: Future[None] | None = None

    def before_commit(self) -> None:
        """Do what is to be done when the files of a checkpoint are written, before its marker."""

    def before_offer(self, step: int) -> str:
        """Return, in the chief, why others will not get the checkpoint of a step, or nothing."""
        return ""

    def before_restore(self, step: int, digest: str) -> None:
        """Bring the checkpoint whose marker has this SHA-256 to this process, if it is lacking."""

    def save(
        self, step: int, metrics: Mapping[str, float] | None, hold: Hold | None = None
    ) -> None:
        """Save the state as the checkpoint of `step`, and apply the retention policies; collective.

        Args:
            metrics: metrics of the evaluation at this step, which rank the checkpoints; None: there
                was none.
            hold: called in the chief before a write in the background; keeps what is written until
                the function that it returns is called; None: nothing can.

        Raises:
            CheckpointError: it, or the checkpoint before it, could not be written; older ones are
                untouched.
        """
        self.wait()  # one at a time: a slow disk delays the training instead of filling the memory
        snapshot = self.reader.capture()
        if not self._is_chief:
            return
        release = hold(snapshot) if hold and self._background is not False else None
        if release is None and not self._background:
            self._write(snapshot, step, metrics)
        else:
            self._writing = self._thread.submit(self._write, snapshot, step, metrics, release)

    @property
    def is_writing(self) -> bool:
        """Whether a checkpoint is being written in the background."""
        return self._writing is not None

    def check(self) -> None:
        """Raise the CheckpointError of a failed background write, if it has ended."""
        if self._writing is not None and self._writing.done():
            self.wait()

    def wait(self) -> None:
        """Return when the last checkpoint is committed; raise a CheckpointError if it failed."""
        writing = self._writing
        self._writing = None
        if writing is not None:
            writing.result()

    def finish(self, snapshot: Snapshot, step: int, metrics: Mapping[str, float] | None) -> None:
        """Write a checkpoint that a kill has interrupted, in the chief alone."""
        recover(self.directory)
        self._write(snapshot, step, metrics)

    def _write(
        self,
        snapshot: Snapshot,
        step: int,
        metrics: Mapping[str, float] | None,
        release: Callable[[], None] | None = None,
    ) -> None:
        for pause_secs in (*_RETRY_SECS, None):
            try:
                self._write_once(snapshot, step, metrics)
                break
            except (OSError, tf.errors.OpError) as error:
                with contextlib.suppress(OSError):
                    abort_write(self.directory, step)
                problem = (
                    f"the checkpoint of step {step} could not be written to {self.directory}: "
                    f"{_reason(error)}"
                )
                cause = error.__cause__ or error  # of a StorageError
                if pause_secs is None or getattr(cause, "errno", None) in _LASTING:
                    raise CheckpointError(problem) from error
                logger.warning("%s; trying again in %g s", problem, pause_secs)
                time.sleep(pause_secs)
        if release is not None:
            release()

    def _write_once(
        self, snapshot: Snapshot, step: int, metrics: Mapping[str, float] | None
    ) -> None:
        # Not its parents: a run directory that was removed must not come back half empty.
        self.directory.mkdir(exist_ok=True)
        snapshot.write(str(self.directory / begin_write(self.directory, step)))
        self.before_commit()
        commit(self.directory, step, metrics, snapshot.variables())
        if self._saved_once is not None:
            self._saved_once.touch()
        # Only now that there is a newer one: before, retention would count the damaged ones
        # among the newest, and remove sound ones instead.
        for damaged in self._damaged - {step}:
            remove(self.directory, damaged)
        self._damaged.clear()
        for obsolete in [
            *steps_to_remove(self._saved(), self._keep),
            *unfinished_steps(self.directory),
        ]:
            remove(self.directory, obsolete)

    def restore_latest(self, at_most: int | None = None) -> int | None:
        """Restore the newest checkpoint that verifies; collective.

        Args:
            at_most: the latest step that may be restored; checkpoints of later steps are removed,
                as the run will make those steps again. None: any step.

        Returns:
            Its step; None if there has never been a checkpoint.

        Raises:
            CheckpointError: in every process: no existing or former checkpoint verifies, or the one
                that does has other variables than the state.
        """
        self.wait()
        newest, problem = self._newest(at_most) if self._is_chief else (None, "")
        # The chief decides: a shared file system may show the others an older listing.
        (step,) = self._process_group.broadcast_from_chief(-1 if newest is None else newest)
        newest = None if step < 0 else step
        problem = self._process_group.broadcast_text_from_chief(problem)
        if problem:
            raise CheckpointError(problem)
        if newest is not None:
            self.before_restore(newest, self._chiefs_digest(newest))
            self.restore(newest)
            if self._is_chief:
                self._remove_beside(newest, at_most)
        return newest

    def restore_chosen(self, step: int) -> str:
        """Restore the checkpoint of a step; return why it cannot be, or an empty text; collective.

        Raises:
            CheckpointError: it has other variables than the state, or could not be brought here.
        """
        self.wait()
        problem = ""
        if self._is_chief:
            problem = verify(self.directory, step) or self.before_offer(step)
        problem = self._process_group.broadcast_text_from_chief(problem)
        if not problem:
            self.before_restore(step, self._chiefs_digest(step))
            self.restore(step)
        return problem

    def _chiefs_digest(self, step: int) -> str:
        digest = marker_digest(self.directory, step) if self._is_chief else ""
        return self._process_group.broadcast_text_from_chief(digest)

    def _remove_beside(self, newest: int, at_most: int | None) -> None:
        """Remove checkpoints of steps to be recomputed, and what a kill left of a removal."""
        for step in committed_steps(self.directory):
            if at_most is not None and step > at_most:
                remove(self.directory, step)
        # A run that has made its last step does not save again, so retention would leave them.
        for step in unfinished_steps(self.directory):
            if step < newest:
                remove(self.directory, step)

    @property
    def _is_chief(self) -> bool:
        return self._process_group.is_chief

    def _newest(self, at_most: int | None) -> tuple[int | None, str]:
        """Return the newest step that verifies, if any, and the reason not to start without one."""
        self.skipped.clear()
        recover(self.directory)
        steps = committed_steps(self.directory)
        for step in sorted({*steps, *unfinished_steps(self.directory)}, reverse=True):
            if at_most is not None and step > at_most:
                continue
            problem = verify(self.directory, step)
            if problem is None:
                return step, self.before_offer(step)
            self.skipped.append(f"skipped the checkpoint of step {step}: {problem}")
            self._damaged.add(step)
        if not steps and (self._saved_once is None or not self._saved_once.exists()):
            return None, ""  # a kill has interrupted the first save, at most
        if at_most is not None and not self.skipped:
            return None, ""  # removed by the retention policy
        reason = "; ".join(self.skipped) or "none is there, though the run has saved some"
        problem = (
            f"no checkpoint in {self.directory} can be trusted ({reason}); "
            "bring one back, or start afresh with resume=never"
        )
        return None, problem

    def restore(self, step: int) -> None:
        """Restore the checkpoint of a step: every variable of it into every one of the state.

        Raises:
            CheckpointError: a variable is missing on either side or has another shape; names it.
        """
        path = str(self.directory / f"ckpt-{step}")
        try:
            self._checkpoint.read(path).assert_consumed()
        except CONNECTION_ERRORS:
            raise
        except (AssertionError, ValueError, tf.errors.OpError) as error:
            raise CheckpointError(
                f"the checkpoint of step {step} does not fit this experiment: "
                f"{describe_mismatch(error)}"
            ) from error

    def steps(self) -> list[int]:
        """Return the steps of the committed checkpoints, ascending."""
        return committed_steps(self.directory)

    def metrics(self, step: int) -> dict[str, float]:
        """Return the metrics saved with the checkpoint of a step, or an empty dict."""
        metrics: dict[str, float] = read_marker(self.directory, step)["metrics"]
        return metrics

    def best(self) -> list[int]:
        """Return the steps of the best checkpoints by the configured metric, best first."""
        saved = self._saved()
        return [step for policy in self._keep for step in policy.ranked(saved)]

    def _saved(self) -> list[SavedCheckpoint]:
        return [
            SavedCheckpoint(step, self.metrics(step)) for step in committed_steps(self.directory)
        ]


def describe_mismatch(error: BaseException) -> str:
    """Return one line that names the mismatched variables; TensorFlow's message has many."""
    text = str(error)
    if unclaimed := re.search(r"Unresolved object in checkpoint \(root\)\.(\S+):", text):
        return f"it has {unclaimed[1]}, which this experiment lacks"
    if missing := sorted(set(re.findall(r"<tf\.Variable '([^']+?)(?:/replica_\d+)?:0'", text))):
        return f"it lacks {', '.join(missing)}"
    return _reason(error)


def _reason(error: BaseException) -> str:
    """Return the first line of a message, without the names of TensorFlow's nodes and ops."""
    return re.sub(r"\{\{.*?\}\} | \[Op:\w+\]", "", first_line(error))
