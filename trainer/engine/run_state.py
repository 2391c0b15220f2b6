"""What a run does in addition to its steps: it restores, agrees with all processes, and saves.

The engine is one, and so is the run behind a training loop of the user's own.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial

from tensorflow.python import pywrap_tfe

from trainer.cluster.fault_injection import Faults
from trainer.cluster.messages import Channel
from trainer.engine.checkpoints.checkpointer import Checkpointer
from trainer.engine.checkpoints.memory_snapshots import MemorySnapshots
from trainer.engine.pacing import StepPacer, Timer
from trainer.engine.process_group import ProcessGroup
from trainer.runs.ledger import Ledger
from trainer.runs.state_memory import Position


@dataclass(kw_only=True, eq=False, repr=False)
class RunState(ABC):
    """A run at one of its steps.

    Attributes:
        checkpointer: saves and restores what is trained; None: that is unknown yet.
        memory: also keeps it in memory, for a restart; or None.
        save_timer: also requests a save, by the chief's clock.
        pacer: how many steps are run between two decisions; the chief's counts.
        step: number of steps made. The host keeps its own count: reading a variable costs as much
            as a small step.
    """

    checkpointer: Checkpointer | None = None
    memory: MemorySnapshots | None = None
    save_timer: Timer
    pacer: StepPacer
    ledger: Ledger
    channel: Channel
    process_group: ProcessGroup
    faults: Faults
    step: int = field(default=0, init=False)
    _saved: tuple[int, ...] | None = field(default=None, init=False)

    @abstractmethod
    def before_save(self) -> None:
        """Write what precedes a checkpoint and is never written again."""

    def enter(self, phase: str) -> None:
        """Report the phase that starts at this step, to the user and to the ledger."""
        self.channel.phase(phase, self.step)
        self.ledger.mark(phase, self.step)

    def restore_newest(
        self, checkpointer: Checkpointer, at_most: int | None = None
    ) -> tuple[int | None, bool]:
        """Restore the newest state, of step `at_most` at the latest; collective.

        That is the one which an earlier attempt has left in memory, or the newest checkpoint.

        Returns:
            Its step, or None; and whether a checkpoint has it.
        """
        if self.memory is not None:
            if self.process_group.is_chief:
                if held := self.memory.held():
                    # No separate phase: the ledger would have a step that was passed long ago.
                    checkpointer.finish(*held)
                self.memory.release()
            newest = max(checkpointer.steps(), default=-1)
            if at_most is None and (restored := self.memory.restore(newest)):
                self.channel.line(restored.line())
                self.ledger.record_repeated(restored.again)
                return restored.position.step, restored.is_saved
            self.memory.clear()  # newer than what is gone on from
        step = checkpointer.restore_latest(at_most)
        for line in checkpointer.skipped:
            self.channel.line(f"warning: {line}")
        if step is not None:
            self.channel.line(f"Continuing from the checkpoint of step {step}.")
        return step, step is not None

    def keep(self, position: Position, *, force: bool = False) -> None:
        """Keep the state in memory, if that is due by now, or in any case (`force`)."""
        if self.memory is not None:
            self.memory.keep(position, force=force)

    def agree(self, stop: bool, save: bool) -> tuple[bool, bool, bool, int]:
        """Return the same decision in every process; collective.

        Args:
            stop: whether a stop was requested of this process, by a signal or its supervisor.

        Returns:
            Whether training stops; whether the state is saved first because some process was
            asked to; whether that is due by the chief's timer; and the most steps that may be run
            until the next decision.
        """
        # TensorFlow keeps every scalar that was made of a Python number, about 730 bytes each: by
        # assigning a step, by metrics, by the user's callbacks.
        pywrap_tfe.TFE_ClearScalarCache()
        is_chief = self.process_group.is_chief
        due, count = (self.save_timer.due(), self.pacer.count) if is_chief else (False, 0)
        stops, saves, dues, num_steps = self.process_group.all_reduce_sum(stop, save, due, count)
        return stops > 0, saves > 0, dues > 0, num_steps

    def save_version(
        self, version: tuple[int, ...], metrics: Mapping[str, float] | None = None
    ) -> None:
        """Save the state, unless this version of it has been saved or restored; collective.

        Args:
            version: identifies the state: its step, and what else has changed at that step.
        """
        if self.checkpointer is None or version == self._saved:
            return
        self.enter("save")
        if not self.process_group.is_chief:
            self.faults.reached("save")  # the chief reaches it when its files are written
        self.before_save()
        hold = None
        if (memory := self.memory) is not None:
            hold = partial(memory.hold, Position(version[0], version[-1]), metrics)
        self.checkpointer.save(self.step, metrics, hold)
        self.process_group.barrier()  # the others wait for the chief, which alone writes
        self.save_timer.restart()
        self._saved = version

    def finish_save(self) -> None:
        """Return when a checkpoint that is written in the background is committed."""
        if self.checkpointer is None:
            return
        try:
            if self.checkpointer.is_writing:
                self.enter("save")
        finally:
            self.checkpointer.wait()
