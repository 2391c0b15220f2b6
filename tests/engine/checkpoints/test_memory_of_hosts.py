"""Snapshots in memory at a restart: which of several processes' is gone on from."""

import os

import numpy as np
import pytest
import tensorflow as tf

from tests.support.process_groups import in_processes
from trainer.engine.checkpoints.memory_snapshots import MemorySnapshots
from trainer.engine.checkpoints.snapshot import SnapshotReader
from trainer.runs.state_memory import MemoryFiles, Position, StateMemory


class Host:
    """The memory of a host with one process, and the variable that is trained there."""

    def __init__(self, number, state):
        self.name = f"worker-{number}"
        self.variable = tf.Variable([0.0] * 5)
        self.memory = StateMemory(os.memfd_create(self.name))
        self.warnings = []
        if state is not None:
            value, position = state
            self.variable.assign([value] * 5)
            self.snapshots(None).keep(Position(*position))
            self.variable.assign([0.0] * 5)

    def snapshots(self, group):
        files = MemoryFiles(self.memory, {self.name: self.memory}, lambda: [self.name])
        reader = SnapshotReader(tf.train.Checkpoint(x=self.variable))
        return MemorySnapshots(reader, files, group, limited=False, warn=self.warnings.append)


NEWEST, OTHER, OLDER = (7.0, (60, 58)), (5.0, (60, 58)), (5.0, (57, 55))
"""The value that a host has in memory, with its step and the last reported step."""


def hosts_with(*states):
    return [Host(number, state) for number, state in enumerate(states)]


def restore(hosts, checkpointed=-1):
    """Restore on all hosts at once; return what each has restored, and the bytes that were sent."""

    def call(group):
        # Only the chief sees the checkpoints.
        newest = checkpointed if group.is_chief else -1
        return hosts[group.index].snapshots(group).restore(newest), group.sent

    restored, sent = zip(*in_processes(len(hosts), call), strict=True)
    return restored, sent[0]


@pytest.mark.parametrize(
    ("states", "name"),
    [
        ([NEWEST, None, OLDER], "worker-0"),
        ([None, NEWEST, NEWEST], "worker-1"),
        ([(5.0, (60, 55)), NEWEST], "worker-1"),
    ],
    ids=["others are behind", "chief was replaced", "one has reported more"],
)
def test_newest_state_is_sent_to_those_that_lack_it(states, name):
    hosts = hosts_with(*states)
    restored, sent = restore(hosts, checkpointed=60)
    assert {x.line() for x in restored} == {
        f"Continuing from step 60 (memory of {name}), no completed step lost."
    }
    assert [host.variable.numpy().tolist() for host in hosts] == [[7.0] * 5] * len(hosts)
    assert sent > 0


def test_steps_after_the_state_are_counted_on_any_host():
    hosts = hosts_with(None, NEWEST, OLDER)
    hosts[2].memory.note_reached(63)
    restored, _ = restore(hosts)
    assert {x.again for x in restored} == {3}


@pytest.mark.parametrize(
    ("states", "checkpointed"),
    [([None, None], -1), ([NEWEST, None], 61)],
    ids=["nothing is kept", "checkpoint is newer"],
)
def test_checkpoint_is_taken_if_no_state_is_as_new(states, checkpointed):
    restored, sent = restore(hosts_with(*states), checkpointed)
    assert (restored, sent) == ((None,) * 2, 0)


def test_different_states_of_one_step_are_refused():
    hosts = hosts_with(NEWEST, NEWEST, OTHER)
    restored, _ = restore(hosts)
    assert restored == (None,) * 3
    assert hosts[0].variable.numpy().tolist() == [0.0] * 5
    assert hosts[1].warnings == [
        "warning: the states of step 60 in memory differ between worker-0 and worker-2, so one of "
        "them is wrong; neither is used"
    ]


def test_state_that_arrives_damaged_is_refused_by_all():
    hosts = hosts_with(NEWEST, None)

    def call(group):
        broadcast = group.broadcast_bytes
        # In one process alone: what has arrived there is checked there.
        flip = np.uint8(group.index == 1)
        group.broadcast_bytes = lambda source, content: broadcast(source, content) ^ flip
        return hosts[group.index].snapshots(group).restore(-1)

    assert in_processes(2, call) == [None, None]
