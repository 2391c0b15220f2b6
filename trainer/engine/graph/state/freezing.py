"""Layers that are not trained: for good, or up to a step.

A layer that is frozen for good is one that Keras does not train. One that is trained from a step on
has gradients, slots and averages from the first step, so that nothing is traced or made anew; until
then its updates are left out, and its batch normalization normalizes by the moving averages.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import tensorflow as tf

from trainer.engine.graph.placement.layer_placement import layers_within
from trainer.engine.graph.state.variables import parts_of
from trainer.engine.graph.state.weight_paths import Weight, select, shown, variable_key, weights_of
from trainer.engine.graph.step.grouped_optimizer import GroupedOptimizer
from trainer.errors import ConfigError

FREEZE = "train.freeze"
UNFREEZE = "train.unfreeze"


def freeze_layers(models: Mapping[str, Any], patterns: Sequence[str]) -> None:
    """Set layers not to be trained; their batch normalization keeps its moving averages.

    Adapters (LoRA) of a frozen layer are trained.

    Args:
        models: the models by name.
        patterns: a layer is frozen if each of its weights is matched by one of them.

    Raises:
        ConfigError: a pattern matches nothing, or only a part of a layer, or no weight is left.
    """
    if not patterns:
        return
    weights = weights_of(models)
    selected = [weight for pattern in patterns for weight in select(FREEZE, pattern, weights)]
    for layer in _whole_layers(FREEZE, selected, weights):
        _freeze(layer)
    if not any(model.trainable_variables for model in models.values()):
        raise ConfigError(f"{FREEZE} ({', '.join(patterns)}) leaves no weight to train")


def hold_layers(
    models: Mapping[str, Any], optimizers: Mapping[str, Any], unfreeze: Mapping[str, int]
) -> None:
    """Bind optimizers of groups to their weights, and hold the layers that are not trained yet.

    Args:
        models: the models by name, those that are frozen for good already set so.
        optimizers: the optimizers by the name of their model.
        unfreeze: pattern -> the step from which on the layers that it matches are trained.

    Raises:
        ConfigError: a pattern matches nothing, or only a part of a layer, or a weight twice.
    """
    weights = weights_of(models)
    # An optimizer of no model is refused by the state.
    optimizers = {name: optimizers[name] for name in optimizers if name in models}
    trained = {variable_key(v): name for name in optimizers for v in _trained(models[name])}
    starts = _starts(weights, trained, unfreeze)
    for name, optimizer in optimizers.items():
        if not isinstance(optimizer, GroupedOptimizer):
            continue
        own = [w for w in weights if trained.get(variable_key(w.variables[0])) == name]
        per_step = optimizer.updates_per_step
        optimizer.bind(own, {key: step * per_step for key, step in starts.items()})
        held = {id(w.layer): w.layer for w in own if variable_key(w.variables[0]) in starts}
        for layer in held.values():
            key = next(variable_key(w.variables[0]) for w in own if w.layer is layer)
            _hold_statistics(layer, optimizer, starts[key] * per_step)


def _trained(model: Any) -> list[tf.Variable]:
    variables: list[tf.Variable] = model.trainable_variables
    return variables


def _starts(
    weights: Sequence[Weight], trained: Mapping[str, str], unfreeze: Mapping[str, int]
) -> dict[str, int]:
    """Return the first step that changes a variable, by its key."""
    starts: dict[str, int] = {}
    patterns: dict[str, str] = {}
    own = [weight for weight in weights if variable_key(weight.variables[0]) in trained]
    for pattern, step in unfreeze.items():
        selected = select(UNFREEZE, pattern, own)
        _whole_layers(UNFREEZE, selected, own)
        for weight in selected:
            _check_held(weight)
            for variable in weight.variables:
                key = variable_key(variable)
                if key in patterns:
                    raise ConfigError(
                        f"{UNFREEZE}: '{patterns[key]}' and '{pattern}' both match {weight.path}; "
                        "change one pattern so that it does not match"
                    )
                starts[key] = step
                patterns[key] = pattern
    return starts


def _check_held(weight: Weight) -> None:
    if any(getattr(v, "constraint", None) is not None for v in weight.variables):
        raise ConfigError(
            f"{UNFREEZE}: {weight.path} has a constraint, which would change it while it is "
            "frozen; remove the constraint"
        )


def _whole_layers(key: str, selected: Sequence[Weight], weights: Sequence[Weight]) -> list[Any]:
    """Return the layers that selected weights belong to."""
    chosen = {id(weight) for weight in selected}
    layers = {id(weight.layer): weight.layer for weight in selected}
    for layer in layers.values():
        inside = _ids_within(layer)
        rest = [w.path for w in weights if id(w.layer) in inside and id(w) not in chosen]
        if rest:
            matched = next(w.path for w in selected if w.layer is layer)
            raise ConfigError(
                f"{key} matches {matched} but not {shown(rest)} of the same layer, which is frozen "
                "as a whole; match the layer, or give a group of the optimizer learning_rate=0x"
            )
    return list(layers.values())


def _ids_within(layer: Any) -> set[int]:
    return {id(layer)}.union(*(_ids_within(inner) for inner in layers_within(layer)))


def _freeze(layer: Any) -> None:
    if not getattr(layer, "lora_enabled", False):
        layer.trainable = False
        return
    for variable in layer._trainable_variables:
        if "lora" not in variable.name:
            variable.trainable = False


def _normalizes(layer: Any) -> bool:
    return hasattr(layer, "moving_mean") and hasattr(layer, "moving_variance")


def _hold_statistics(layer: Any, optimizer: GroupedOptimizer, start: int) -> None:
    """Have batch normalization use and keep its moving averages until an update of the optimizer.

    Both outputs are computed, and one is taken: neither Keras can choose in every mode.
    """
    if not _normalizes(layer):
        return
    call = layer.call

    def held(inputs: tf.Tensor, training: Any = None, **options: Any) -> tf.Tensor:
        by_averages = call(inputs, training=False, **options)
        if not training:
            return by_averages
        by_batch = call(inputs, training=True, **options)
        return tf.where(optimizer.is_trained(start), by_batch, by_averages)

    layer.call = held
    variables = [layer.moving_mean, layer.moving_variance]
    if isinstance(layer, tf.keras.layers.Layer):
        _hold_assignments(layer, optimizer, start)
    else:
        variables = [variable.value for variable in variables]  # of Keras 3
    optimizer.held_statistics += [(part, start) for v in variables for part in parts_of(v)]


def _hold_assignments(layer: Any, optimizer: GroupedOptimizer, start: int) -> None:
    """Have a layer of tf_keras assign the values that its moving averages have."""

    def holding(assign: Any) -> Any:
        def assign_held(variable: tf.Variable, value: tf.Tensor, *args: Any) -> Any:
            old = tf.cast(variable.read_value(), value.dtype)
            return assign(variable, tf.where(optimizer.is_trained(start), value, old), *args)

        return assign_held

    layer._assign_moving_average = holding(layer._assign_moving_average)
    layer._assign_new_value = holding(layer._assign_new_value)
