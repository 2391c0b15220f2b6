"""Snapshots in memory: how often they are written, and from which a restart continues.

On one host each process sees the memories of all, on several its own.
"""

import itertools
import os
from types import SimpleNamespace

import numpy as np
import pytest
import tensorflow as tf

from tests.support.process_groups import in_processes
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
    """A process that trains one counter, and can see the memories of its host."""

    def __init__(self, memories, name="worker-0", group=None, **options):
        self.warnings = []
        self.memories, self.name, self.memory = memories, name, memories[name]
        self.state = tf.Variable(0.0)
        self.snapshots = MemorySnapshots(
            SnapshotReader(tf.train.Checkpoint(state=self.state)),
            MemoryFiles(self.memory, memories, lambda: newest(memories)),
            group or ProcessGroup(tf.distribute.get_strategy()),
            warn=self.warnings.append,
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
    memories = {f"worker-{number}": StateMemory(os.memfd_create("x")) for number in range(3)}
    yield memories
    for memory in memories.values():
        memory.close()


def test_state_that_is_held_is_found_by_the_next_attempt_until_it_is_released(memories):
    process = Process(memories)
    process.state.assign(5.0)
    snapshot = process.snapshots.reader.capture()
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
    now = [0.0]
    clock = SimpleNamespace(monotonic=lambda: now[0])
    monkeypatch.setattr(memory_snapshots, "time", clock)
    process = Process(memories)
    write = process.memory.write

    def write_slowly(*arguments):
        now[0] += 0.5
        return write(*arguments)

    monkeypatch.setattr(process.memory, "write", write_slowly)
    written = []
    for step in range(1, 501):
        now[0] += 1.0
        if process.keep(step):
            written.append(step)
    # The first also traces and allocates: it does not tell what one costs.
    assert written == [1, 2, *range(52, 500, 50)]
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
def test_lack_of_memory_is_warned_of_once_and_the_state_is_not_kept(memories, monkeypatch, limited):
    monkeypatch.setattr(memory_snapshots, "available_bytes", lambda: 31)
    process = Process(memories, limited=limited)
    assert [process.keep(step, force=True) for step in (1, 2)] == [not limited] * 2
    assert len(process.warnings) == limited
    assert all("bytes of the 31 that are free" in warning for warning in process.warnings)


def test_memory_that_is_allocated_is_used_however_little_is_free(memories, monkeypatch):
    Process(memories).keep(1)
    monkeypatch.setattr(memory_snapshots, "available_bytes", lambda: 0)
    assert Process(memories).keep(2)


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


NEWEST, OTHER, OLDER = (60, 58, 7.0), (60, 58, 5.0), (57, 55, 5.0)
"""What a host has in memory: the step, the last reported step, and the value of the counter."""


def restore_on_hosts(memories, *states, checkpointed=-1, prepare=lambda group: None):
    """Restore on hosts of one process each, which have kept these states, at once.

    Returns:
        What each has restored, its counter, the warnings of all, and the bytes that were sent.
    """
    hosts = [{name: memory} for name, memory in memories.items()][: len(states)]
    for host, state in zip(hosts, states, strict=True):
        if state is not None:
            process = Process(host, *host)
            process.state.assign(state[2])
            process.snapshots.keep(Position(*state[:2]))

    def call(group):
        prepare(group)
        host = hosts[group.index]
        process = Process(host, *host, group)
        # Only the chief sees the checkpoints.
        restored = process.snapshots.restore(checkpointed if group.is_chief else -1)
        return restored, float(process.state), process.warnings, group.sent

    restored, counters, warnings, sent = zip(*in_processes(len(hosts), call), strict=True)
    return restored, counters, [*itertools.chain(*warnings)], sent[0]


@pytest.mark.parametrize(
    ("states", "name"),
    [
        ([NEWEST, None, OLDER], "worker-0"),
        ([None, NEWEST, NEWEST], "worker-1"),
        ([(60, 55, 5.0), NEWEST], "worker-1"),
    ],
    ids=["others are behind", "chief was replaced", "one has reported more"],
)
def test_newest_state_is_sent_to_the_hosts_that_lack_it(memories, states, name):
    restored, counters, _, sent = restore_on_hosts(memories, *states, checkpointed=60)
    assert {x.line() for x in restored} == {
        f"Continuing from step 60 (memory of {name}), no completed step lost."
    }
    assert set(counters) == {7.0}
    assert sent > 0


def test_steps_after_the_state_are_counted_on_any_host(memories):
    Process({"worker-2": memories["worker-2"]}, "worker-2").keep(57)
    memories["worker-2"].note_reached(63)
    restored, *_ = restore_on_hosts(memories, None, NEWEST, None)
    assert {x.again for x in restored} == {3}


def flip_what_arrives(group):
    """Flip bits in one process alone: what has arrived there is checked there."""
    broadcast = group.broadcast_bytes
    flip = np.uint8(group.index == 1)
    group.broadcast_bytes = lambda source, content: broadcast(source, content) ^ flip


@pytest.mark.parametrize(
    ("states", "options", "warned"),
    [
        ([None, None], {}, []),
        ([NEWEST, None], {"checkpointed": 61}, []),
        ([NEWEST, None], {"prepare": flip_what_arrives}, []),
        ([NEWEST, NEWEST, OTHER], {}, ["step 60 in memory differ between worker-0 and worker-2"]),
    ],
    ids=["nothing is kept", "checkpoint is newer", "damaged on its way", "they differ"],
)
def test_hosts_continue_from_the_checkpoint(memories, states, options, warned):
    restored, counters, warnings, _ = restore_on_hosts(memories, *states, **options)
    assert set(restored) == {None}
    assert set(counters) == {0.0}
    assert len(warnings) == len(warned) * len(states)
    assert all(text in warning for text in warned for warning in warnings)
