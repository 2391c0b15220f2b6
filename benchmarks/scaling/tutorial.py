"""The loop of TensorFlow's multi-worker tutorial, as one of several processes; see `team`.

python -m benchmarks.scaling.tutorial <contestant> <model> <seconds> <descriptor>

The cluster is that of TF_CONFIG.
"""

from __future__ import annotations

import importlib
import itertools
import sys
import time
from multiprocessing.connection import Connection
from typing import Any

import tensorflow as tf

from benchmarks.harness import LEARNING_RATES
from benchmarks.scaling.jobs import EXAMPLES, JOBS, STEPS_PER_LOOP, Job
from trainer.cluster.network_namespace import sent_bytes


class LockStep:
    """The clock: starts all processes at once when they are warm, and reports once.

    Afterward the process trains on until it is killed: the others may still need it.

    Args:
        parent: receives "warm", and then what was measured.
        secs: length of the window.
    """

    def __init__(self, parent: Connection, secs: float) -> None:
        self._parent = parent
        self._secs = secs
        self._began: tuple[int, int | None, float, float] | None = None
        self._is_done = False

    def __call__(self, step: int, loss: Any) -> None:
        if self._is_done or step < STEPS_PER_LOOP:
            return
        float(loss)  # waits until it is computed
        if self._began is None:
            sent = sent_bytes()
            self._parent.send("warm")
            self._parent.recv()
            self._began = step, sent, time.process_time(), time.perf_counter()
        elif time.perf_counter() >= self._began[-1] + self._secs:
            self._report(step)
            self._is_done = True

    def _report(self, step: int) -> None:
        assert self._began is not None
        now = time.perf_counter()
        busy = time.process_time()
        sent = sent_bytes()
        first, sent_before, busy_before, before = self._began
        steps = step - first
        is_counted = sent is not None and sent_before is not None
        self._parent.send(
            {
                "ms": 1000 * (now - before) / steps,
                "cpu_ms": 1000 * (busy - busy_before) / steps,
                "sent": (sent - sent_before) / steps if is_counted else None,  # type: ignore[operator]
            }
        )


def train(job: Job, clock: LockStep, *, fused: bool) -> None:
    """Train for ever: a graph call a step, Keras' all-reduce."""
    # The same initial variables in every round, and the same order in every process: otherwise
    # their shards of the data would overlap.
    tf.keras.utils.set_random_seed(0)
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    global_size = job.per_worker * strategy.num_replicas_in_sync
    with strategy.scope():
        model = _build_model(job)
        optimizer = _build_optimizer(job, fused=fused)
        accuracy = tf.keras.metrics.SparseCategoricalAccuracy("train_accuracy")
        example_loss = tf.keras.losses.SparseCategoricalCrossentropy(
            from_logits=True, reduction=tf.keras.losses.Reduction.NONE
        )

    def replica_step(batch: tuple[tf.Tensor, tf.Tensor]) -> tf.Tensor:
        images, labels = batch
        with tf.GradientTape() as tape:
            logits = model(images, training=True)
            loss = tf.nn.compute_average_loss(
                example_loss(labels, logits), global_batch_size=global_size
            )
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        accuracy.update_state(labels, logits)
        return loss

    @tf.function
    def train_step(iterator: tf.data.Iterator) -> tf.Tensor:
        losses = strategy.run(replica_step, args=(next(iterator),))
        return strategy.reduce(tf.distribute.ReduceOp.SUM, losses, axis=None)

    def dataset_fn(context: tf.distribute.InputContext) -> tf.data.Dataset:
        dataset = images_and_labels(job).shard(
            context.num_input_pipelines, context.input_pipeline_id
        )
        return dataset.batch(
            context.get_per_replica_batch_size(global_size), drop_remainder=True
        ).prefetch(tf.data.AUTOTUNE)

    iterator = iter(strategy.distribute_datasets_from_function(dataset_fn))
    for step in itertools.count(1):
        clock(step, train_step(iterator))


def _build_model(job: Job) -> tf.keras.Model:
    module = importlib.import_module(f"trainer.models.{job.model}")
    return getattr(module, job.model)(job.shape, job.classes)


def _build_optimizer(job: Job, *, fused: bool) -> Any:
    optimizers = tf.keras.optimizers.legacy if fused else tf.keras.optimizers
    classes = {"rmsprop": optimizers.RMSprop, "adam": optimizers.Adam}
    return classes[job.optimizer](LEARNING_RATES[job.optimizer])


def images_and_labels(job: Job) -> tf.data.Dataset:
    """Return the images that Steadfast trains on, each once an epoch in another order."""
    from trainer.datasets.synthetic import synthetic

    data = synthetic(num_examples=EXAMPLES, image_size=list(job.shape[:2]), channels=job.shape[2])
    batch = data.transform(data.train.fetch(tf.range(EXAMPLES, dtype=tf.int64)), None)
    return (
        tf.data.Dataset.from_tensor_slices((batch["features"], batch["label"]))
        .shuffle(EXAMPLES)
        .repeat()
    )


def main() -> None:
    name, model, secs, descriptor = sys.argv[1:]
    clock = LockStep(Connection(int(descriptor)), float(secs))
    train(JOBS[model], clock, fused=name == "tutorial_fused")


if __name__ == "__main__":
    main()
