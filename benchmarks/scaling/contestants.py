"""The contestants: each builds a model, trains for ever, and reports its steps to the clock.

TensorFlow is imported only when a contestant runs.

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
    """What every contestant trains, on the same synthetic images.

    Attributes:
        model: a function of `trainer.models`.
        optimizer: a key of `LEARNING_RATES`.
        shape: height, width and channels of an image.
        steps: how many steps are measured, by default.
    """

    model: str
    optimizer: str
    shape: tuple[int, int, int]
    steps: int

    @property
    def per_worker(self) -> int:
        return BATCH_SIZES[self.model]


JOBS = {
    job.model: job
    for job in (
        Job("tutorial_cnn", "rmsprop", (28, 28, 1), 200),
        Job("mobilenet", "adam", (32, 32, 3), 100),
    )
}


class Clock(Protocol):
    """Takes the time of a contestant.

    Attributes:
        gradient_bytes: of one step's gradients in float32; the contestant says it.
    """

    gradient_bytes: int

    def __call__(self, step: int, loss: Any) -> None:
        """Note that so many steps are done; `loss` is a number, or a tensor being computed."""


def steadfast(job: Job, folder: Path, clock: Clock, *overrides: str, local: bool = False) -> None:
    """Steadfast's engine with the defaults, as the task in TF_CONFIG; timed between graph calls.

    `local`: as if Steadfast had started the processes, which then know that they share a machine.
    """
    from trainer.cli.compose import compose
    from trainer.cluster import discovery, environment, spec
    from trainer.cluster.messages import Channel, Message, Progress
    from trainer.strategies import select
    from trainer.worker import build

    experiment = compose([*_defaults(job), *overrides])
    strategy = select.select_strategy(experiment)
    cluster = spec.Cluster()
    if strategy.uses_declared_cluster:
        declared = discovery.declared_cluster(strategy.process_ids, environment.current())
        cluster = declared or cluster
    if local:
        cluster = replace(cluster, source="local")
    environment.set_tf_config(cluster)
    losses = [math.nan]

    def receive(message: Message) -> None:
        if isinstance(message, Progress):
            losses.append(message.metrics["loss"])

    engine = build.engine(experiment, folder, Channel(receive), cluster)
    clock.gradient_bytes = gradient_bytes(*engine.state.task.models.values())

    def stop_requested() -> bool:
        clock(engine.step, losses[-1])
        return False

    engine.train(stop_requested)


def _defaults(job: Job) -> list[str]:
    """Return the overrides of a job that all of Steadfast's contestants have in common."""
    height, width, channels = job.shape
    return [
        f"model={job.model}",
        "dataset=synthetic",
        f"dataset.num_examples={EXAMPLES}",
        f"dataset.image_size=[{height},{width}]",
        f"dataset.channels={channels}",
        f"optimizer={job.optimizer}",
        f"optimizer.learning_rate={LEARNING_RATES[job.optimizer]}",
        "batch.global_size=null",
        f"batch.per_replica={job.per_worker}",
        # One endless epoch: the tutorial's loop is timed without evaluations too.
        "train.epochs=null",
        "train.steps=1000000",
        "train.steps_per_epoch=1000000",
        f"train.steps_per_loop={STEPS_PER_LOOP}",
    ]


def tutorial(job: Job, folder: Path, clock: Clock, *, fused: bool = False) -> None:
    """The loop of TensorFlow's multi-worker tutorial: a graph call a step, Keras' all-reduce."""
    import tensorflow as tf

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
    clock.gradient_bytes = gradient_bytes(model)

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
    total = 0.0
    for step in itertools.count(1):
        total += train_step(iterator)
        clock(step, total / step)


def _build_model(job: Job) -> tf.keras.Model:
    module = importlib.import_module(f"trainer.models.{job.model}")
    return getattr(module, job.model)(job.shape, 10)


def _build_optimizer(job: Job, *, fused: bool) -> Any:
    import tensorflow as tf

    optimizers = tf.keras.optimizers.legacy if fused else tf.keras.optimizers
    classes = {"rmsprop": optimizers.RMSprop, "adam": optimizers.Adam}
    return classes[job.optimizer](LEARNING_RATES[job.optimizer])


def images_and_labels(job: Job) -> tf.data.Dataset:
    """Return the images that Steadfast trains on, each once an epoch in another order."""
    import tensorflow as tf

    from trainer.datasets.synthetic import synthetic

    data = synthetic(num_examples=EXAMPLES, image_size=list(job.shape[:2]), channels=job.shape[2])
    batch = data.transform(data.train.fetch(tf.range(EXAMPLES, dtype=tf.int64)), None)
    return (
        tf.data.Dataset.from_tensor_slices((batch["features"], batch["label"]))
        .shuffle(EXAMPLES)
        .repeat()
    )


def gradient_bytes(*models: tf.keras.Model) -> int:
    """Return the size of the models' gradients in float32."""
    return sum(
        4 * math.prod(variable.shape) for model in models for variable in model.trainable_variables
    )


@dataclass(frozen=True)
class Contestant:
    """One row of the table.

    Attributes:
        title: what it is.
        train: trains a job; keeps its files in a folder.
        together: whether the processes are one cluster; else each trains alone, at the same time.
    """

    title: str
    train: Callable[[Job, Path, Clock], None]
    together: bool = True


def _multi_worker(*overrides: str, local: bool = False) -> Callable[[Job, Path, Clock], None]:
    return lambda job, folder, clock: steadfast(
        job, folder, clock, "strategy=multi_worker", *overrides, local=local
    )


CEILING = "ceiling"
TUTORIAL = "tutorial"
CONTESTANTS = {
    CEILING: Contestant(
        "no communication (ceiling)",
        lambda *arguments: steadfast(*arguments, "strategy=one_device"),
        together=False,
    ),
    TUTORIAL: Contestant("tutorial's loop", tutorial),
    "tutorial_fused": Contestant("tutorial's loop, fused optimizer", partial(tutorial, fused=True)),
    "steadfast": Contestant("Steadfast, shared memory", _multi_worker(local=True)),
    "ring": Contestant("Steadfast, ring", _multi_worker()),
    "bfloat16": Contestant(
        "Steadfast, compress=bfloat16", _multi_worker("strategy.compress=bfloat16")
    ),
    "float16": Contestant(
        "Steadfast, compress=float16", _multi_worker("strategy.compress=float16")
    ),
}
