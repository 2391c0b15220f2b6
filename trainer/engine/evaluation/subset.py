"""Some examples of a split, and what a split has."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import tensorflow as tf

from trainer.protocols import Batch, Split, SplitDefaults, with_defaults


class SpreadExamples:
    """At most `count` examples, spread evenly over a split: an ordered one gives every kind."""

    def __init__(self, split: Split, count: int) -> None:
        self.num_examples = min(split.num_examples, count)
        self.in_memory = split.in_memory
        self._split = split

    def fetch(self, indices: tf.Tensor) -> Batch:
        """Return the examples at `indices`, [B] int64, of these."""
        return self._split.fetch(indices * self._split.num_examples // self.num_examples)


@dataclass
class NumberedSplit:
    """A split whose examples are their numbers alone."""

    num_examples: int
    in_memory: bool = True

    def fetch(self, indices: tf.Tensor) -> Batch:
        """Return a batch with nothing but what the engine adds: `id` and `weight`."""
        return {}


class ChosenExamples:
    """Examples of a split that were chosen by their numbers.

    Attributes:
        labels: the labels of these examples, [N, ...]; None: the split does not know them.
        parts: those of the split, with the number of chosen examples.

    Args:
        rows: the numbers of the examples, [N] int64, ascending.
    """

    def __init__(self, split: Any, rows: np.ndarray) -> None:
        self.num_examples = len(rows)
        self.in_memory = split.in_memory
        self.augments = with_defaults(split, SplitDefaults).augments
        labels = with_defaults(split, SplitDefaults).labels
        self.labels = None if labels is None else np.asarray(labels)[rows]
        parts = with_defaults(split, SplitDefaults).parts
        ends = np.cumsum([part.size for part in parts])
        counts = np.diff(np.searchsorted(rows, ends), prepend=0).tolist()
        self.parts = [replace(part, size=count) for part, count in zip(parts, counts, strict=True)]
        self._split = split
        self._rows = rows
        self._constant: tf.Tensor | None = None

    def fetch(self, indices: tf.Tensor, draws: tf.Tensor | None = None) -> Batch:
        """Return the examples at `indices`, [B] int64, of these."""
        if self._constant is None:
            # At first use, and not in the graph: no older than the strategy, and captured once.
            with tf.init_scope(), tf.device("CPU:0"):
                self._constant = tf.constant(self._rows, tf.int64)
        with tf.device("CPU:0"):
            rows = tf.gather(self._constant, indices)
        batch: Batch = self._split.fetch(rows, *([] if draws is None else [draws]))
        return batch
