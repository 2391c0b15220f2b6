"""The training engine: a loop on the host over graph calls, and one in each call over steps.

restore the newest state: from memory, or a checkpoint
call the callbacks: the training begins
handle what is due at its step
while not finished:
    decision = agree with all processes
    if decision.save: save
    if decision.stop: leave the loop
    run the steps up to the next event in one graph call    # `TrainLoop.run`: the second loop
    handle what is due: audit the replicas, evaluate, write metrics, run the callbacks, save
if not finished: save, and leave; else evaluate, if the result has no metrics yet
if there is a validation split: evaluate the test split, with the last weights and the best
call the callbacks: the training ends
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import tensorflow as tf

from trainer.cluster.messages import evaluation_text
from trainer.engine.callback_events import CallbackCaller
from trainer.engine.checkpoints.checkpointer import Checkpointer
from trainer.engine.evaluation.evaluator import Evaluation, Evaluator
from trainer.engine.evaluation.predictor import Predictor
from trainer.engine.graph.exchange.collective_log import first_difference
from trainer.engine.graph.loops.train_loop import TrainLoop
from trainer.engine.graph.state.train_state import TrainState
from trainer.engine.graph.step.divergence import DivergenceMonitor, DivergenceStatus
from trainer.engine.pacing import Stopped
from trainer.engine.plan import Plan
from trainer.engine.process_group import ProcessGroup
from trainer.engine.reporter import Reporter
from trainer.engine.run_state import RunState
from trainer.engine.step_inspector import StepInspector
from trainer.errors import NonFiniteError
from trainer.files import read_json, write_json
from trainer.runs.recorded_metrics import read_evaluations
from trainer.runs.state_memory import Position


@dataclass(kw_only=True, eq=False, repr=False)
class Engine(RunState):
    """Trains from the newest checkpoint to the last step.

    Attributes:
        run_dir: the run directory.
        plan: at which steps something is due.
        loop: the compiled training loop.
        evaluator: evaluates the split that selects, or whole episodes.
        split: the name of that split: `validation`, or `test`.
        make_test_evaluator: makes what evaluates the test split at the end; None: `evaluator` does.
        predictor: predicts the test split; None: the task has no `predict_step`.
        reporter: writes metrics and progress.
        step_inspector: shows histograms and images of a step; None: neither is configured.
    """

    run_dir: Path
    plan: Plan
    loop: TrainLoop
    evaluator: Evaluator
    split: str
    make_test_evaluator: Callable[[], Evaluator] | None
    predictor: Predictor | None
    reporter: Reporter
    step_inspector: StepInspector | None
    checkpointer: Checkpointer
    _reported_step: int = field(default=0, init=False)
    _stopped_early: bool = field(default=False, init=False)
    _metrics: dict[str, float] | None = field(default=None, init=False)  # at this step
    _iterator: Any = field(default=None, init=False)
    _is_prepared: bool = field(default=False, init=False)
    # Whether the last event changed more than metrics; None: it is kept, or there was none.
    _event_changes: bool | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        group = self.process_group
        self.final = FinalEvaluation(self, self.run_dir, self.reporter)
        self._rollback = Rollback(self.run_dir, self.state.divergence_monitor, group)
        self._callbacks = CallbackCaller(
            self.run_dir, self.reporter, self.state, self.loop.strategy, group, self.channel
        )

    @property
    def state(self) -> TrainState:
        """The state that is trained."""
        return self.loop.state

    @property
    def _finished(self) -> bool:
        is_last = self.step >= self.plan.total_steps or self._stopped_early
        return is_last and self._reported_step >= self.step

    def prepare(self) -> None:
        """Trace and compile what a restart runs before its first new step; collective.

        It runs no step, and writes nothing: for a process that waits for another attempt to fail.
        """
        self._open_input()
        self._trace()
        # No step: but Grappler optimizes the graph, and its kernels are there.
        self.loop.run(self._iterator, tf.constant(0, tf.int64))
        self.process_group.assert_same("variables", lambda: self.state.digests(self.loop.strategy))
        self.agree(False, False)
        if self.memory is not None:
            self.memory.prepare()
        self._is_prepared = True

    def train(
        self, stop_requested: Callable[[], bool], save_requested: Callable[[], bool] = lambda: False
    ) -> bool:
        """Train to the end, or until a stop is requested.

        Args:
            stop_requested: whether a stop was requested of this process.
            save_requested: whether a save was requested of this process since the last call.

        Returns:
            Whether the training is finished; if not, the state has been saved.

        Raises:
            NonFiniteError: the training has diverged; no such state is ever saved.
            CheckpointError: no checkpoint can be trusted, or one could not be written.
        """
        with ExitStack() as stack:  # whatever fails: a checkpoint that was begun counts too
            stack.callback(self.finish_save)
            stack.callback(self.reporter.close)
            if self._restore() is None and self.state.divergence_monitor.rolls_back:
                self._saved = None
                self._save()  # what the first steps roll back to
            if not self._is_prepared:
                self._trace()
            self._callbacks.call("on_train_begin")
            self.keep(self._position, force=True)
            with suppress(Stopped):  # in the middle of an evaluation: nothing of it was written
                self._run(stop_requested, save_requested)
            if not self._finished:
                self._save()
                return False
            with suppress(Stopped):
                self._evaluate_at_end(stop_requested)
                self._callbacks.call("on_train_end")
                return True
            return False

    def handle_events(self, stop_requested: Callable[[], bool]) -> None:
        """Do what is due at this step, once: also after a kill, or a stop in the middle of it."""
        step = self.step
        if not step or not self.plan.event_at(step) or self._reported_step >= step:
            return
        speed = self.reporter.speed(step)
        # What is to change besides the sums of the summary, which are reset last.
        changes = self.plan.changes_at(step)
        self.keep(self._position, force=changes)
        self._event_changes = changes
        # Evaluation first: it can be interrupted, and then no line of this step may be written yet.
        evaluation = self._evaluate(stop_requested)
        self._metrics = None if evaluation is None else evaluation.metrics
        if self.plan.summarize.due(step):
            self.reporter.write_train_metrics(step, speed)
        is_epoch_end = self.plan.epochs.ends_at(step)
        epoch_metrics = self.reporter.end_epoch(step) if is_epoch_end else None
        if evaluation is not None and evaluation.metrics:
            self.reporter.write_evaluation(self.split, step, evaluation)
        if is_epoch_end or self._metrics:
            self.reporter.show_results(step, epoch_metrics, self._metrics)
        self._callbacks.show(step, epoch_metrics, self._metrics)
        with self.reporter.uncounted():
            ends = [
                self._callbacks.call(event)
                for event, is_due in (
                    ("on_step", True),
                    ("on_evaluate", bool(self._metrics)),
                    ("on_epoch_end", is_epoch_end),
                )
                if is_due
            ]
        if self.step_inspector is not None and self.step_inspector.due(step):
            self.enter("train" if self.step_inspector.compiled else "compile")
            self.step_inspector.show(step, self.reporter.writers)
        if self.plan.reports_at(step):
            self.reporter.begin_window(step)
        if any(ends):
            self._stopped_early = True
            self.state.stopped_early.assign(True)
        self.reporter.settle()
        self._reported_step = step
        self.state.last_reported_step.assign(step)
        if self._stopped_early or step == self.plan.total_steps:
            self.state.finish()
        if self.plan.save.due(step) or self._stopped_early:
            self._save(self._metrics)

    def result(self) -> dict[str, Any]:
        """Return a finished training's step, test metrics, best checkpoint, time and attempts.

        With a validation split the metrics by which was selected stand beside, as `validation`.
        """
        best = next(iter(self.checkpointer.best()), None)
        return {
            "step": self.step,
            **self._figures(self.step, self._metrics),
            "best": None
            if best is None
            else {"step": best, **self._figures(best, self.checkpointer.metrics(best))},
            **self.loop.totals(),
            **self.ledger.summary().result(),
        }

    def _figures(self, step: int, metrics: dict[str, float] | None) -> dict[str, Any]:
        if self.split == "test":
            return {"metrics": metrics}
        # Without test data there are no test metrics.
        return {"metrics": self.final.metrics.get(step, {}), self.split: metrics}

    def _evaluate_at_end(self, stop_requested: Callable[[], bool]) -> None:
        """Evaluate what the result lacks; collective.

        Raises:
            Stopped: a stop was requested of some process; nothing is saved.
        """
        self.finish_save()
        if not self._metrics:
            # Nothing was evaluated in this attempt: a sidecar does, or an earlier attempt has.
            metrics = self.checkpointer.metrics(self.step)
            # The chief decides: the others need not see its checkpoints.
            (is_evaluated,) = self.process_group.broadcast_from_chief(len(metrics))
            if not is_evaluated:
                metrics = self.evaluator.evaluate(stop_requested, self.enter).metrics
            self._metrics = metrics
        if self.make_test_evaluator is not None:
            self.final.evaluate(self.make_test_evaluator(), stop_requested)

    def _run(self, stop_requested: Callable[[], bool], save_requested: Callable[[], bool]) -> None:
        """Run the training loop until it is finished, or the processes agree to stop."""
        clock = self.reporter.clock
        self.handle_events(stop_requested)
        self.faults.reached("step", self.step)
        while not self._finished:
            self.checkpointer.check()
            requests = stop_requested(), save_requested()
            with clock.waiting():
                stops, saves, is_due, num_steps = self.agree(*requests)
            self._keep_after_event()
            if saves or is_due:
                # A save on request has no metrics: it must not become the best checkpoint.
                self._save(self._metrics if is_due else None)
            if stops:
                return
            with clock.working():
                self._advance(num_steps)
                self.faults.reached("step", self.step)
            with self.reporter.uncounted():
                problem = self.audit()
            if problem is not None:
                self._go_back(*problem)
            self.handle_events(stop_requested)
        self.process_group.barrier()
        self._keep_after_event()

    def _keep_after_event(self) -> None:
        """Keep the state after an event, now that all processes have been through it."""
        if self._event_changes is not None:
            self.keep(self._position, force=self._event_changes)
            self._event_changes = None

    @property
    def _position(self) -> Position:
        return Position(self.step, self._reported_step)

    def _advance(self, num_steps: int) -> None:
        """Run the steps up to the next event, `num_steps` at most, in one graph call."""
        step = self.step
        count = min(self.plan.next_event(step) - step, self.until_audit(num_steps))
        is_first = not self.pacer.started
        self.enter("compile" if is_first else "train")
        if is_first:
            self.faults.reached("compile")
        self.reporter.before_steps(step)
        began = time.monotonic()
        window, waited, status = self.loop.run(self._iterator, tf.constant(count, tf.int64))
        window = window.numpy()
        self.step = step + count
        self._metrics = None
        secs = time.monotonic() - began
        is_sound = int(status.step) < 0
        if is_sound:
            self.keep(self._position)
        self.reporter.after_steps(self.step, float(waited))
        self.record(count, secs)
        if is_first:
            self.enter("train")
            self.reporter.end_compilation(self.step)
        if is_sound:
            self.reporter.show_progress(self.step, window)
        else:
            self._roll_back(status)

    def _evaluate(self, stop_requested: Callable[[], bool]) -> Evaluation | None:
        """Evaluate the split that selects, if that is due; collective."""
        if self.plan.evaluate is None or not self.plan.evaluate.due(self.step):
            return None
        self.enter("evaluate")
        self.faults.reached("evaluate")
        return self.evaluator.evaluate(stop_requested, self.enter)

    def before_save(self) -> None:
        """Write what precedes a checkpoint and is never reported again."""
        self.reporter.flush()

    def _save(self, metrics: Mapping[str, float] | None = None) -> None:
        """Save the state, unless nothing has changed since the last save; collective."""
        self.save_version((self.step, self._reported_step), metrics)

    def _restore(self, at_most: int | None = None) -> int | None:
        """Restore the newest state, of step `at_most` at the latest; return its step, if any.

        Also opens the input and the writers at that step; collective.
        """
        restored, is_saved = self.restore_newest(self.checkpointer, at_most)
        self._rollback.recall()
        self.process_group.assert_same("variables", lambda: self.state.digests(self.loop.strategy))
        self.step = int(self.state.step.numpy())
        if self.auditor is not None:
            self.auditor.begin(self.step)
        self._reported_step = int(self.state.last_reported_step.numpy())
        self._stopped_early = bool(self.state.stopped_early.numpy())
        self._metrics = None
        self.reporter.open(self.step, self._reported_step)
        # The initial state counts as saved: it is nobody's work.
        self._saved = (self.step, self._reported_step) if is_saved or restored is None else None
        self._open_input()
        evaluations = read_evaluations(self.run_dir, self.split)
        past = [metrics for step, metrics in evaluations if step <= self._reported_step]
        self.reporter.lines.recall(past)
        self._callbacks.show_again(self.step, past)
        self.enter("compile")
        return restored

    def _trace(self) -> None:
        """Trace the step; collective.

        Before the first step: with different collectives processes add up wrong, or hang.
        """
        self.process_group.assert_same_lines(
            lambda: self.loop.trace(self._iterator), first_difference
        )

    def _roll_back(self, status: DivergenceStatus) -> None:
        """Go back to before the steps that diverged, and go on without their samples; collective.

        Raises:
            NonFiniteError: the configuration does not allow it, or there is no such checkpoint.
        """
        step, blocks, problem = self._rollback.target(status)
        samples = self.state.divergence_monitor.describe_rollback(int(status.step), blocks)
        self._go_back(step, problem, f", and leaving out the samples of {samples}")
        self._rollback.leave_out(blocks)
        self._open_input()

    def _go_back(self, step: int, problem: str, also: str = "") -> None:
        """Restore the newest checkpoint of `step` or before, and tell why; collective.

        Raises:
            NonFiniteError: there is none.
        """
        self.channel.line(f"{problem[0].upper()}{problem[1:]}; rolling back{also}")
        self.finish_save()
        self.reporter.close()
        self.enter("compile")
        if self._restore(step) is None:
            raise NonFiniteError(
                f"{problem}, and there is no checkpoint of step {step} or before; "
                "add checkpoint.keep=<more>"
            )

    def _open_input(self) -> None:
        left_out = self.state.divergence_monitor.left_out.numpy()
        self._iterator = self.loop.feed.open(self.step, left_out)


@dataclass(eq=False)
class Rollback:
    """Decides on rollbacks, and remembers the blocks of samples that they leave out.

    The checkpoint that a rollback restores is older than the blocks that it leaves out, and a
    process that is killed before the next save would forget them: so the chief writes them to
    `left_out.json` too.

    Attributes:
        run_dir: the run directory.
        divergence_monitor: holds the left-out blocks of the state.
        process_group: the processes that roll back together.
    """

    run_dir: Path
    divergence_monitor: DivergenceMonitor
    process_group: ProcessGroup

    def __post_init__(self) -> None:
        self._path = self.run_dir / "left_out.json"

    def target(self, status: DivergenceStatus) -> tuple[int, list[int], str]:
        """Return where to roll back to.

        Returns:
            The latest step that the training can go back to; the blocks of samples that are left
            out from then on, ascending; and how the training diverged, in words.

        Raises:
            NonFiniteError: the configuration does not allow to roll back, or not once more.
        """
        monitor = self.divergence_monitor
        step = int(status.step)
        problem = monitor.describe(step, status.verdict)
        blocks = monitor.blocks_without(step) if monitor.rolls_back else None
        if blocks is None:
            raise monitor.error(problem)
        return monitor.first_left_out(step), blocks, problem

    def leave_out(self, blocks: Sequence[int]) -> None:
        """Leave out these blocks, ascending, and no others."""
        self.divergence_monitor.leave_out(list(blocks))
        if self.process_group.is_chief:
            write_json(self._path, {"blocks": list(blocks)})

    def recall(self) -> None:
        """Leave out the blocks of the file too, besides those of the restored state; collective."""
        is_written = self.process_group.is_chief and self._path.exists()
        kept = read_json(self._path)["blocks"] if is_written else []
        recorded = json.loads(self.process_group.broadcast_text_from_chief(json.dumps(kept)))
        blocks = {*self.divergence_monitor.blocks(), *recorded}
        self.divergence_monitor.leave_out(sorted(blocks))


@dataclass(eq=False)
class FinalEvaluation:
    """Evaluates the test split with the last weights, and with the best.

    Attributes:
        run: the run, at its last step.
        run_dir: the run directory.
        reporter: writes the metrics.
        metrics: what was found, by step.
    """

    run: RunState
    run_dir: Path
    reporter: Reporter
    metrics: dict[int, dict[str, float]] = field(default_factory=dict, init=False)

    def evaluate(self, evaluator: Evaluator, stop_requested: Callable[[], bool]) -> None:
        """Evaluate what the result tells; collective.

        Raises:
            Stopped: a stop was requested of some process.
        """
        run, checkpointer = self.run, self.run.checkpointer
        assert checkpointer is not None
        self._evaluate(evaluator, run.step, stop_requested)
        group = run.process_group
        best = next(iter(checkpointer.best()), run.step) if group.is_chief else 0
        (best,) = group.broadcast_from_chief(best)
        if best == run.step:
            return
        if problem := checkpointer.restore_chosen(best):
            run.channel.line(f"warning: the best checkpoint is not evaluated: {problem}")
            return
        self._evaluate(evaluator, best, stop_requested)
        # Whoever reads the state now means the last.
        if problem := checkpointer.restore_chosen(run.step):
            run.channel.line(
                f"warning: the checkpoint of step {run.step}, the last, cannot be restored: "
                f"{problem}"
            )

    def _evaluate(
        self, evaluator: Evaluator, step: int, stop_requested: Callable[[], bool]
    ) -> None:
        """Evaluate the test split with the weights of a step; write it, but not a second time."""
        self.run.enter("evaluate")
        self.run.faults.reached("evaluate")
        evaluation = evaluator.evaluate(stop_requested, self.run.enter)
        self.metrics[step] = evaluation.metrics
        if step not in (reported for reported, _ in read_evaluations(self.run_dir, "test")):
            self.reporter.write_evaluation("test", step, evaluation)
        self.run.channel.log(evaluation_text(step, evaluation.metrics, "test"))
