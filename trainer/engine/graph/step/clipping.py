"""Clipping of the global batch's gradient by norm or by value, of all weights or a group."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from trainer.engine.graph.placement.step_devices import on_own_device
from trainer.engine.graph.state.weight_paths import variable_key
from trainer.engine.graph.step.row_gradients import Gradient, map_values
from trainer.errors import ConfigError
from trainer.protocols import OptimizerDefaults, with_defaults


@dataclass(frozen=True)
class Clip:
    """How a gradient is clipped; at most one of these is set.

    Attributes:
        norm: the global norm to which it is scaled down; None: it is not.
        value: the largest absolute value of an element; None: there is none.
        each: the norm to which the gradient of each variable is scaled down; None: it is not.
    """

    norm: float | None = None
    value: float | None = None
    each: float | None = None

    def apply(self, gradients: list[Gradient], norm: tf.Tensor | None = None) -> list[Gradient]:
        """Return the clipped gradients; `norm` is their global norm, if it is known."""
        if self.norm is not None:
            return list(tf.clip_by_global_norm(gradients, self.norm, norm)[0])
        if self.each is not None:
            return [on_own_device(tf.clip_by_norm, x, self.each) for x in gradients]
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
        norm: their global norm.
        optimizer: what its `clips` say is clipped apart, and all by its `own_clips` after that.
        common: how the others are clipped, together.

    Raises:
        ConfigError: a weight in pieces is clipped by its norm.
    """
    view = with_defaults(optimizer, OptimizerDefaults)
    if groups := view.clips:
        result = _by_group(gradients, variables, groups, common)
    else:
        result = common.apply(gradients, norm)
    for own in view.own_clips:
        if own.each is not None and any(hasattr(v, "_sharded_container") for v in variables):
            raise ConfigError(
                "model: the optimizer's clipnorm is the norm of whole weights, which parameter "
                "servers hold in pieces; add strategy.partitioner=none"
            )
        result = own.apply(result)
    return result


def _by_group(
    gradients: list[Gradient], variables: Sequence[tf.Variable], groups: Any, common: Clip
) -> list[Gradient]:
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
