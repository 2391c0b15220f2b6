"""Soft updates: the weights of a target network follow those of the network that is trained."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from trainer.engine.graph.state.variables import parts_of
from trainer.errors import ConfigError


def soft_update(
    replica: tf.distribute.ReplicaContext,
    target: tf.keras.Model,
    source: tf.keras.Model,
    tau: float | tf.Tensor,
    dropped: tf.Tensor,
) -> None:
    """Move the variables of a model toward those of another one (Lillicrap et al. 2016).

    target += tau * (source - target), for statistics such as those of batch normalization too;
    integers are copied.

    Args:
        replica: the current replica; all of them must call this.
        target: the model that is moved.
        source: the model that it moves to.
        tau: the share of the way, in [0, 1].
        dropped: whether the step's update was dropped, bool scalar, the same on all replicas; then
            nothing moves.

    Raises:
        ConfigError: the models do not have the same variables, or `tau` is not in [0, 1].
    """
    pairs = _pairs(target, source, tau)
    moves = tf.logical_not(dropped)

    # Not in the replicas: a variable that they share would be given their mean, and the mean of
    # three equal numbers may be another one. Each replica's copy reads the source beside it.
    def cross_replica(strategy: tf.distribute.Strategy, moves: Any, tau: Any) -> None:
        moves, tau = (strategy.experimental_local_results(value)[0] for value in (moves, tau))
        for own, other in pairs:
            strategy.extended.update(own, _move, args=(other, moves, tau), group=True)

    replica.merge_call(cross_replica, args=(moves, tf.convert_to_tensor(tau, tf.float32)))


def _move(own: tf.Variable, other: tf.Variable, moves: tf.Tensor, tau: tf.Tensor) -> tf.Tensor:
    before, wanted = own.read_value(), tf.convert_to_tensor(other)
    if own.dtype.is_floating:
        wanted = before + tf.cast(tau, own.dtype) * (wanted - before)
    return own.assign(tf.where(moves, wanted, before))


def _pairs(
    target: tf.keras.Model, source: tf.keras.Model, tau: float | tf.Tensor
) -> list[tuple[tf.Variable, tf.Variable]]:
    static = tf.get_static_value(tau)
    if static is not None and not 0.0 <= float(static) <= 1.0:
        raise ConfigError(
            f"task: soft_update was given tau={float(static):g}, which must be in [0, 1]: "
            "0 moves nothing, 1 copies"
        )
    targets, sources = _variables(target), _variables(source)
    if len(targets) != len(sources):
        raise ConfigError(
            f"task: soft_update was given a target of {len(targets)} variables and a "
            f"source of {len(sources)}; build both with parts.model from the same node"
        )
    for own, other in zip(targets, sources, strict=True):
        if own.shape != other.shape or own.dtype != other.dtype:
            raise ConfigError(
                f"task: soft_update cannot move {own.name}, {_kind(own)}, toward {other.name}, "
                f"{_kind(other)}; build both models with parts.model from the same node"
            )
    return list(zip(targets, sources, strict=True))


def _variables(model: tf.keras.Model) -> list[tf.Variable]:
    """Return the variables in an order that does not depend on which of them are trained."""
    saved = getattr(model, "saved", None)  # a model of Keras 3
    if saved is None:
        return list(model.variables)
    return [part for variable in saved.values() for part in parts_of(variable)]


def _kind(variable: tf.Variable) -> str:
    return f"{list(variable.shape)} {variable.dtype.name}"
