"""Rolling a diverged training back to before the offending steps, without their samples."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from trainer.engine.graph.step.divergence import DivergenceMonitor, DivergenceStatus
from trainer.engine.process_group import ProcessGroup
from trainer.files import read_json, write_json


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
