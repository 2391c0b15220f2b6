"""What a step assigns next to the optimizer's updates: moving statistics, target networks.

A part of a batch that is computed next to others keeps what it assigns for itself: it reads its
values again, and no other part does. When all parts have ended, the mean is assigned once. So no
variable is written within a loop, and all replicas hold the same after every step: a run that was
saved and restored in between continues with the same bits.

Replaces private methods of TensorFlow's variables (`_dense_var_to_tensor`, `_get`) while a part is
traced; tests/engine/graph/step/test_assignments.py fails when they move.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import tensorflow as tf

from trainer.engine.graph.state.variables import pieces_of
from trainer.errors import ConfigError

if TYPE_CHECKING:
    from trainer.engine.graph.step.step_options import StepOptions

_READS = ("read_value", "value", "_dense_var_to_tensor", "_get")
_CHANGES: Mapping[str, Callable[[tf.Tensor, tf.Tensor], tf.Tensor]] = {
    "assign": lambda old, value: value,
    "assign_add": tf.add,
    "assign_sub": tf.subtract,
}

# Replicas and shards are traced in one thread each, hence thread-local.
_current = threading.local()

_num_users: Counter[int] = Counter()
"""How many `own_values` are open for a variable whose methods are replaced, by its id."""


class Assigned(NamedTuple):
    """What was assigned to a variable, which has not changed; `old` is the value that it has."""

    variable: tf.Variable
    value: tf.Tensor
    old: tf.Tensor


class _Scope:
    """Whose values are kept apart, and what was assigned or, if it `notes`, noted so far."""

    def __init__(
        self,
        variables: Iterable[tf.Variable],
        begin: Callable[[tf.Variable], tf.Tensor] | None = None,
        *,
        notes: bool = False,
    ) -> None:
        self.ids = set(map(id, variables))
        self.assigned: dict[int, Assigned] = {}
        self.notes = notes
        self._begin = begin

    def value(self, variable: tf.Variable) -> tf.Tensor | None:
        """Return the value that a variable has inside; None: that of the variable itself."""
        if id(variable) in self.assigned:
            return self.assigned[id(variable)].value
        return None if self._begin is None else self._begin(variable)


@contextmanager
def own_values(
    variables: Sequence[tf.Variable], begin: Callable[[tf.Variable], tf.Tensor] | None = None
) -> Iterator[dict[int, Assigned]]:
    """Keep what is assigned to variables inside, in this thread; yield it, by the variables' ids.

    Args:
        begin: returns what a variable holds at first; None: its value.
    """
    for variable in variables:
        if not _num_users[id(variable)]:
            _replace_methods(variable)
        _num_users[id(variable)] += 1
    try:
        with _entered((_Scope(variables, begin), *_scopes())) as (scope, *_):
            yield scope.assigned
    finally:
        for variable in variables:
            _num_users[id(variable)] -= 1
            if not _num_users[id(variable)]:
                for part in (variable, *_within(variable)):
                    for name in (*_READS, *_CHANGES):
                        vars(part).pop(name, None)


@contextmanager
def noted_values(variables: Sequence[tf.Variable]) -> Iterator[dict[int, Assigned]]:
    """Yield what is given to `note_update` for variables inside, in this thread, by their ids."""
    with _entered((_Scope(variables, notes=True), *_scopes())) as (scope, *_):
        yield scope.assigned


@contextmanager
def pass_values(
    model: tf.keras.Model, variables: Sequence[tf.Variable]
) -> Iterator[dict[int, Assigned]]:
    """Yield what a forward pass of a model inside would assign to variables, which do not change.

    Raises:
        ConfigError: another replica's pass has begun and not ended: they communicate within it.
    """
    if notes_updates(model):
        with noted_values(variables) as assigned:
            yield assigned
        return
    if any(_num_users[id(variable)] for variable in variables):
        raise ConfigError(
            "batch: the model or its loss communicates between replicas, which cannot be done "
            "within a part of a batch; add batch.shards=null and batch.accumulate=1"
        )
    with own_values(variables) as assigned:
        yield assigned


@contextmanager
def shared_values() -> Iterator[None]:
    """Read and assign the variables themselves inside, as an optimizer does for all parts."""
    with _entered(()):
        yield


def note_update(variable: tf.Variable, value: tf.Tensor, old: tf.Tensor) -> None:
    """Note the value that a forward pass, which has read `old`, would assign to a variable."""
    if (scope := _scope_of(variable, notes=True)) is not None:
        scope.assigned[id(variable)] = Assigned(variable, value, old)


def value_to_sum(
    variable: tf.Variable, last: Assigned | None, *, notes: bool, differences: bool = False
) -> tf.Tensor:
    """Return the value that was assigned to a variable, or that it has, float32.

    Args:
        differences: whether the difference to the old value is returned, of a noted one.
    """
    if last is None:
        value = variable.read_value()
    elif notes:
        # Behind a snapshot, which copies nothing: TensorFlow would take the last sum of the value,
        # and the sum over the replicas, as one sum in another order.
        value = tf.raw_ops.Snapshot(input=last.value - last.old if differences else last.value)
    else:
        value = last.value
    return tf.cast(value, tf.float32)


def _scopes() -> tuple[_Scope, ...]:
    return getattr(_current, "scopes", ())


def _scope_of(variable: tf.Variable, *, notes: bool) -> _Scope | None:
    return next((x for x in _scopes() if id(variable) in x.ids and x.notes in (False, notes)), None)


@contextmanager
def _entered(scopes: tuple[_Scope, ...]) -> Iterator[tuple[_Scope, ...]]:
    outer = _scopes()
    _current.scopes = scopes
    try:
        yield scopes
    finally:
        _current.scopes = outer


def _replace_methods(variable: Any) -> None:
    """Have a variable read and assign the values of the scopes that it is in."""
    read_value = variable.read_value

    def reading(original: Callable[..., Any]) -> Callable[..., Any]:
        def read(*args: Any, **options: Any) -> Any:
            scope = _scope_of(variable, notes=False)
            value = None if scope is None else scope.value(variable)
            return original(*args, **options) if value is None else value

        return read

    def changing(original: Callable[..., Any], change: Callable[..., tf.Tensor]) -> Any:
        def assign(value: Any, *args: Any, **options: Any) -> Any:
            scope = _scope_of(variable, notes=False)
            if scope is None:
                return original(value, *args, **options)
            before = scope.value(variable)
            before = read_value() if before is None else before
            new = change(before, tf.cast(tf.convert_to_tensor(value), variable.dtype))
            first = scope.assigned.get(id(variable))
            old = before if first is None else first.old
            scope.assigned[id(variable)] = Assigned(variable, new, old)
            return new

        return assign

    for part in (*_within(variable), variable):
        for name in _READS:
            if hasattr(part, name):
                setattr(part, name, reading(getattr(part, name)))
    for name, change in _CHANGES.items():
        setattr(variable, name, changing(getattr(variable, name), change))


def _within(variable: Any) -> list[Any]:
    """Return the variable within one of central storage, which `2 * variable` reads."""
    return [variable._v] if hasattr(variable, "_v") else []


def moving_variables(model: tf.keras.Model) -> list[tf.Variable]:
    """Return the variables that a forward pass may update; frozen weights are not among them."""
    return [variable for variable in model.non_trainable_variables if not variable.trainable]


def notes_updates(model: tf.keras.Model) -> bool:
    """Return whether a model's forward pass notes its updates instead of making them."""
    return getattr(model, "notes_updates", False)


