"""Which logical device each layer of a model belongs to.

In this order: what the model's code sets by `logical_device`, the first pattern that matches
the layer's path, the device of the layer that contains it. A layer without variables that nothing
places is computed where its input is.

A divided model is built twice. A draft on the host shows which layers there are, and which layer
makes which variable; then every variable is made where it belongs. So no device ever holds more
than its own part.
"""

from __future__ import annotations

import bisect
import functools
import itertools
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import tensorflow as tf

from trainer.engine.graph.library_patches import run_layer_within
from trainer.errors import ConfigError
from trainer.logical_devices import (
    DeviceGroups,
    current_groups,
    drafting,
    logical_device,
    requested_for_variables,
)
from trainer.text import did_you_mean

Layer: TypeAlias = tf.keras.layers.Layer
_Choose: TypeAlias = Callable[[str], int | None]

_SHOWN = 5  # names in a message


@dataclass
class LayerPlacement:
    """The logical device of each layer, by its path: the names of the layers that contain it.

    Attributes:
        devices: path -> logical device, for the layers that have one, those outside first.
    """

    devices: dict[str, int] = field(default_factory=dict)
    layers: dict[str, Layer] = field(default_factory=dict)

    def transferred(self, models: Mapping[str, tf.keras.Model]) -> LayerPlacement:
        """Return the same placement for other models, made of the same layers."""
        walk = _Walk({})
        walk.models(models, lambda model, prefix: lambda path: None)
        return LayerPlacement(self.devices, walk.placed.layers)

    def of_variables(self) -> dict[int, int]:
        """Return the logical device of each layer's own variables, by the variable's id."""
        return {
            id(variable): index
            for path, index in self.devices.items()
            for variable in own_variables(self.layers[path])
        }


def place_layers(
    models: Mapping[str, tf.keras.Model],
    placement: Mapping[str, int] | str,
    count: int,
    requested: Mapping[int, int],
) -> LayerPlacement:
    """Place every layer of a task's models.

    Args:
        requested: the logical device that the code requests for a variable, by the variable's id.

    Raises:
        ConfigError: a pattern matches nothing, or a layer with variables has no device.
    """
    walk = _Walk(requested)
    walk.models(models, lambda model, prefix: _chooser(model, prefix, placement, count))
    layers = walk.placed.layers
    names = ", ".join(list(layers)[: 2 * _SHOWN])
    listed = f"; the layers are {names}{', ...' if len(layers) > 2 * _SHOWN else ''}"
    problems = [
        f"strategy.placement ({pattern}) matches no layer{did_you_mean(pattern, layers) or listed}"
        for pattern in (() if isinstance(placement, str) else placement)
        if not any(re.fullmatch(pattern, path) for path in layers)
    ]
    if walk.without:
        names = ", ".join(walk.without[:_SHOWN])
        more = f" and {len(walk.without) - _SHOWN} more" if len(walk.without) > _SHOWN else ""
        problems.append(
            f"strategy.placement has no device for the layers {names}{more}; "
            "add patterns that match them, such as '.*' at the end for all others"
        )
    if problems:
        raise ConfigError(*problems)
    return walk.placed


def own_variables(layer: Layer) -> list[tf.Variable]:
    """Return the variables of a layer that are not those of a layer within it.

    As TensorFlow has them: under mixed precision Keras wraps them.
    """
    variables = [*layer._trainable_weights, *layer._non_trainable_weights]
    return [getattr(variable, "_variable", variable) for variable in variables]


def layers_within(layer: Layer) -> list[Layer]:
    """Return the layers that a layer or model is directly made of, in topological order."""
    return list(layer._flatten_layers(recursive=False, include_self=False))


def _chooser(
    model: tf.keras.Model, prefix: str, placement: Mapping[str, int] | str, count: int
) -> _Choose:
    """Return a function from a layer's path to the device that the configuration sets."""
    if isinstance(placement, str):
        return _balanced(model, prefix, count).get
    patterns = [(re.compile(pattern), index) for pattern, index in placement.items()]
    return lambda path: next(
        (index for pattern, index in patterns if pattern.fullmatch(path)), None
    )


