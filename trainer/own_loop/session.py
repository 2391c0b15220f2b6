"""The run behind a training loop of the user's own: saves, stops, the log, the account of time.

A save is made before a step, when the user's code is done with the step before: what it has
changed and logged by then belongs to that step. So is a snapshot in memory.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import tensorflow as tf

from trainer.engine.checkpoints.checkpointer import Checkpointer
from trainer.engine.checkpoints.memory_snapshots import MemorySnapshots
from trainer.engine.checkpoints.snapshot import Snapshot
from trainer.engine.pacing import StepPacer, Stopped
from trainer.engine.plan import StepPolicy, is_due
from trainer.engine.run_state import RunState
from trainer.runs.recorded_metrics import read_evaluations
from trainer.runs.state_memory import Position
from trainer.summaries.writers.writer import Writer


@dataclass(kw_only=True, eq=False, repr=False)
class Session(RunState):
    """The run that a user's steps belong to.

    Attributes:
        save_policies: at which steps to save, in addition to `save_timer`.
        make_checkpointer: makes the checkpointer of named objects, and what keeps its state in
            memory, if anything does.
        requests: whether a stop, and whether a save, was requested of this process by now.
    """

    run_dir: Path
    total_steps: int
    save_policies: Sequence[StepPolicy]
    make_checkpointer: Callable[[Mapping[str, Any]], tuple[Checkpointer, MemorySnapshots | None]]
    open_writers: Callable[[int], list[Writer]]
    requests: Callable[[], tuple[bool, bool]]
    pacer: StepPacer = field(default_factory=lambda: StepPacer("auto"), init=False)
    checkpointer: Checkpointer | None = field(default=None, init=False)
    memory: MemorySnapshots | None = field(default=None, init=False)
    metrics: dict[str, float] = field(default_factory=dict, init=False)
    _writers: list[Writer] = field(default_factory=list, init=False)
    _is_restored: bool = field(default=False, init=False)
    _restored: Snapshot | None = field(default=None, init=False)  # until the first step
    _first_step: int = field(default=0, init=False)
    _agreed_until: int = field(default=0, init=False)
    _agreed_at: float = field(default=0.0, init=False)
    _began: float = field(default=0.0, init=False)  # the second step of this attempt
    _write_variables: Callable[[int], None] = field(default=lambda step: None, init=False)

    def begin(
        self, objects: Mapping[str, Any], step: tf.Variable, write: Callable[[int], None]
    ) -> None:
        """Restore the newest state, if there is one, and open the writers there; collective.

        Args:
            objects: what is saved, by name.
            write: called with the number of steps before each save, to write it into variables.
        """
        self._write_variables = write
        self.checkpointer, self.memory = self.make_checkpointer(objects)
        restored, is_saved = self.restore_newest(self.checkpointer)
        if restored is not None:
            self._is_restored = True
            self._restored = self.checkpointer.reader.capture()
            self._saved = (restored,) if is_saved else None
            metrics = self.checkpointer.metrics if is_saved else self._logged_metrics
            self.metrics = dict(metrics(restored))
        self.step = self._first_step = self._agreed_until = int(step.numpy())
        self._writers = self.open_writers(self.step)
        self.enter("compile")
        self.faults.reached("step", self.step)

    def _logged_metrics(self, step: int) -> Mapping[str, float]:
        """Return the last metrics in the log of a step at most."""
        evaluations = read_evaluations(self.run_dir, "train")
        return next((values for at, values in reversed(evaluations) if at <= step), {})

    def before_step(self) -> None:
        """Save if that is due; stop if all processes agree to; collective.

        Raises:
            Stopped: a stop was requested of some process; the state is saved.
        """
        if self.checkpointer is None:
            return
        if self._restored is not None:
            # It was taken here: it has what the user's code did since `begin` already.
            self.checkpointer.reader.restore(self._restored.by_entry())
            self._restored = None
        self.checkpointer.check()
        is_first = self.step == self._first_step
        if self.memory is not None and not is_first:  # the first step makes what is made late
            self.memory.keep(Position(self.step, self.step), before=self._write_step)
        self._agree()
        self.enter("compile" if is_first else "train")
        if is_first:
            self.faults.reached("compile")

    def _agree(self) -> None:
        saves = is_due(self.save_policies, self.step)
        if self.step >= self._agreed_until:
            stops, *reasons, num_steps = self.agree(*self.requests())
            self._agreed_until = self.step + num_steps
            self._agreed_at = time.monotonic()
            saves = saves or any(reasons)
            if stops:
                self.save()
                raise Stopped
        if saves:
            self.save()

    def after_step(self) -> None:
        """Count a step that was made."""
        is_first = self.step == self._first_step
        self.step += 1
        self.ledger.record_step(self.step, 0.0)
        if is_first:
            self.enter("train")
            self._began = time.monotonic()
        if self.step == self._agreed_until:
            self.pacer.record(self.pacer.count, time.monotonic() - self._agreed_at)
        num_steps = self.step - self._first_step - 1
        left = (self.total_steps - self.step) / num_steps if num_steps else None
        secs = None if left is None else left * (time.monotonic() - self._began)
        self.channel.progress(self.step, self.total_steps, 0.0, secs, self.metrics)
        self.faults.reached("step", self.step)

    def log(self, metrics: Mapping[str, float]) -> None:
        """Write metrics of this step; what precedes a restored state was written before it."""
        if self.step == self._first_step and self._is_restored:
            return
        self.metrics = dict(metrics)
        for writer in self._writers:
            writer.scalars("train", self.step, metrics)

    def before_save(self) -> None:
        for writer in self._writers:
            writer.flush()
        self._write_step()

    def _write_step(self) -> None:
        self._write_variables(self.step)

    def save(self) -> None:
        """Save the state of this step, unless that was done; collective."""
        self.save_version((self.step,), self.metrics)

    def close(self) -> None:
        """Close the writers, and finish a checkpoint that is being written; also after an error."""
        with ExitStack() as stack:
            stack.callback(self.finish_save)
            for writer in self._writers:
                stack.callback(writer.close)

    def result(self) -> dict[str, Any]:
        """Return a finished run's step, last metrics, time and attempts."""
        return {
            "step": self.step,
            "metrics": self.metrics,
            "split": "train",
            "best": None,
            **self.ledger.summary().result(),
        }
