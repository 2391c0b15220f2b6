"""The order of a split that mixes several sources: whose example is at a position, and which.

The sources of a period of positions are fixed, each spread evenly over it, so that the shares hold
for every stretch of training and not only on average. A source's own examples come in epochs of its
own, each a permutation, as those of a split without a mixture do.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

from trainer.engine.graph.input.feed import SampleOrder, permuted
from trainer.protocols import SplitDefaults, with_defaults


@dataclass(frozen=True)
class MixedOrder(SampleOrder):
    """The order of a mixture.

    Attributes:
        parts: examples and share of each source, in the order in which they lie in the split; in a
            period of as many positions as the shares add up to, each source has its share.
    """

    parts: tuple[tuple[int, int], ...] = ()

    def locate(self, positions: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Return the source's epoch and the example of each position, [B] int64."""
        # On the host, whatever the caller's device, as with all of the order.
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
