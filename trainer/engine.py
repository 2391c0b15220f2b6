"""The training engine: one loop that fits on a screen.

restore
while step < total:
    run the steps up to the next event inside one graph call
    if an event is due: evaluate, write metrics, tell callbacks, save
write the result
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tensorflow as tf

from trainer.channel import Channel
from trainer.checkpoint import Checkpoints
from trainer.collectives import first_difference
from trainer.errors import NonFiniteError
from trainer.evaluation import Evaluator, Stopped
from trainer.faults import Faults
from trainer.files import write_atomically
from trainer.guard import Guard
from trainer.ledger import Ledger
from trainer.loop import TrainLoop, unpack
from trainer.markers import marker
from trainer.pace import Pace
from trainer.peers import Peers
from trainer.policies import Elapsed, Epochs, Interval
from trainer.protocols import Callback
from trainer.state import TrainState
from trainer.writers.base import Writer


@dataclass(frozen=True)
class Plan:
    """When things happen in a run.

    Attributes:
        total_steps: length of the whole training.
        epochs: the reporting epochs.
        summarise: when training metrics are written.
        evaluate: when the test split is evaluated; None: not by those who train, but for the result.
        save: after which steps the state is saved.
        save_clock: also saves when the chief's clock says so.
        stops: steps at which a call ends for another reason, and nothing is due.
    """

    total_steps: int
    epochs: Epochs
    summarise: Interval
    evaluate: Interval | None
    save: Interval
    save_clock: Elapsed
    stops: frozenset[int] = frozenset()

    def next_event(self, step: int) -> int:
        """Gives the first step after `step` at which something is due."""
        epoch_end = self.epochs.end(self.epochs.completed(step))
        stops = [stop for stop in self.stops if stop > step]
        return min(epoch_end, *(interval.next_after(step) for interval in self._intervals), *stops)

    def event_at(self, step: int) -> bool:
        """Says whether anything is due after `step` steps."""
        return self.epochs.ends_at(step) or any(interval.due(step) for interval in self._intervals)

    @property
    def _intervals(self) -> list[Interval]:
        return [interval for interval in (self.summarise, self.evaluate, self.save) if interval is not None]


class Engine:
    """Trains from the newest checkpoint to the last step.

    Attributes:
        step: number of updates made. What the host must know at every turn it keeps itself: reading a variable costs as much
            as a small step.

    Args:
        run_dir: the run directory.
        plan: when things happen.
        state: the state, complete and created in the strategy's scope.
        loop: the compiled training loop.
        evaluator: evaluates the test split.
        checkpoints: where the state is saved and restored.
        open_writers: opens the summary writers at a position.
        channel: tells the user.
        pace: how many steps go into one graph call.
        global_size: examples in a step.
        peers: the processes that run every step together.
        faults: what is rehearsed.
    """

    def __init__(
        self,
        *,
        run_dir: Path,
        plan: Plan,
        state: TrainState,
        loop: TrainLoop,
        evaluator: Evaluator,
        checkpoints: Checkpoints,
        open_writers: Callable[[int], list[Writer]],
        channel: Channel,
        pace: Pace,
        global_size: int,
        peers: Peers,
        faults: Faults,
    ) -> None:
        self.run_dir, self.plan, self.state, self.loop = run_dir, plan, state, loop
        self.evaluator, self.checkpoints, self.channel, self.pace = evaluator, checkpoints, channel, pace
        self._open_writers, self._global_size, self.peers = open_writers, global_size, peers
        self._faults = faults
        self.ledger = Ledger(run_dir, writes=peers.is_chief)
        self.step, self._count, self._reported, self._ended = 0, 1, 0, False
        self._opened: Any = None
        self._noted = run_dir / "left_out.json"
        self._writers: list[Writer] = []
        self._evaluated: dict[str, float] | None = None
        self._saved: tuple[int, int] | None = None
        self._window_began, self._window_step, self._window_waited = time.monotonic(), 0, 0.0

    @property
    def _guard(self) -> Guard:
        return self.state.guard

    @property
    def _callbacks(self) -> Mapping[str, Callback]:
        return self.state.callbacks

    def train(self, stop_requested: Callable[[], bool], save_requested: Callable[[], bool] = lambda: False) -> bool:
        """Trains to the end, or until a stop is requested.

        Args:
            stop_requested: whether one was requested of this process.
            save_requested: whether a save was, since it was asked last.

        Returns:
            Whether the training is finished; if not, the state has been saved.

        Raises:
            NonFiniteError: the training has diverged, and is not to go on; no such state is ever saved.
            CheckpointError: nothing to be trusted to restore, or a checkpoint could not be written.
        """
        if self._restore() is None and self._guard.rolls_back:
            self._saved = None
            self._save()  # what the first steps roll back to
        # Before the first step: processes that communicate differently would add up what does not belong together, or hang.
        self.peers.require_alike(lambda: self.loop.trace(self._opened), first_difference)
        try:
            self._events(stop_requested)
            self._faults.reached("step", self.step)
            while not self._finished and not self._agree(stop_requested(), save_requested()):
                self._advance()
                self._faults.reached("step", self.step)
                self._events(stop_requested)
            if not self._finished:
                self._save()
            return self._finished
        except Stopped:
            self._save()
            return False
        finally:
            for writer in self._writers:
                writer.close()
            self.checkpoints.wait()  # what was saved before an error counts too

    @property
    def _finished(self) -> bool:
        return (self.step >= self.plan.total_steps or self._ended) and self._reported >= self.step

    def _agree(self, stop: bool, save: bool) -> bool:
        """Agrees on what only one process knows: how long the next call is, whether to save, whether to stop."""
        self.checkpoints.check()
        chiefs = (self.plan.save_clock.due(), self.pace.count) if self.peers.is_chief else (0, 0)
        stopping, saving, due, self._count = self.peers.sums(stop, save, *chiefs)
        if saving or due:
            self._save(self._evaluated if due else None)
        return stopping > 0

    def _restore(self, at_most: int | None = None) -> int | None:
        """Restores the newest checkpoint, of step `at_most` at the most, and opens all that begins there; gives its step."""
        restored = self.checkpoints.restore_latest(at_most)
        for line in self.checkpoints.skipped:
            self.channel.line(f"warning: {line}")
        if restored is not None:
            self.channel.line(f"Continuing from the checkpoint of step {restored}.")
        self._recall()
        self.peers.require_same("variables", lambda: self.state.digests(self.loop.strategy))
        self.step, self._reported = int(self.state.step.numpy()), int(self.state.reported.numpy())
        self._ended = bool(self.state.ended.numpy())
        self._writers = self._open_writers(self._reported)
        self._begin_window()
        self._saved = (self.step, self._reported)
        self._open()
        self._enter("compile")
        return restored

    def _enter(self, phase: str) -> None:
        """Says what is being done from now on: to those who watch, and to the ledger."""
        self.channel.phase(phase, self.step)
        self.ledger.enter(phase, self.step)

    def _advance(self) -> None:
        """Runs the steps up to the next event, or as many as the pace allows, in one graph call."""
        step = self.step
        count = min(self.plan.next_event(step) - step, self._count)
        first = not self.pace.started
        self._evaluated = None
        self._enter("compile" if first else "train")
        if first:
            self._faults.reached("compile")
        began = time.monotonic()
        window, waited, trouble = self.loop.run(self._opened, tf.constant(count, tf.int64))
        window = window.numpy()
        self.step = step + count
        self._window_waited += float(waited)
        self.ledger.ran(self.step, float(waited))
        secs = time.monotonic() - began
        self.pace.took(count, secs)
        if first:
            self._enter("train")
            self._begin_window()
        if (bad := int(trouble.step)) >= 0:
            self._diverged(bad, self._guard.describe(bad, trouble.finding.numpy()))
            return
        rate, remaining = self._rate(), (self.plan.total_steps - step - count) * self._global_size
        self.channel.progress(
            step + count, self.plan.total_steps, rate, remaining / rate if rate else None, unpack(self.state.task, window)
        )

    def _begin_window(self) -> None:
        self._window_began, self._window_step, self._window_waited = time.monotonic(), self.step, 0.0

    def _diverged(self, step: int, what: str) -> None:
        """Ends the run, or goes back to before the steps to be left out and goes on without their samples."""
        blocks = self._guard.blocks_without(step) if self._guard.rolls_back else None
        if blocks is None:
            raise self._guard.error(what)
        first = self._guard.first_left_out(step)
        self.channel.line(f"{what[0].upper()}{what[1:]}; rolling back, and leaving out the samples of {self._guard.told(step, blocks)}")
        for writer in self._writers:
            writer.close()
        if self._restore(first) is None:
            raise NonFiniteError(f"{what}, and there is no checkpoint of step {first} or before; add checkpoint.keep=<more>")
        # Also what has been left out since that checkpoint.
        self._guard.leave_out(blocks)
        if self.peers.is_chief:
            write_atomically(self._noted, json.dumps(blocks))
        self._open()

    def _recall(self) -> None:
        """Leaves out also what an attempt left out that was killed before it saved again."""
        noted = self._noted.read_text() if self.peers.is_chief and self._noted.exists() else "[]"
        self._guard.leave_out(sorted({*self._guard.blocks(), *json.loads(self.peers.chiefs_text(noted))}))

    def _open(self) -> None:
        self._opened = self.loop.feed.start(self.step, self._guard.left_out.numpy())

    def _rate(self) -> float:
        """Gives the examples a second since the last event."""
        steps, secs = self.step - self._window_step, time.monotonic() - self._window_began
        return steps * self._global_size / secs if steps else 0.0

    def _events(self, stop_requested: Callable[[], bool]) -> None:
        """Does what is due at this step, once: also after a kill, and after a stop in the middle of it."""
        step = self.step
        if step and self.plan.event_at(step) and self._reported < step:
            self._report(step, stop_requested)
            if self.plan.save.due(step) or self._ended:
                self._save(self._evaluated)

    def _report(self, step: int, stop_requested: Callable[[], bool]) -> None:
        # Evaluation first: it can be interrupted, and then none of this step's lines may have been written yet.
        self._evaluated = None
        speed = {"examples_per_sec": self._rate(), "input_wait_fraction": self._window_waited / (time.monotonic() - self._window_began)}
        if self.plan.evaluate is not None and self.plan.evaluate.due(step):
            self._enter("evaluate")
            self._faults.reached("evaluate")
            self._evaluated = self.evaluator.evaluate(stop_requested, self._enter)
        epoch = self.plan.epochs.completed(step)
        if self.plan.summarise.due(step):
            self._summarise(step, epoch, speed)
        if self.plan.epochs.ends_at(step):
            values = unpack(self.state.task, self.state.epoch.numpy())
            metric = next((name for name in values if name != "loss"), "loss")
            self.channel.line(f"Epoch: {epoch - 1}, {metric}: {values[metric]:f}, train_loss: {values['loss']:f}.")
            self.state.epoch.assign(tf.zeros_like(self.state.epoch))
        if self._evaluated is not None:
            self._write("test", step, {"epoch": epoch, **self._evaluated})
            self.channel.evaluated(step, self._evaluated)
            for name, callback in self._callbacks.items():
                if self.peers.any(callback.on_evaluate(step, self._evaluated)):
                    self.channel.line(f"{name} ends the training at step {step}.")
                    self._ended = True
                    self.state.ended.assign(True)
        self._reported = step
        self.state.reported.assign(step)
        self._begin_window()

    def _summarise(self, step: int, epoch: int, speed: Mapping[str, float]) -> None:
        values = unpack(self.state.task, self.state.window.numpy())
        # Asked for, not remembered: after a stop within this step's evaluation no step has run.
        values |= {"learning_rate": self.loop.learning_rate(step - 1), **speed, **self.loop.report()}
        values["goodput"] = self.ledger.summary().goodput
        self._write("train", step, {"epoch": epoch, **values})
        self.state.window.assign(tf.zeros_like(self.state.window))

    def _write(self, split: str, step: int, values: Mapping[str, float]) -> None:
        for writer in self._writers:
            writer.scalars(split, step, values)

    def _save(self, metrics: Mapping[str, float] | None = None) -> None:
        """Saves, unless nothing has changed; with metrics what was planned: a save on request must not become the best one."""
        step = self.step
        if (step, self._reported) == self._saved:
            return
        self._enter("save")
        if not self.peers.is_chief:
            self._faults.reached("save")  # the chief's comes when its files are written
        self.checkpoints.save(step, metrics)
        self.peers.barrier()  # so that the chief, which alone writes, is waited for as long as saving may take
        self.plan.save_clock.restart()
        self._saved = (step, self._reported)

    def result(self) -> dict[str, Any]:
        """Gives what a finished training came to: step, metrics of the test split, best checkpoint, time, attempts."""
        directory, step = self.checkpoints.directory, self.step
        best = [{"step": s, "metrics": marker(directory, s)["metrics"]} for s in self.checkpoints.best()[:1]]
        metrics = self._evaluated or marker(directory, step)["metrics"] or self.evaluator.evaluate(lambda: False, self._enter)
        spent = self.ledger.summary()
        return {
            "step": step,
            "metrics": metrics,
            "best": best[0] if best else None,
            "wall_secs": round(spent.wall_secs, 3),
            "attempts": spent.attempts,
            "goodput": round(spent.goodput, 4),
            "time": {name: round(secs, 3) for name, secs in spent.secs.items()},
        }
