"""Rehearses silent corruption: one wrong bit in the memory of one process."""

from __future__ import annotations

import numpy as np
import tensorflow as tf

from trainer.engine.graph.state.train_state import TrainState

_BIT = 1 << 6  # of the last byte but one: the highest bit of a float32's fraction


def flip_bit(state: TrainState, strategy: tf.distribute.Strategy) -> None:
    """Flip a bit of the largest weight of the largest variable, in this process's last copy.

    Of the largest weight, because a kernel may take a tiny one for zero.
    """
    weights = next(iter(state.task.models.values())).trainable_variables
    variable = max(weights, key=lambda weight: weight.shape.num_elements())
    local = strategy.experimental_local_results(variable)[-1]
    value = np.array(local.numpy())
    flat = value.reshape(-1)
    position = int(np.argmax(np.abs(flat)))
    flat.view(np.uint8).reshape(flat.size, -1)[position, -2] ^= _BIT
    local.assign(value)
