"""What a training reports: metrics to the writers, progress and lines to the user, waits."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

import numpy as np
import tensorflow as tf

from trainer.cluster.messages import Channel
from trainer.config.directions import Directions
from trainer.config.schema import Experiment
from trainer.engine.evaluation.evaluator import Evaluation
from trainer.engine.graph.loops.train_loop import TrainLoop
from trainer.engine.graph.step.metric_sums import num_sums, unpack
from trainer.engine.plan import Plan
from trainer.engine.process_group import ProcessGroup
from trainer.runs.ledger import Ledger, StragglerWatch, WorkerRecord, WorkerTime
from trainer.summaries import profiler
from trainer.summaries.profiler import Profiler
from trainer.summaries.writers.writer import Writer
from trainer.text import without_classes

_WIDTHS = {"loss": 6}
_WIDTH = 5  # of other metrics: most are between 0 and 1


@dataclass(frozen=True)
class ExchangeTime:
    """The seconds that a process has spent in exchanges of gradients, since its start.

    If it `includes_travel`, the gradients' travel is in them, not only the wait.
    """

    read: Callable[[], float]
    includes_travel: bool = False


@dataclass(eq=False, repr=False)
class WorkerClock:
    """Measures how long this process works on steps, and how long it waits for the others.

    The wait has two parts. Between graph calls it is the time until all processes have agreed on
    the next one. Within a call it is that of the exchange of gradients: in shared memory the time
    between arriving and the arrival of the last, measured by the exchange itself. A ring of
    TensorFlow's shows only when the gradient was ready and when the sum was there, and the travel
    of the gradient is in between; the least such time of any process counts as travel, what is
    above it as waiting.
    """

    process_group: ProcessGroup
    names: Sequence[str] = ()
    exchange: ExchangeTime | None = None

    def __post_init__(self) -> None:
        self._exchange = self.exchange or ExchangeTime(lambda: 0.0)
        self.begin(0)

    def begin(self, step: int) -> None:
        """Begin an interval after `step` updates; what was measured before is dropped."""
        self._step = step
        self._began = time.monotonic()
        self._busy_secs = 0.0
        self._agree_secs = 0.0
        self._exchanged = self._exchange.read()

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Count the block as a wait for the other processes."""
        began = time.monotonic()
        yield
        self._agree_secs += time.monotonic() - began

    @contextmanager
    def working(self) -> Iterator[None]:
        """Count the block as steps: as work, except for what the exchange has measured."""
        began = time.monotonic()
        yield
        # An interval that began within the block has only its end.
        self._busy_secs += time.monotonic() - max(began, self._began)

    def end(self, step: int) -> WorkerRecord:
        """Return what all processes did in the interval, and begin the next one; collective."""
        exchange_secs = self._exchange.read() - self._exchanged
        own = (self._busy_secs, self._agree_secs, exchange_secs)
        num_steps = step - self._step
        self.begin(step)
        if self.process_group.count == 1:
            return WorkerRecord()
        gathered = self.process_group.gather(*(round(1e6 * secs) for secs in own))
        rows = [[value / 1e6 for value in row] for row in gathered]
        if not num_steps:  # after a stop within the evaluation of this step
            return WorkerRecord()
        travel = min(row[2] for row in rows) if self._exchange.includes_travel else 0.0
        return WorkerRecord(
            {
                name: WorkerTime(
                    max(0.0, busy - exchanged + travel), agreed + exchanged - travel, num_steps
                )
                for name, (busy, agreed, exchanged) in zip(self.names, rows, strict=True)
            }
        )


