"""n-step returns of unrolls (Sutton 1988)."""

from __future__ import annotations

from typing import NamedTuple

import tensorflow as tf


class Returns(NamedTuple):
    """For each row the return of the rows from it on, and where its value goes on.

    Attributes:
        reward: the discounted sum of rewards, [B, T] float32.
        discount: factor of the value that follows, [B, T] float32; 0 after a terminal state.
        row: the observation that has this value, [B, T] int32 in [1, T].
    """

    reward: tf.Tensor
    discount: tf.Tensor
    row: tf.Tensor


def n_step_returns(
    reward: tf.Tensor,
    terminated: tf.Tensor,
    is_step: tf.Tensor,
    *,
    discount: float,
    num_steps: int,
) -> Returns:
    """Return what `num_steps` steps from each row on bring.

    They are fewer where the episode or the unroll ends before. A terminal state has no value. An
    episode that is cut by a time limit goes on in thought: its last observation has one.

    Args:
        reward: [B, T] float32.
        terminated: [B, T] float32, 1: a terminal state follows the row.
        is_step: [B, T] float32, 0: the row only resets the environment; its observation is the last
            one of the episode before. What is returned of such a row means nothing.
        discount: the discount of one step.
        num_steps: most steps.
    """
    length = int(reward.shape[1])
    total = tf.zeros_like(reward)
    factor = tf.ones_like(reward)
    goes_on = tf.ones_like(reward)
    row = tf.zeros_like(reward, tf.int32) + tf.range(length)

    def later(rows: tf.Tensor, offset: int) -> tf.Tensor:
        return tf.pad(rows[:, offset:], [[0, 0], [0, offset]])

    for offset in range(min(num_steps, length)):
        goes_on *= later(is_step, offset)  # 0 beyond the unroll too
        total += goes_on * factor * later(reward, offset)
        row += tf.cast(goes_on, tf.int32)
        ends = goes_on * later(terminated, offset)
        factor *= tf.where(goes_on > 0.0, discount * (1.0 - ends), 1.0)
        goes_on *= 1.0 - ends
    return Returns(total, factor, row)
