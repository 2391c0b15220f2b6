"""The peers, each as its own users write it: a process that trains and prints a line of JSON.

    python -m benchmarks.peers tutorial|fit|orbit|limit --model ... --optimizer ... --data ...
        --steps-per-loop N --batch N --steps SHORT LONG

The line has `first_step_at` (Unix time), `loss` (the last training loss, to check that it learns)
and, with `--steps`, `secs_per_step`: the difference in time of the two trainings over the
difference in steps.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from benchmarks.harness import LEARNING_RATES, PEERS, Job

Train = Callable[[int], float]
"""Trains so many more steps, waits for them, and returns the loss."""


def load(job: Job) -> tuple[np.ndarray, np.ndarray]:
    """Return the training split: images [N, 28, 28, 1] float32 in [0, 1] and labels [N] int64."""
    with np.load(job.data) as archive:
        return archive["x_train"][..., None] / np.float32(255), archive["y_train"].astype(np.int64)


def pipeline(job: Job, context: tf.distribute.InputContext | None = None) -> tf.data.Dataset:
    """The input pipeline of the tutorial, with prefetching; of a process of several."""
    dataset = tf.data.Dataset.from_tensor_slices(load(job))
    context = context or tf.distribute.InputContext()
    dataset = dataset.shard(context.num_input_pipelines, context.input_pipeline_id)
    batch_size = context.get_per_replica_batch_size(job.batch_size)
    dataset = dataset.shuffle(10_000).repeat()
    return dataset.batch(batch_size, drop_remainder=True).prefetch(tf.data.AUTOTUNE)


def build_model(job: Job) -> tf.keras.Model:
    """Build the very model that Steadfast trains."""
    build = getattr(importlib.import_module(f"trainer.models.{job.model}"), job.model)
    return build((28, 28, 1), 10)


def build_optimizer(job: Job) -> tf.keras.optimizers.Optimizer:
    """Build the optimizer that users of Keras get."""
    classes = {"rmsprop": ("RMSprop", {}), "adam": ("Adam", {}), "sgd": ("SGD", {"momentum": 0.9})}
    name, options = classes[job.optimizer]
    return getattr(tf.keras.optimizers, name)(LEARNING_RATES[job.optimizer], **options)


def fused_optimizer(job: Job) -> tf.keras.optimizers.legacy.Optimizer:
    """Build the optimizer that Steadfast has."""
    module = importlib.import_module(f"trainer.optimizers.{job.optimizer}")
    return getattr(module, job.optimizer)(LEARNING_RATES[job.optimizer])


def one_device() -> tf.distribute.Strategy:
    """The strategy of one device: the first GPU, or the CPU."""
    return tf.distribute.OneDeviceStrategy(
        "/gpu:0" if tf.config.list_physical_devices("GPU") else "/cpu:0"
    )


def tutorial(job: Job) -> Train:
    """A loop as in TensorFlow's tutorials: one graph call a step, with `next(iterator)` inside."""
    is_one_of_several = "TF_CONFIG" in os.environ
    strategy = tf.distribute.MultiWorkerMirroredStrategy() if is_one_of_several else one_device()
    with strategy.scope():
        model = build_model(job)
        optimizer = build_optimizer(job)
        accuracy = tf.keras.metrics.SparseCategoricalAccuracy("accuracy")
        example_loss = tf.keras.losses.SparseCategoricalCrossentropy(
            from_logits=True, reduction=tf.keras.losses.Reduction.NONE
        )

    def replica_step(batch: tuple[tf.Tensor, tf.Tensor]) -> tf.Tensor:
        images, labels = batch
        with tf.GradientTape() as tape:
            logits = model(images, training=True)
            loss = tf.nn.compute_average_loss(
                example_loss(labels, logits), global_batch_size=job.batch_size
            )
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        accuracy.update_state(labels, logits)
        return loss

    @tf.function
    def train_step(iterator: tf.data.Iterator) -> tf.Tensor:
        losses = strategy.run(replica_step, args=(next(iterator),))
        return strategy.reduce(tf.distribute.ReduceOp.SUM, losses, axis=None)

    iterator = iter(
        strategy.distribute_datasets_from_function(lambda context: pipeline(job, context))
    )

    def train(steps: int) -> float:
        accuracy.reset_state()
        total = 0.0
        for _ in range(steps):
            total += train_step(iterator)
        accuracy.result().numpy()
        return float(total / steps)

    return train


def compiled_model(job: Job) -> tf.keras.Model:
    """Build the model ready for `fit`, with many steps in one graph call."""
    model = build_model(job)
    model.compile(
        optimizer=build_optimizer(job),
        loss=tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
        steps_per_execution=job.steps_per_loop,
    )
    return model


