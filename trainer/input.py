"""Which example is trained when, and how it gets to the replica. The only place that knows the order of samples.

Position p = block * global batch + i. Epoch = p div n; the example is a keyed permutation of p mod n. A step's block is its own
number, but for blocks that were left out: they are passed over. So the whole state of the input is the step number and the
list of these, and neither the number of replicas nor of workers has any part in the order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import tensorflow as tf

from trainer import randomness
from trainer.protocols import Batch, Split

# Of the Simon block cipher inside RandomIndexShuffle. With the 4 that tf.data uses, the orders of two epochs of 60,000
# examples correlate by 0.7; from 12 on nothing was found at any size, and the cost of a batch's indices stays the same.
_ROUNDS = 16


@dataclass(frozen=True)
class SampleOrder:
    """The order in which examples are trained.

    Attributes:
        num_examples: examples in the split.
        seed: key of the permutations; each epoch has its own.
    """

    num_examples: int
    seed: int

    def locate(self, positions: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Gives the epoch and the example of each position; both like `positions`, [B] int64."""
        epochs, offsets = positions // self.num_examples, positions % self.num_examples
        # The raw operation: TensorFlow 2.21's wrapper pads a seed per index along the wrong axis.
        seeds = tf.stack([tf.fill(tf.shape(epochs), tf.constant(self.seed, tf.int64)), epochs, tf.zeros_like(epochs)], axis=1)
        last = tf.fill(tf.shape(offsets), tf.constant(self.num_examples - 1, tf.int64))
        return epochs, tf.raw_ops.RandomIndexShuffle(index=offsets, seed=seeds, max_index=last, rounds=_ROUNDS)


def block_of(step: tf.Tensor, left_out: tf.Tensor) -> tf.Tensor:
    """Gives the number of the block of samples that a step is trained on.

    Before the block k_i, the i-th of those left out, k_i - i blocks are trained on; it is passed over once they are.

    Args:
        step: int64 of any shape.
        left_out: [n] int64, ascending.
    """
    trained_before = left_out - tf.range(tf.shape(left_out, tf.int64)[0])
    return step + tf.math.count_nonzero(trained_before <= step[..., None], axis=-1)


@dataclass(frozen=True)
class Source:
    """Assembles one replica's batch of one step: the same function serves both feeds below, training and evaluation.

    Attributes:
        split: where examples come from.
        per_replica: examples on each replica.
        num_replicas: replicas that share a step.
        order: the order of training; None: evaluation, each example once in its natural order.
        num_draws: random numbers for each example's augmentation.
    """

    split: Split
    per_replica: int
    num_replicas: int
    order: SampleOrder | None = None
    num_draws: int = 0

    @property
    def global_size(self) -> int:
        return self.per_replica * self.num_replicas

    @property
    def num_steps(self) -> int:
        """Steps that see each example once; the last may be padded."""
        return -(-self.split.num_examples // self.global_size)

    def assemble(self, block: tf.Tensor, replica: tf.Tensor) -> tuple[Batch, tf.Tensor]:
        """Gives the batch of one replica (with `id` and `weight`) and the draws for its augmentation.

        Args:
            block: scalar int64, the block of samples of the training step or the number of the evaluation batch, from 0.
            replica: scalar integer, the replica's number among all.
        """
        first = tf.cast(block, tf.int64) * self.global_size + tf.cast(replica, tf.int64) * self.per_replica
        positions = first + tf.range(self.per_replica, dtype=tf.int64)
        if self.order is None:
            # The last batch is filled up with example 0 at weight 0, so that its shape is static.
            counts = positions < self.split.num_examples
            indices, draws = tf.where(counts, positions, 0), tf.zeros([self.per_replica, 0])
            weight = tf.cast(counts, tf.float32)
        else:
            epochs, indices = self.order.locate(positions)
            draws = (
                randomness.uniform(self.order.seed, epochs, indices, self.num_draws) if self.num_draws else tf.zeros([self.per_replica, 0])
            )
            weight = tf.ones([self.per_replica])
        batch = dict(self.split.fetch(indices))
        batch["weight"] = weight * tf.cast(batch["weight"], tf.float32) if "weight" in batch else weight
        batch["id"] = indices
        return batch, draws


class Feed(Protocol):
    """How batches reach the replicas: `start` once, `take` once a step outside the replicas, `give` inside each of them.

    Attributes:
        fetches: whether what `take` gives may have to be waited for.
    """

    fetches: ClassVar[bool] = False

    def start(self, step: int, left_out: Sequence[int] = ()) -> Any:
        """Opens the input at a step; what it returns is handed to the compiled loop.

        Args:
            step: the step.
            left_out: the blocks that are left out, ascending. Of the same length whenever training is opened: the loop is compiled
                for it.
        """

    def take(self, opened: Any) -> Any:
        """Takes what the next step needs from the opened input."""

    def give(self, taken: Any, step: tf.Tensor, replica: tf.Tensor) -> tuple[Batch, tf.Tensor]:
        """Gives one replica its batch and draws."""


@dataclass(frozen=True)
class InGraph:
    """For splits that reside in memory: batches are gathered inside the compiled loop and there is no iterator.

    Gathering depends on no variable, so TensorFlow's executor runs it ahead of the step, beside the step's own work.
    """

    source: Source
    fetches: ClassVar[bool] = False

    def start(self, step: int, left_out: Sequence[int] = ()) -> tf.Tensor:
        return tf.constant(left_out, tf.int64)

    def take(self, opened: tf.Tensor) -> tf.Tensor:
        return opened

    def give(self, taken: tf.Tensor, step: tf.Tensor, replica: tf.Tensor) -> tuple[Batch, tf.Tensor]:
        # The arrays live in the host's memory: only the batch, not the split, may travel to an accelerator.
        with tf.device("CPU:0"):
            return self.source.assemble(block_of(step, taken), replica)


@dataclass(frozen=True)
class Pipeline:
    """For splits that are read and decoded: a prefetching tf.data pipeline on each worker, one element a replica and step."""

    source: Source
    strategy: tf.distribute.Strategy
    fetches: ClassVar[bool] = True

    def start(self, step: int, left_out: Sequence[int] = ()) -> Any:
        blocks = tf.constant(left_out, tf.int64)

        def pipeline(context: tf.distribute.InputContext) -> tf.data.Dataset:
            local = self.source.num_replicas // context.num_input_pipelines
            first = context.input_pipeline_id * local

            def element(number: tf.Tensor) -> tuple[Batch, tf.Tensor]:
                return self.source.assemble(block_of(number // local, blocks), first + number % local)

            numbers = tf.data.Dataset.range(step * local, tf.int64.max)
            # Two at a time: while one batch waits for its slowest file, the next is already being decoded.
            return numbers.map(element, num_parallel_calls=2, deterministic=True).prefetch(2 * local)

        return iter(self.strategy.distribute_datasets_from_function(pipeline))

    def take(self, opened: Any) -> Any:
        return opened.get_next()

    def give(self, taken: Any, step: tf.Tensor, replica: tf.Tensor) -> tuple[Batch, tf.Tensor]:
        return taken


def feed(source: Source, strategy: tf.distribute.Strategy, *, outside: bool = False) -> Feed:
    """Chooses how a split reaches the replicas; `outside`: they cannot gather it themselves."""
    return Pipeline(source, strategy) if outside or not source.split.resident else InGraph(source)
