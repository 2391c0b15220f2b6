"""Distributions of a return over evenly spaced values (Bellemare, Dabney and Munos 2017)."""

from __future__ import annotations

import tensorflow as tf


class Support:
    """The values, *atoms*, that a return can have.

    Attributes:
        atoms: the values, [num_atoms] float32, ascending.

    Args:
        value_min: the smallest.
        value_max: the largest.
        num_atoms: how many.
    """

    def __init__(self, value_min: float, value_max: float, num_atoms: int) -> None:
        self._min = value_min
        self._max = value_max
        self._distance = (value_max - value_min) / (num_atoms - 1)
        self._num_atoms = num_atoms

    @property
    def atoms(self) -> tf.Tensor:
        """The values, [num_atoms] float32, ascending; made anew in each graph."""
        return tf.linspace(tf.constant(self._min, tf.float32), self._max, self._num_atoms)

    def mean(self, logits: tf.Tensor) -> tf.Tensor:
        """Return the mean of distributions, [...], from their logits, [..., num_atoms]."""
        return tf.reduce_sum(tf.nn.softmax(logits) * self.atoms, axis=-1)

    def project(self, values: tf.Tensor, probabilities: tf.Tensor) -> tf.Tensor:
        """Return the distributions over the atoms of values that lie anywhere.

        A value's probability is shared by the two atoms around it, the nearer one getting more; one
        beyond the atoms goes to the outermost.

        Args:
            values: [..., K] float32.
            probabilities: theirs, [..., K] float32.

        Returns:
            [..., num_atoms] float32.
        """
        clipped = tf.clip_by_value(values, self._min, self._max)
        distances = tf.abs(clipped[..., None, :] - self.atoms[:, None]) / self._distance
        shares = tf.clip_by_value(1.0 - distances, 0.0, 1.0)
        return tf.linalg.matvec(shares, probabilities)
