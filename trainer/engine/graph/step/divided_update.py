"""Divides the update of weights among the processes of a host.

After the gradients are summed, each process updates its part of the weights by the optimizer's own
kernels, in memory that all of them share; then all read the whole (Rajbhandari et al. 2020: ZeRO).
The variables of model and optimizer are that memory, so whoever reads, saves or restores them need
not know.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeAlias

import tensorflow as tf
from tensorflow.python.ops.resource_variable_ops import UninitializedVariable

from trainer.engine.graph.exchange.divided_state import DividedState, Part, divide
from trainer.engine.graph.exchange.exchange_timer import UNSAVED
from trainer.engine.graph.exchange.rendezvous import Rendezvous
from trainer.engine.graph.state.weight_paths import variable_key
from trainer.engine.graph.step.row_gradients import Gradient
from trainer.text import format_bytes

Optimizer: TypeAlias = tf.keras.optimizers.legacy.Optimizer

_MIN_PROCESSES = 3
_MIN_BYTES = 100_000_000
_MIN_MEAN_BYTES = 4_000_000
"""From where on it is clearly faster: so many processes, and weights with their slots so large,
together and on average. Each weight costs some 30 microseconds, and the copy of the weights a part
of what is saved; with two processes that is most of it."""


@dataclass(frozen=True)
class _Weight:
    """A trainable variable that is updated in parts, as this process holds it.

    Attributes:
        optimizer: what updates it: the optimizer, or that of its group.
        variable: the variable.
        slots: name -> slot.
        by_rows: whether some of its rows can be updated without the others.
    """

    optimizer: Optimizer
    variable: tf.Variable
    slots: dict[str, tf.Variable]
    by_rows: bool


@dataclass(frozen=True)
class _Piece:
    """The part of a weight that this process updates."""

    part: Part
    variable: tf.Variable
    slots: dict[str, tf.Variable]


class DividedUpdate:
    """Makes updates in parts.

    Attributes:
        divides: whether one is made so; known when a step has been traced.
        note: called with a line for the user when one is traced.

    Args:
        rendezvous: of the processes of this host.
        if_faster: whether an update that is not clearly faster so is left to the optimizer.
    """

    def __init__(self, rendezvous: Rendezvous, *, if_faster: bool) -> None:
        self.divides = False
        self.note: Callable[[str], None] = lambda line: None
        self._rendezvous = rendezvous
        self._if_faster = if_faster
        self._traced: dict[tuple[int, ...], _Update | None] = {}

    def apply(
        self, optimizer: Optimizer, gradients: Sequence[Gradient], variables: Sequence[tf.Variable]
    ) -> tuple[list[Gradient], list[tf.Variable]]:
        """Update all that can be updated in parts, in replica context; the same in all processes.

        Returns:
            The gradients and variables that are left for the optimizer, which counts the update
            if there are any; else it is counted here.
        """
        pairs = list(zip(gradients, variables, strict=True))
        key = (id(optimizer), *(id(v) for g, v in pairs if not isinstance(g, tf.IndexedSlices)))
        if key not in self._traced:
            self._traced[key] = self._create(optimizer, pairs)
        update = self._traced[key]
        if update is None:
            return list(gradients), list(variables)
        update.make([gradients[i] for i in update.indices])
        rest = [pair for i, pair in enumerate(pairs) if i not in update.indices]
        if not rest:
            optimizer.iterations.assign_add(1, read_value=False)
        return [gradient for gradient, _ in rest], [variable for _, variable in rest]

    def _create(
        self, optimizer: Optimizer, pairs: Sequence[tuple[Gradient, tf.Variable]]
    ) -> _Update | None:
        all_weights = {
            index: _weight_of(optimizer, variable)
            for index, (gradient, variable) in enumerate(pairs)
            if not isinstance(gradient, tf.IndexedSlices)
        }
        weights = {index: weight for index, weight in all_weights.items() if weight is not None}
        if not weights:
            return None
        slots = sum(_num_bytes(x) for weight in weights.values() for x in weight.slots.values())
        size = slots + sum(_num_bytes(weight.variable) for weight in weights.values())
        count = self._rendezvous.count
        pays = count >= _MIN_PROCESSES and size >= max(_MIN_BYTES, _MIN_MEAN_BYTES * len(weights))
        shapes = [tuple(weight.variable.shape) for weight in weights.values()]
        parts = divide(shapes, [weight.by_rows for weight in weights.values()], count)
        if not all(parts) or (self._if_faster and not pays):
            return None
        self.divides = True
        self.note(
            f"{format_bytes(size)} of weights and slots: updated in parts by the {count} processes "
            "of a host (strategy.update)"
        )
        number = sum(update is not None for update in self._traced.values())
        own = parts[self._rendezvous.rank]
        return _Update(optimizer, weights, own, self._rendezvous, -1 - number)


class _Update:
    """An update in parts.

    Attributes:
        indices: which variables are updated.

    Args:
        optimizer: updates the parts.
        weights: what is updated, by its index.
        parts: what this process updates of it.
        rendezvous: of the processes of this host.
        call: number of this update within the step.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        weights: dict[int, _Weight],
        parts: Sequence[Part],
        rendezvous: Rendezvous,
        call: int,
    ) -> None:
        self.indices = list(weights)
        self._optimizer = optimizer
        self._weights = list(weights.values())
        self._pieces = [self._piece(part) for part in parts]
        slots = [(i, name) for i, weight in enumerate(self._weights) for name in weight.slots]
        self._state = DividedState(
            rendezvous,
            call,
            [tuple(weight.variable.shape) for weight in self._weights],
            [tuple(self._weights[i].slots[name].shape) for i, name in slots],
            [piece.part for piece in self._pieces],
            [
                self._slot_part(piece, name)._replace(tensor=slots.index((piece.part.tensor, name)))
                for piece in self._pieces
                for name in piece.slots
            ],
        )

    def make(self, gradients: Sequence[tf.Tensor]) -> None:
        """Update; `gradients` are the whole ones, the same in all processes."""
        own = self._take(gradients)
        optimizer: Any = self._optimizer
        numbers = optimizer._prepare([piece.variable for piece in self._pieces])
        takes_numbers = "apply_state" in optimizer._dense_apply_args
        options = {"apply_state": numbers} if takes_numbers else {}
        for gradient, piece in zip(own, self._pieces, strict=True):
            # As in an update of the whole: what TensorFlow rearranges for speed goes by devices.
            with tf.device(piece.variable.device):
                optimizer._resource_apply_dense(gradient, piece.variable, **options)
        wholes = [weight.variable for weight in self._weights]
        wholes += [slot for weight in self._weights for slot in weight.slots.values()]
        values = [variable.read_value() for variable in self._own()]
        results = tf.numpy_function(self._state.give, values, [tf.float32] * len(wholes))
        for variable, value in zip(wholes, results, strict=True):
            variable.assign(tf.ensure_shape(value, variable.shape), read_value=False)

    def _take(self, gradients: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """Have the pieces lie where they are updated; return their gradients."""
        tensors = [piece.part.tensor for piece in self._pieces]
        weights = [self._weights[i] for i in tensors]
        values = [gradients[i] for i in tensors]
        values += [weight.variable.read_value() for weight in weights]
        values += [slot.read_value() for weight in weights for slot in weight.slots.values()]
        # Not before all of them: slots change from now on, and `begin_update` has noted that.
        with tf.control_dependencies(gradients):
            taken = tf.numpy_function(self._state.take, values, [tf.float32] * len(values))
        for variable, value in zip(self._own(), taken[len(tensors) :], strict=True):
            value = tf.ensure_shape(value, [variable.shape.num_elements() + DividedState.GUARD])
            part = tf.reshape(value[DividedState.GUARD :], variable.shape)
            variable.assign(part, read_value=False)
        own = zip(taken[: len(tensors)], self._pieces, strict=True)
        return [tf.ensure_shape(value, piece.variable.shape) for value, piece in own]

    def _own(self) -> list[tf.Variable]:
        slots = [slot for piece in self._pieces for slot in piece.slots.values()]
        return [*(piece.variable for piece in self._pieces), *slots]

    def _piece(self, part: Part) -> _Piece:
        weight = self._weights[part.tensor]
        variable = _variable(part, weight.variable)
        piece = _Piece(part, variable, {})
        for name, slot in weight.slots.items():
            piece.slots[name] = _variable(self._slot_part(piece, name), slot)
        weight.optimizer._slots[variable_key(variable)] = piece.slots
        if hasattr(self._optimizer, "add_piece"):
            self._optimizer.add_piece(variable, weight.variable)
        return piece

    def _slot_part(self, piece: _Piece, name: str) -> Part:
        """Return the part of a slot: the rows of the weight's, or all of one of another shape."""
        weight = self._weights[piece.part.tensor]
        slot = weight.slots[name]
        if slot.shape == weight.variable.shape:
            return piece.part
        return Part(piece.part.tensor, 0, slot.shape.num_elements())


def _weight_of(optimizer: Any, variable: Any) -> _Weight | None:
    """Return what is updated in parts; None: the optimizer must update the variable itself."""
    member = getattr(optimizer, "member_of", lambda variable: optimizer)(variable)
    slots = {}
    for name in member.get_slot_names():
        with suppress(KeyError):
            slots[name] = _local(member.get_slot(variable, name))
    local = _local(variable)
    is_usable = (
        type(optimizer).apply_gradients is tf.keras.optimizers.legacy.Optimizer.apply_gradients
        and getattr(variable, "constraint", None) is None
        and all(x.dtype.base_dtype == tf.float32 for x in (local, *slots.values()))
    )
    by_rows = getattr(member, "can_be_lazy", False) and all(
        slot.shape == local.shape for slot in slots.values()
    )
    return _Weight(member, local, slots, by_rows) if is_usable else None


def _local(variable: Any) -> tf.Variable:
    """Return a variable as this process holds it, without Keras' casts."""
    variable = getattr(variable, "_variable", variable)
    return tf.distribute.get_strategy().experimental_local_results(variable)[0]


def _variable(part: Part, whole: tf.Variable) -> tf.Variable:
    shape = whole.shape
    if (size := part.stop - part.start) != shape.num_elements():
        shape = tf.TensorShape([size // shape[1:].num_elements(), *shape[1:]])
    # By its class: `tf.Variable` would have the strategy create one in all processes.
    with tf.init_scope(), tf.device(whole.device):
        return UninitializedVariable(
            trainable=False, name=f"{UNSAVED}/part", shape=shape, dtype=whole.dtype
        )


def _num_bytes(variable: tf.Variable) -> int:
    return int(variable.shape.num_elements() * variable.dtype.size)
