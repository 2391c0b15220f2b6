"""Snapshots of the state in memory that outlives this process: what a restart goes on from.

Every process writes its own, without a word to the others: the processes of a synchronous run hold
the same state after the same step. At a restart they compare what each has, and go on from the
newest.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import tensorflow as tf

from trainer.cluster.host_memory import available_bytes
from trainer.engine.checkpoints.snapshot import Snapshot, SnapshotReader
from trainer.engine.process_group import ProcessGroup
from trainer.runs.state_memory import Header, MemoryFiles, Position, StoredTensor

StoredState: TypeAlias = "tuple[str, Header, list[StoredTensor]]"
"""A snapshot: the process that wrote it, its header and its verified tensors."""

_COST = 0.01
"""The share of the time that snapshots may take."""
_SHARE_OF_MEMORY = 0.25
"""The share of the free memory that `checkpoint.memory=auto` takes for two slots."""
_DIGEST_BITS = 40


@dataclass(frozen=True)
class Restored:
    """What was restored from memory.

    Attributes:
        position: of the state.
        process: whose memory it was.
        again: steps that had been made after it, as far as is known.
        is_saved: whether the newest checkpoint is of the same step.
    """

    position: Position
    process: str
    again: int
    is_saved: bool

    def line(self) -> str:
        """Return what the user is told."""
        steps = f"{self.again:,} step{'s' * (self.again > 1)} again"
        lost = steps if self.again else "nothing lost"
        return f"Continuing from step {self.position.step:,} (memory of {self.process}), {lost}."


class MemorySnapshots:
    """Writes the state to this process's memory, and restores the newest of all processes.

    Attributes:
        secs: what the last snapshot took.

    Args:
        reader: captures the state.
        files: where it goes, and where a restart finds it.
        process_group: the processes that restore together.
        every_steps: the number of steps from one snapshot to the next; None: as many as keep the
            cost at one percent.
        limited: whether little memory is a reason to do without.
        warn: called once if there is too little memory.
        clock: seconds, monotonic.
    """

    def __init__(
        self,
        reader: SnapshotReader,
        files: MemoryFiles,
        process_group: ProcessGroup,
        *,
        every_steps: int | None = None,
        limited: bool = True,
        warn: Callable[[str], None] = lambda text: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._reader = reader
        self._files = files
        self._group = process_group
        self._every_steps = every_steps
        self._limited = limited
        self._warn = warn
        self._clock = clock
        self._is_off = False
        self._written: Position | None = None
        self._due_at = float("-inf")
        self.secs = 0.0

    def keep(self, position: Position, *, force: bool = False) -> None:
        """Write the state, if that is due by now.

        Args:
            position: of the state.
            force: whether it is due in any case.
        """
        if self._is_off or position == self._written:
            return
        if not (force or self._is_due(position.step)):
            self._files.own.note_reached(position.step)
            return
        began = self._clock()
        self._write(position, self._reader.capture())
        now = self._clock()
        self.secs = now - began
        if self._written is not None:  # the first one traces, and allocates
            self._due_at = now + self.secs * (1 / _COST - 1)
        self._written = position

    def restore(self, checkpointed: int) -> Restored | None:
        """Restore the newest snapshot of all processes; collective.

        Args:
            checkpointed: the step of the newest checkpoint in the chief, below which no snapshot is
                of interest; -1: there is none.

        Returns:
            What was restored; None: there is none that is as new.
        """
        names = self._files.begin()
        newest = self._newest(names)
        step, saved = self._agree(newest, checkpointed)
        if step < max(0, saved):
            return None
        assert newest is not None
        process, header, tensors = newest
        self._reader.restore({(x.key, x.slice_spec): _tensor(x) for x in tensors})
        self._written = None  # by this process, into a memory that may be another's
        reached = max(self._files.by_process[name].reached for name in names)
        return Restored(header.position, process, max(0, reached - step), step == saved)

    def clear(self) -> None:
        """Forget all snapshots: the state that they hold must not be gone on from."""
        for memory in self._files.by_process.values():
            memory.clear()
        self._written = None

    def _is_due(self, step: int) -> bool:
        if self._every_steps is not None:
            return step % self._every_steps == 0
        return self._clock() >= self._due_at

    def _write(self, position: Position, snapshot: Snapshot) -> None:
        tensors = snapshot.stored_tensors()
        size = sum(len(tensor.content) for tensor in tensors)
        is_new = self._files.own.reached < 0
        free = available_bytes() if is_new and self._limited else None
        problem = ""
        if free is not None and 2 * size > _SHARE_OF_MEMORY * free:
            problem = f"two copies take {2 * size:,} bytes of the {free:,} that are free"
        else:
            try:
                self._files.own.write(position, tensors)
            except OSError as error:
                problem = f"{error.strerror}; two copies take {2 * size:,} bytes"
        if problem:
            self._is_off = True
            self._warn(
                f"the state is not kept in memory ({problem}): a restart goes on from the newest "
                "checkpoint"
            )

    def _newest(self, names: Sequence[str]) -> StoredState | None:
        """Return the newest snapshot on this host that verifies."""
        for name in names:
            memory = self._files.by_process[name]
            if (header := memory.newest()) and (tensors := memory.read(header)) is not None:
                return name, header, tensors
        return None

    def _agree(self, newest: StoredState | None, checkpointed: int) -> tuple[int, int]:
        """Return the step of the snapshot, and the chief's `checkpointed`; collective.

        The first is -1 unless all processes have the same one.
        """
        if newest is None:
            own = [0, 0, 0]
        else:
            header = newest[1]
            digest = header.checksum & ((1 << _DIGEST_BITS) - 1)
            own = [header.position.step + 1, header.position.reported, digest]
        chiefs = self._group.broadcast_from_chief(*own, checkpointed + 1)
        differs = self._group.any_process(own != chiefs[:3])
        return -1 if differs else chiefs[0] - 1, chiefs[3] - 1


def _tensor(stored: StoredTensor) -> tf.Tensor:
    if stored.dtype == "string":
        return tf.io.parse_tensor(stored.content.tobytes(), tf.string)
    dtype = tf.as_dtype(stored.dtype)
    content = np.frombuffer(stored.content, dtype.as_numpy_dtype)
    with tf.device("CPU:0"):
        return tf.constant(content.reshape(stored.shape), dtype)
