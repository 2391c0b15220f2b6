"""What a training tells: metrics to the writers, progress and lines to the user, evaluations to the callbacks."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack

import tensorflow as tf

from trainer import memory
from trainer.channel import Channel
from trainer.evaluation import Evaluator
from trainer.faults import Faults
from trainer.ledger import Ledger
from trainer.loop import TrainLoop, unpack
from trainer.peers import Peers
from trainer.policies import Plan
from trainer.probe import Probe
from trainer.profiler import Profiler
from trainer.state import TrainState
from trainer.writers.base import Writer


class Reporter:
    """Reports what is due at a step, and keeps the time since it last did.

    Attributes:
        evaluated: the metrics of the test split at the present step, if it was evaluated there.
        evaluator: evaluates the test split.
        ledger: where the time goes.

    Args:
        plan: when things happen.
        state: whose sums are told.
        loop: tells learning rates, and what else is particular to it.
        evaluator: evaluates the test split.
        open_writers: opens the summary writers at a position.
        channel: tells the user.
        ledger: where the time goes.
        global_size: examples in a step.
        peers: the processes that run every step together.
        faults: what is rehearsed.
        probe: shows histograms and images; None: there are none.
        profiler: records a window of steps; None: nobody does.
    """

    def __init__(
        self,
        *,
        plan: Plan,
        state: TrainState,
        loop: TrainLoop,
        evaluator: Evaluator,
        open_writers: Callable[[int], list[Writer]],
        channel: Channel,
        ledger: Ledger,
        global_size: int,
        peers: Peers,
        faults: Faults,
        probe: Probe | None,
        profiler: Profiler | None,
    ) -> None:
        self._plan, self._state, self._loop, self.evaluator, self._open_writers = plan, state, loop, evaluator, open_writers
        self._channel, self.ledger, self._global_size, self._peers, self._faults = channel, ledger, global_size, peers, faults
        self._probe, self._probed, self._profiler = probe, False, profiler
        self.evaluated: dict[str, float] | None = None
        self._writers: list[Writer] = []
        self.begin_window(0)

    def open(self, step: int, reported: int) -> None:
        """Begins at a step; what an earlier attempt wrote of steps after `reported` does not count."""
        self.evaluated = None
        self._writers = self._open_writers(reported)
        self.begin_window(step)

    def flush(self) -> None:
        """Brings what was reported so far to the disk."""
        for writer in self._writers:
            writer.flush()

    def close(self) -> None:
        """Brings everything to the disk."""
        with ExitStack() as stack:  # one that fails does not keep the others open
            for writer in self._writers:
                stack.callback(writer.close)
            if self._profiler is not None:
                stack.callback(self._profiler.close)

    def enter(self, phase: str, step: int) -> None:
        """Says what is being done from now on: to those who watch, and to the ledger."""
        self._channel.phase(phase, step)
        self.ledger.enter(phase, step)

    def begin_window(self, step: int) -> None:
        """Measures the speed from now on."""
        self._began, self._begin_step, self._waited = time.monotonic(), step, 0.0

    def running(self, step: int) -> None:
        """Takes note of a call that begins after `step` updates."""
        if self._profiler is not None:
            self._profiler.before(step)

    def ran(self, step: int, waited: float) -> None:
        """Takes note of a call that ended at `step`, and of how many seconds its steps waited for their input."""
        if self._profiler is not None:
            self._profiler.after(step)
        self.evaluated = None
        self._waited += waited
        self.ledger.ran(step, waited)

    def progress(self, step: int, window: tf.Tensor) -> None:
        """Says how far training is; `window` are the sums since the last summary."""
        rate, total = self._rate(step), self._plan.total_steps
        secs_left = (total - step) * self._global_size / rate if rate else None
        self._channel.progress(step, total, rate, secs_left, unpack(self._state.task, window))

    def report(self, step: int, stop_requested: Callable[[], bool]) -> bool:
        """Does what is due at `step`.

        Returns:
            Whether a callback ends the training.

        Raises:
            Stopped: a stop was requested while it was evaluated; nothing of this step has been written.
        """
        # Evaluation first: it can be interrupted, and then none of this step's lines may have been written yet.
        speed = {"examples_per_sec": self._rate(step), "input_wait_fraction": self._waited / (time.monotonic() - self._began)}
        self.evaluated = self._evaluate(step, stop_requested)
        epoch = self._plan.epochs.completed(step)
        if self._plan.summarise.due(step):
            self._summarise(step, epoch, speed)
        if self._plan.epochs.ends_at(step):
            values = unpack(self._state.task, self._state.epoch.numpy())
            metric = next((name for name in values if name != "loss"), "loss")
            self._channel.line(f"Epoch: {epoch - 1}, {metric}: {values[metric]:f}, train_loss: {values['loss']:f}.")
            self._state.epoch.assign(tf.zeros_like(self._state.epoch))
        ends = self.evaluated is not None and self._tell(step, epoch, self.evaluated)
        if self._probe is not None and self._probe.due(step):
            self.enter("train" if self._probed else "compile", step)
            self._probe.show(step, self._writers)
            self._probed = True
        self.begin_window(step)
        return ends

    def _rate(self, step: int) -> float:
        """Gives the examples a second since the window began."""
        steps, secs = step - self._begin_step, time.monotonic() - self._began
        return steps * self._global_size / secs if steps else 0.0

    def _evaluate(self, step: int, stop_requested: Callable[[], bool]) -> dict[str, float] | None:
        if self._plan.evaluate is None or not self._plan.evaluate.due(step):
            return None
        self.enter("evaluate", step)
        self._faults.reached("evaluate")
        return self.evaluator.evaluate(stop_requested, lambda phase: self.enter(phase, step))

    def _summarise(self, step: int, epoch: int, speed: Mapping[str, float]) -> None:
        values = unpack(self._state.task, self._state.window.numpy())
        # Asked for, not remembered: after a stop within this step's evaluation no step has run.
        values |= {"learning_rate": self._loop.learning_rate(step - 1), **speed, **self._loop.report()}
        values |= {"goodput": self.ledger.summary().goodput, **memory.figures()}
        self._write("train", step, {"epoch": epoch, **values})
        self._state.window.assign(tf.zeros_like(self._state.window))

    def _tell(self, step: int, epoch: int, evaluated: Mapping[str, float]) -> bool:
        """Tells an evaluation to all; says whether a callback ends the training."""
        self._write("test", step, {"epoch": epoch, **evaluated})
        for writer in self._writers:
            for name, images in self.evaluator.images.items():
                writer.images("test", step, name, images)
        self._channel.evaluated(step, evaluated)
        # All are asked: each keeps its own count.
        ending = [name for name, callback in self._state.callbacks.items() if self._peers.any(callback.on_evaluate(step, evaluated))]
        for name in ending:
            self._channel.line(f"{name} ends the training at step {step}.")
        return bool(ending)

    def _write(self, split: str, step: int, values: Mapping[str, float]) -> None:
        for writer in self._writers:
            writer.scalars(split, step, values)
