"""Snapshots in memory: how often they are written, and which one a restart goes on from."""

import errno
import os
import re

import numpy as np
import pytest
import tensorflow as tf

from trainer.engine.checkpoints import memory_snapshots
from trainer.engine.checkpoints.memory_snapshots import MemorySnapshots, Restored
from trainer.engine.checkpoints.snapshot import SnapshotReader
from trainer.engine.process_group import ProcessGroup
from trainer.runs.state_memory import MemoryFiles, Position, StateMemory

VALUES = {
    "float32": [1.5, -2.5],
    "bfloat16": [[1.0], [3.0]],
    "half": 2.0,
    "bool": [True, False, True],
    "uint8": np.zeros([0, 3]),
    "int64": 2**40,
    "complex64": [1 + 2j],
    "string": ["one", "and another"],
}


class Process:
    """A process that trains one counter, and can see the memories of all.

    Attributes:
        now: what its clock says.
        warnings: what the user is told.
    """

    def __init__(self, memories, name="worker-0", group=None, **options):
        self.now = 0.0
        self.warnings = []
        self.memory = memories[name]
        self.state = tf.Variable(0.0)
        self.snapshots = MemorySnapshots(
            SnapshotReader(tf.train.Checkpoint(state=self.state)),
            MemoryFiles(memories[name], memories, lambda: newest(memories)),
            group or ProcessGroup(tf.distribute.get_strategy()),
            warn=self.warnings.append,
            clock=lambda: self.now,
            **options,
        )

    def keep(self, step, reported=0, **options):
        """Train up to a step; return whether the state was written to memory."""
        self.state.assign(float(step))
        before = self.memory.newest()
        self.snapshots.keep(Position(step, reported), **options)
        return self.memory.newest() != before


def newest(memories):
    positions = {name: x.newest().position for name, x in memories.items() if x.newest()}
    return sorted(positions, key=positions.get, reverse=True)


@pytest.fixture
def memories():
    memories = {f"worker-{number}": StateMemory(os.memfd_create("x")) for number in range(2)}
    yield memories
    for memory in memories.values():
        memory.close()


def test_state_that_is_held_is_found_by_the_next_attempt_until_it_is_released(memories):
    process = Process(memories)
    process.state.assign(5.0)
    snapshot = process.snapshots._reader.capture()
    release = process.snapshots.hold(Position(5, 5), {"loss": 0.25}, snapshot)
    for step in (6, 7, 8):
        process.keep(step, force=True)
    found, step, metrics = Process(memories, "worker-1").snapshots.held()  # the next chief
    assert (step, metrics) == (5, {"loss": 0.25})
    assert 5.0 in [value.numpy() for value in found.values if value.dtype == tf.float32]
    assert found.entries == snapshot.entries
    release()
    assert Process(memories, "worker-1").snapshots.held() is None


def test_values_of_all_types_are_restored(memories):
    variables = {
        name: tf.Variable(tf.constant(value, tf.as_dtype(name))) for name, value in VALUES.items()
    }
    expected = {name: variable.numpy() for name, variable in variables.items()}
    reader = SnapshotReader(tf.train.Checkpoint(**variables))
    files = MemoryFiles(memories["worker-0"], memories, lambda: newest(memories))
    snapshots = MemorySnapshots(reader, files, ProcessGroup(tf.distribute.get_strategy()))
    snapshots.keep(Position(3, 2), force=True)
    for variable in variables.values():
        variable.assign(tf.zeros_like(variable))
    assert snapshots.restore(-1) == Restored(Position(3, 2), "worker-0", 0, False)
    for name, value in expected.items():
        np.testing.assert_array_equal(variables[name].numpy(), value)


def test_interval_keeps_the_cost_at_one_percent(memories, monkeypatch):
    process = Process(memories)
    write = process.memory.write

    def write_slowly(*arguments):
        process.now += 0.5
        return write(*arguments)

    monkeypatch.setattr(process.memory, "write", write_slowly)
    written = []
    for step in range(1, 501):
        process.now += 1.0
        if process.keep(step):
            written.append(step)
    # The first also traces and allocates: it does not tell what one costs.
    assert written == [1, 2, 52, 102, 152, 202, 252, 302, 352, 402, 452]
    assert process.memory.reached == 500


def test_interval_of_the_configuration_is_kept(memories):
    process = Process(memories, every_steps=3)
    assert [step for step in range(10) if process.keep(step)] == [0, 3, 6, 9]


def test_forced_snapshot_is_written_unless_the_memory_has_that_state(memories):
    process = Process(memories, every_steps=100)
    assert process.keep(5, force=True)
    assert not process.keep(5, force=True)
    assert process.keep(5, 5, force=True)  # reported meanwhile


@pytest.mark.parametrize("limited", [True, False])
def test_little_memory_is_told_once_and_the_state_is_not_kept(memories, monkeypatch, limited):
    monkeypatch.setattr(memory_snapshots, "available_bytes", lambda: 31)
    process = Process(memories, limited=limited)
    assert [process.keep(step, force=True) for step in (1, 2)] == [not limited] * 2
    problem = r"two copies take \d+ bytes of the 31 that are free"
    told = rf"warning: the state is not kept in memory \({problem}\): a restart goes on from .*"
    assert len(process.warnings) == limited
    assert all(re.fullmatch(told, warning) for warning in process.warnings)


def test_memory_that_is_had_already_is_used_however_little_is_free(memories, monkeypatch):
    Process(memories).keep(1)
    monkeypatch.setattr(memory_snapshots, "available_bytes", lambda: 0)
    assert Process(memories).keep(2)


def test_failed_allocation_is_told(memories, monkeypatch):
    def fail(*arguments):
        raise OSError(errno.ENOMEM, "Cannot allocate memory")

    monkeypatch.setattr(os, "posix_fallocate", fail)
    process = Process(memories)
    assert not process.keep(1, force=True)
    assert "(Cannot allocate memory; two copies take " in process.warnings[0]


def test_newest_state_of_all_processes_is_restored(memories):
    Process(memories, "worker-0").keep(7)
    other = Process(memories, "worker-1", every_steps=8)
    other.keep(8)
    other.keep(10)
    process = Process(memories, "worker-0")
    restored = process.snapshots.restore(4)
    assert restored == Restored(Position(8, 0), "worker-1", 2, False)
    assert process.state.numpy() == 8.0
    assert process.keep(8, force=True)  # in its own memory too


@pytest.mark.parametrize(
    ("checkpointed", "step", "is_saved"),
    [(-1, 7, False), (6, 7, False), (7, 7, True), (8, None, None)],
)
def test_checkpoint_counts_if_it_is_newer(memories, checkpointed, step, is_saved):
    Process(memories).keep(7)
    restored = Process(memories).snapshots.restore(checkpointed)
    assert (restored and (restored.position.step, restored.is_saved)) == (step and (step, is_saved))


def test_damaged_state_is_left_for_that_of_another_process(memories):
    for name, step in (("worker-0", 7), ("worker-1", 8)):
        Process(memories, name).keep(step)
    file = memories["worker-1"].fileno()
    aligned = -(-memories["worker-1"].newest().description_bytes // 64) * 64
    os.pwrite(file, np.float32(9).tobytes(), 4096 + aligned)
    assert Process(memories).snapshots.restore(-1).process == "worker-0"


def test_state_that_was_cleared_is_not_restored(memories):
    for name in memories:
        Process(memories, name).keep(7)
    process = Process(memories)
    process.snapshots.clear()
    assert process.snapshots.restore(-1) is None
    assert process.keep(7)
