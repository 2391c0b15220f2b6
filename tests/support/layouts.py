"""Into which parts a global batch is divided, for tests that compare such."""

from __future__ import annotations

from dataclasses import dataclass

import tensorflow as tf

from trainer.engine.graph.exchange.collectives import CollectiveLog
from trainer.engine.graph.randomness.randomness import BatchPart, batch_part, fold_seed
from trainer.engine.graph.step.shard_tree import TreeExchange
from trainer.engine.graph.step.step_options import StepOptions
from trainer.engine.graph.step.train_step import Step


@dataclass(frozen=True)
class Layout:
    """How a global batch is computed."""

    replicas: int = 1
    accumulate: int = 1
    shards: int | None = None

    def __str__(self):
        return f"{self.replicas}x{self.accumulate}, {self.shards} shards"

    def strategy(self):
        """Return a strategy of these replicas."""
        one = tf.distribute.OneDeviceStrategy("CPU:0")
        return one if self.replicas == 1 else mirrored(self.replicas)

    def step(self, train, **options):
        """Return a function that makes step 5, `train(step, batch)`, of a global batch."""
        exchange = None if self.shards is None else TreeExchange()
        chosen = StepOptions(self.accumulate, exchange=exchange, shards=self.shards, **options)
        log = CollectiveLog()

        def on_replica(batch):
            replica = tf.distribute.get_replica_context().replica_id_in_sync_group
            number = int(tf.get_static_value(replica))
            size = batch["weight"].shape[0] // self.replicas
            own = {name: x[number * size : (number + 1) * size] for name, x in batch.items()}
            index = tf.constant(5, tf.int64)
            with batch_part(BatchPart(lambda: fold_seed(0, index), size, number)):
                step = Step(index, chosen, log)
                train(step, own)
                step.end()

        def run(batch):
            tf.distribute.get_strategy().run(on_replica, args=(batch,))

        return tf.function(run, autograph=False)


def mirrored(count):
    """Return a strategy of so many replicas on the CPU."""
    # With an odd number of devices HierarchicalCopyAllReduce leaves out the last.
    operations = (
        tf.distribute.ReductionToOneDevice()
        if count % 2
        else tf.distribute.HierarchicalCopyAllReduce()
    )
    devices = [f"CPU:{number}" for number in range(count)]
    return tf.distribute.MirroredStrategy(devices, cross_device_ops=operations)
