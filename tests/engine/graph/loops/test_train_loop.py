"""Batches that are gathered during the step before, and the time that steps wait for theirs."""

import threading
import time

import pytest
import tensorflow as tf

from tests.support.training import assert_same_bits, engine, train
from trainer.engine.graph.loops.train_loop import TrainLoop, input_wait

LONG = ["train.steps=7", "train.steps_per_loop=3", "augment.flip=true"]


def loop_body(run):
    """Return the graph of a step in an engine's compiled loop."""
    graphs = []
    run.loop.on_traced = graphs.append
    run.loop.trace(run.loop.feed.open(0))
    return graphs[-1]


def ancestors(operations):
    """Return operations and all that must be done before them, control inputs included."""
    found = set()
    waiting = list(operations)
    while waiting:
        operation = waiting.pop()
        if operation not in found:
            found.add(operation)
            waiting += [*operation.control_inputs, *(x.op for x in operation.inputs)]
    return found


def test_step_does_not_wait_for_gathering(tmp_path):
    graph = loop_body(engine(tmp_path, "strategy=one_device", "augment=none"))
    operations = graph.get_operations()
    gathers = {operation for operation in operations if operation.type == "RandomIndexShuffle"}
    updates = {operation for operation in operations if operation.type.startswith("ResourceApply")}
    assert gathers
    assert updates
    assert not ancestors(updates) & gathers
    assert not ancestors(gathers) & updates


@pytest.mark.slow
def test_batches_gathered_ahead_are_those_of_their_steps(tmp_path, monkeypatch):
    ahead = train(tmp_path / "ahead", *LONG)
    monkeypatch.setattr(TrainLoop, "_gather_ahead", lambda *arguments: [])
    assert_same_bits(ahead, train(tmp_path / "in_step", *LONG))


def waited(element, step, steps=4):
    """Run a loop whose steps return metrics before they make their update; return their wait."""
    strategy = tf.distribute.OneDeviceStrategy("CPU:0")
    numbers = tf.data.Dataset.range(100)
    dataset = numbers.map(lambda number: tf.numpy_function(element, [number], tf.int64)).prefetch(2)
    iterator = iter(strategy.distribute_datasets_from_function(lambda context: dataset))
    variable = tf.Variable(0, dtype=tf.int64)

    def replica_step(element):
        variable.assign_add(tf.numpy_function(step, [element], tf.int64))
        return tf.reshape(element, [])

    @tf.function(autograph=False)
    def run(iterator):
        def one_step(index, total, waited):
            element = iterator.get_next()
            waited += input_wait(index, element)
            return index + 1, total + strategy.run(replica_step, args=(element,)), waited

        start = (tf.constant(0, tf.int64), tf.constant(0, tf.int64), tf.constant(0.0, tf.float64))
        return tf.while_loop(lambda index, *_: index < steps, one_step, start)

    _, total, secs = run(iterator)
    assert (int(total), int(variable)) == (sum(range(steps)), sum(range(steps)))
    return float(secs)


def test_wait_counts_element_that_comes_late():
    done = threading.Event()

    def element(number):
        if number == 3:
            assert done.wait(30)  # the step before it has been training, ...
            time.sleep(0.5)  # ... and has nothing left to do
        return number

    def step(number):
        if number == 2:
            done.set()
        return number

    assert 0.0 < waited(element, step) < 30.0
