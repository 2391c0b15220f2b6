"""Some examples of a split."""

from __future__ import annotations

import tensorflow as tf

from trainer.protocols import Batch, Split


class SpreadExamples:
    """Examples that are spread evenly over a split: those of an ordered one are of every kind.

    Attributes:
        num_examples: how many there are.
        in_memory: as the split's.

    Args:
        split: the split.
        count: how many examples at most.
    """

    def __init__(self, split: Split, count: int) -> None:
        self.num_examples = min(split.num_examples, count)
        self.in_memory = split.in_memory
        self._split = split

    def fetch(self, indices: tf.Tensor) -> Batch:
        """Return the examples at `indices`, [B] int64, of these."""
        return self._split.fetch(indices * self._split.num_examples // self.num_examples)
