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
from pathlib import Path
from typing import Any

import tensorflow as tf

from trainer.channel import Channel
from trainer.checkpoint import Checkpoints
from trainer.collectives import first_difference
from trainer.errors import NonFiniteError
from trainer.faults import Faults
from trainer.files import write_atomically
from trainer.guard import Guard
from trainer.loop import TrainLoop
from trainer.markers import marker
from trainer.outputs import Outputs
from trainer.pace import Pace
from trainer.peers import Peers
from trainer.policies import Plan
from trainer.reporting import Reporter
from trainer.state import TrainState
from trainer.turns import Stopped


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
        reporter: evaluates, writes metrics, tells callbacks.
        outputs: predicts the test split; None: the task predicts nothing.
        checkpoints: where the state is saved and restored.
        channel: tells the user.
        pace: how many steps go into one graph call.
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
        reporter: Reporter,
        outputs: Outputs | None,
        checkpoints: Checkpoints,
        channel: Channel,
        pace: Pace,
        peers: Peers,
        faults: Faults,
    ) -> None:
        self.run_dir, self.plan, self.state, self.loop, self.reporter = run_dir, plan, state, loop, reporter
        self.checkpoints, self.channel, self.pace, self.peers, self._faults = checkpoints, channel, pace, peers, faults
        self.evaluator, self.ledger, self.outputs = reporter.evaluator, reporter.ledger, outputs
        self.step, self._count, self._reported, self._ended = 0, 1, 0, False
        self._opened: Any = None
        self._noted = run_dir / "left_out.json"
        self._saved: tuple[int, int] | None = None

    @property
    def _guard(self) -> Guard:
        return self.state.guard

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
            self.reporter.close()
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
            self._save(self.reporter.evaluated if due else None)
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
        self.reporter.open(self.step, self._reported)
        self._saved = (self.step, self._reported)
        self._open()
        self._enter("compile")
        return restored

    def _enter(self, phase: str) -> None:
        self.reporter.enter(phase, self.step)

    def _advance(self) -> None:
        """Runs the steps up to the next event, or as many as the pace allows, in one graph call."""
        step = self.step
        count = min(self.plan.next_event(step) - step, self._count)
        first = not self.pace.started
        self._enter("compile" if first else "train")
        if first:
            self._faults.reached("compile")
        self.reporter.running(step)
        began = time.monotonic()
        window, waited, trouble = self.loop.run(self._opened, tf.constant(count, tf.int64))
        window = window.numpy()
        self.step = step + count
        self.reporter.ran(self.step, float(waited))
        self.pace.took(count, time.monotonic() - began)
        if first:
            self._enter("train")
            self.reporter.begin_window(self.step)
        if (bad := int(trouble.step)) >= 0:
            self._diverged(bad, self._guard.describe(bad, trouble.finding.numpy()))
        else:
            self.reporter.progress(self.step, window)

    def _diverged(self, step: int, what: str) -> None:
        """Ends the run, or goes back to before the steps to be left out and goes on without their samples."""
        blocks = self._guard.blocks_without(step) if self._guard.rolls_back else None
        if blocks is None:
            raise self._guard.error(what)
        first = self._guard.first_left_out(step)
        self.channel.line(f"{what[0].upper()}{what[1:]}; rolling back, and leaving out the samples of {self._guard.told(step, blocks)}")
        self.reporter.close()
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

    def _events(self, stop_requested: Callable[[], bool]) -> None:
        """Does what is due at this step, once: also after a kill, and after a stop in the middle of it."""
        step = self.step
        if step and self.plan.event_at(step) and self._reported < step:
            if self.reporter.report(step, stop_requested):
                self._ended = True
                self.state.ended.assign(True)
            self._reported = step
            self.state.reported.assign(step)
            if self.plan.save.due(step) or self._ended:
                self._save(self.reporter.evaluated)

    def _save(self, metrics: Mapping[str, float] | None = None) -> None:
        """Saves, unless nothing has changed; with metrics what was planned: a save on request must not become the best one."""
        step = self.step
        if (step, self._reported) == self._saved:
            return
        self._enter("save")
        if not self.peers.is_chief:
            self._faults.reached("save")  # the chief's comes when its files are written
        self.reporter.flush()  # what a checkpoint has behind it is never reported again
        self.checkpoints.save(step, metrics)
        self.peers.barrier()  # so that the chief, which alone writes, is waited for as long as saving may take
        self.plan.save_clock.restart()
        self._saved = (step, self._reported)

    def result(self) -> dict[str, Any]:
        """Gives what a finished training came to: step, metrics of the test split, best checkpoint, time, attempts."""
        directory, step = self.checkpoints.directory, self.step
        best = [{"step": s, "metrics": marker(directory, s)["metrics"]} for s in self.checkpoints.best()[:1]]
        metrics = self.reporter.evaluated or marker(directory, step)["metrics"] or self.evaluator.evaluate(lambda: False, self._enter)
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
