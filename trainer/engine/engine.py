"""The training engine: a loop on the host over graph calls, and one in each call over steps.

restore the newest state: from memory, or a checkpoint
call the callbacks: the training begins
run the actions that are due at its step
while not finished:
    pause, if the command asks for it: save, and return
    decision = agree with all processes
    if decision.save: save
    if decision.stop: leave the loop
    run the steps up to the next action in one graph call    # `TrainLoop.run`: the second loop
    go back to a checkpoint if they diverged, or if the audit finds replicas that differ
    run the actions that are due: evaluate, write metrics, call the callbacks, save, ...
if not finished: save, and return; else evaluate, if the result has no metrics yet
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
from trainer.engine.auditor import Auditor
from trainer.engine.callback_events import CallbackCaller
from trainer.engine.checkpoints.checkpointer import Checkpointer
from trainer.engine.evaluation.evaluator import Evaluation, Evaluator, Predictor
from trainer.engine.graph.loops.train_loop import TrainLoop
from trainer.engine.graph.state.train_state import TrainState
from trainer.engine.graph.step.update_check import DivergenceStatus
from trainer.engine.pacing import Stopped
from trainer.engine.plan import LastStep, Plan, StepPolicy, is_due
from trainer.engine.reporter import Reporter
from trainer.engine.run_state import RunState
from trainer.engine.step_inspector import StepInspector
from trainer.errors import NonFiniteError
from trainer.files import read_json, write_json
from trainer.runs.recorded_metrics import read_evaluations
from trainer.runs.state_memory import Position


@dataclass
class Event:
    """What the actions of one step have found, for those after them."""

    evaluation: Evaluation | None = None
    epoch_metrics: dict[str, float] | None = None

    @property
    def metrics(self) -> dict[str, float] | None:
        """The metrics of the split that selects; None: it was not evaluated."""
        return None if self.evaluation is None else self.evaluation.metrics


@dataclass(frozen=True)
class Action:
    """What the engine does after some of the steps.

    Attributes:
        changes_state: whether it changes more than the sums of a summary, or takes long: then a
            snapshot is kept in memory before and after it in any case.
    """

    when: Sequence[StepPolicy]
    run: Callable[[Event], None]
    changes_state: bool = False


@dataclass(kw_only=True, eq=False, repr=False)
class Engine(RunState):
    """Trains from the newest checkpoint to the last step.

    Attributes:
        evaluator: evaluates the split that selects, or whole episodes.
        split: the name of that split: `validation`, or `test`.
        make_test_evaluator: makes what evaluates the test split at the end; None: `evaluator` does.
        predictor: predicts the test split; None: the task has no `predict_step`.
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
    auditor: Auditor | None = None
    test_metrics: dict[int, dict[str, float]] = field(default_factory=dict, init=False)
    _stop_requested: Callable[[], bool] = field(init=False)
    _reported_step: int = field(default=0, init=False)
    _stopped_early: bool = field(default=False, init=False)
    _metrics: dict[str, float] | None = field(default=None, init=False)  # at this step
    _iterator: Any = field(default=None, init=False)
    _is_prepared: bool = field(default=False, init=False)
    _snapshot_due: bool = field(default=False, init=False)  # when all have run the last actions

    def __post_init__(self) -> None:
        self._callbacks = CallbackCaller(self.run_dir, self.reporter, self.process_group)
        self._left_out_file = self.run_dir / "left_out.json"
        plan = self.plan
        inspect = [*plan.histograms, *plan.images]
        called = self._callbacks.on_step_when
        call = [*called, *plan.evaluate, plan.epochs, LastStep(plan.total_steps)]
        every = [*plan.summarize, *plan.save, *inspect, *call]
        # Evaluation comes first: it can be interrupted, and then no line of its step may be written
        # yet. What a checkpoint is to hold comes before the save.
        self.actions = [
            Action(plan.evaluate, self._evaluate, changes_state=True),
            Action(plan.summarize, lambda _: self.reporter.write_train_metrics(self.step)),
            Action([plan.epochs], self._end_epoch, changes_state=True),
            Action([*plan.evaluate, plan.epochs], self._show_results),
            Action(call, self._call_callbacks),
            Action(inspect, self._inspect, changes_state=True),
            Action(every, self._complete),
            Action(plan.save, lambda event: self._save(event.metrics), changes_state=True),
        ]

    @property
    def state(self) -> TrainState:
        return self.loop.state

    @property
    def _finished(self) -> bool:
        is_last = self.step >= self.plan.total_steps or self._stopped_early
        return is_last and self._reported_step >= self.step

    @property
    def is_paused(self) -> bool:
        """Whether this command ends here, before the training does."""
        is_reported = self._reported_step >= self.step
        return self.step >= self.plan.pause_step and is_reported and not self._finished

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
        """Train to the end, or until a stop is requested, and save; return whether it is the end.

        Raises:
            NonFiniteError: the training has diverged; no such state is ever saved.
            CheckpointError: no checkpoint can be trusted, or one could not be written.
        """
        self._stop_requested = stop_requested
        with ExitStack() as stack:  # also after a failure: a checkpoint that was begun counts too
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
                self._run(save_requested)
            if not self._finished:
                self._save()
                return False
            with suppress(Stopped):
                self._evaluate_at_end()
                self._callbacks.call("on_train_end")
                return True
            return False

    def result(self) -> dict[str, Any]:
        """Return a finished training's step, test metrics, best checkpoint, time and attempts.

        With a validation split the metrics by which was selected are included, as `validation`.
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
        return {"metrics": self.test_metrics.get(step, {}), self.split: metrics}

    def _run(self, save_requested: Callable[[], bool]) -> None:
        """Run the training loop until it is finished, or the processes agree to stop."""
        clock = self.reporter.clock
        self._run_actions()
        self.faults.reached("step", self.step)
        while not self._finished and not self.is_paused:
            self.checkpointer.check()
            requests = self._stop_requested(), save_requested()
            with clock.waiting():
                stops, saves, is_save_due, num_steps = self.agree(*requests)
            self._keep_after_actions()
            if saves or is_save_due:
                # A save on request has no metrics: it must not become the best checkpoint.
                self._save(self._metrics if is_save_due else None)
            if stops:
                return
            with clock.working():
                self._advance(num_steps)
                self.faults.reached("step", self.step)
            self._audit()
            self._run_actions()
        if self.is_paused:
            return
        self._save(self._metrics)  # a callback may have ended the training where no save was due
        self.process_group.barrier()
        self._keep_after_actions()

    @property
    def _position(self) -> Position:
        return Position(self.step, self._reported_step)

    def _advance(self, num_steps: int) -> None:
        """Run the steps up to the next action, `num_steps` at most, in one graph call."""
        step = self.step
        policies = [policy for action in self.actions for policy in action.when]
        audits = [] if self.auditor is None else [self.auditor]
        ends = (x.next_after(step) for x in (*policies, *self.plan.call_ends, *audits))
        count = min(num_steps, min(ends) - step)
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
        if self.auditor is not None and not is_first:
            self.auditor.record(count, secs)
        self.pacer.record(count, secs)
        if is_first:
            self.enter("train")
            self.reporter.end_compilation(self.step)
        if is_sound:
            self.reporter.show_progress(self.step, window)
        else:
            self._roll_back(status)

    def _run_actions(self) -> None:
        """Run what is due at this step, once: also after a kill, or a stop in the middle of it."""
        step = self.step
        due = [action for action in self.actions if is_due(action.when, step)]
        if not due or self._reported_step >= step:
            return
        self._snapshot_due = any(action.changes_state for action in due)
        if self._snapshot_due:
            self.keep(self._position, force=True)
        event = Event()
        with self.reporter.uncounted():
            for action in due:
                action.run(event)

    def _keep_after_actions(self) -> None:
        """Keep the state after the actions of a step, now that all processes have run them."""
        if self._snapshot_due:
            self.keep(self._position, force=True)
            self._snapshot_due = False

    def _evaluate(self, event: Event) -> None:
        self.enter("evaluate")
        self.faults.reached("evaluate")
        event.evaluation = self.evaluator.evaluate(self._stop_requested, self.enter)
        self._metrics = event.metrics

    def _end_epoch(self, event: Event) -> None:
        event.epoch_metrics = self.reporter.end_epoch(self.step)

    def _show_results(self, event: Event) -> None:
        if event.evaluation is not None and event.metrics:
            self.reporter.write_evaluation(self.split, self.step, event.evaluation)
        if event.epoch_metrics is not None or event.metrics:
            self.reporter.show_results(self.step, event.epoch_metrics, event.metrics)

    def _call_callbacks(self, event: Event) -> None:
        """Call the callbacks; collective. All are called, also after one that ends the training."""
        self._callbacks.show(self.step, event.epoch_metrics, event.metrics)
        ends = [self._callbacks.call("on_step")]
        if event.metrics:
            ends.append(self._callbacks.call("on_evaluate"))
        if event.epoch_metrics is not None:
            ends.append(self._callbacks.call("on_epoch_end"))
        if any(ends):
            self._stopped_early = True
            self.state.stopped_early.assign(True)

    def _inspect(self, event: Event) -> None:
        """Show histograms and images of the next step; collective."""
        assert self.step_inspector is not None
        self.enter("train" if self.step_inspector.compiled else "compile")
        self.step_inspector.show(self.step, self.reporter.writers)

    def _complete(self, event: Event) -> None:
        """Record in the state that this step has been reported, and whether it is the last."""
        self.reporter.settle()
        self._reported_step = self.step
        self.state.last_reported_step.assign(self.step)
        if self._stopped_early or self.step == self.plan.total_steps:
            self.state.finish()

    def before_save(self) -> None:
        self.reporter.flush()

    def _save(self, metrics: Mapping[str, float] | None = None) -> None:
        """Save the state, unless nothing has changed since the last save; collective."""
        self.save_version((self.step, self._reported_step), metrics)

    def _restore(self, at_most: int | None = None) -> int | None:
        """Restore the newest state, of step `at_most` at the latest; return its step, if any.

        Also opens the input and the writers at that step; collective.
        """
        restored, is_saved = self.restore_newest(self.checkpointer, at_most)
        self._recall_left_out()
        self.process_group.assert_same("variables", lambda: self.state.digests(self.loop.strategy))
        self.step = int(self.state.step.numpy())
        if self.auditor is not None:
            self.auditor.begin(self.step)
        self._reported_step = int(self.state.last_reported_step.numpy())
        self._stopped_early = bool(self.state.stopped_early.numpy())
        self._metrics = None
        self.reporter.open(self.step, self._reported_step)
        # The initial state counts as saved: it can be recomputed.
        self._saved = (self.step, self._reported_step) if is_saved or restored is None else None
        self._open_input()
        evaluations = read_evaluations(self.run_dir, self.split)
        past = [metrics for step, metrics in evaluations if step <= self._reported_step]
        self.reporter.lines.recall(past)
        self._callbacks.show_again(self.step, past)
        self.enter("compile")
        return restored

    def _open_input(self) -> None:
        left_out = self.state.divergence_monitor.left_out.numpy()
        self._iterator = self.loop.feed.open(self.step, left_out)

    def _trace(self) -> None:
        """Trace the step; collective.

        Before the first step: with different collectives processes add up wrong, or hang.
        """
        self.process_group.assert_same("collectives", lambda: self.loop.trace(self._iterator))

    def _audit(self) -> None:
        """Compare all replicas, if that is due, and go back if any of them differ; collective."""
        auditor = self.auditor
        if auditor is None or not is_due([auditor], self.step):
            return
        self.enter("train" if auditor.compiled else "compile")
        with self.reporter.uncounted():
            problem = auditor.audit(self.step)
        if problem:
            self._go_back(auditor.clean_step, problem)

    def _roll_back(self, status: DivergenceStatus) -> None:
        """Go back to before the steps that diverged, and leave their samples out; collective."""
        monitor = self.state.divergence_monitor
        step = int(status.step)
        problem = monitor.describe(step, status.verdict)
        blocks = monitor.blocks_without(step) if monitor.rolls_back else None
        if blocks is None:
            raise monitor.error(problem)
        samples = monitor.describe_rollback(step, blocks)
        first = monitor.first_left_out(step)
        self._go_back(first, problem, f", and leaving out the samples of {samples}")
        self._leave_out(blocks)
        self._open_input()

    def _go_back(self, step: int, problem: str, also: str = "") -> None:
        """Restore the newest checkpoint of `step` or before, and show why; collective."""
        self.channel.line(f"{problem[0].upper()}{problem[1:]}; rolling back{also}")
        self.finish_save()
        self.reporter.close()
        self.enter("compile")
        if self._restore(step) is None:
            raise NonFiniteError(
                f"{problem}, and there is no checkpoint of step {step} or before; "
                "add checkpoint.keep=<more>"
            )

    def _leave_out(self, blocks: list[int]) -> None:
        """Leave out these blocks of samples, ascending, and no others.

        The checkpoint that a rollback restores is older than they are, and a process that is killed
        before the next save would forget them: so the chief writes them to a file too.
        """
        self.state.divergence_monitor.leave_out(blocks)
        if self.process_group.is_chief:
            write_json(self._left_out_file, {"blocks": blocks})

    def _recall_left_out(self) -> None:
        """Also leave out the blocks of the file, not only of the restored state; collective."""
        is_written = self.process_group.is_chief and self._left_out_file.exists()
        kept = read_json(self._left_out_file)["blocks"] if is_written else []
        recorded = json.loads(self.process_group.broadcast_text_from_chief(json.dumps(kept)))
        monitor = self.state.divergence_monitor
        monitor.leave_out(sorted({*monitor.blocks(), *recorded}))

    def _evaluate_at_end(self) -> None:
        """Evaluate what the result lacks; collective."""
        self.finish_save()
        if not self._metrics:
            # Nothing was evaluated in this attempt: a sidecar does, or an earlier attempt has.
            metrics = self.checkpointer.metrics(self.step)
            # The chief decides: the others need not see its checkpoints.
            (is_evaluated,) = self.process_group.broadcast_from_chief(len(metrics))
            if not is_evaluated:
                metrics = self.evaluator.evaluate(self._stop_requested, self.enter).metrics
            self._metrics = metrics
        if self.make_test_evaluator is not None:
            self._test_last_and_best(self.make_test_evaluator())

    def _test_last_and_best(self, evaluator: Evaluator) -> None:
        """Evaluate the test split with the last weights, and with the best; collective."""
        self._test(evaluator, self.step)
        group = self.process_group
        best = next(iter(self.checkpointer.best()), self.step) if group.is_chief else 0
        (best,) = group.broadcast_from_chief(best)
        if best == self.step:
            return
        if problem := self.checkpointer.restore_chosen(best):
            self.channel.line(f"warning: the best checkpoint is not evaluated: {problem}")
            return
        self._test(evaluator, best)
        # Readers of the state now get the last.
        if problem := self.checkpointer.restore_chosen(self.step):
            self.channel.line(
                f"warning: the checkpoint of step {self.step}, the last, cannot be restored: "
                f"{problem}"
            )

    def _test(self, evaluator: Evaluator, step: int) -> None:
        """Evaluate the test split with the weights of a step; write it, but not a second time."""
        self.enter("evaluate")
        self.faults.reached("evaluate")
        evaluation = evaluator.evaluate(self._stop_requested, self.enter)
        self.test_metrics[step] = evaluation.metrics
        if step not in (reported for reported, _ in read_evaluations(self.run_dir, "test")):
            self.reporter.write_evaluation("test", step, evaluation)
        self.channel.log(evaluation_text(step, evaluation.metrics, "test"))
