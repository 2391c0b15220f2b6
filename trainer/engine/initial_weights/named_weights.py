"""Weights by name, of a run's checkpoint or of a file.

The name of a weight is that of its layers and its own, as Keras makes it: `conv1/kernel`. So a
model with another head takes what it has in common with the one that was saved.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import tensorflow as tf
from tensorflow.core.protobuf.trackable_object_graph_pb2 import TrackableObjectGraph

from trainer.engine.graph.state.weight_paths import Weight, near, shown, weights_of
from trainer.engine.initial_weights.weight_files import Saved
from trainer.errors import CheckpointError

_GRAPH = "_CHECKPOINTABLE_OBJECT_GRAPH"
_AVERAGE = "/average"


def take_by_name(
    source: str,
    saved: Mapping[str, Saved],
    models: Mapping[str, Any],
    allow: Sequence[str],
    rename: Mapping[str, str] | None,
) -> str:
    """Assign saved weights to the weights of the same name and shape.

    Args:
        source: what is read, for messages.
        saved: the saved weights by name; with several models, the model's name comes first.
        models: the models by name.
        allow: patterns of paths; weights that they match may be missing.
        rename: patterns in the names of saved weights, and what replaces them, one after the
            other.

    Returns:
        What was taken and what not, in words.

    Raises:
        CheckpointError: a weight is missing or has another shape, and is not allowed to; a
            pattern is in no name, or gives two weights the same.
    """
    saved = _renamed(source, saved, rename or {})
    found = _find(weights_of(models), saved, models)
    fits = [(w, name) for w, name in found if name is not None and _fits(w, saved[name])]
    taken = {id(weight) for weight, _ in fits}
    fresh = [(weight, name) for weight, name in found if id(weight) not in taken]
    refused = [
        (weight, name)
        for weight, name in fresh
        if not any(re.search(pattern, weight.path) for pattern in allow)
    ]
    if refused:
        raise CheckpointError(_refusal(source, refused, saved))
    if not fits:
        raise CheckpointError(f"init_from ({source}) has none of the weights of this model")
    for weight, name in fits:
        weight.container.assign(tf.cast(saved[name].read(), weight.container.dtype))
    text = f"{len(fits)} of {len(found)} weights from {source}"
    if fresh:
        text += f"; fresh: {shown(weight.path for weight, _ in fresh)}"
    used = {name for _, name in fits}
    if unused := [name for name in saved if name not in used]:
        text += f"; not used: {shown(unused)}"
    return text


def checkpoint_weights(prefix: str, models: Mapping[str, Any]) -> dict[str, Saved]:
    """Return the weights of the models in a run's checkpoint, averaged ones where it has them."""
    reader = tf.train.load_checkpoint(prefix)
    shapes = reader.get_variable_to_shape_map()
    graph = TrackableObjectGraph.FromString(reader.get_tensor(_GRAPH))
    attributes = [a for node in graph.nodes for a in node.attributes if a.name == "VARIABLE_VALUE"]
    saved: dict[str, Saved] = {}
    # Averages after the weights that they replace.
    for section in ("models/", "averages/"):
        for attribute in attributes:
            key = attribute.checkpoint_key
            if not key.startswith(section):
                continue
            model = key.split("/")[1]
            name = attribute.full_name.removesuffix(_AVERAGE)
            prefixed = f"{model}/{name}" if len(models) > 1 else name
            saved[prefixed] = Saved(tuple(shapes[key]), partial(reader.get_tensor, key))
    return saved


def _renamed(
    source: str, saved: Mapping[str, Saved], rename: Mapping[str, str]
) -> dict[str, Saved]:
    """Return saved weights by the names that patterns and what replaces them give."""
    names = list(saved)
    for pattern, replacement in rename.items():
        if not any(re.search(pattern, name) for name in names):
            raise CheckpointError(
                f"init_rename ('{pattern}') matches no weight of {source}; {near(pattern, names)}"
            )
        names = [re.sub(pattern, replacement, name) for name in names]
    owners: dict[str, str] = {}
    for old, name in zip(saved, names, strict=True):
        if name in owners:
            raise CheckpointError(
                f"init_rename makes {name} of both {owners[name]} and {old} of {source}; "
                "make its patterns more specific"
            )
        owners[name] = old
    return {name: saved[old] for name, old in owners.items()}


def _find(
    weights: Sequence[Weight], saved: Mapping[str, Saved], models: Mapping[str, Any]
) -> list[tuple[Weight, str | None]]:
    """Return each weight with the name by which it was saved, or None.

    It is the path, or the name that Keras gave the variable: without the models that contain its
    layer, or (Keras 3) with the name of the whole model; or its number in its layer. A name that
    two weights might have had is given to none.
    """
    names: dict[int, str] = {}
    for rule in (_path, _scope, _longer, _numbered):
        free = saved.keys() - names.values()
        found: dict[str, list[int]] = {}
        for weight in (weight for weight in weights if id(weight) not in names):
            owner = f"{weight.path.partition('/')[0]}/" if len(models) > 1 else ""
            name = rule(weight, owner, saved)
            if name in free:
                found.setdefault(name, []).append(id(weight))
        names |= {number: name for name, (number, *others) in found.items() if not others}
    return [(weight, names.get(id(weight))) for weight in weights]


def _path(weight: Weight, owner: str, saved: Mapping[str, Saved]) -> str:
    return weight.path


def _scope(weight: Weight, owner: str, saved: Mapping[str, Saved]) -> str:
    """Return the name that Keras gave a weight, after that of its model."""
    return owner + weight.name


def _longer(weight: Weight, owner: str, saved: Mapping[str, Saved]) -> str:
    """Return the only name that ends with the path of a weight, or ''."""
    end = f"/{weight.path.removeprefix(owner)}"
    names = [name for name in saved if name.startswith(owner) and name.endswith(end)]
    return names[0] if len(names) == 1 else ""


def _numbered(weight: Weight, owner: str, saved: Mapping[str, Saved]) -> str:
    """Return the path of the layer and the number of the weight in it, as in a `.weights.h5`."""
    return f"{weight.path.rpartition('/')[0]}/{weight.number}".removeprefix("/")


def _fits(weight: Weight, saved: Saved) -> bool:
    return tuple(saved.shape) == tuple(weight.container.shape)


def _refusal(
    source: str, refused: Sequence[tuple[Weight, str | None]], saved: Mapping[str, Saved]
) -> str:
    missing = [weight.path for weight, name in refused if name is None]
    reshaped = [
        f"{weight.path} as {list(saved[name].shape)}, this model as {list(weight.container.shape)}"
        for weight, name in refused
        if name is not None
    ]
    problems = [f"lacks {shown(missing)}"] if missing else []
    problems += [f"has {shown(reshaped, 2)}"] if reshaped else []
    layers = dict.fromkeys(weight.path.rpartition("/")[0] for weight, _ in refused)
    fix = f"to start them fresh add init_allow=[{shown(layers, 3)}]"
    return f"init_from ({source}) {', and '.join(problems)}; {fix}"
