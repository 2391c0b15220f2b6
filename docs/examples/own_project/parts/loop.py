"""Your own training loop: counts to the end, and would resume after a kill."""

import tensorflow as tf


def main(replicator):
    with replicator.context():
        count = tf.Variable(0, dtype=tf.int64)

    def step():
        count.assign_add(1)

    replicator.checkpoint(count=count)
    while replicator.step < replicator.total_steps:
        replicator.run(step)
    replicator.log(count=count.numpy())
