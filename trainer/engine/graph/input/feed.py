"""The order of samples, and how batches reach the replicas.

Position p = block * global batch + i. Epoch = p div n; the example is a permutation of p mod n.
The block of a step is its own number, except that blocks that were left out are passed over. So the
whole state of the input is the step number and the list of these; the order does not depend on the
number of replicas or workers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple, Protocol

import numpy as np
import tensorflow as tf

from trainer.cluster.fault_injection import Faults
from trainer.config.schema import Fault
from trainer.engine.graph.library_patches import end_iterators_at_once, untuned
from trainer.engine.graph.randomness import randomness
from trainer.protocols import Batch, Split, SplitDefaults, Stream, with_defaults

# Of the Simon block cipher inside RandomIndexShuffle. With the 4 that tf.data uses, the orders of
# two epochs of 60,000 examples correlate by 0.7; from 12 on no correlation was found at any size,
# and the cost of a batch's indices stays the same.
_ROUNDS = 16


@dataclass(frozen=True)
class SampleOrder:
    """The order in which examples are trained.

    Attributes:
        unit: how many consecutive examples stay together; 0: all.
    """

    num_examples: int
    seed: int
    unit: int = field(default=1, kw_only=True)

    def locate(self, positions: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Return the epoch and the example of each position, [B] int64; so are both results."""
        epochs = positions // self.num_examples
        offsets = positions % self.num_examples
        if not self.unit:
            return epochs, offsets
        units = tf.fill(tf.shape(offsets), tf.constant(self.num_examples // self.unit, tf.int64))
        offset = offsets // self.unit
        places = permuted(offset, units, self.seed, epochs, tf.zeros_like(epochs))
        return epochs, places * self.unit + offsets % self.unit


def permuted(
    offsets: tf.Tensor, sizes: tf.Tensor, seed: int, epochs: tf.Tensor, sources: tf.Tensor
) -> tf.Tensor:
    """Return the examples at offsets, in the random order of their epochs; all [B] int64."""
    # The raw operation: TensorFlow 2.21's wrapper pads a seed per index along the wrong axis.
    key = tf.fill(tf.shape(epochs), tf.constant(seed, tf.int64))
    return tf.raw_ops.RandomIndexShuffle(
        index=offsets,
        seed=tf.stack([key, epochs, sources], axis=1),
        max_index=sizes - 1,
        rounds=_ROUNDS,
    )


def block_of(step: tf.Tensor, left_out: tf.Tensor) -> tf.Tensor:
    """Return the block of samples that a step, int64 of any shape, is trained on.

    Before the block k_i, the i-th of those left out, k_i - i blocks are trained on; after these it
    is passed over.
    """
    trained_before = left_out - tf.range(tf.shape(left_out, tf.int64)[0])
    return step + tf.math.count_nonzero(trained_before <= step[..., None], axis=-1)


@dataclass(frozen=True)
class Source:
    """Assembles one replica's batch of one step, for every feed, in training and evaluation.

    Attributes:
        order: the order of training; None: evaluation, each example once in the split's order.
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
        """Return the batch of one replica, with `id` and `weight`, and its augmentation draws.

        Args:
            block: the block of samples of the training step, or the number of the evaluation
                batch, from 0; scalar int64.
            replica: the replica's number among all, scalar integer.

        Returns:
            Name -> [per_replica, ...], and [per_replica, num_draws] float32.
        """
        first = (
            tf.cast(block, tf.int64) * self.global_size
            + tf.cast(replica, tf.int64) * self.per_replica
        )
        positions = first + tf.range(self.per_replica, dtype=tf.int64)
        if self.order is None:
            # The last batch is filled up with example 0 at weight 0, so that its shape is static.
            counts = positions < self.split.num_examples
            indices = tf.where(counts, positions, 0)
            epochs = tf.zeros_like(positions)
            weight = tf.cast(counts, tf.float32)
        else:
            epochs, indices = self.order.locate(positions)
            weight = tf.ones([self.per_replica])
        draws = self.draws(epochs, indices)
        takes_draws = self.order is not None and with_defaults(self.split, SplitDefaults).augments
        batch = self.split.fetch(indices, *([draws] if takes_draws else []))
        return self.complete(batch, indices, weight), draws

    def draws(self, epochs: tf.Tensor, indices: tf.Tensor) -> tf.Tensor:
        """Return the random numbers of examples in epochs, [B] int64, [B, num_draws] float32."""
        if self.order is None or not self.num_draws:
            return tf.zeros([self.per_replica, 0])
        return randomness.uniform(self.order.seed, epochs, indices, self.num_draws)

    def complete(self, batch: Batch, indices: tf.Tensor, weight: tf.Tensor) -> Batch:
        """Add `id` and `weight` to a batch of the examples `indices`; `weight` is [B] float32."""
        batch = dict(batch)
        batch["weight"] = (
            weight * tf.cast(batch["weight"], tf.float32) if "weight" in batch else weight
        )
        batch["id"] = indices
        return batch


class SpreadExamples:
    """At most `count` examples, spread evenly over a split: an ordered one gives every kind."""

    def __init__(self, split: Split, count: int) -> None:
        self.num_examples = min(split.num_examples, count)
        self.in_memory = split.in_memory
        self._split = split

    def fetch(self, indices: tf.Tensor) -> Batch:
        return self._split.fetch(indices * self._split.num_examples // self.num_examples)


@dataclass
class NumberedSplit:
    """A split whose examples are their numbers alone."""

    num_examples: int
    in_memory: bool = True

    def fetch(self, indices: tf.Tensor) -> Batch:
        return {}


class Feed(Protocol):
    """How batches reach the replicas.

    `open` is called once, `next` once a step outside the replicas, `replica_batch` inside each.
    """

    @property
    def fetches(self) -> bool:
        """Whether a step may have to wait for `next`."""

    def open(self, step: int, left_out: Sequence[int] = ()) -> Any:
        """Open the input at a step; the result is an argument of the compiled loop.

        Args:
            left_out: the blocks that are left out, ascending. Of the same length whenever training
                is opened: the loop is compiled for it.
        """

    def next(self, iterator: Any) -> Any:
        """Take the next step's element from the opened input."""

    def replica_batch(
        self, element: Any, step: tf.Tensor, replica: tf.Tensor
    ) -> tuple[Batch, tf.Tensor]:
        """Return the batch and the draws of one replica."""


class Gathered(NamedTuple):
    """One replica's batch and its draws, gathered ahead of the step."""

    batch: Batch
    draws: tf.Tensor


@dataclass(frozen=True)
class InGraph:
    """Feeds a split that resides in memory: batches are gathered inside the compiled loop.

    There is no iterator. Gathering depends on no variable; on one replica the training loop gathers
    each batch next to the step before, see `trainer.engine.graph.loops.train_loop`.
    """

    source: Source
    fetches: ClassVar[bool] = False

    def open(self, step: int, left_out: Sequence[int] = ()) -> tf.Tensor:
        return tf.constant(left_out, tf.int64)

    def next(self, iterator: tf.Tensor) -> tf.Tensor:
        return iterator

    def replica_batch(
        self, element: tf.Tensor, step: tf.Tensor, replica: tf.Tensor
    ) -> tuple[Batch, tf.Tensor]:
        # The arrays are in the host's memory: only the batch, not the split, may travel to an
        # accelerator.
        with tf.device("CPU:0"):
            return self.source.assemble(block_of(step, element), replica)


@dataclass(frozen=True)
class Pipeline:
    """Feeds a split that is read and decoded: by a prefetching tf.data pipeline on each worker.

    The pipeline has one element for each replica and step.
    """

    source: Source
    strategy: tf.distribute.Strategy
    fetches: ClassVar[bool] = True

    def open(self, step: int, left_out: Sequence[int] = ()) -> Any:
        blocks = tf.constant(left_out, tf.int64)

        def pipeline(context: tf.distribute.InputContext) -> tf.data.Dataset:
            local = self.source.num_replicas // context.num_input_pipelines
            first = context.input_pipeline_id * local

            def element(number: tf.Tensor) -> tuple[Batch, tf.Tensor]:
                return self.source.assemble(
                    block_of(number // local, blocks), first + number % local
                )

            numbers = tf.data.Dataset.range(step * local, tf.int64.max)
            # Two at a time: while one batch waits for its slowest file, the next is being decoded.
            batches = numbers.map(element, num_parallel_calls=2, deterministic=True)
            return untuned(batches.prefetch(2 * local))

        return opened(self.strategy, pipeline)

    def next(self, iterator: Any) -> Any:
        return iterator.get_next()

    def replica_batch(
        self, element: Any, step: tf.Tensor, replica: tf.Tensor
    ) -> tuple[Batch, tf.Tensor]:
        return element


def opened(
    strategy: tf.distribute.Strategy,
    pipeline: Callable[[tf.distribute.InputContext], tf.data.Dataset],
) -> Any:
    """Return an iterator of what a function makes for each process."""
    end_iterators_at_once()
    return iter(strategy.distribute_datasets_from_function(pipeline))


@dataclass(frozen=True)
class StreamFeed(Pipeline):
    """Feeds a stream: a split that can only be read from its start.

    Position p of the training is element p of the stream in every process. So every process reads
    the whole stream and keeps what its replicas train on: the samples of a step depend on nothing
    but the step, as with random access, and a run may continue with other workers. What was trained
    on is read again and skipped.
    """

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

            # For any earlier draws: what has no seed, Python's and NumPy's numbers
            # too, is the same whenever it is recomputed, and in all processes.
            tf.keras.utils.set_random_seed(seed % 2**32)
            options = tf.data.Options()
            options.deterministic = True
            if (make := with_defaults(split, SplitDefaults).batches) is not None:
                batches = make(source.per_replica)
            else:
                batches = split.stream().batch(source.per_replica, drop_remainder=True)
            numbered = batches.with_options(options).skip(start).enumerate(start)
            own = numbered.filter(is_own).map(self._element)
            # Otherwise a strategy of several workers checks each time whether there is more, and
            # loses the static shapes.
            endless = own.apply(
                tf.data.experimental.assert_cardinality(tf.data.INFINITE_CARDINALITY)
            )
            return endless.prefetch(2 * local)

        return opened(self.strategy, pipeline)

    def _element(self, number: tf.Tensor, batch: Batch) -> tuple[Batch, tf.Tensor]:
        positions = number * self.source.per_replica
        positions += tf.range(self.source.per_replica, dtype=tf.int64)
        num_examples = self.source.split.num_examples
        indices = positions % num_examples
        draws = self.source.draws(positions // num_examples, indices)
        return self.source.complete(batch, indices, tf.ones([self.source.per_replica])), draws


def feed(source: Source, strategy: tf.distribute.Strategy, *, outside: bool = False) -> Feed:
    """Choose how a split reaches the replicas; `outside`: they cannot gather it themselves."""
    if source.order is not None and isinstance(source.split, Stream):
        return StreamFeed(source, strategy)
    return Pipeline(source, strategy) if outside or not source.split.in_memory else InGraph(source)


@dataclass(frozen=True)
class MixedOrder(SampleOrder):
    """The order of a split that mixes several sources.

    The sources of a period of positions are fixed, each spread evenly over it: so the shares hold
    for every stretch of training and not only on average. A source's own examples come in epochs of
    its own, each a permutation, as those of a split without a mixture do.

    Attributes:
        parts: examples and share of each source, in the order in which they are in the split; in a
            period of as many positions as the shares add up to, each source has its share.
    """

    parts: tuple[tuple[int, int], ...] = ()

    def locate(self, positions: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Return the source's epoch and the example of each position, [B] int64."""
        # On the host, on any device of the caller, as with all of the order.
        with tf.device("CPU:0"):
            sources, ranks = map(tf.constant, period_of([share for _, share in self.parts]))
        sizes, shares = (tf.constant(column, tf.int64) for column in zip(*self.parts, strict=True))
        period = sources.shape[0]
        slots = positions % period
        source = tf.gather(sources, slots)
        number = positions // period * tf.gather(shares, source) + tf.gather(ranks, slots)
        size = tf.gather(sizes, source)
        epochs = number // size
        indices = permuted(number % size, size, self.seed, epochs, tf.cast(source, tf.int64))
        return epochs, indices + tf.gather(tf.cumsum(sizes, exclusive=True), source)


def period_of(shares: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
    """Return the source at each position of a period, [P] int32, and its rank there, [P] int64.

    A source's k-th position is where (k + 1/2) / share falls among those of all sources.

    Args:
        shares: positions of each source in a period; P is their sum.
    """
    sources = np.repeat(np.arange(len(shares), dtype=np.int32), shares)
    ranks = np.concatenate([np.arange(share, dtype=np.int64) for share in shares])
    places = (ranks + 0.5) / np.repeat(np.asarray(shares, np.float64), shares)
    order = np.argsort(places, kind="stable")
    return sources[order], ranks[order]


def sample_order(split: Any, seed: int) -> SampleOrder:
    """Return the order in which the examples of a training split are trained."""
    view = with_defaults(split, SplitDefaults)
    if not view.parts:
        return SampleOrder(split.num_examples, seed, unit=view.unit)
    parts = tuple((part.size, part.share) for part in view.parts)
    return MixedOrder(split.num_examples, seed, parts)


def epoch_lines(split: Any, num_positions: int) -> Iterator[str]:
    """Yield for each source of a mixture its share, and how many of its epochs are trained."""
    parts = with_defaults(split, SplitDefaults).parts
    total = sum(part.share for part in parts)
    for part in parts:
        epochs = num_positions * part.share / total / part.size
        yield (
            f"Source {part.name}: {part.size:,} examples, share {part.share / total:.4g}, "
            f"{epochs:.3g} epochs"
        )


class FaultyFeed(Feed):
    """Wraps a feed: while a fault lasts, the weights of a batch's examples are NaN, or it sleeps.

    The weights, for the engine itself multiplies every loss by them: so the loss and the gradient
    are NaN, because the layers of a model may drop features that are.

    Args:
        delays: sleeps in steps, from step `at` on, counted from 0.
        worker_index: returns the number of the worker that runs a step; None: this process does.
    """

    def __init__(
        self,
        feed: Feed,
        faults: Faults,
        delays: Sequence[Fault] = (),
        worker_index: Callable[[], tf.Tensor] | None = None,
    ) -> None:
        self._feed = feed
        self._delays = delays
        self._worker_index = worker_index
        # In no checkpoint: a fault happens once.
        self._is_on = tf.Variable(False, trainable=False, name="is_nan")
        faults.on_nan(self._is_on.assign)

    @property
    def fetches(self) -> bool:
        return self._feed.fetches

    def open(self, step: int, left_out: Sequence[int] = ()) -> Any:
        return self._feed.open(step, left_out)

    def next(self, iterator: Any) -> Any:
        return self._feed.next(iterator)

    def replica_batch(
        self, element: Any, step: tf.Tensor, replica: tf.Tensor
    ) -> tuple[Batch, tf.Tensor]:
        # Before the batch: so the rest is part of the step, and no wait for input.
        with tf.control_dependencies(
            [_rest(self._rest_secs(step, replica))] if self._delays else []
        ):
            step = tf.identity(step)
        batch, draws = self._feed.replica_batch(element, step, replica)
        weight = batch["weight"]
        return {**batch, "weight": tf.where(self._is_on, math.nan, weight)}, draws

    def _rest_secs(self, step: tf.Tensor, replica: tf.Tensor) -> tf.Tensor:
        """Return how long a replica sleeps in a step, float64; 0 but for its process's first."""
        secs = tf.zeros([], tf.float64)
        for delay in self._delays:
            if self._worker_index is None:
                strategy = tf.distribute.get_strategy()
                is_due = tf.equal(replica % len(strategy.extended.worker_devices), 0)
            else:
                number = int(delay.process.rpartition("-")[2])
                is_due = tf.equal(tf.cast(self._worker_index(), tf.int64), number)
            is_due = tf.logical_and(is_due, step >= delay.at)
            secs += tf.where(is_due, tf.constant(delay.delay_secs, tf.float64), 0.0)
        return secs

    def __getattr__(self, name: str) -> Any:
        # What else the wrapped feed can do, such as `open_chunk` of one for workers elsewhere.
        return getattr(self._feed, name)


def _rest(secs: tf.Tensor) -> tf.Tensor:
    """Return a tensor that is there after so many seconds, in which no processor is used.

    By an operation of tf.data: a Python function would not be there in a process that only runs
    what another sends it.
    """
    element = {"output_types": [tf.int64], "output_shapes": [tf.TensorShape([])]}
    # One that is computed at every step: a constant would be folded into the graph before it runs.
    # Half: it sleeps before the element, and again before the end that is looked for after it.
    micros = tf.cast(secs * 0.5e6, tf.int64)
    dataset = tf.raw_ops.TensorDataset(components=[micros], output_shapes=[tf.TensorShape([])])
    resting = tf.raw_ops.SleepDataset(input_dataset=dataset, sleep_microseconds=micros, **element)
    return tf.raw_ops.DatasetToSingleElement(dataset=resting, **element)[0]
