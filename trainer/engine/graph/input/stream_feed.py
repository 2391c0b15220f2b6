"""Feeds a stream: a split that can only be read from its start.

Position p of the training is element p of the stream, whoever reads it. So every process reads the
whole stream and keeps what its replicas train on: the samples of a step depend on nothing but the
step, as with random access, and a run may continue with other workers. What was trained on is read
again and skipped.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from trainer.engine.graph.input.feed import Pipeline, block_of
from trainer.protocols import Batch, Stream


@dataclass(frozen=True)
class StreamFeed(Pipeline):
    """Feeds a stream by a pipeline that begins at the stream's first element."""

    def open(self, step: int, left_out: Sequence[int] = ()) -> Any:
        source = self.source
        split = source.split
        assert source.order is not None, "a stream is for training"
        assert isinstance(split, Stream), "see `feed`"
        seed = source.order.seed
        blocks = tf.constant(left_out, tf.int64)
        start = int(block_of(tf.constant(step, tf.int64), blocks)) * source.num_replicas

        def pipeline(context: tf.distribute.InputContext) -> tf.data.Dataset:
            local = source.num_replicas // context.num_input_pipelines
            first = context.input_pipeline_id * local

            def is_own(number: tf.Tensor, batch: Batch) -> tf.Tensor:
                replica = number % source.num_replicas
                is_left_out = tf.reduce_any(number // source.num_replicas == blocks)
                return (replica >= first) & (replica < first + local) & ~is_left_out

            # Whatever was drawn before: what has no seed of its own is the same whenever it is made
            # again, and in all processes.
            tf.random.set_seed(seed)
            options = tf.data.Options()
            options.deterministic = True
            batches = split.stream().batch(source.per_replica, drop_remainder=True)
            numbered = batches.with_options(options).skip(start).enumerate(start)
            own = numbered.filter(is_own).map(self._element)
            # Otherwise a strategy of several workers asks each time whether there is more, and
            # loses the static shapes.
            endless = own.apply(
                tf.data.experimental.assert_cardinality(tf.data.INFINITE_CARDINALITY)
            )
            return endless.prefetch(2 * local)

        return iter(self.strategy.distribute_datasets_from_function(pipeline))

    def _element(self, number: tf.Tensor, batch: Batch) -> tuple[Batch, tf.Tensor]:
        positions = number * self.source.per_replica
        positions += tf.range(self.source.per_replica, dtype=tf.int64)
        num_examples = self.source.split.num_examples
        indices = positions % num_examples
        draws = self.source.draws(positions // num_examples, indices)
        return self.source.complete(batch, indices, tf.ones([self.source.per_replica])), draws
