"""Weights in files: what either Keras has written, or arrays with names.

Touches private names by which either Keras finds the layers that it saves;
tests/engine/test_named_weights.py (-k private_names) fails when they move.
"""

from __future__ import annotations

import json
import re
import zipfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import tensorflow as tf

from trainer.engine.graph.weight_paths import weights_of
from trainer.errors import CheckpointError

_IS_STATE = re.compile(r"^(optimizer|metrics)\b|\bseed_generator$")
"""What a `.weights.h5` holds besides weights: its place."""


@dataclass(frozen=True)
class Saved:
    """A weight that was saved.

    Attributes:
        shape: its shape.
        read: returns its value.
    """

    shape: tuple[int, ...]
    read: Callable[[], np.ndarray]


def file_weights(path: Path, model: Any) -> dict[str, Saved]:
    """Return the weights in a `.keras`, `.h5` or `.npz` file of one model.

    Those of a `.weights.h5` have numbers in place of names of their own: `conv1/0`.

    Args:
        path: the file.
        model: the model that they are for, of either Keras: where a file has no names at all, a
            layer is known by its place.

    Raises:
        CheckpointError: it is no such file, or one that names no weights.
    """
    try:
        if path.suffix == ".h5":
            return _hdf5(path, model)
        return _archive(path) if path.suffix == ".keras" else _arrays(path)
    except (OSError, ValueError, TypeError, KeyError, zipfile.BadZipFile) as error:
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise CheckpointError(f"init_from ({path}) cannot be read: {reason}") from error


def _archive(path: Path) -> dict[str, Saved]:
    """Load a model with the Keras that saved it."""
    with zipfile.ZipFile(path) as archive:
        version = json.loads(archive.read("metadata.json"))["keras_version"]
    if version.startswith("2."):
        load = tf.keras.models.load_model
    else:
        import keras

        load = keras.saving.load_model
    weights = weights_of({"model": load(path, compile=False)})
    return {weight.path: _kept(weight.container.numpy()) for weight in weights}


def _hdf5(path: Path, model: Any) -> dict[str, Saved]:
    saved = {}
    with h5py.File(path, "r") as file:
        group = file.get("model_weights", file)
        if "layer_names" not in group.attrs:
            return _numbered(file, getattr(model, "keras_model", model))
        for layer in group.attrs["layer_names"]:
            inner = group[_text(layer)]
            for name in inner.attrs["weight_names"]:
                value = np.asarray(inner[_text(name)])
                saved[_text(name).removesuffix(":0")] = _kept(value)
    return saved


def _numbered(file: h5py.File, model: Any) -> dict[str, Saved]:
    """Read a `.weights.h5`: the weights of each layer in their order, at the layer's place.

    A place is where Keras found the layer: `layers/dense_1` is the second Dense. Keras 3 adds the
    name that the layer has.
    """
    layers: dict[str, h5py.Group] = {}

    def collect(name: str, item: Any) -> None:
        place, _, last = name.rpartition("/")
        if last == "vars" and not _IS_STATE.search(place):
            layers[place] = item

    file.visititems(collect)
    names = {place: _text(group.attrs.get("name", "")) for place, group in layers.items()}
    if any(names.values()):
        paths = {place: _path_of(place, names) for place in layers}
    else:
        paths = {place: path.strip("/") for path, place in _places(model, "", "", set())}
    saved = {
        f"{paths.get(place, place)}/{number}".removeprefix("/"): _kept(np.asarray(value))
        for place, group in layers.items()
        for number, value in group.items()
    }
    if not saved:
        raise ValueError("it holds no weights of a Keras model")
    return saved


def _path_of(place: str, names: Mapping[str, str]) -> str:
    """Return the names of the layers on the way to a place, but for that of the model."""
    parts = place.split("/")
    outer = ("/".join(parts[:count]) for count in range(1, len(parts) + 1))
    return "/".join(names[layer] for layer in outer if layer in names)


def _places(layer: Any, path: str, place: str, seen: set[int]) -> Iterator[tuple[str, str]]:
    """Yield path and place of a layer and of those within, in the order in which Keras saves."""
    keras_2 = isinstance(layer, tf.keras.layers.Layer)
    library = import_module(f"{'tf_keras' if keras_2 else 'keras'}.src.saving.saving_lib")
    base = tf.keras.layers.Layer if keras_2 else import_module("keras").layers.Layer
    walk = library._walk_trackable if keras_2 else library._walk_saveable
    snake_case = (library.generic_utils if keras_2 else library.naming).to_snake_case
    seen.add(id(layer))
    yield path, place
    for attribute, child in walk(layer):
        counts: Counter[str] = Counter()
        members = list(child.values()) if isinstance(child, dict) else child
        for member in members if isinstance(members, list | tuple | set) else [child]:
            inner = f"{place}/{attribute}".removeprefix("/")
            if not isinstance(member, base) or (keras_2 and id(member) in seen):
                continue
            if member is not child:
                name = snake_case(type(member).__name__)
                inner = f"{inner}/{name}_{counts[name]}".removesuffix("_0")
                counts[name] += 1
            if id(member) not in seen:
                yield from _places(member, f"{path}/{member.name}", inner, seen)


def _arrays(path: Path) -> dict[str, Saved]:
    """Read the arrays of `numpy.savez`, whose names are those of the weights."""
    file = np.load(path, allow_pickle=False)
    if isinstance(file, np.ndarray):
        raise ValueError("it is one array without names; write it with numpy.savez")
    saved = {}
    with file:
        for name in file.files:
            value = file[name]
            if value.dtype.kind not in "fiub":
                raise ValueError(f"{name} has the type {value.dtype}, which is no number")
            saved[name.removesuffix(":0")] = _kept(value)
    return saved


def _text(name: str | bytes) -> str:
    return name.decode() if isinstance(name, bytes) else name


def _kept(value: np.ndarray) -> Saved:
    return Saved(value.shape, lambda: value)
