"""Initial weights from another run, one of its checkpoints, or what another program saved.

Touches private names by which either Keras finds the layers that it saves;
tests/engine/test_initial_weights.py (-k private_names) fails when they move.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import tensorflow as tf
from tensorflow.core.protobuf.trackable_object_graph_pb2 import TrackableObjectGraph

from trainer.engine.checkpoints.checkpointer import CONNECTION_ERRORS, describe_mismatch
from trainer.engine.graph.state.variables import whole
from trainer.engine.graph.state.weight_paths import Weight, near, shown, weights_of
from trainer.errors import CheckpointError
from trainer.keras_objects import READ_ERRORS, open_hdf5, read_archive
from trainer.runs.checkpoint_marker import committed_steps, verify

FILES = (".h5", ".keras", ".npz")
"""Names of weights files end so."""
_GRAPH = "_CHECKPOINTABLE_OBJECT_GRAPH"
_AVERAGE = "/average"
_KERAS_3 = re.compile(
    r"(?:model/)?(?:_functional/)?_operations/(?P<layer>\d+)/_?(?P<name>\w+)"
    r"/\.ATTRIBUTES/VARIABLE_VALUE"
)
_IS_STATE = re.compile(r"^(optimizer|metrics)\b|\bseed_generator$")
"""What a `.weights.h5` holds in addition to weights: its place."""


@dataclass(frozen=True)
class _Saved:
    """A weight that was saved."""

    shape: tuple[int, ...]
    read: Callable[[], np.ndarray]


def restore_weights(
    source: Path,
    models: Mapping[str, tf.keras.Model],
    allow: Sequence[str] = (),
    rename: Mapping[str, str] | None = None,
) -> tuple[str, list[str]]:
    """Restore the weights of models, averaged ones where the source has them, and nothing else.

    Args:
        source: a run directory, the path prefix of a checkpoint, or a weights file. A file, or a
            checkpoint that another program has saved, has the weights of one model, the first.
        allow: patterns of weights that may be missing, or of another shape, and then start fresh.
        rename: patterns in the names of saved weights, and what replaces them.

    Returns:
        What was restored, for the user, and a line for each newer checkpoint that was not used.

    Raises:
        CheckpointError: no checkpoint there verifies, or its models have other variables.
    """
    first = dict([next(iter(models.items()))])
    if source.suffix in FILES:
        saved = _file_weights(source, next(iter(first.values())))
        return _take_by_name(str(source), saved, first, allow, rename), []
    if prefix := _find_foreign(source):
        for key, patterns in {"init_allow": allow, "init_rename": rename or {}}.items():
            if patterns:
                raise CheckpointError(
                    f"{key} ({', '.join(patterns)}) needs a run, or a .keras, .h5 or .npz file, "
                    f"in init_from; {source} is neither"
                )
        _restore_foreign(prefix, next(iter(first.values())))
        return prefix, [f"{prefix} has no marker of a run, so its content could not be verified"]
    directory, steps = checkpoints_of(source)
    skipped = []
    for step in reversed(steps):
        if problem := verify(directory, step):
            skipped.append(f"skipped the checkpoint of step {step}: {problem}")
            continue
        name, prefix = f"step {step} of {source}", str(directory / f"ckpt-{step}")
        if allow or rename:
            saved = _checkpoint_weights(prefix, models)
            return _take_by_name(name, saved, models, allow, rename), skipped
        with _fitting(
            f"init_from ({source}): the checkpoint of step {step}",
            partial(_pattern_names, prefix, models),
        ):
            _restore_models(prefix, models)
        return name, skipped
    hint = "" if steps else _checkpoint_below(source)
    raise CheckpointError(f"init_from ({source}): there is no checkpoint that verifies{hint}")


@contextmanager
def _fitting(checkpoint: str, hint: Callable[[], str] = lambda: "") -> Iterator[None]:
    """Raise a CheckpointError that names the model if a checkpoint read inside does not fit it."""
    try:
        yield
    except CONNECTION_ERRORS:
        raise
    except (AssertionError, ValueError, tf.errors.OpError) as error:
        problem = f"does not fit this model: {describe_mismatch(error)} {hint()}"
        raise CheckpointError(f"{checkpoint} {problem}".rstrip()) from error


def _pattern_names(prefix: str, models: Mapping[str, tf.keras.Model]) -> str:
    """Return what patterns are for, and the names that they match."""
    saved = shown(_checkpoint_weights(prefix, models), 2)
    paths = shown((weight.path for weight in weights_of(models)), 2)
    return (
        f"(init_allow=[<pattern>] lets weights start fresh, called {paths} here; init_rename "
        f"gives these names to the saved ones, {saved})"
    )


def _checkpoint_below(source: Path) -> str:
    """Return a hint at the newest checkpoint in the folders below one, or at what is one."""
    patterns = ("*.index", "*/*.index", "*/*/*.index")
    files = (file for pattern in patterns for file in source.glob(pattern))
    # A run's own checkpoint without a marker was not finished.
    whole = [
        file
        for file in files
        if file.with_suffix(".json").exists() or _find_foreign(file.with_suffix(""))
    ]
    if not whole:
        return "; give a run, a checkpoint such as <run>/checkpoints/ckpt-100, or a file of weights"
    newest = max(whole, key=lambda file: file.stat().st_mtime)
    return f"; did you mean init_from={newest.with_suffix('')}"


def checkpoints_of(source: Path) -> tuple[Path, list[int]]:
    """Return the folder of a run's checkpoints, and the steps of those that a path names."""
    if source.is_dir():
        directory = source / "checkpoints"
        return directory, committed_steps(directory)
    match = re.search(r"ckpt-(\d+)", source.name)
    return source.parent, [int(match[1])] if match else committed_steps(source.parent)


