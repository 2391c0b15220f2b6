"""Layers that are not trained."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from trainer.engine.graph.placement.layer_placement import layers_within
from trainer.engine.graph.state.weight_paths import Weight, select, shown, weights_of
from trainer.errors import ConfigError

FREEZE = "train.freeze"


def freeze_layers(models: Mapping[str, Any], patterns: Sequence[str]) -> None:
    """Set layers not to be trained; their batch normalization keeps its moving averages.

    Adapters (LoRA) of a frozen layer are trained.

    Args:
        patterns: a layer is frozen if each of its weights is matched by one of them.

    Raises:
        ConfigError: a pattern matches nothing, or only a part of a layer, or no weight is left.
    """
    if not patterns:
        return
    weights = weights_of(models)
    selected = [weight for pattern in patterns for weight in select(FREEZE, pattern, weights)]
    for layer in _whole_layers(selected, weights):
        if getattr(layer, "lora_enabled", False):
            for variable in layer._trainable_variables:
                variable.trainable = "lora" in variable.name
        else:
            layer.trainable = False
    if not any(model.trainable_variables for model in models.values()):
        raise ConfigError(f"{FREEZE} ({', '.join(patterns)}) leaves no weight to train")


def _whole_layers(selected: Sequence[Weight], weights: Sequence[Weight]) -> list[Any]:
    chosen = {id(weight) for weight in selected}
    layers = {id(weight.layer): weight.layer for weight in selected}
    for layer in layers.values():
        inside = _ids_within(layer)
        rest = [w.path for w in weights if id(w.layer) in inside and id(w) not in chosen]
        if rest:
            matched = next(w.path for w in selected if w.layer is layer)
            raise ConfigError(
                f"{FREEZE} matches {matched} but not {shown(rest)} of the same layer, which is "
                "frozen as a whole; match the layer, or give a group of the optimizer "
                "learning_rate=0x"
            )
    return list(layers.values())


def _ids_within(layer: Any) -> set[int]:
    return {id(layer)}.union(*(_ids_within(inner) for inner in layers_within(layer)))