@dataclass(eq=False, repr=False)
class MovingStatistics:
    """The moving statistics of one model, in one update of a replica.

    Made before the forward passes, which change the variables of most models.

    Attributes:
        noted: whether what the step would assign is noted, and not assigned.
    """

    model: tf.keras.Model
    options: StepOptions
    num_replicas: int
    noted: bool

    def __post_init__(self) -> None:
        self._keeps = self.options.captures_updates or self.noted
        self._adds = self.noted and self.options.adds_differences
        self._variables: list[tf.Variable] = []
        monitor = self.options.divergence_monitor
        may_drop = monitor is not None and monitor.skips and not self._keeps
        before = moving_variables(self.model) if may_drop else []
        self._before = [(variable, variable.read_value()) for variable in before]

    def to_sum(self, variables: list[tf.Variable], values: list[tf.Tensor]) -> list[tf.Tensor]:
        """Return what this replica adds to the sums over all replicas that `assign` takes."""
        if self._keeps:
            self._variables = variables
            return values
        if self.num_replicas == 1:
            return []
        # Not those of frozen layers, which must keep their bits: the mean of three equal numbers
        # may be another one.
        layers = (x for x in self.model.submodules if isinstance(x, tf.keras.layers.Layer))
        frozen = {id(v) for layer in layers if not layer.trainable for v in layer.weights}
        self._variables = [
            variable
            for variable in self.model.non_trainable_variables
            if variable.synchronization == tf.VariableSynchronization.ON_READ
            and id(variable) not in frozen
        ]
        return [variable.read_value() for variable in self._variables]

    def assign(self, totals: list[tf.Tensor], dropped: tf.Tensor) -> None:
        """Assign the means of the sums of `to_sum`; of a `dropped` update none changes."""
        if not self._keeps:
            for variable, total in zip(self._variables, totals, strict=True):
                variable.assign(total / self.num_replicas)
            for variable, old in self._before:
                variable.assign(tf.where(dropped, old, variable.read_value()))
            return
        passes = self.options.passes(self.num_replicas)
        means = []
        for variable, total in zip(self._variables, totals, strict=True):
            mean = total / passes
            same = tf.zeros_like(mean) if self._adds else tf.cast(variable.read_value(), mean.dtype)
            means.append(tf.where(dropped, same, mean))
        _assign_alike(self._variables, means, adds=self._adds)


def _assign_alike(
    variables: Sequence[tf.Variable], values: Sequence[tf.Tensor], *, adds: bool
) -> None:
    """Assign, or add, values that are the same on all replicas; in replica context."""

    def change(own: tf.Variable, value: tf.Tensor) -> Any:
        value = tf.cast(value, own.dtype)
        return own.assign_add(value) if adds else own.assign(value)

    # Not in the replicas: a variable that they share would be given their mean, and the mean
    # of three equal numbers may be another one.
    def cross_replica(strategy: tf.distribute.Strategy, *tensors: Any) -> None:
        for variable, value in zip(variables, tensors, strict=True):
            own = strategy.experimental_local_results(value)[0]
            strategy.extended.update(variable, change, args=(own,), group=True)

    if variables:
        tf.distribute.get_replica_context().merge_call(cross_replica, args=tuple(values))


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

    Raises:
        ConfigError: the models do not have the same variables, or `tau` is not in [0, 1].
    """
    pairs = _pairs(target, source, tau)
    moves = tf.logical_not(dropped)

    # Not in the replicas: a variable that they share would be given their mean, and the mean of
    # three equal numbers may be another one. Each replica's copy reads the source next to it.
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
    return [piece for variable in saved.values() for piece in pieces_of(variable)]


def _kind(variable: tf.Variable) -> str:
    return f"{list(variable.shape)} {variable.dtype.name}"