def _restore_models(prefix: str, models: Mapping[str, tf.keras.Model]) -> None:
    """Restore the models from a checkpoint, with averaged weights where it has them."""
    checkpoint = tf.train.Checkpoint(models=dict(models))
    checkpoint.read(prefix).assert_existing_objects_matched().expect_partial()
    names = [name for name, _ in tf.train.list_variables(prefix)]
    averaged = {name.split("/")[1] for name in names if name.startswith("averages/")}
    for name in averaged & set(models):
        averages = tf.train.Checkpoint(averages={name: whole(models[name].trainable_variables)})
        averages.read(prefix).assert_existing_objects_matched().expect_partial()


def _find_foreign(source: Path) -> str | None:
    """Return the prefix of a checkpoint that no run has written, or None.

    `source` is such a prefix, or a folder of a `tf.train.CheckpointManager`.
    """
    if source.is_dir():
        prefix: str | None = tf.train.latest_checkpoint(str(source))
        return prefix
    # A run's own checkpoint without a marker is unfinished.
    is_of_a_run = (source.parent.parent / "config.yaml").exists() or committed_steps(source.parent)
    return str(source) if Path(f"{source}.index").exists() and not is_of_a_run else None


def _restore_foreign(prefix: str, model: tf.keras.Model) -> None:
    """Restore a model from `Checkpoint(model=...)` or `model.save_weights`, of Keras 2 or 3.

    Nothing else in the checkpoint is used. Keras 3 numbers the layers of a sequential or functional
    model; their variables are matched by this order and by name.
    """
    with _fitting(f"init_from ({prefix}): the checkpoint, which has no marker of a run,"):
        names = [name for name, _ in tf.train.list_variables(prefix)]
        if any(_KERAS_3.fullmatch(name) for name in names):
            return _assign_in_order(prefix, names, model)
        is_attribute = any(name.startswith("model/") for name in names)
        checkpoint = (
            tf.train.Checkpoint(model=model) if is_attribute else tf.train.Checkpoint(model)
        )
        checkpoint.read(prefix).assert_existing_objects_matched().expect_partial()


