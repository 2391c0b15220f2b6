"""Keras `fit` with BackupAndRestore, as Keras' multi-worker tutorial has it.

python -m benchmarks.fire.fit <job>
"""

from __future__ import annotations

import sys
from typing import Any

import tensorflow as tf

from benchmarks.fire import peer
from benchmarks.fire.job import Job


class Recorded(tf.keras.Model):
    """A model that records its steps; nothing else differs from Keras' own."""

    record: peer.Recorder

    def train_step(self, data: Any) -> dict[str, tf.Tensor]:
        images, labels, numbers = data
        step = tf.identity(self.optimizer.iterations)
        logs = super().train_step((images, labels))
        self.record(step, numbers)
        return logs


def main() -> None:
    job = Job.from_json(sys.argv[1])
    strategy = peer.make_strategy()
    with strategy.scope():
        network, optimizer = peer.build()
        model = Recorded(network.inputs, network.outputs)
        model.record = peer.Recorder(job.folder)
        loss = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(optimizer, loss, metrics=["accuracy"])
    backup = tf.keras.callbacks.BackupAndRestore(job.checkpoints, job.save_every or "epoch")
    model.fit(
        peer.dataset(job, strategy),
        epochs=job.epochs,
        steps_per_epoch=job.steps_per_epoch,
        callbacks=[backup],
        verbose=2,
    )
    peer.finish(job, strategy, model)


if __name__ == "__main__":
    main()
