"""Shards are traced in lockstep: they synchronize at every update, and continue in turns."""

import numpy as np
import pytest
import tensorflow as tf

from trainer.engine.graph.step.lockstep import in_lockstep, meet
from trainer.errors import ConfigError


@pytest.mark.parametrize("count", [1, 3])
def test_all_shards_meet_and_read_what_was_updated_there(count):
    variable = tf.Variable(1.0)

    def compute(number):
        with tf.GradientTape() as tape:
            loss = variable * (number + 1.0)
        meet(tape.gradient(loss, variable))
        return variable + float(number)

    def at_meeting(gradients):
        variable.assign_add(tf.add_n(gradients))
        return [None] * len(gradients)

    @tf.function(autograph=False)
    def step():
        return in_lockstep(count, compute, at_meeting)

    total = 1.0 + sum(range(1, count + 1))
    assert np.array(step()).tolist() == [total + number for number in range(count)]


def test_shards_have_device_scope_and_replica_of_the_thread_that_starts_them():
    seen = []

    def compute(number):
        context = tf.distribute.get_replica_context()
        zeros = tf.zeros([])
        seen.append((context.strategy, zeros.device[-5:], zeros.op.name.split("/")[0]))
        meet(None)

    @tf.function(autograph=False)
    def step():
        with tf.name_scope("outer"), tf.device("CPU:0"):
            seen.append((tf.distribute.get_strategy(), "CPU:0", "outer"))
            in_lockstep(2, compute, lambda contributions: contributions)

    strategy = tf.distribute.OneDeviceStrategy("CPU:0")
    with strategy.scope():
        strategy.run(step)
    assert seen[0] == seen[1] == seen[2]


def test_error_of_one_shard_ends_all():
    def compute(number):
        meet(None)
        if number == 1:
            raise ValueError("only here")
        meet(None)

    with tf.Graph().as_default(), pytest.raises(ValueError, match="only here"):
        in_lockstep(3, compute, lambda contributions: contributions)


def test_shards_with_different_numbers_of_updates_are_refused():
    def compute(number):
        if number:
            meet(None)

    with tf.Graph().as_default(), pytest.raises(ConfigError, match="another number of updates"):
        in_lockstep(2, compute, lambda contributions: contributions)


def test_collective_within_a_shard_is_refused():
    def compute(number):
        return tf.distribute.get_replica_context().merge_call(lambda strategy: None)

    @tf.function(autograph=False)
    def step():
        in_lockstep(2, compute, lambda contributions: contributions)

    strategy = tf.distribute.OneDeviceStrategy("CPU:0")
    with strategy.scope(), pytest.raises(ConfigError, match="communicates between replicas"):
        strategy.run(step)
