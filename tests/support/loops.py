"""User-defined training loops, and a way to run one inside the test process."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import tensorflow as tf

from trainer.cli.compose import compose
from trainer.cluster.messages import Channel
from trainer.own_loop.replicator import Replicator
from trainer.worker.own_loop import run_own_loop
from trainer.worker.training import TrainingRun

Main = Callable[[Replicator], None]

_main: Main = lambda replicator: None  # noqa: E731 - replaced by each run


def call(replicator: Replicator) -> None:
    """Call the loop of the current test."""
    _main(replicator)


def run_loop(
    main: Main,
    run_dir: Path,
    *overrides: str,
    stop: Callable[[], bool] = lambda: False,
    lines: list[str] | None = None,
) -> bool:
    """Run a loop in this process; return whether it was finished."""
    global _main
    _main = main
    experiment = compose(
        ["loop._target_=tests.support.loops.call", "train.steps=8", "writers=[jsonl]", *overrides]
    )
    run_dir.mkdir(exist_ok=True)
    received: list[Any] = []
    run = TrainingRun(experiment, run_dir, Channel(received.append), stop_requested=stop)
    try:
        return run_own_loop(run)
    finally:
        if lines is not None:
            lines += [message.text for message in received if hasattr(message, "text")]


def count(replicator: Replicator) -> None:
    """Count, and log the count: nothing to compile."""
    with replicator.context():
        total = tf.Variable(0.0)
    replicator.checkpoint(total=total)

    def one() -> tf.Tensor:
        return tf.constant(1.0)

    while replicator.step < replicator.total_steps:
        total.assign_add(sum(replicator.run(one)))
        replicator.log(total=total)


def everything(replicator: Replicator, *, rate: float = 0.05) -> None:
    """Train with all that a restart could lose: a shuffle, dropout, statistics, slots, a log."""
    layers = tf.keras.layers
    with replicator.context():
        model = tf.keras.Sequential(
            [
                layers.Dense(6, "relu", input_shape=(3,)),
                layers.Dropout(0.3),
                layers.BatchNormalization(),
                layers.Dense(1),
            ]
        )
        adam = tf.keras.optimizers.legacy.Adam(rate)
        optimizer = replicator.wrap_optimizer(adam, model.trainable_variables, clip_norm=0.5)
        total = tf.Variable(0.0)

    def input_fn(context: tf.distribute.InputContext) -> tf.data.Dataset:
        numbers = tf.data.Dataset.range(40)
        numbers = numbers.shard(context.num_input_pipelines, context.input_pipeline_id)
        numbers = numbers.shuffle(16).repeat()
        data = numbers.map(lambda i: tf.cast([i, i % 7, i % 3], tf.float32) / 40.0)
        return data.batch(context.get_per_replica_batch_size(8))

    def step_fn(batch: tf.Tensor) -> tf.Tensor:
        noise = tf.random.stateless_normal(tf.shape(batch), replicator.random_seed(), stddev=0.1)
        with tf.GradientTape() as tape:
            predictions = model(batch + noise, training=True)[:, 0]
            loss = tf.reduce_mean((predictions - batch[:, 1]) ** 2)
        optimizer.minimize(tape, loss)
        return loss

    replicator.checkpoint(model=model, optimizer=optimizer, total=total)
    while replicator.step < replicator.total_steps:
        losses = replicator.run(step_fn, input_fn)
        total.assign_add(tf.reduce_mean(losses))
        if replicator.step % 2 == 0:
            replicator.log(loss=tf.reduce_mean(losses), total=total)