def fit(job: Job) -> Train:
    """Keras' own loop."""
    model = compiled_model(job)
    dataset = pipeline(job)
    return lambda steps: model.fit(dataset, steps_per_epoch=steps, epochs=1, verbose=0).history[
        "loss"
    ][-1]


def orbit(job: Job) -> Train:
    """Orbit's standard trainer under its controller, with many steps in one graph call."""
    import orbit as library

    strategy = one_device()
    with strategy.scope():
        trainer = _orbit_trainer(job, strategy)
    controller = library.Controller(
        trainer=trainer,
        strategy=strategy,
        global_step=trainer.global_step,
        steps_per_loop=job.steps_per_loop,
    )

    def train(steps: int) -> float:
        controller.train(int(trainer.global_step.numpy()) + steps)
        return float(trainer.loss.result().numpy())

    return train


def _orbit_trainer(job: Job, strategy: tf.distribute.Strategy) -> Any:
    """Build Orbit's trainer; its base class exists only where Orbit is installed."""
    import orbit as library

    class Trainer(library.StandardTrainer):
        def __init__(self) -> None:
            self.model = build_model(job)
            self.optimizer = build_optimizer(job)
            self.global_step = tf.Variable(
                0,
                dtype=tf.int64,
                trainable=False,
                aggregation=tf.VariableAggregation.ONLY_FIRST_REPLICA,
            )
            self.loss = tf.keras.metrics.Mean("loss")
            self.accuracy = tf.keras.metrics.SparseCategoricalAccuracy("accuracy")
            super().__init__(
                library.utils.make_distributed_dataset(strategy, lambda: pipeline(job))
            )

        def train_loop_begin(self) -> None:
            self.loss.reset_state()
            self.accuracy.reset_state()

        def train_step(self, iterator: tf.data.Iterator) -> None:
            strategy.run(self.replica_step, args=(next(iterator),))
            self.global_step.assign_add(1)

        def replica_step(self, batch: tuple[tf.Tensor, tf.Tensor]) -> None:
            images, labels = batch
            with tf.GradientTape() as tape:
                logits = self.model(images, training=True)
                losses = tf.keras.losses.sparse_categorical_crossentropy(
                    labels, logits, from_logits=True
                )
                loss = tf.nn.compute_average_loss(losses, global_batch_size=job.batch_size)
            gradients = tape.gradient(loss, self.model.trainable_variables)
            self.optimizer.apply_gradients(
                zip(gradients, self.model.trainable_variables, strict=True)
            )
            self.loss.update_state(losses)
            self.accuracy.update_state(labels, logits)

        def train_loop_end(self) -> dict[str, float]:
            return {"loss": self.loss.result().numpy(), "accuracy": self.accuracy.result().numpy()}

    return Trainer()


def limit(job: Job) -> Train:
    """The limit: the compiled step on one constant batch, fused update, no input, no metrics."""
    model = build_model(job)
    optimizer = fused_optimizer(job)
    images, labels = (tf.constant(array[: job.batch_size]) for array in load(job))

    @tf.function
    def train_steps(steps: tf.Tensor) -> tf.Tensor:
        loss = tf.constant(0.0)
        for _ in tf.range(steps):
            with tf.GradientTape() as tape:
                losses = tf.nn.sparse_softmax_cross_entropy_with_logits(
                    labels, model(images, training=True)
                )
                loss = tf.reduce_sum(losses) / job.batch_size
            gradients = tape.gradient(loss, model.trainable_variables)
            optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loss

    return lambda steps: float(train_steps(tf.constant(steps)).numpy())


def timed(train: Train, steps: int) -> float:
    """Return the seconds that a training of so many steps takes."""
    begin = time.perf_counter()
    train(steps)
    return time.perf_counter() - begin


def main() -> None:
    parser = argparse.ArgumentParser(prog="benchmarks.peers")
    parser.add_argument("contender", choices=PEERS)
    parser.add_argument("--model", required=True)
    parser.add_argument("--optimizer", required=True, choices=LEARNING_RATES)
    parser.add_argument("--data", required=True, type=Path)
    parser.add_argument("--steps-per-loop", required=True, type=int)
    parser.add_argument("--batch", required=True, type=int)
    parser.add_argument("--steps", type=int, nargs=2)
    args = parser.parse_args()
    contenders = {"tutorial": tutorial, "fit": fit, "orbit": orbit, "limit": limit}
    train = contenders[args.contender](
        Job(args.model, args.optimizer, args.data, args.steps_per_loop, args.batch)
    )
    train(1)
    report = {"first_step_at": time.time()}
    if args.steps:
        short, long = args.steps
        train(2 * args.steps_per_loop)
        before = timed(train, short)
        after = timed(train, long)
        report |= {"secs_per_step": (after - before) / (long - short)}
    print(json.dumps(report | {"loss": train(args.steps_per_loop)}))


if __name__ == "__main__":
    main()
