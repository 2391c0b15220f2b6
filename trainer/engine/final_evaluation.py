"""The test split after the last step, evaluated once, where another one selects."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from trainer.cluster.messages import evaluation_text
from trainer.engine.evaluation.evaluator import Evaluator
from trainer.engine.reporter import Reporter
from trainer.engine.run_state import RunState
from trainer.runs.recorded_metrics import read_evaluations


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
