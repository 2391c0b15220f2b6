"""Clipping of the global batch's gradient by norm or by value, of all weights or a group."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from trainer.engine.graph.placement.step_devices import on_own_device
from trainer.engine.graph.state.weight_paths import variable_key
from trainer.engine.graph.step.row_gradients import Gradient, map_values

OWN_CLIPS = ("clipnorm", "global_clipnorm", "clipvalue")
"""How Keras' optimizers clip: by the first of these attributes that is set; legacy ones by all."""


@dataclass(frozen=True)
class Clip:
    """How a gradient is clipped; at most one of the two is set.

    Attributes:
        norm: the global norm to which it is scaled down; None: it is not.
        value: the largest absolute value of an element; None: there is none.
    """

    norm: float | None = None
    value: float | None = None

    def apply(self, gradients: list[Gradient], norm: tf.Tensor | None = None) -> list[Gradient]:
        """Return the clipped gradients.

        Args:
            gradients: the gradients.
            norm: their global norm, if it is known.
        """
        if self.norm is not None:
            return list(tf.clip_by_global_norm(gradients, self.norm, norm)[0])
        if self.value is not None:
            bound = self.value

            def clipped(values: tf.Tensor) -> tf.Tensor:
                return tf.clip_by_value(values, -bound, bound)

            return [on_own_device(map_values, x, clipped) for x in gradients]
        return gradients


def clip(
    gradients: list[Gradient],
    norm: tf.Tensor,
    variables: Sequence[tf.Variable],
    optimizer: Any,
    common: Clip,
) -> list[Gradient]:
    """Return the gradients of a model, clipped as the groups of its optimizer say.

    Args:
        gradients: the gradients.
        norm: their global norm.
        variables: their variables.
        optimizer: its attribute `clips`, if it has one, says what is clipped apart.
        common: how the others are clipped, together.
    """
    groups = getattr(optimizer, "clips", ())
    if not groups:
        return common.apply(gradients, norm)
    keys = [variable_key(variable) for variable in variables]
    apart = {key for members, _ in groups for key in members}
    result = list(gradients)
    for members, how in [*groups, (set(keys) - apart, common)]:
        positions = [i for i, key in enumerate(keys) if key in members]
        if positions:
            clipped = how.apply([gradients[i] for i in positions])
            for i, gradient in zip(positions, clipped, strict=True):
                result[i] = gradient
    return result
