"""The memory of each process of a run: owned here, so that it outlives the process."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator

from trainer.cluster.spec import ProcessId
from trainer.launch.run_context import RunContext
from trainer.runs.state_memory import Position, StateMemory


class Memories(dict[ProcessId, StateMemory]):
    """The memory files of the processes that a command starts.

    They have no names: nothing is left of them when the command and its processes are gone.

    Args:
        is_on: whether processes keep their state in memory at all.
        service_jobs: jobs whose processes do not train; parameter servers hold the state of the
            chief, which keeps it in its own memory.
    """

    def __init__(self, *, is_on: bool, service_jobs: Collection[str] = ()) -> None:
        super().__init__()
        self._is_on = is_on
        self._service_jobs = service_jobs

    @classmethod
    def of_run(cls, context: RunContext) -> Memories:
        """Return the memories of a run, empty."""
        experiment = context.experiment
        is_possible = (
            hasattr(os, "memfd_create") and experiment.trains and not experiment.launch.uses_ray
        )
        is_on = is_possible and experiment.checkpoint.memory != "never"
        return cls(is_on=is_on, service_jobs=context.strategy.service_jobs)

    def add(self, process_id: ProcessId) -> None:
        """Create the memory of a process that trains, unless it has one."""
        trains = not process_id.is_beside and process_id.job not in self._service_jobs
        if self._is_on and trains and process_id not in self:
            name = f"steadfast-{process_id}"
            self[process_id] = StateMemory(os.memfd_create(name, os.MFD_CLOEXEC))

    def newest(self) -> list[str]:
        """Return the names of the processes whose memory has a snapshot, the newest first."""
        positions = dict(self._positions())
        return sorted(positions, key=lambda name: positions[name], reverse=True)

    def newest_step(self) -> int:
        """Return the step of the newest snapshot; 0: there is none."""
        return max((position.step for _, position in self._positions()), default=0)

    def close(self) -> None:
        """Close the files."""
        for memory in self.values():
            memory.close()
        self.clear()

    def _positions(self) -> Iterator[tuple[str, Position]]:
        for process_id, memory in self.items():
            if header := memory.newest():
                yield str(process_id), header.position
