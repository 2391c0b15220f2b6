"""Evaluation in a separate process: every checkpoint as it appears, next to the training.

until the run is over
    for each committed checkpoint without a line, the oldest first
        verify it, restore it, evaluate the validation or test split, write the line
"""

from __future__ import annotations

import sys
import time
from contextlib import ExitStack, suppress

import tensorflow as tf

from trainer.cluster.fault_injection import Faults
from trainer.engine.evaluation.evaluator import Evaluator
from trainer.engine.pacing import Stopped
from trainer.engine.plan import is_due
from trainer.errors import CheckpointError
from trainer.runs.checkpoint_marker import committed_steps, verify
from trainer.runs.directory import read_result
from trainer.runs.recorded_metrics import read_evaluations, read_lines
from trainer.summaries.writers.background import open_writers
from trainer.summaries.writers.jsonl import JsonLines
from trainer.summaries.writers.writer import Writer
from trainer.worker.run import SavedRun

_POLL_SECS = 1.0


class _Evaluations(JsonLines):
    """Writes evaluations.jsonl: the chief writes metrics.jsonl at the same time."""

    FILE = "evaluations.jsonl"


class Sidecar:
    """Evaluates the checkpoints of a run.

    Its lines go to evaluations.jsonl, because metrics.jsonl is the chief's. After a restart they
    also show which checkpoints are evaluated.

    Args:
        run: of which nothing is built before there is a checkpoint, so training has begun.
    """

    def __init__(self, run: SavedRun, faults: Faults) -> None:
        self._run = run
        self._channel = run.channel
        self._faults = faults
        self._directory = run.run_dir / "checkpoints"
        self._evaluator: Evaluator | None = None
        self._writers: list[Writer] = []
        self._lines = _Evaluations(run.run_dir, sys.maxsize)
        self._done = {line["step"] for line in read_lines(run.run_dir / _Evaluations.FILE)[0]}
        self._damaged: set[tuple[int, int]] = set()

    def run(self, *, dismissed: bool) -> bool:
        """Evaluate until the run is over and all of it evaluated; return False after a stop.

        Args:
            dismissed: whether the supervisor ends this process when the training was stopped; it
                then waits for that.
        """
        stop = self._run.stop_requested
        try:
            while True:
                # Before the checkpoints are listed, so that the last one is among them.
                is_over = read_result(self._run.run_dir, self._run.experiment) is not None
                with suppress(Stopped):
                    self._catch_up()
                if stop():
                    if is_over or not dismissed:
                        return False
                elif is_over:
                    return True
                self._channel.phase("wait", max(self._done, default=0))
                time.sleep(_POLL_SECS)
        finally:
            with ExitStack() as stack:
                for writer in [*self._writers, self._lines]:
                    stack.callback(writer.close)

    def _catch_up(self) -> None:
        """Evaluate every checkpoint that has no line yet."""
        for step in committed_steps(self._directory):
            if self._run.stop_requested():
                return
            version = self._version(step)
            if step in self._done or version is None or (step, version) in self._damaged:
                continue
            self._channel.phase("start", step)
            if problem := verify(self._directory, step):
                # A checkpoint that was removed or rewritten meanwhile is not damaged.
                if self._version(step) == version:
                    self._damaged.add((step, version))
                    self._channel.line(f"warning: skipped the checkpoint of step {step}: {problem}")
            elif self._restore(step, version):
                self._evaluate(step)

    def _restore(self, step: int, version: int) -> bool:
        """Restore a checkpoint; return whether it is still there."""
        self._evaluator = self._evaluator or self._build()
        try:
            self._run.checkpointer.restore(step)
        except CheckpointError:
            if self._version(step) == version:
                raise
            return False
        return True

    def _build(self) -> Evaluator:
        run = self._run
        if run.cluster.is_local:
            # The training is on the same machine, and takes all memory of its GPUs.
            tf.config.set_visible_devices([], "GPU")
        source = run.evaluated(run.split)
        run.lines.explained.add("train")  # by the training, if there is one
        run.lines.recall(metrics for _, metrics in read_evaluations(run.run_dir, run.split))
        return run.inference.evaluator(source, run.inference.predictor(source))

    def _evaluate(self, step: int) -> None:
        assert self._evaluator is not None
        self._channel.phase("evaluate", step)
        self._faults.reached("evaluate")
        evaluation = self._evaluator.evaluate(self._run.stop_requested)
        split = self._run.split
        if not self._writers:
            self._writers = open_writers(
                self._run.experiment.writers,
                self._run.run_dir,
                step - 1,
                self._channel,
                sidecar=True,
            )
        epochs = self._run.plan.epochs
        epoch = epochs.completed(step)
        # The line last: a checkpoint that has one is never evaluated again.
        for writer in [*self._writers, self._lines]:
            evaluation.show(writer, split, step)
            writer.scalars(split, step, {"epoch": epoch, **evaluation.metrics})
            writer.flush()
        self._done.add(step)
        ended = epoch if is_due([epochs], step) else None
        self._run.lines.show(self._channel, step, ended, None, evaluation.metrics)

    def _version(self, step: int) -> int | None:
        """Return what distinguishes a checkpoint from a later one of its step, or None."""
        try:
            return (self._directory / f"ckpt-{step}.json").stat().st_mtime_ns
        except FileNotFoundError:
            return None