class ResultLines:
    """The lines of a training for the user: one for each epoch or evaluation.

        epoch  1/30  step  12  train 2.2503 0.229  test 2.1137 0.658  best

    Columns keep their place: their widths follow from the length of the training.

    Attributes:
        num_epochs: length of the whole training; None: it is given in steps.
        metric: the metric by which an evaluation is the best so far.
        mode: whether `max` or `min` is best; None: unknown.
        best: the best value so far; NaN before the first evaluation.
    """

    def __init__(
        self,
        experiment: Experiment,
        total_steps: int,
        split: str,
        train_names: Sequence[str],
        directions: Directions,
    ) -> None:
        best = experiment.checkpoint.best
        self.split = split
        self.num_epochs = experiment.train.epochs
        self.metric = best.metric or directions.primary
        self.mode = directions.mode(self.metric, best.mode if best.metric else "auto")
        self.best = math.nan
        self.explained: set[str] = set()
        self._total_steps = total_steps
        self._train_names = train_names

    def recall(self, evaluations: Iterable[Mapping[str, float]]) -> None:
        """Take the evaluations of earlier attempts, and forget those of this one."""
        self.best = math.nan
        for metrics in evaluations:
            self._is_best(metrics)

    def show(
        self,
        channel: Channel,
        step: int,
        epoch: int | None,
        train: Mapping[str, float] | None,
        evaluated: Mapping[str, float] | None,
    ) -> None:
        """Show the line of an epoch, an evaluation, or both; the first time what the numbers are.

        The arguments are those of `line`.
        """
        if legend := self.legend(evaluated or ()):
            channel.opening(legend)
        text = self.line(step, epoch, train, evaluated)
        if evaluated:
            channel.evaluated(step, evaluated, self.split, text)
        else:
            channel.line(text)

    def legend(self, evaluated: Iterable[str]) -> str:
        """Return what the numbers are: `train and test: loss, accuracy; best: highest accuracy`.

        Args:
            evaluated: names of the evaluation's metrics; empty: there was none at this step.

        Returns:
            The text, without what was returned before; empty: all was.
        """
        names = {"train": self._shown(self._train_names), self.split: self._shown(evaluated)}
        new = {split: ", ".join(part) for split, part in names.items() if part}
        new = {split: text for split, text in new.items() if split not in self.explained}
        self.explained |= new.keys()
        parts = [f"{split}: {text}" for split, text in new.items()]
        if len(new) == 2 and len({*new.values()}) == 1:
            parts = [f"{' and '.join(new)}: {new['train']}"]
        better = {"max": "highest", "min": "lowest"}.get(self.mode or "")
        if better and self.split in new:
            parts.append(f"best: {better} {self.metric}")
        return "; ".join(parts)

    def line(
        self,
        step: int,
        epoch: int | None,
        train: Mapping[str, float] | None,
        evaluated: Mapping[str, float] | None,
    ) -> str:
        """Return the line of an epoch, an evaluation, or both.

        Args:
            epoch: number of the epoch that ends here, from 1; None: none does.
            train: the training's metrics since the last line; None: unknown.
            evaluated: those of the split that selects; None: nothing was evaluated.
        """
        cells = [self._position(step, epoch)]
        blank = self._numbers("train", dict.fromkeys(self._train_names, 0.0))
        cells.append(self._numbers("train", train) if train else " " * len(blank))
        if evaluated:
            cells.append(self._numbers(self.split, evaluated))
            if self._is_best(evaluated):
                cells.append("best")
        return "  ".join(cells).rstrip()

    def _position(self, step: int, epoch: int | None) -> str:
        width = len(str(self._total_steps))
        if self.num_epochs is None:
            return f"step {step:>{width}}/{self._total_steps}"
        total = str(self.num_epochs)
        text = f"epoch {epoch or '':>{len(total)}}/{total}"
        return f"{text if epoch else ' ' * len(text)}  step {step:>{width}}"

    def _shown(self, names: Iterable[str]) -> list[str]:
        """Return the names of the metrics that are shown: the loss and the main one."""
        names = list(without_classes(dict.fromkeys(names, 0.0)))
        names.sort(key=lambda name: (name != "loss", name != self.metric))
        return names[:2]

    def _numbers(self, split: str, metrics: Mapping[str, float]) -> str:
        numbers = [
            _fixed(metrics[name], _WIDTHS.get(name, _WIDTH)) for name in self._shown(metrics)
        ]
        return " ".join([split, *numbers])

    def _is_best(self, metrics: Mapping[str, float]) -> bool:
        value = metrics.get(self.metric, math.nan)
        if self.mode is None or math.isnan(value):
            return False
        is_better = value > self.best if self.mode == "max" else value < self.best
        if is_better or math.isnan(self.best):
            self.best = value
            return True
        return False


def _fixed(value: float, width: int) -> str:
    """Return a number with as many decimals as its width has room for, or as `1e-05`."""
    decimals = width - 2
    if 0 < abs(value) < 10**-decimals:
        return f"{value:{width}.0e}"
    texts = (f"{value:{width}.{count}f}" for count in range(decimals, -1, -1))
    return next((text for text in texts if len(text) <= width), f"{value:.1e}")


@dataclass(eq=False)
class Reporter:
    """Writes metrics, and measures the speed of training since the last report.

    Attributes:
        writers: the open summary writers; none in a process that writes nothing.
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

        What was written after step `reported`, the last whose report was complete, is dropped.
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
        self._paused_at = began = time.monotonic()
        try:
            yield
        finally:
            self._began += time.monotonic() - began
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
        """Record that a graph call has ended, whose steps waited so many seconds for input."""
        if self.profiler is not None:
            self.profiler.after(step)
        self._waited += waited
        self.ledger.record_step(step, waited)

    def show_progress(self, step: int, window: tf.Tensor) -> None:
        """Show how far training is, with the sums since the last summary, [2 * metrics] float64."""
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
        """Show the line of an epoch, an evaluation, or both; None: no epoch ends, or none was."""
        epoch = None
        train = epoch_metrics
        sums = self._state.epoch_sums.numpy()
        if epoch_metrics is not None:
            epoch = self.plan.epochs.completed(step)
        elif (sums - self._shown_sums)[1::2].any():
            train = unpack(self._state.task, sums - self._shown_sums)
        self._shown_sums = sums
        self.lines.show(self.channel, step, epoch, train, evaluated)

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
        self.write_scalars("train", step, values)
        if line := self._straggler.line(record):
            self.channel.line(line)
        self.begin_window(step)
        self._state.summary_sums.assign(tf.zeros_like(self._state.summary_sums))

    def write_evaluation(self, split: str, step: int, evaluation: Evaluation) -> None:
        """Write the evaluation of a split after `step` updates."""
        self.write_scalars(split, step, evaluation.metrics)
        for writer in self.writers:
            evaluation.show(writer, split, step)

    def write_scalars(self, split: str, step: int, metrics: Mapping[str, float]) -> None:
        """Write numbers of a split after `step` updates."""
        values = {"epoch": self.plan.epochs.completed(step), **metrics}
        for writer in self.writers:
            writer.scalars(split, step, values)

    def _rate(self, step: int) -> float:
        """Return the examples per second since the window began."""
        num_steps = step - self._begin_step
        return num_steps * self.plan.epochs.global_size / self._secs() if num_steps else 0.0
