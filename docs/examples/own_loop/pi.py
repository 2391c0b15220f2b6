"""Pi by the Monte Carlo method on all replicas: nothing need be a network."""

import tensorflow as tf


def main(replicator, *, points: int = 10_000):
    """Throw points into a square, and count those in the circle.

    Args:
        replicator: of the run.
        points: thrown by each replica in each step.
    """
    with replicator.context():
        inside = tf.Variable(0, dtype=tf.int64)

    def throw():
        seed = replicator.random_seed()  # of this run, step and replica
        x, y = tf.unstack(tf.random.stateless_uniform([2, points], seed))
        return tf.reduce_sum(tf.cast(x * x + y * y < 1, tf.int64))

    replicator.checkpoint(inside=inside)
    while replicator.step < replicator.total_steps:
        inside.assign_add(sum(replicator.run(throw)))  # one result for each replica
    thrown = replicator.total_steps * replicator.num_replicas * points
    replicator.log(pi=4 * inside.numpy() / thrown)