class _Walk:
    """Places layers from the outside to the inside, in topological order."""

    def __init__(self, requested: Mapping[int, int]) -> None:
        self.placed = LayerPlacement()
        self.without: list[str] = []
        self._choose: _Choose = lambda path: None
        self._requested = requested
        self._by_layer: dict[int, int | None] = {}

    def models(
        self,
        models: Mapping[str, tf.keras.Model],
        chooser: Callable[[tf.keras.Model, str], _Choose],
    ) -> None:
        """Place the layers of all models."""
        for name, model in models.items():
            prefix = f"{name}/" if len(models) > 1 else ""
            self._choose = chooser(model, prefix)
            self._container(model, prefix, None, 0)

    def _container(
        self, outer: Layer, prefix: str, inherited: int | None, entry: int
    ) -> int | None:
        """Place the layers within another one; return the device of its output."""
        last: int | None = entry
        for layer in layers_within(outer):
            if id(layer) not in self._by_layer:  # a shared one is where it is met first
                last = self._layer(layer, f"{prefix}{layer.name}", inherited, entry)
                self._by_layer[id(layer)] = last
        return last

    def _layer(self, layer: Layer, path: str, inherited: int | None, entry: int) -> int | None:
        self.placed.layers[path] = layer
        own = own_variables(layer)
        requests = (self._requested.get(id(variable)) for variable in own)
        said = next((index for index in requests if index is not None), self._choose(path))
        said = inherited if said is None else said
        source = self._source(layer, entry)
        if said is None and own:
            self.without.append(path)
        if said is not None:
            self.placed.devices[path] = said
        if layers_within(layer):
            inner = entry if source is None else source
            output = self._container(layer, f"{path}/", said, inner if said is None else said)
            return output if said is None else said
        if said is None and source is not None:
            self.placed.devices[path] = source
        return source if said is None else said

    def _source(self, layer: Layer, entry: int) -> int | None:
        """Return the device of a layer's first input; None where the graph of layers is unknown."""
        if not layer.inbound_nodes:
            return None
        parents = layer.inbound_nodes[0].parent_nodes
        return self._by_layer.get(id(parents[0].outbound_layer), entry) if parents else entry


def _balanced(model: tf.keras.Model, prefix: str, count: int) -> dict[str, int]:
    """Cut a model into consecutive stages so that the largest one has the fewest weights."""
    leaves = list(_leaves(model, prefix))
    if not all(layer.inbound_nodes for _, layer in leaves):
        raise ConfigError(
            f"strategy.placement (balanced) needs a functional or sequential model, and "
            f"{model.name} is neither: the order of its layers is unknown; name them in "
            "strategy.placement"
        )
    sizes = [
        sum(variable.shape.num_elements() for variable in layer.weights) for _, layer in leaves
    ]
    if (most := sum(size > 0 for size in sizes)) < count:
        raise ConfigError(
            f"strategy.devices_per_replica ({count}) must be at most the number of layers of "
            f"{model.name} that have weights ({most})"
        )
    return {path: stage for (path, _), stage in zip(leaves, stages(sizes, count), strict=True)}


def stages(sizes: Sequence[int], count: int) -> list[int]:
    """Cut a row of sizes into `count` stages, none empty, so that the largest is smallest.

    Returns the stage of each size, from 0. Of all such cuts it is the last: an activation stays
    with its layer, with which TensorFlow may fuse it.
    """
    sums = [0, *itertools.accumulate(sizes)]
    # Of the first items: the largest stage, and where the stages end, negative so that the least
    # of equal values has the last ends.
    best: dict[int, tuple[float, tuple[int, ...]]] = {0: (0, ())}
    for _ in range(count):
        best = {
            end: min(
                (max(largest, sums[end] - sums[start] or math.inf), (*ends, -end))
                for start, (largest, ends) in best.items()
                if start < end
            )
            for end in range(min(best) + 1, len(sums))
        }
    ends = [-end for end in best[len(sizes)][1]]
    return [bisect.bisect_right(ends, item) for item in range(len(sizes))]


def _leaves(model: Any, prefix: str) -> Iterator[tuple[str, Layer]]:
    """Yield the layers of a functional model, and of those within it, in topological order."""
    for layer in layers_within(model):
        path = f"{prefix}{layer.name}"
        if isinstance(layer, tf.keras.Model) and layer.inbound_nodes and layers_within(layer):
            yield from _leaves(layer, f"{path}/")
        else:
            yield path, layer


@dataclass
class Draft:
    """The variables of a draft, on the host, in the order in which they were made."""

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
        if (index := requested_for_variables()) is not None:
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
    """Have every layer compute on its logical device."""
    for path, index in placement.devices.items():
        run_layer_within(placement.layers[path], functools.partial(logical_device, index))
