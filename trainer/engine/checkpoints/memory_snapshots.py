"""Snapshots of the state in memory that outlives this process: what a restart continues from.

Every process writes its own, without communication: the processes of a synchronous run hold
the same state after the same step. At a restart they compare what each has, and continue from the
newest, which one that has it sends to those that lack it: to a host that was replaced.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import astuple, dataclass, field
from functools import partial
from typing import NamedTuple, TypeAlias

import numpy as np
import tensorflow as tf

from trainer.cluster.host_memory import available_bytes
from trainer.engine.checkpoints.snapshot import Snapshot, SnapshotReader
from trainer.engine.process_group import ProcessGroup
from trainer.runs.state_memory import Header, MemoryFiles, Position, StoredTensor, unpack

StoredState: TypeAlias = "tuple[str, Header, list[StoredTensor]]"
"""A snapshot: the process that wrote it, its header and its verified tensors."""

_COST = 0.01
"""The fraction of the time that snapshots may take."""
_SHARE_OF_MEMORY = 0.25
"""The fraction of the free memory that `checkpoint.memory=auto` takes for two slots."""
_DIGEST_BITS = 40


class _Holding(NamedTuple):
    """What a process sends to the others at a restart; -1: nothing.

    Attributes:
        reached: the last step that any process of this host has reported.
        checkpointed: the step of the chief's newest checkpoint.
    """

    step: int
    reported: int
    digest: int
    reached: int
    checkpointed: int


@dataclass(frozen=True)
class Restored:
    """What was restored from memory.

    Attributes:
        again: steps to recompute, as far as processes have reported them.
        is_saved: whether the newest checkpoint is of the same step.
    """

    position: Position
    process: str
    again: int
    is_saved: bool

    def line(self) -> str:
        steps = f"{self.again:,} step{'s' * (self.again > 1)} again"
        lost = steps if self.again else "no completed step lost"
        return f"Continuing from step {self.position.step:,} (memory of {self.process}), {lost}."


@dataclass(eq=False)
class MemorySnapshots:
    """Writes the state to this process's memory, and restores the newest of all processes.

    Args:
        every_steps: the number of steps from one snapshot to the next; None: as many as keep the
            cost at one percent.
        limited: whether little memory is a reason to do without.
    """

    reader: SnapshotReader
    files: MemoryFiles
    process_group: ProcessGroup
    every_steps: int | None = field(default=None, kw_only=True)
    limited: bool = field(default=True, kw_only=True)
    warn: Callable[[str], None] = field(default=lambda text: None, kw_only=True)
    _is_off: bool = field(default=False, init=False)
    _written: Position | None = field(default=None, init=False)
    _due_at: float = field(default=float("-inf"), init=False)

    def prepare(self) -> None:
        """Trace what `keep` and `restore` run, without writing anything; collective."""
        self.reader.capture()
        self.process_group.gather(*_Holding(-1, -1, -1, -1, -1))

    def keep(
        self, position: Position, *, force: bool = False, before: Callable[[], None] = lambda: None
    ) -> None:
        """Write the state, if that is due by now; `before` brings variables up to date."""
        if self._is_off or position == self._written:
            return
        if not (force or self._is_due(position.step)):
            self.files.own.note_reached(position.step)
            return
        began = time.monotonic()
        before()
        self._write(position, self.reader.capture(), self.files.own.write)
        now = time.monotonic()
        if self._written is not None:  # the first one traces, and allocates
            self._due_at = now + (now - began) * (1 / _COST - 1)
        self._written = position

    def hold(
        self, position: Position, metrics: Mapping[str, float] | None, snapshot: Snapshot
    ) -> Callable[[], None] | None:
        """Keep a state until its checkpoint is written, for a restart to write it if it is not.

        Returns:
            What to call when the checkpoint is written; None: the state could not be kept.
        """
        if not self._is_off:
            hold = partial(self.files.own.hold, metrics=metrics)
            self._write(position, snapshot, hold)
        if self._is_off:
            return None
        self._written = position
        return self.files.own.release

    def held(self) -> tuple[Snapshot, int, Mapping[str, float] | None] | None:
        """Return what `hold` has kept for an earlier chief whose checkpoint was not written."""
        self.files.begin()
        for memory in self.files.by_process.values():  # another process may have been the chief
            if (held := memory.held()) is not None:
                entries = [(tensor.key, tensor.slice_spec) for tensor in held.tensors]
                return Snapshot(entries, [*map(_tensor, held.tensors)]), held.step, held.metrics
        return None

    def release(self) -> None:
        """Release what `held` has returned: its checkpoint is written."""
        for memory in self.files.by_process.values():
            memory.release()

    def restore(self, checkpointed: int) -> Restored | None:
        """Restore the newest snapshot of all processes, if one is as new; collective.

        Args:
            checkpointed: the step of the newest checkpoint in the chief, below which no snapshot is
                of interest; -1: none.
        """
        own = self._newest(self.files.begin())
        rows = self.process_group.gather(*self._holding(own, checkpointed))
        holdings = [_Holding(*row) for row in rows]
        newest = max(Position(x.step, x.reported) for x in holdings)
        checkpointed = max(x.checkpointed for x in holdings)
        if newest.step < max(0, checkpointed):
            return None
        holders = [n for n, x in enumerate(holdings) if (x.step, x.reported) == newest]
        others = [n for n in holders if holdings[n].digest != holdings[holders[0]].digest]
        if others:
            self.warn(
                f"warning: the states of step {newest.step:,} in memory differ between worker-"
                f"{holders[0]} and worker-{others[0]}, so one of them is wrong; neither is used"
            )
            return None
        if len(holders) < len(holdings):
            own = self._receive(own, holders[0])
            if self.process_group.any_process(own is None):
                return None
        assert own is not None
        process, header, tensors = own
        self.reader.restore({(x.key, x.slice_spec): _tensor(x) for x in tensors})
        # What is restored may be of another process, whose memory is not used from now on.
        kept = self.files.own.newest()
        is_own = kept is not None and kept.checksum == header.checksum
        self._written = header.position if is_own else None
        step = header.position.step
        reached = max(x.reached for x in holdings)
        return Restored(header.position, process, max(0, reached - step), step == checkpointed)

    def clear(self) -> None:
        """Forget all snapshots: the state that they hold must not be gone on from."""
        for memory in self.files.by_process.values():
            memory.clear()
        self._written = None

    def _is_due(self, step: int) -> bool:
        if self.every_steps is not None:
            return step % self.every_steps == 0
        return time.monotonic() >= self._due_at

    def _write(
        self,
        position: Position,
        snapshot: Snapshot,
        write: Callable[[Position, list[StoredTensor]], object],
    ) -> None:
        tensors = snapshot.stored_tensors()
        size = sum(len(tensor.content) for tensor in tensors)
        is_new = self.files.own.reached < 0
        free = available_bytes() if is_new and self.limited else None
        problem = ""
        if free is not None and 2 * size > _SHARE_OF_MEMORY * free:
            problem = f"two copies take {2 * size:,} bytes of the {free:,} that are free"
        else:
            try:
                write(position, tensors)
            except OSError as error:
                problem = f"{error.strerror}; two copies take {2 * size:,} bytes"
        if problem:
            self._is_off = True
            self.warn(
                f"warning: the state is not kept in memory ({problem}): a restart continues from "
                "the newest checkpoint"
            )

    def _newest(self, names: Sequence[str]) -> StoredState | None:
        """Return the newest snapshot on this host that verifies."""
        for name in names:
            memory = self.files.by_process.get(name)  # of very many processes not all are seen
            if (
                memory
                and (header := memory.newest())
                and (tensors := memory.read(header)) is not None
            ):
                return name, header, tensors
        return None

    def _holding(self, own: StoredState | None, checkpointed: int) -> _Holding:
        """Return what this process has, of which `own` is the newest snapshot."""
        step, reported, digest = -1, -1, -1
        if own is not None:
            step, reported = own[1].position
            digest = own[1].checksum & ((1 << _DIGEST_BITS) - 1)
        reached = max(memory.reached for memory in self.files.by_process.values())
        return _Holding(
            step, reported, digest, reached, checkpointed if self.process_group.is_chief else -1
        )

    def _receive(self, own: StoredState | None, source: int) -> StoredState | None:
        """Return the newest snapshot of process `source`; None: it does not verify; collective."""
        label, sent = "", None
        if self.process_group.index == source:
            assert own is not None
            label = json.dumps([own[0], *astuple(own[1])])
            sent = self.files.by_process[own[0]].content(own[1])
        label = self.process_group.broadcast_text(source, label)
        content = self.process_group.broadcast_bytes(source, sent)
        name, number, position, *lengths_and_checks = json.loads(label)
        header = Header(number, Position(*position), *lengths_and_checks)
        tensors = unpack(header, content)
        return None if tensors is None else (name, header, tensors)


def _tensor(stored: StoredTensor) -> tf.Tensor:
    if stored.dtype == "string":
        return tf.io.parse_tensor(stored.content.tobytes(), tf.string)
    dtype = tf.as_dtype(stored.dtype)
    content = np.frombuffer(stored.content, dtype.as_numpy_dtype)
    with tf.device("CPU:0"):
        return tf.constant(content.reshape(stored.shape), dtype)
