"""The time of TensorFlow's own reduction, measured in the graph."""

import tensorflow as tf

from trainer.engine.graph.exchange.exchange_timer import ExchangeTimer
from trainer.engine.graph.input.faulty_feed import _rest


def test_time_from_ready_to_summed_is_added_up_over_steps():
    timer = ExchangeTimer(num_replicas=2)

    def late_sum(x):
        # As if another process came late; it needs the tensor, as every sum does.
        with tf.control_dependencies([_rest(0.02 + 0.0 * tf.cast(x, tf.float64))]):
            return [tf.identity(x) * 2.0]

    @tf.function(autograph=False)
    def steps(count):
        def step(number, x):
            (summed,) = timer.measure([x], lambda: late_sum(x))
            return number + 1, summed

        return tf.while_loop(lambda number, x: number < count, step, (0, tf.constant(1.0)))[1]

    assert float(steps(tf.constant(3))) == 8.0
    assert timer.read() >= 0.9 * 3 * 0.02 / 2
