"""What the peers have in common: strategy, input pipeline, network, and the record of each step."""

from __future__ import annotations

import json
import os
import time
from functools import partial
from pathlib import Path
from typing import IO, Any, NoReturn

import numpy as np
import tensorflow as tf

from benchmarks.fire.job import Job
from trainer.models.tutorial_cnn import tutorial_cnn


class Recorder:
    """Writes down each step of a process, unbuffered: its number, and the examples that it takes.

    Args:
        folder: where the file `steps-<rank>-<time>` goes, the rank being that in TF_CONFIG, or 0.
    """

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._file: IO[bytes] | None = None

    def __call__(self, step: tf.Tensor, ids: tf.Tensor) -> None:
        """Record a step, scalar int64 from 0, with its examples, [B] int64, inside the graph."""
        tf.numpy_function(self._write, [step, ids], [])

    def _write(self, step: np.ndarray, ids: np.ndarray) -> None:
        if self._file is None:
            rank = json.loads(os.environ.get("TF_CONFIG", "{}")).get("task", {}).get("index", 0)
            path = Path(self._folder, f"steps-{rank}-{time.time_ns()}")
            self._file = path.open("ab", buffering=0)
        self._file.write(np.int64(step).tobytes() + ids.tobytes())


def make_strategy() -> tf.distribute.Strategy:
    """Return the default strategy, or that of the processes in TF_CONFIG."""
    tf.keras.utils.set_random_seed(0)  # also of the order of the examples
    if "TF_CONFIG" in os.environ:
        return tf.distribute.MultiWorkerMirroredStrategy()
    return tf.distribute.get_strategy()


def dataset(job: Job, strategy: tf.distribute.Strategy) -> Any:
    """Return the tutorials' pipeline of (image, label, number of the example)."""
    return strategy.distribute_datasets_from_function(partial(_pipeline, job))


def _pipeline(job: Job, context: tf.distribute.InputContext) -> tf.data.Dataset:
    with np.load(job.data) as archive:
        images = archive["x_train"][..., None] / np.float32(255)
        labels = archive["y_train"].astype(np.int64)
    return (
        tf.data.Dataset.from_tensor_slices((images, labels, np.arange(len(labels))))
        .shard(context.num_input_pipelines, context.input_pipeline_id)
        .shuffle(60_000)
        .repeat()
        .batch(context.get_per_replica_batch_size(job.batch_size))
        .prefetch(tf.data.AUTOTUNE)
    )


def build() -> tuple[tf.keras.Model, tf.keras.optimizers.Optimizer]:
    """Build the network and its optimizer."""
    model, optimizer = tutorial_cnn((28, 28, 1), 10), tf.keras.optimizers.RMSprop(0.001)
    optimizer.build(model.trainable_variables)
    return model, optimizer


def finish(job: Job, strategy: tf.distribute.Strategy, model: tf.keras.Model) -> NoReturn:
    """Leave the weights of a training that is complete, and this process.

    Immediately: TensorFlow takes seconds to end, and a kill meanwhile would restart the training.
    """
    if strategy.extended.should_checkpoint:
        np.savez(f"{job.folder}/weights.npz", *model.get_weights())
    os._exit(0)
