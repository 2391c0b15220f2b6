"""What a training reports: metrics to the writers, progress and lines to the user."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

import numpy as np
import tensorflow as tf

from trainer.cluster.messages import Channel
from trainer.engine.evaluation.evaluator import Evaluation
from trainer.engine.graph.loops.train_loop import TrainLoop
from trainer.engine.graph.step.metric_sums import num_sums, unpack
from trainer.engine.plan import Plan
from trainer.engine.result_lines import ResultLines
from trainer.engine.worker_clock import WorkerClock
from trainer.runs.ledger import STALENESS_EDGES, Ledger, StragglerWatch, WorkerRecord
from trainer.summaries import profiler
from trainer.summaries.profiler import Profiler
from trainer.summaries.writers.writer import Writer


@dataclass(eq=False)
class Reporter:
    """Writes metrics, and measures the speed of training since the last report.

    Attributes:
        writers: the open summary writers; none in a process that writes nothing.
        plan: at which steps something is due.
        loop: the training loop, whose metrics are reported.
        open_writers: opens the summary writers at a step.
        channel: sends progress and lines to the user.
        lines: makes the lines of epochs and evaluations.
        ledger: accounts for the wall time.
        profiler: records a window of steps; None: it is not recorded in this process.
        clock: measures how long this process works, and waits for others.
    """

    plan: Plan
    loop: TrainLoop
    open_writers: Callable[[int], list[Writer]]
    channel: Channel
    lines: ResultLines
    ledger: Ledger
    profiler: Profiler | None
    clock: WorkerClock

    def __post_init__(self) -> None:
        self._state = self.loop.state
        self._straggler = StragglerWatch()
        self._paused_at: float | None = None
        self.writers: list[Writer] = []
        self._shown_sums = np.zeros([num_sums(self._state.task)])
        self.begin_window(0)

    def open(self, step: int, reported: int) -> None:
        """Open the writers, and begin to measure at `step`.

        Args:
            step: number of updates made.
            reported: the last step that was reported; what was written of later ones is dropped.
        """
        self.writers = self.open_writers(reported)
        self._shown_sums = self._state.epoch_sums.numpy()
        self.begin_window(step)
        self.clock.begin(step)

    def settle(self) -> None:
        """Have what was reported so far outlive this process."""
        for writer in self.writers:
            writer.settle()

    def flush(self) -> None:
        """Write what was reported so far to the disk."""
        for writer in self.writers:
            writer.flush()

    def close(self) -> None:
        """Write everything to the disk, and close the writers and the profiler."""
        with ExitStack() as stack:  # an error in one does not leave the others open
            for writer in self.writers:
                stack.callback(writer.close)
            if self.profiler is not None:
                stack.callback(self.profiler.close)

    def begin_window(self, step: int) -> None:
        """Measure the speed from `step` on."""
        self._began = self._paused_at or time.monotonic()
        self._begin_step = step
        self._waited = 0.0

    @contextmanager
    def uncounted(self) -> Iterator[None]:
        """Leave the block out of the speed of training."""
        self._paused_at = time.monotonic()
        yield
        self._began += time.monotonic() - self._paused_at
        self._paused_at = None

    def _secs(self) -> float:
        """Return the seconds of training since the window began."""
        return (self._paused_at or time.monotonic()) - self._began

    def end_compilation(self, step: int) -> None:
        """Begin to measure after the first graph call, which was mostly compilation."""
        self.begin_window(step)
        self.clock.begin(step)
        self.loop.take_worker_record()

    def before_steps(self, step: int) -> None:
        """Record that a graph call begins after `step` updates."""
        if self.profiler is not None:
            self.profiler.before(step)

    def after_steps(self, step: int, waited: float) -> None:
        """Record that a graph call has ended.

        Args:
            step: number of updates made.
            waited: seconds that its steps waited for their input.
        """
        if self.profiler is not None:
            self.profiler.after(step)
        self._waited += waited
        self.ledger.record_step(step, waited)

    def show_progress(self, step: int, window: tf.Tensor) -> None:
        """Show the user how far training is.

        Args:
            step: number of updates made.
            window: the metric sums since the last summary, [2 * metrics] float64.
        """
        rate = self._rate(step)
        total, epochs = self.plan.total_steps, self.plan.epochs
        secs_left = (total - step) * epochs.global_size / rate if rate else None
        num_epochs = self.lines.num_epochs
        epoch = f"{min(epochs.completed(step) + 1, num_epochs)}/{num_epochs}" if num_epochs else ""
        metrics = unpack(self._state.task, window)
        self.channel.progress(step, total, rate, secs_left, metrics, epoch)

    def end_epoch(self, step: int) -> dict[str, float]:
        """Log and return the training metrics of the epoch that ends here; reset their sums."""
        epoch = self.plan.epochs.completed(step) - 1
        values = unpack(self._state.task, self._state.epoch_sums.numpy())
        metric = next((name for name in values if name != "loss"), "loss")
        # TensorFlow's tutorial prints this line, and programs read it from the log.
        self.channel.log(
            f"Epoch: {epoch}, {metric}: {values[metric]:f}, train_loss: {values['loss']:f}."
        )
        self._state.epoch_sums.assign(tf.zeros_like(self._state.epoch_sums))
        return values

    def show_results(
        self,
        step: int,
        epoch_metrics: Mapping[str, float] | None,
        evaluated: Mapping[str, float] | None,
    ) -> None:
        """Show the line of an epoch, an evaluation, or both.

        Args:
            step: number of updates made.
            epoch_metrics: what `end_epoch` returned; None: no epoch ends here.
            evaluated: metrics of the split that selects; None: nothing was evaluated.
        """
        epoch = None
        train = epoch_metrics
        sums = self._state.epoch_sums.numpy()
        if epoch_metrics is not None:
            epoch = self.plan.epochs.completed(step)
        elif (sums - self._shown_sums)[1::2].any():
            train = unpack(self._state.task, sums - self._shown_sums)
        self._shown_sums = sums
        if legend := self.lines.legend(evaluated or ()):
            self.channel.opening(legend)
        text = self.lines.line(step, epoch, train, evaluated)
        if evaluated:
            self.channel.evaluated(step, evaluated, self.lines.split, text)
        else:
            self.channel.line(text)

    def write_train_metrics(self, step: int) -> None:
        """Write the training metrics since the last summary, and reset their sums; collective."""
        values = unpack(self._state.task, self._state.summary_sums.numpy())
        # Computed, not remembered: after a stop within this step's evaluation no step has run.
        learning_rates = self.loop.learning_rates(step - 1)
        values |= {**learning_rates, **self.loop.report()}
        values["examples_per_sec"] = self._rate(step)
        values["input_wait_fraction"] = self._waited / self._secs()
        record = self.clock.end(step) + self.loop.take_worker_record()
        values |= record.scalars()
        self.ledger.record_workers(record)
        time_spent = self.ledger.summary()
        values["train_secs"] = time_spent.secs["step"] + time_spent.secs["input"]
        values |= {"goodput": time_spent.goodput, **profiler.resource_metrics()}
        if len(time_spent.sizes) > 1:
            values["workers"] = time_spent.sizes[-1][1]
        self.write_scalars(step, values)
        self._show_workers(step, record)
        self.begin_window(step)
        self._state.summary_sums.assign(tf.zeros_like(self._state.summary_sums))

    def write_scalars(self, step: int, values: Mapping[str, float]) -> None:
        """Write numbers of the training split after `step` updates."""
        self._write("train", step, values)

    def write_evaluation(self, split: str, step: int, evaluation: Evaluation) -> None:
        """Write the evaluation of a split after `step` updates."""
        self._write(split, step, evaluation.metrics)
        for writer in self.writers:
            evaluation.show(writer, split, step)

    def _show_workers(self, step: int, record: WorkerRecord) -> None:
        """Show the staleness of the updates, and a worker that the others wait for."""
        if any(record.staleness):
            values = np.repeat(STALENESS_EDGES, record.staleness)
            for writer in self.writers:
                writer.histogram("train", step, "staleness", values)
        if line := self._straggler.line(record):
            self.channel.line(line)

    def _write(self, split: str, step: int, metrics: Mapping[str, float]) -> None:
        values = {"epoch": self.plan.epochs.completed(step), **metrics}
        for writer in self.writers:
            writer.scalars(split, step, values)

    def _rate(self, step: int) -> float:
        """Return the examples per second since the window began."""
        num_steps = step - self._begin_step
        return num_steps * self.plan.epochs.global_size / self._secs() if num_steps else 0.0
