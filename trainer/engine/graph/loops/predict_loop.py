"""The compiled prediction loop: the outputs of a task for each example of a split."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import numpy as np
import tensorflow as tf

from trainer.engine.graph.exchange.collectives import CollectiveLog, Collectives
from trainer.engine.graph.input.feed import Feed
from trainer.engine.graph.randomness.randomness import evaluated_part
from trainer.errors import ConfigError
from trainer.protocols import Batch, paths

Predict: TypeAlias = Callable[[Batch], Mapping[str, tf.Tensor]]
"""Returns the predictions for one replica's batch, name -> [B, ...]."""
Transform: TypeAlias = Callable[[Batch, tf.Tensor | None], Batch]
"""Turns a fetched batch into the input of the prediction; a dataset's."""


class PredictLoop:
    """Predicts the examples of a split, at a static batch shape.

    A loop in the graph must know what it collects before its body is traced, and what a task
    predicts is known only then. So it collects strings: each tensor in TensorFlow's serialized
    form.

    Attributes:
        check: as in `TrainLoop`.
    """

    def __init__(
        self,
        strategy: tf.distribute.Strategy,
        predict: Predict,
        transform: Transform | None,
        feed: Feed,
    ) -> None:
        self._strategy = strategy
        self._predict = predict
        self._transform = transform
        self.feed = feed
        self.check: Callable[[str], None] = lambda subject: None
        self._types: dict[str, tf.DType] = {}
        self._collectives = CollectiveLog()

    def run(self, iterator: Any, start: int, count: int) -> dict[str, np.ndarray]:
        """Predict the batches [start, start + count), the padding of the last one included.

        Returns:
            Name -> [count * global batch, ...]: `id`, `weight`, `label` if the split has it (of
            several numbers `label_<key>` each), and the predictions.
        """
        batches = self._serialized(iterator, start, count)
        columns = enumerate(self._types.items())
        return {
            name: np.concatenate([tf.io.parse_tensor(row[i], dtype).numpy() for row in batches])
            for i, (name, dtype) in columns
        }

    def _serialized(self, iterator: Any, start: int, count: int) -> tf.Tensor:
        return self._run(iterator, tf.constant(start, tf.int64), tf.constant(count, tf.int64))

    @tf.function(autograph=False)
    def _run(self, iterator: Any, start: tf.Tensor, count: tf.Tensor) -> tf.Tensor:
        return self._batches(iterator, start, count)

    def _batches(self, iterator: Any, start: tf.Tensor, count: tf.Tensor) -> tf.Tensor:
        """Predict the batches [start, start + count); return [count, names] string."""
        self._collectives = CollectiveLog()  # of this trace

        def one_batch(
            index: tf.Tensor, batches: tf.TensorArray
        ) -> tuple[tf.Tensor, tf.TensorArray]:
            results = self._strategy.run(self._replica_step, args=(index, self.feed.next(iterator)))
            rows = {
                name: self._strategy.experimental_local_results(value)[0]
                for name, value in results.items()
            }
            self._types = {name: value.dtype for name, value in rows.items()}
            serialized = tf.stack([tf.io.serialize_tensor(x) for x in rows.values()])
            return index + 1, batches.write(tf.cast(index - start, tf.int32), serialized)

        empty = tf.TensorArray(tf.string, size=tf.cast(count, tf.int32))
        _, batches = tf.while_loop(
            lambda index, _: index < start + count, one_batch, (start, empty)
        )
        self.check("the prediction")
        return batches.stack()

    def _replica_step(self, index: tf.Tensor, element: Any) -> Batch:
        """Return the rows of all replicas, in order: every replica gets them."""
        context = tf.distribute.get_replica_context()
        batch, _ = self.feed.replica_batch(element, index, context.replica_id_in_sync_group)
        with evaluated_part(index, context, int(batch["weight"].shape[0])):
            if self._transform is not None:
                batch = {**batch, **self._transform(batch, None)}
            predictions = self._predict(batch)
        if texts := [name for name, value in predictions.items() if value.dtype == tf.string]:
            raise ConfigError(
                f"predict_step returns texts ({', '.join(texts)}); return numbers, such as the "
                "index of each text in a list"
            )
        inputs = {name: batch[name] for name in ("id", "weight")} | _labels(batch)
        gathered = Collectives(self._collectives).all_gather({**inputs, **predictions})
        return {name: tf.reshape(rows, [-1, *rows.shape[2:]]) for name, rows in gathered.items()}


def _labels(batch: Batch) -> dict[str, tf.Tensor]:
    label = batch.get("label", {})
    leaves = zip(paths(label, "label", "_"), tf.nest.flatten(label), strict=True)
    return {name: value for name, value in leaves if value.dtype != tf.string}
