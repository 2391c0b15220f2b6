"""How often something may be started again before the run has come any further."""

from __future__ import annotations

from pathlib import Path

from trainer.runs.checkpoint_marker import committed_steps


class RestartBudget:
    """A number of restarts; a newer checkpoint renews it.

    Attributes:
        spent: restarts since the newest checkpoint.

    Args:
        run_dir: the run directory.
        max_restarts: how many are allowed.
    """

    def __init__(self, run_dir: Path, max_restarts: int) -> None:
        self.spent = 0
        self._run_dir = run_dir
        self._max_restarts = max_restarts
        self._newest = newest_step(run_dir)

    def spend(self) -> bool:
        """Count one more restart; return whether it is allowed."""
        if (newest := newest_step(self._run_dir)) > self._newest:
            self._newest = newest
            self.spent = 0
        self.spent += 1
        return self.spent <= self._max_restarts


def newest_step(run_dir: Path) -> int:
    """Return the step of a run's newest checkpoint; 0: there is none."""
    return max(committed_steps(run_dir / "checkpoints"), default=0)
