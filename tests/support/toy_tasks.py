"""A user-defined task that records which examples each step trained, on any strategy."""

from __future__ import annotations

import pathlib
from typing import Any

import tensorflow as tf

from trainer.engine.graph.step.train_step import Step
from trainer.protocols import Batch, Metrics
from trainer.tasks.classification import Classification


class Recording(Classification):
    """Writes a file `<step>/<replica>-of-<replicas>` with the ids of the replica's examples."""

    def __init__(self, *, record: str = "ids", **options: Any) -> None:
        super().__init__(**options)
        self.record = str(pathlib.Path(record).absolute())

    def train_step(self, batch: Batch, step: Step) -> Metrics:
        """Record and train a step; a repeated step is recorded again."""
        folder = tf.strings.join([self.record, tf.strings.as_string(step.index)], "/")
        name = tf.strings.join(
            [folder, "/", tf.strings.as_string(step.replica), f"-of-{step.num_replicas}"]
        )
        ids = tf.strings.reduce_join(tf.strings.as_string(batch["id"]), separator=" ")
        with tf.control_dependencies([tf.io.write_file(name, ids)]):
            return super().train_step(tf.nest.map_structure(tf.identity, batch), step)


def recorded(directory: pathlib.Path) -> dict[int, dict[int, list[int]]]:
    """Return what was recorded: step -> number of replicas -> ids in order."""
    ids: dict[int, dict[int, list[int]]] = {}
    for file in sorted(
        directory.glob("*/*-of-*"), key=lambda file: int(file.name.partition("-")[0])
    ):
        replicas = int(file.name.rpartition("-")[2])
        ids.setdefault(int(file.parent.name), {}).setdefault(replicas, []).extend(
            int(word) for word in file.read_text().split()
        )
    return ids
