"""Orbit's standard trainer under its controller, with a checkpoint manager.

python -m benchmarks.fire.orbit <job>
"""

from __future__ import annotations

import sys

import orbit
import tensorflow as tf

from benchmarks.fire import peer
from benchmarks.fire.job import Job


class Trainer(orbit.StandardTrainer):
    def __init__(self, job: Job, strategy: tf.distribute.Strategy) -> None:
        self.batch_size, self.strategy = job.batch_size, strategy
        self.record = peer.Recorder(job.folder)
        self.model, self.optimizer = peer.build()
        self.global_step = orbit.utils.create_global_step()
        super().__init__(peer.dataset(job, strategy))

    def train_step(self, iterator: tf.data.Iterator) -> None:
        self.strategy.run(self.replica_step, args=(next(iterator),))
        self.global_step.assign_add(1)

    def replica_step(self, batch: tuple[tf.Tensor, tf.Tensor, tf.Tensor]) -> None:
        images, labels, numbers = batch
        step = tf.identity(self.global_step)
        with tf.GradientTape() as tape:
            losses = tf.keras.losses.sparse_categorical_crossentropy(
                labels, self.model(images, training=True), from_logits=True
            )
            loss = tf.nn.compute_average_loss(losses, global_batch_size=self.batch_size)
        gradients = tape.gradient(loss, self.model.trainable_variables)
        self.optimizer.apply_gradients(zip(gradients, self.model.trainable_variables, strict=True))
        self.record(step, numbers)


def main() -> None:
    job = Job.from_json(sys.argv[1])
    strategy = peer.make_strategy()
    with strategy.scope():
        trainer = Trainer(job, strategy)
    checkpoint = tf.train.Checkpoint(
        model=trainer.model, optimizer=trainer.optimizer, global_step=trainer.global_step
    )
    manager = tf.train.CheckpointManager(
        checkpoint,
        job.checkpoints,
        max_to_keep=2,
        step_counter=trainer.global_step,
        checkpoint_interval=job.save_every,
    )
    controller = orbit.Controller(
        trainer=trainer,
        strategy=strategy,
        global_step=trainer.global_step,
        steps_per_loop=job.save_every,
        checkpoint_manager=manager,
    )
    controller.train(job.steps)
    peer.finish(job, strategy, trainer.model)


if __name__ == "__main__":
    main()
