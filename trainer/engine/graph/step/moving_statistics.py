"""Variables that no optimizer changes: moving statistics, and the weights of target networks.

What forward passes change is averaged at every step, not only when it is read: so all replicas hold
the same, and a run that was saved and restored in between goes on with the same bits.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, TypeAlias

import tensorflow as tf

from trainer.engine.graph.state.variables import parts_of
from trainer.engine.graph.step.gradients import Contribution, moving_variables, notes_updates
from trainer.engine.graph.step.step_options import StepOptions
from trainer.errors import ConfigError

Values: TypeAlias = list[tuple[tf.Variable, tf.Tensor]]
"""Variables, each with a value."""


class MovingStatistics:
    """The moving statistics of one model, in one update of a replica.

    Made before the forward passes, which change the variables of most models.

    Args:
        noted: whether what the step would assign is noted, and not assigned; None: as the model
            does.
    """

    def __init__(
        self,
        model: tf.keras.Model,
        options: StepOptions,
        num_replicas: int,
        *,
        noted: bool | None = None,
    ) -> None:
        self._model = model
        self._options = options
        self._num_replicas = num_replicas
        self._noted = notes_updates(model) if noted is None else noted
        self._variables: list[tf.Variable] = []
        self._totals: list[tf.Tensor] = []
        monitor = options.divergence_monitor
        may_drop = monitor is not None and monitor.skips and not self._noted
        self._before = [(v, v.read_value()) for v in moving_variables(model)] if may_drop else []

    def added(self, own: Contribution) -> list[tf.Tensor]:
        """Return what this replica adds to the sums over all replicas that `assign` takes."""
        if self._options.captures_updates or self._noted:
            self._variables = own.updated
            return own.updates
        if self._num_replicas == 1:
            return []
        # Not those of frozen layers, which must keep their bits: the mean of three equal numbers
        # may be another one.
        frozen = _frozen(self._model)
        self._variables = [
            variable
            for variable in self._model.non_trainable_variables
            if variable.synchronization == tf.VariableSynchronization.ON_READ
            and id(variable) not in frozen
        ]
        return [variable.read_value() for variable in self._variables]

    def assign(self, totals: list[tf.Tensor]) -> None:
        """Assign the means over all forward passes; those that the model has noted wait for `end`.

        Args:
            totals: the sums over the replicas of what `added` returned.
        """
        self._totals = totals
        if self._noted:
            return
        if not self._options.captures_updates:
            for variable, total in zip(self._variables, totals, strict=True):
                variable.assign(total / self._num_replicas)
        else:
            assign_alike(self._means())

    def end(self, dropped: tf.Tensor) -> None:
        """Finish an update that was made, or `dropped` (bool scalar): then no variable changes."""
        for variable, old in self._before:
            variable.assign(tf.where(dropped, old, variable.read_value()))
        if not self._noted:
            return
        adds = self._options.adds_differences
        means = [
            (
                variable,
                tf.where(
                    dropped,
                    tf.zeros_like(mean) if adds else tf.cast(variable.read_value(), mean.dtype),
                    mean,
                ),
            )
            for variable, mean in self._means()
        ]
        assign_alike(means, adds=adds)

    def _means(self) -> Values:
        passes = (self._options.shards or self._num_replicas) * self._options.accumulate
        means = [total / passes for total in self._totals]
        return list(zip(self._variables, means, strict=True))


@contextmanager
def unchanged(strategy: tf.distribute.Strategy, models: Iterable[tf.keras.Model]) -> Iterator[None]:
    """Give what a step inside assigns to models its old values back, on this process's replicas."""
    variables = [
        local
        for model in models
        for variable in model.variables
        for local in strategy.experimental_local_results(variable)
    ]
    before = [variable.read_value() for variable in variables]
    yield
    for variable, value in zip(variables, before, strict=True):
        variable.assign(value)


def assign_alike(values: Values, *, adds: bool = False) -> None:
    """Assign, or add, values that are the same on all replicas; in replica context."""

    def change(own: tf.Variable, value: tf.Tensor) -> Any:
        value = tf.cast(value, own.dtype)
        return own.assign_add(value) if adds else own.assign(value)

    # Not in the replicas: a variable that they share would be given their mean, and the mean
    # of three equal numbers may be another one.
    def cross_replica(strategy: tf.distribute.Strategy, *tensors: Any) -> None:
        for (variable, _), value in zip(values, tensors, strict=True):
            strategy.extended.update(
                variable,
                change,
                args=(strategy.experimental_local_results(value)[0],),
                group=True,
            )

    if values:
        context = tf.distribute.get_replica_context()
        context.merge_call(cross_replica, args=tuple(value for _, value in values))


def _frozen(model: tf.keras.Model) -> set[int]:
    """Return the ids of the variables of all layers that are not trained."""
    layers = (part for part in model.submodules if isinstance(part, tf.keras.layers.Layer))
    return {id(variable) for layer in layers if not layer.trainable for variable in layer.weights}


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
