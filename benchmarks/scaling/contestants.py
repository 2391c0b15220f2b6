"""Who is measured. A contestant builds what it trains, trains for ever, and tells the clock its steps. No TensorFlow at the top.

One more is one more line in `CONTESTANTS`.
"""

from __future__ import annotations

import importlib
import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from benchmarks.harness import BATCH_SIZES, LEARNING_RATES

if TYPE_CHECKING:
    import tensorflow as tf

STEPS_PER_LOOP = 10
EXAMPLES = 4096


@dataclass(frozen=True)
class Job:
    """What every contestant trains, on the same made-up images.

    Attributes:
        model: a function of `trainer.models`.
        optimizer: a key of `LEARNING_RATES`.
        shape: height, width and channels of an image.
        steps: how many steps are measured, if nothing else is asked for.
    """

    model: str
    optimizer: str
    shape: tuple[int, int, int]
    steps: int

    @property
    def per_worker(self) -> int:
        return BATCH_SIZES[self.model]


JOBS = {job.model: job for job in (Job("tutorial_cnn", "rmsprop", (28, 28, 1), 200), Job("mobilenet", "adam", (32, 32, 3), 100))}


class Clock(Protocol):
    """Takes the time of a contestant.

    Attributes:
        gradient_bytes: of one step's gradients in float32; the contestant says it.
    """

    gradient_bytes: int

    def __call__(self, step: int, loss: Any) -> None:
        """Hears that so many steps are done; `loss` is a number, or a tensor that may not have been computed yet."""


def steadfast(job: Job, folder: Path, clock: Clock, *overrides: str, local: bool = False) -> None:
    """Steadfast's own engine with everything on, the process being what TF_CONFIG says; its clock is read between two graph calls.

    `local`: as if Steadfast itself had started the processes, which then know that they are on one machine.
    """
    from trainer import build, cluster
    from trainer.channel import Channel
    from trainer.cli import compose

    height, width, channels = job.shape
    experiment = compose(
        [
            f"model={job.model}",
            "dataset=synthetic",
            f"dataset.num_examples={EXAMPLES}",
            f"dataset.image_size=[{height},{width}]",
            f"dataset.channels={channels}",
            f"optimizer={job.optimizer}",
            f"optimizer.learning_rate={LEARNING_RATES[job.optimizer]}",
            "batch.global_size=null",
            f"batch.per_replica={job.per_worker}",
            # One endless epoch: the tutorial's loop is timed without its evaluations and its checkpoints, too.
            "train.epochs=null",
            "train.steps=1000000",
            "train.steps_per_epoch=1000000",
            f"train.steps_per_loop={STEPS_PER_LOOP}",
            *overrides,
        ]
    )
    strategy = build.strategy_of(experiment)
    place = (cluster.declared(strategy.tasks) if strategy.joins else None) or cluster.Cluster()
    if local:
        place = replace(place, source="local")
    cluster.enter(place)
    said: dict[str, Any] = {"metrics": {"loss": math.nan}}
    engine = build.engine(experiment, folder, Channel(said.update), place)
    clock.gradient_bytes = gradient_bytes(*engine.state.task.models.values())

    def stop_requested() -> bool:
        clock(engine.step, said["metrics"]["loss"])
        return False

    engine.train(stop_requested)


def tutorial(job: Job, folder: Path, clock: Clock, *, fused: bool = False) -> None:
    """A loop in the manner of TensorFlow's tutorial for several workers: one graph call a step, the optimizer adds up the gradients."""
    import tensorflow as tf

    # The same first variables in every round; and the same order in every process, or their shards of the data would overlap.
    tf.keras.utils.set_random_seed(0)
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    global_size = job.per_worker * strategy.num_replicas_in_sync
    optimizers = tf.keras.optimizers.legacy if fused else tf.keras.optimizers
    with strategy.scope():
        model = getattr(importlib.import_module(f"trainer.models.{job.model}"), job.model)(job.shape, 10)
        optimizer = {"rmsprop": optimizers.RMSprop, "adam": optimizers.Adam}[job.optimizer](LEARNING_RATES[job.optimizer])
        accuracy = tf.keras.metrics.SparseCategoricalAccuracy("train_accuracy")
        example_loss = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction=tf.keras.losses.Reduction.NONE)
    clock.gradient_bytes = gradient_bytes(model)

    def replica_step(batch: tuple[tf.Tensor, tf.Tensor]) -> tf.Tensor:
        images, labels = batch
        with tf.GradientTape() as tape:
            logits = model(images, training=True)
            loss = tf.nn.compute_average_loss(example_loss(labels, logits), global_batch_size=global_size)
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        accuracy.update_state(labels, logits)
        return loss

    @tf.function
    def train_step(iterator: tf.data.Iterator) -> tf.Tensor:
        losses = strategy.run(replica_step, args=(next(iterator),))
        return strategy.reduce(tf.distribute.ReduceOp.SUM, losses, axis=None)

    def dataset_fn(context: tf.distribute.InputContext) -> tf.data.Dataset:
        dataset = images_and_labels(job).shard(context.num_input_pipelines, context.input_pipeline_id)
        return dataset.batch(context.get_per_replica_batch_size(global_size), drop_remainder=True).prefetch(tf.data.AUTOTUNE)

    iterator = iter(strategy.distribute_datasets_from_function(dataset_fn))
    total = 0.0
    for step in itertools.count(1):
        total += train_step(iterator)
        clock(step, total / step)


def images_and_labels(job: Job) -> tf.data.Dataset:
    """Gives the images that Steadfast trains on, each once an epoch in another order."""
    import tensorflow as tf

    from trainer.datasets.synthetic import synthetic

    data = synthetic(num_examples=EXAMPLES, image_size=list(job.shape[:2]), channels=job.shape[2])
    batch = data.transform(data.train.fetch(tf.range(EXAMPLES, dtype=tf.int64)), None)
    return tf.data.Dataset.from_tensor_slices((batch["features"], batch["label"])).shuffle(EXAMPLES).repeat()


def gradient_bytes(*models: tf.keras.Model) -> int:
    """Gives the size of the models' gradients in float32."""
    return sum(4 * math.prod(variable.shape) for model in models for variable in model.trainable_variables)


@dataclass(frozen=True)
class Contestant:
    """One row of the table.

    Attributes:
        title: what it is.
        train: trains a job; keeps its files in a folder.
        together: whether the processes are one cluster; else each trains for itself, at the same time.
    """

    title: str
    train: Callable[[Job, Path, Clock], None]
    together: bool = True


def _multi_worker(*overrides: str, local: bool = False) -> Callable[[Job, Path, Clock], None]:
    return lambda job, folder, clock: steadfast(job, folder, clock, "strategy=multi_worker", *overrides, local=local)


CEILING, TUTORIAL = "ceiling", "tutorial"
CONTESTANTS = {
    CEILING: Contestant("no communication (ceiling)", lambda *given: steadfast(*given, "strategy=one_device"), together=False),
    TUTORIAL: Contestant("tutorial's loop", tutorial),
    "tutorial_fused": Contestant("tutorial's loop, fused optimizer", partial(tutorial, fused=True)),
    "steadfast": Contestant("Steadfast, shared memory", _multi_worker(local=True)),
    "ring": Contestant("Steadfast, ring", _multi_worker()),
    "bfloat16": Contestant("Steadfast, compress=bfloat16", _multi_worker("strategy.compress=bfloat16")),
    "float16": Contestant("Steadfast, compress=float16", _multi_worker("strategy.compress=float16")),
}
