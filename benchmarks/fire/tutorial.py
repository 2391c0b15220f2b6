"""The loop of TensorFlow's tutorial of several workers, with its checkpoints.

python -m benchmarks.fire.tutorial <job>

The tutorial's checkpoint leaves the optimizer out, so that a restart would lose its averages; here
it is in. As there all processes save, and all restore what the chief has saved.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from benchmarks.fire import peer
from benchmarks.fire.job import Job

_LOSSES = tf.keras.losses.SparseCategoricalCrossentropy(
    from_logits=True, reduction=tf.keras.losses.Reduction.NONE
)


def compiled_step(
    job: Job, strategy: tf.distribute.Strategy, model: tf.keras.Model, optimizer: Any
) -> Callable[[tf.data.Iterator], tf.Tensor]:
    """Return what makes a step with the next batch of an iterator, and returns its loss."""
    record = peer.Recorder(job.folder)

    def replica_step(batch: tuple[tf.Tensor, tf.Tensor, tf.Tensor]) -> tf.Tensor:
        images, labels, numbers = batch
        step = tf.identity(optimizer.iterations)
        with tf.GradientTape() as tape:
            losses = _LOSSES(labels, model(images, training=True))
            loss = tf.nn.compute_average_loss(losses, global_batch_size=job.batch_size)
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        record(step, numbers)
        return loss

    @tf.function
    def train_step(iterator: tf.data.Iterator) -> tf.Tensor:
        losses = strategy.run(replica_step, args=(next(iterator),))
        return strategy.reduce(tf.distribute.ReduceOp.SUM, losses, axis=None)

    return train_step


def main() -> None:
    job = Job.from_json(sys.argv[1])
    strategy = peer.make_strategy()
    dataset = peer.dataset(job, strategy)
    with strategy.scope():
        model, optimizer = peer.build()
    train_step = compiled_step(job, strategy, model, optimizer)
    epoch, step_in_epoch = (tf.Variable(0, dtype=tf.int64) for _ in range(2))
    checkpoint = tf.train.Checkpoint(
        model=model, optimizer=optimizer, epoch=epoch, step_in_epoch=step_in_epoch
    )
    is_chief = strategy.extended.should_checkpoint
    folder = job.checkpoints if is_chief else tempfile.mkdtemp(dir=job.folder)
    manager = tf.train.CheckpointManager(checkpoint, folder, max_to_keep=1)
    if latest := tf.train.latest_checkpoint(job.checkpoints):
        checkpoint.restore(latest)

    while epoch.numpy() < job.epochs:
        iterator = iter(dataset)
        while step_in_epoch.numpy() < job.steps_per_epoch:
            train_step(iterator)
            step_in_epoch.assign_add(1)
            if step_in_epoch.numpy() % job.save_every == 0:
                manager.save()
        epoch.assign_add(1)
        step_in_epoch.assign(0)
    peer.finish(job, strategy, model)


if __name__ == "__main__":
    main()
