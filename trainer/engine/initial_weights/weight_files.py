"""Weights in files: what either Keras has written, or arrays with names.

Touches private names by which either Keras finds the layers that it saves;
tests/engine/initial_weights/test_named_weights.py (-k private_names) fails when they move.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import tensorflow as tf

from trainer.errors import CheckpointError
from trainer.keras_objects import READ_ERRORS, open_hdf5, read_archive

_IS_STATE = re.compile(r"^(optimizer|metrics)\b|\bseed_generator$")
"""What a `.weights.h5` holds besides weights: its place."""


@dataclass(frozen=True)
class Saved:
    """A weight that was saved."""

    shape: tuple[int, ...]
    read: Callable[[], np.ndarray]


def file_weights(path: Path, model: Any) -> dict[str, Saved]:
    """Return the weights in a `.keras`, `.h5` or `.npz` file of one model.

    Those of a `.keras` and a `.weights.h5` have numbers in place of names of their own: `conv1/0`.
    No model is built: a file may name operations of any kind.

    Args:
        model: the model that they are for, of either Keras: where a file has no names at all, a
            layer is known by its place.

    Raises:
        CheckpointError: it is no such file, or one that names no weights.
    """
    try:
        if path.suffix == ".h5":
            return _hdf5(path, model)
        return _archive(path, model) if path.suffix == ".keras" else _arrays(path)
    except READ_ERRORS as error:
        raise _unreadable(path, error) from error


def _archive(path: Path, model: Any) -> dict[str, Saved]:
    archive = read_archive(path)
    names = dict(_configured_names(archive.config, ""))
    return _numbered(path, archive.weights, getattr(model, "keras_model", model), names)


def _hdf5(path: Path, model: Any) -> dict[str, Saved]:
    file = open_hdf5(path)
    group = file.get("model_weights", file)
    if "layer_names" not in group.attrs:
        return _numbered(path, file, getattr(model, "keras_model", model), {})
    saved = {}
    for layer in group.attrs["layer_names"]:
        inner = group[_text(layer)]
        for name in inner.attrs["weight_names"]:
            saved[_text(name).removesuffix(":0")] = _stored(path, inner[_text(name)])
    return saved


def _numbered(
    path: Path, file: h5py.File, model: Any, configured: Mapping[str, str]
) -> dict[str, Saved]:
    """Read a `.weights.h5`: the weights of each layer in their order, at the layer's place.

    A place is where Keras found the layer: `layers/dense_1` is the second Dense. Keras 3 adds the
    name that the layer has.

    Args:
        model: the model that the weights are for, whose layers have names where the file does not.
        configured: the names of layers by place, where a configuration has them.
    """
    layers: dict[str, h5py.Group] = {}

    def collect(name: str, item: Any) -> None:
        place, _, last = name.rpartition("/")
        if last == "vars" and not _IS_STATE.search(place):
            layers[place] = item

    file.visititems(collect)
    own = {place: _text(group.attrs.get("name", "")) for place, group in layers.items()}
    names = {place: name for place, name in own.items() if name} or configured
    places = dict(_places(model, "", "", set()))
    paths = {_public(place): layer for layer, place in places.items()}
    saved = {
        f"{_path_of(place, names, places, paths)}/{number}".removeprefix("/"): _stored(path, value)
        for place, group in layers.items()
        for number, value in group.items()
    }
    if not saved:
        raise ValueError("it holds no weights of a Keras model")
    return saved


def _configured_names(config: Mapping[str, Any], place: str) -> Iterator[tuple[str, str]]:
    """Yield place and name of each layer that the configuration of a model lists."""
    snake_case = import_module("keras").src.saving.saving_lib.naming.to_snake_case
    counts: Counter[str] = Counter()
    for layer in config.get("config", {}).get("layers", ()):
        kind = snake_case(layer["class_name"])
        inner = f"{place}/layers/{kind}_{counts[kind]}".removeprefix("/").removesuffix("_0")
        counts[kind] += 1
        yield inner, layer["config"].get("name", kind)
        yield from _configured_names(layer, inner)


def _path_of(
    place: str, names: Mapping[str, str], places: Mapping[str, str], paths: Mapping[str, str]
) -> str:
    """Return the names of the layers on the way to a place, but for that of the model.

    Where the file names an outer layer only, this model says what the layers within are called.

    Args:
        place: of a layer in the file.
        names: the names of the file's layers, by place.
        places: the places of this model's layers, by path.
        paths: the paths of this model's layers, by place.
    """
    parts = place.split("/") if place else []
    outer = ["/".join(parts[:count]) for count in range(1, len(parts) + 1)]
    named = [layer for layer in outer if layer in names]
    path = "".join(f"/{names[layer]}" for layer in named)
    rest = place.removeprefix(named[-1] if named else "").removeprefix("/")
    if rest and path in places:
        # Keras 3 finds some layers by another attribute: `query_dense`, not `_query_dense`.
        path = paths.get(_public(f"{places[path]}/{rest}".removeprefix("/")), f"{path}/{rest}")
    elif rest:
        path = f"{path}/{rest}"
    return path.removeprefix("/")


def _public(place: str) -> str:
    return re.sub(r"(^|/)_", r"\1", place)


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


def _stored(path: Path, dataset: h5py.Dataset) -> Saved:
    """Return a weight that is read when it is taken: only then does its size have a reason."""
    if dataset.dtype.kind not in "fiubV":
        raise ValueError(f"{dataset.name} has the type {dataset.dtype}, which is no number")
    return Saved(dataset.shape, partial(_read, path, dataset))


def _read(path: Path, dataset: h5py.Dataset) -> np.ndarray:
    is_bfloat16 = dataset.attrs.get("dtype") == "bfloat16"
    try:
        return np.array(dataset, dtype=tf.bfloat16.as_numpy_dtype if is_bfloat16 else None)
    except READ_ERRORS as error:
        raise _unreadable(path, error) from error


def _unreadable(path: Path, error: BaseException) -> CheckpointError:
    reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
    return CheckpointError(f"init_from ({path}) cannot be read: {reason}")
