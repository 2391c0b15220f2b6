"""How long steps wait for their input, measured inside the compiled loop."""

import threading
import time

import pytest
import tensorflow as tf

from tests.training import engine
from trainer.loop import input_wait

STRATEGIES = {"none": tf.distribute.get_strategy, "one_device": lambda: tf.distribute.OneDeviceStrategy("CPU:0")}


def waited(strategy, element, step, steps=4):
    """Runs a loop whose steps tell their metrics before they make their update; gives how long they waited."""
    dataset = tf.data.Dataset.range(100).map(lambda number: tf.numpy_function(element, [number], tf.int64)).prefetch(2)
    opened = iter(strategy.distribute_datasets_from_function(lambda context: dataset))
    variable = tf.Variable(0, dtype=tf.int64)

    def replica_step(taken):
        variable.assign_add(tf.numpy_function(step, [taken], tf.int64))
        return tf.reshape(taken, [])

    @tf.function(autograph=False)
    def run(opened):
        def one_step(index, total, waited):
            taken = opened.get_next()
            waited += input_wait(index, taken)
            return index + 1, total + strategy.run(replica_step, args=(taken,)), waited

        start = (tf.constant(0, tf.int64), tf.constant(0, tf.int64), tf.constant(0.0, tf.float64))
        return tf.while_loop(lambda index, *_: index < steps, one_step, start)

    _, total, secs = run(opened)
    assert (int(total), int(variable)) == (sum(range(steps)), sum(range(steps)))
    return float(secs)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_what_comes_too_late_is_waited_for(strategy):
    done = threading.Event()

    def element(number):
        if number == 3:
            assert done.wait(30)  # the step before it has been made, ...
            time.sleep(0.5)  # ... and has nothing left to do
        return number

    def step(number):
        if number == 2:
            done.set()
        return number

    assert 0.0 < waited(STRATEGIES[strategy](), element, step) < 30.0


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_what_is_fetched_while_the_step_before_still_runs_is_not_waited_for(strategy):
    fetched = [threading.Event() for _ in range(8)]

    def element(number):
        fetched[min(number, 7)].set()
        return number

    def step(number):
        assert fetched[number + 1].wait(30)
        time.sleep(0.5)
        return number

    # Of two seconds in which steps make their updates, which is after they have told their metrics.
    assert waited(STRATEGIES[strategy](), element, step) < 1.0


def test_a_split_in_memory_is_never_waited_for(tmp_path):
    made = engine(tmp_path)
    opened = made.loop.feed.start(0, made.state.guard.left_out.numpy())
    assert float(made.loop.run(opened, tf.constant(3, tf.int64))[1]) == 0.0
    operations = made.loop.run.get_concrete_function(opened, tf.TensorSpec([], tf.int64)).graph.as_graph_def().library.function
    assert not [node for function in operations for node in function.node_def if node.op == "Timestamp"]