def _assign_in_order(prefix: str, names: list[str], model: tf.keras.Model) -> None:
    """Assign the variables of numbered layers to the model's layers in their order."""
    saved: dict[int, dict[str, str]] = {}
    for key in names:
        if match := _KERAS_3.fullmatch(key):
            saved.setdefault(int(match["layer"]), {})[match["name"]] = key
    layers = [layer for layer in model.layers if layer.weights]
    if len(saved) != len(layers):
        raise ValueError(f"it has {len(saved)} layers with weights, this one {len(layers)}")
    values = []
    for layer, (_, keys) in zip(layers, sorted(saved.items()), strict=True):
        for variable in layer.weights:
            name = variable.name.rpartition("/")[2].removesuffix(":0")
            if name not in keys:
                raise ValueError(f"it lacks {layer.name}/{name}")
            value = tf.train.load_variable(prefix, keys[name])
            if tuple(value.shape) != tuple(variable.shape):
                shapes = f"{list(value.shape)}, this one {list(variable.shape)}"
                raise ValueError(f"its {layer.name}/{name} has the shape {shapes}")
            values.append((variable, value))
    for variable, value in values:
        variable.assign(value)


def _take_by_name(
    source: str,
    saved: Mapping[str, _Saved],
    models: Mapping[str, Any],
    allow: Sequence[str],
    rename: Mapping[str, str] | None,
) -> str:
    """Assign saved weights to those of the same name and shape; return what was taken, in words.

    The name of a weight is that of its layers and its own, as Keras makes it: `conv1/kernel`. So a
    model with another head takes what it has in common with the one that was saved.

    Args:
        saved: the saved weights by name; with several models, the model's name comes first.
    """
    saved = _renamed(source, saved, rename or {})
    matches = _find(weights_of(models), saved, models)
    fits, fresh = [], []
    for weight, name in matches:
        if name is not None and saved[name].shape == tuple(weight.container.shape):
            fits.append((weight, name))
        else:
            fresh.append((weight, name))
    if refused := [
        (weight, name)
        for weight, name in fresh
        if not any(re.search(pattern, weight.path) for pattern in allow)
    ]:
        raise CheckpointError(_refusal(source, refused, saved))
    if not fits:
        raise CheckpointError(f"init_from ({source}) has none of the weights of this model")
    for weight, name in fits:
        weight.container.assign(tf.cast(saved[name].read(), weight.container.dtype))
    text = f"{len(fits)} of {len(matches)} weights from {source}"
    if fresh:
        text += f"; fresh: {shown(weight.path for weight, _ in fresh)}"
    used = {name for _, name in fits}
    if unused := [name for name in saved if name not in used]:
        text += f"; not used: {shown(unused)}"
    return text


def _checkpoint_weights(prefix: str, models: Mapping[str, Any]) -> dict[str, _Saved]:
    """Return the weights of the models in a run's checkpoint, averaged ones where it has them."""
    reader = tf.train.load_checkpoint(prefix)
    shapes = reader.get_variable_to_shape_map()
    graph = TrackableObjectGraph.FromString(reader.get_tensor(_GRAPH))
    attributes = [a for node in graph.nodes for a in node.attributes if a.name == "VARIABLE_VALUE"]
    saved: dict[str, _Saved] = {}
    # Averages after the weights that they replace.
    for section in ("models/", "averages/"):
        for attribute in attributes:
            key = attribute.checkpoint_key
            if not key.startswith(section):
                continue
            model = key.split("/")[1]
            name = attribute.full_name.removesuffix(_AVERAGE)
            prefixed = f"{model}/{name}" if len(models) > 1 else name
            saved[prefixed] = _Saved(tuple(shapes[key]), partial(reader.get_tensor, key))
    return saved


