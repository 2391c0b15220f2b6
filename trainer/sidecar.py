"""Evaluation in a process of its own: every checkpoint as it appears, beside the training.

until the run is over
    for each checkpoint that is committed and has no line yet, the oldest first
        verify it, restore it, evaluate the test split, write the line
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from trainer.channel import Channel
from trainer.checkpoint import Checkpoints
from trainer.errors import CheckpointError
from trainer.evaluation import Evaluator
from trainer.faults import Faults
from trainer.markers import committed, verify
from trainer.policies import Epochs
from trainer.rundir import result_of
from trainer.schema import Experiment
from trainer.turns import Stopped
from trainer.writers.base import Writer
from trainer.writers.jsonl import JsonLines
from trainer.writers.opening import open_writers

_FILE = "evaluations.jsonl"
_LOOK_SECS = 1.0


@dataclass(frozen=True)
class Parts:
    """What evaluates a checkpoint.

    Attributes:
        checkpoints: restores it.
        evaluator: evaluates what was restored.
        epochs: the training's epochs, for the log.
    """

    checkpoints: Checkpoints
    evaluator: Evaluator
    epochs: Epochs


class Sidecar:
    """Evaluates the checkpoints of a run.

    Its lines go to evaluations.jsonl, because metrics.jsonl is the chief's; they are also how it knows, when it is started again,
    what it has done.

    Args:
        run_dir: the run directory.
        experiment: the effective configuration.
        build: makes the parts; called when there is something to evaluate, so that the training has begun.
        channel: tells the user.
        faults: what is rehearsed.
    """

    def __init__(self, run_dir: Path, experiment: Experiment, build: Callable[[], Parts], channel: Channel, faults: Faults) -> None:
        self._run_dir, self._experiment, self._build, self._channel, self._faults = run_dir, experiment, build, channel, faults
        self._directory = run_dir / "checkpoints"
        self._parts: Parts | None = None
        self._writers: list[Writer] = []
        self._lines = JsonLines(run_dir, sys.maxsize, _FILE)
        self._done = {json.loads(line)["step"] for line in (run_dir / _FILE).read_text().splitlines()}
        self._damaged: set[tuple[int, int]] = set()

    def run(self, stop: Callable[[], bool], *, told: bool) -> bool:
        """Evaluates until the run is over.

        Args:
            stop: whether a stop was requested.
            told: whether this process is told to leave when the training was stopped; it then waits for that.

        Returns:
            Whether the run is over and all of it evaluated; if not, a stop was requested.
        """
        try:
            while True:
                # Before the look at the checkpoints: whatever the run has saved until its end is then among them.
                over = result_of(self._run_dir, self._experiment) is not None
                with suppress(Stopped):
                    self._catch_up(stop)
                if stop():
                    if over or not told:
                        return False
                elif over:
                    return True
                self._channel.phase("wait", max(self._done, default=0))
                time.sleep(_LOOK_SECS)
        finally:
            for writer in [*self._writers, self._lines]:
                writer.close()

    def _catch_up(self, stop: Callable[[], bool]) -> None:
        for step in committed(self._directory):
            if stop():
                return
            stamp = self._stamp(step)
            if step in self._done or stamp is None or (step, stamp) in self._damaged:
                continue
            self._channel.phase("start", step)
            if problem := verify(self._directory, step):
                # One that was removed meanwhile, or written anew, is not damaged.
                if self._stamp(step) == stamp:
                    self._damaged.add((step, stamp))
                    self._channel.line(f"warning: skipped the checkpoint of step {step}: {problem}")
            elif self._restored(step, stamp):
                self._evaluate(step, stop)

    def _restored(self, step: int, stamp: int) -> bool:
        self._parts = self._parts or self._build()
        try:
            self._parts.checkpoints.restore(step)
        except CheckpointError:
            if self._stamp(step) == stamp:
                raise
            return False
        return True

    def _evaluate(self, step: int, stop: Callable[[], bool]) -> None:
        assert self._parts is not None
        self._channel.phase("evaluate", step)
        self._faults.reached("evaluate")
        metrics = self._parts.evaluator.evaluate(stop)
        if not self._writers:
            self._writers = open_writers(self._experiment, self._run_dir, step - 1, self._channel, leave_out=("jsonl",))
        # The line last: what it stands for is never done again.
        for writer in [*self._writers, self._lines]:
            for name, images in self._parts.evaluator.images.items():
                writer.images("test", step, name, images)
            writer.scalars("test", step, {"epoch": self._parts.epochs.completed(step), **metrics})
            writer.flush()
        self._done.add(step)
        self._channel.evaluated(step, metrics)

    def _stamp(self, step: int) -> int | None:
        """Tells a checkpoint from a later one of the same step; None: it is not there."""
        try:
            return (self._directory / f"ckpt-{step}.json").stat().st_mtime_ns
        except FileNotFoundError:
            return None
