"""Models whose variables and layers are on the logical devices of a replica.

A model is built twice. A draft on the host tells what layers there are, and which
layer makes which variable; then every variable is made where it belongs. So no device ever holds
more than its own part.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import tensorflow as tf

from trainer.engine.graph.placement.layer_placement import LayerPlacement
from trainer.errors import ConfigError
from trainer.logical_devices import DeviceGroups, current_groups, drafting, logical_device
from trainer.logical_devices import requested_for_variables as requested


@dataclass
class Draft:
    """The variables of a draft, on the host, in the order in which they were made.

    Attributes:
        requested: the logical device that the code requests for a variable, by its id.
    """

    variables: list[tf.Variable] = field(default_factory=list)
    requested: dict[int, int] = field(default_factory=dict)

    def devices(self, placement: LayerPlacement) -> list[int]:
        """Return the logical device of each variable; 0 for what belongs to no layer."""
        of_layers = placement.of_variables()
        return [
            self.requested.get(id(variable), of_layers.get(id(variable), 0))
            for variable in self.variables
        ]


@contextmanager
def draft_variables(groups: DeviceGroups) -> Iterator[Draft]:
    """Make variables on the host inside, outside the strategy's scope."""
    draft = Draft()

    def create(next_creator: Callable[..., tf.Variable], **options: Any) -> tf.Variable:
        with tf.device("CPU:0"):
            variable = next_creator(**options)
        draft.variables.append(variable)
        if (index := requested()) is not None:
            draft.requested[id(variable)] = index
        return variable

    with drafting(groups), tf.variable_creator_scope(create):
        yield draft


@contextmanager
def variables_on(devices: Sequence[int], groups: DeviceGroups) -> Iterator[None]:
    """Make variables on these logical devices, one after the other; entered in a strategy's scope.

    Raises:
        ConfigError: there are more or fewer variables than devices.
    """
    count = 0

    def create(next_creator: Callable[..., tf.Variable], **options: Any) -> tf.Variable:
        nonlocal count
        count += 1
        index = devices[count - 1] if count <= len(devices) else 0
        return next_creator(**options, colocate_with=_Components(groups, index))

    with tf.variable_creator_scope(create):
        yield
    if count != len(devices):
        raise ConfigError(
            f"task: it made {len(devices)} variables when it was built first, and {count} then; "
            "with strategy.devices_per_replica it is built twice, and must make the same"
        )


@contextmanager
def variables_beside(variable: tf.Variable) -> Iterator[None]:
    """Make variables on the devices of another one; entered in a strategy's scope."""
    if current_groups() is None:
        yield
        return

    def create(next_creator: Callable[..., tf.Variable], **options: Any) -> tf.Variable:
        return next_creator(**options, colocate_with=variable)

    with tf.variable_creator_scope(create):
        yield


class _Components:
    """The devices of a variable's copies, as `MirroredStrategy` reads them of another variable."""

    def __init__(self, groups: DeviceGroups, index: int) -> None:
        self._devices = tuple(group[index] for group in groups.groups)


def compute_on_devices(placement: LayerPlacement) -> None:
    """Have every layer compute on its logical device.

    What Keras does around `call` has to be there too: casts of the inputs, losses. So a layer gets
    a class of its own, with the name of its class.
    """
    for path, index in placement.devices.items():
        layer = placement.layers[path]
        kind = type(layer)
        members = {"__call__": _on(index, kind.__call__), "__module__": kind.__module__}
        layer.__class__ = type(kind.__name__, (kind,), members)
        layer._callable_losses[:] = [_on(index, loss) for loss in layer._callable_losses]


def _on(index: int, function: Callable[..., Any]) -> Callable[..., Any]:
    def call(*args: Any, **options: Any) -> Any:
        with logical_device(index):
            return function(*args, **options)

    return call