def _renamed(
    source: str, saved: Mapping[str, _Saved], rename: Mapping[str, str]
) -> dict[str, _Saved]:
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
    weights: Sequence[Weight], saved: Mapping[str, _Saved], models: Mapping[str, Any]
) -> list[tuple[Weight, str | None]]:
    """Return each weight with the name by which it was saved, or None.

    It is the path, or the name that Keras gave the variable: without the models that contain its
    layer, or (Keras 3) with the name of the whole model; or its number in its layer. A name that
    two weights might have had is given to none.
    """
    names: dict[int, str] = {}

    def longer(weight: Weight, owner: str) -> str:
        """Return the only name that ends with the path of a weight, or ''."""
        end = f"/{weight.path.removeprefix(owner)}"
        found = [name for name in saved if name.startswith(owner) and name.endswith(end)]
        return found[0] if len(found) == 1 else ""

    rules: list[Callable[[Weight, str], str]] = [
        lambda weight, owner: weight.path,
        lambda weight, owner: owner + weight.name,
        longer,
        lambda weight, owner: f"{weight.path.rpartition('/')[0]}/{weight.number}".removeprefix("/"),
    ]
    for rule in rules:
        free = saved.keys() - names.values()
        numbers_of: dict[str, list[int]] = {}
        for weight in (weight for weight in weights if id(weight) not in names):
            owner = f"{weight.path.partition('/')[0]}/" if len(models) > 1 else ""
            name = rule(weight, owner)
            if name in free:
                numbers_of.setdefault(name, []).append(id(weight))
        names |= {number: name for name, (number, *others) in numbers_of.items() if not others}
    return [(weight, names.get(id(weight))) for weight in weights]


def _refusal(
    source: str, refused: Sequence[tuple[Weight, str | None]], saved: Mapping[str, _Saved]
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


def _file_weights(path: Path, model: Any) -> dict[str, _Saved]:
    """Return the weights in a `.keras`, `.h5` or `.npz` file of one model.

    Those of a `.keras` and a `.weights.h5` have numbers in place of names: `conv1/0`.
    Where a file has no names at all, a layer is identified by its place in `model`, of either
    Keras. No model is built: a file may name operations of any kind.
    """
    try:
        if path.suffix == ".npz":
            return _arrays(path)
        model = getattr(model, "keras_model", model)
        if path.suffix == ".keras":
            archive = read_archive(path)
            names = dict(_configured_names(archive.config, ""))
            return _numbered(path, archive.weights, model, names)
        file = open_hdf5(path)
        group = file.get("model_weights", file)
        if "layer_names" not in group.attrs:
            return _numbered(path, file, model, {})
        return {
            _text(name).removesuffix(":0"): _stored(path, group[_text(layer)][_text(name)])
            for layer in group.attrs["layer_names"]
            for name in group[_text(layer)].attrs["weight_names"]
        }
    except READ_ERRORS as error:
        raise _unreadable(path, error) from error


def _numbered(
    path: Path, file: h5py.File, model: Any, configured: Mapping[str, str]
) -> dict[str, _Saved]:
    """Read a `.weights.h5`: the weights of each layer in their order, at the layer's place.

    A place is where Keras found the layer: `layers/dense_1` is the second Dense. Keras 3 adds the
    name that the layer has.

    Args:
        model: the model that the weights are for, whose layers have names where the file does not.
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

    Where the file names an outer layer only, the layers within have the names of this model.

    Args:
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


def _arrays(path: Path) -> dict[str, _Saved]:
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
            saved[name.removesuffix(":0")] = _Saved(value.shape, partial(np.asarray, value))
    return saved


def _text(name: str | bytes) -> str:
    return name.decode() if isinstance(name, bytes) else name


def _stored(path: Path, dataset: h5py.Dataset) -> _Saved:
    """Return a weight that is read when it is taken: only then does its size have a reason."""
    if dataset.dtype.kind not in "fiubV":
        raise ValueError(f"{dataset.name} has the type {dataset.dtype}, which is no number")

    def read() -> np.ndarray:
        is_bfloat16 = dataset.attrs.get("dtype") == "bfloat16"
        try:
            return np.array(dataset, dtype=tf.bfloat16.as_numpy_dtype if is_bfloat16 else None)
        except READ_ERRORS as error:
            raise _unreadable(path, error) from error

    return _Saved(dataset.shape, read)


def _unreadable(path: Path, error: BaseException) -> CheckpointError:
    reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
    return CheckpointError(f"init_from ({path}) cannot be read: {reason}")
