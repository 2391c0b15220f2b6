"""The weights of models by their paths, and the regular expressions that select them.

The path of a weight is the names of the layers that contain it, and its own: `block/conv/kernel`.
With several models in a task, the name of the model comes first. A pattern selects a weight if it
is found anywhere in the path (`re.search`). So layers are frozen, among others.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from trainer.engine.graph.placement.layer_placement import layers_within, own_variables
from trainer.engine.graph.state.variables import pieces_of, whole
from trainer.errors import ConfigError

_SHOWN = 5  # paths in a message
_PART = re.compile(r"/part_\d+$")


@dataclass(frozen=True)
class Weight:
    """A weight of a model.

    Attributes:
        number: which one of the layer's it is, as Keras counts and saves them, from 0.
        variables: its variable; of one that is in pieces, all of them.
        container: what a checkpoint has: the variable, or that of all pieces.
    """

    path: str
    number: int
    layer: Any
    variables: tuple[tf.Variable, ...]
    container: Any

    @property
    def name(self) -> str:
        """The name that Keras gave the variable, which has scopes but not all layers."""
        return scope_name(self.variables[0])


def weights_of(models: Mapping[str, Any]) -> list[Weight]:
    """Return the weights of models of either Keras in the order of their layers, each once."""
    result: dict[int, Weight] = {}
    for name, model in models.items():
        prefix = f"{name}/" if len(models) > 1 else ""
        for weight in _within(getattr(model, "keras_model", model), prefix):
            result.setdefault(id(weight.variables[0]), weight)
    return list(result.values())


def variable_key(variable: Any) -> str:
    """Return what a variable, its copies on devices, and Keras' wrappers have in common."""
    variable = getattr(variable, "_variable", variable)
    if not isinstance(variable, tf.distribute.DistributedValues):
        container = getattr(variable.handle, "_distributed_container", None)
        variable = variable if container is None else container()
    return str(variable._unique_id)


def scope_name(variable: tf.Variable) -> str:
    """Return the name of a variable, of a piece that of the whole."""
    return _PART.sub("", str(variable.name).removesuffix(":0"))


def select(key: str, pattern: str, weights: Sequence[Weight]) -> list[Weight]:
    """Return the weights whose path a pattern is found in.

    Raises:
        ConfigError: none matches; the message names similar ones.
    """
    selected = [weight for weight in weights if re.search(pattern, weight.path)]
    if not selected:
        paths = [weight.path for weight in weights]
        raise ConfigError(f"{key} ('{pattern}') matches no weight; {near(pattern, paths)}")
    return selected


def shown(paths: Iterable[str], count: int = _SHOWN) -> str:
    """Return the first of some paths, for a message."""
    names = list(paths)
    more = f" and {len(names) - count} more" if len(names) > count else ""
    return f"{', '.join(names[:count])}{more}"


def near(pattern: str, paths: Sequence[str]) -> str:
    """Return, for a message, what a pattern that is in no path may have meant."""
    parts = [part for path in paths for part in path.split("/")]
    parts = [*dict.fromkeys([*parts, *(piece for part in parts for piece in part.split("_"))])]
    words = re.findall(r"\w+", pattern)
    near = [
        part for word in words for part in difflib.get_close_matches(word, parts, n=3, cutoff=0.6)
    ]
    if near:
        return f"the nearest are {', '.join(dict.fromkeys(near))}"
    return f"the weights are {shown(paths)}"


def _within(layer: Any, prefix: str) -> Iterator[Weight]:
    for number, container in enumerate(whole(_own(layer))):
        pieces = tuple(pieces_of(container))
        leaf = scope_name(pieces[0]).rpartition("/")[2]
        yield Weight(f"{prefix}{leaf}", number, layer, pieces, container)
    for inner in layers_within(layer):
        yield from _within(inner, f"{prefix}{inner.name}/")


def _own(layer: Any) -> list[Any]:
    """Return the variables of a layer that are not those of a layer within it."""
    if isinstance(layer, tf.keras.layers.Layer):
        return own_variables(layer)
    variables = [*layer._trainable_variables, *layer._non_trainable_variables]  # of Keras 3
    return [variable.value for variable in variables]


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
