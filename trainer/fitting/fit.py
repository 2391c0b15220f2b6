"""`fit(model, data, ...)` of a script or notebook, for `model.fit`: trains as the command does.

The model and the data are kept in files next to the runs, named by their content; so the same call
finds the same run. The training is that of the command, in separate processes.
"""

from __future__ import annotations

import re
import types
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from inspect import signature
from pathlib import Path
from typing import Any

import numpy as np

from trainer.cluster import environment
from trainer.config import addresses
from trainer.config.schema import PAIRS, Checkpoint
from trainer.errors import ConfigError
from trainer.fitting import initial_draws
from trainer.fitting.carried import carried, function_node, import_folders, load
from trainer.fitting.kept_data import KeptData, batches_of, describe
from trainer.fitting.keras_pickling import library_of
from trainer.notebook import Run, run
from trainer.runs.checkpoint_retention import select_step

# Models made here must leave the memory of the GPUs to the processes that train.
environment.share_gpus()
initial_draws.watch()

_DATA = "trainer.datasets.fit_data"
_KEPT = "inputs"
"""The folder next to the runs that holds models and data."""


@dataclass(frozen=True)
class FitRun(Run):
    """A run of `fit`.

    Attributes:
        build: returns the model as it was before the training, with its weights.
    """

    build: Callable[[], Any]

    def model(self, checkpoint: str | int = "latest") -> Any:
        """Return the trained model, of the user's own Keras and classes.

        Args:
            checkpoint: whose weights: latest, best, or a step.

        Raises:
            ConfigError: there is no such checkpoint, or it does not fit.
        """
        return restored(self.build(), self.directory, checkpoint)


def fit(
    model: Any,
    data: Any,
    validation: Any = None,
    epochs: int = 3,
    batch_size: int | None = None,
    strategy: str = "one_device",
    steps_per_epoch: int | None = None,
    **keys: Any,
) -> FitRun:
    """Train a compiled Keras model, in processes that survive failures; print what they print.

    The same call continues a run that was stopped, and finds one that is done. An interrupt saves
    and stops.

    Args:
        model: compiled, of either Keras, which starts with its weights; or a function that returns
            one.
        data: (x, y), (x, y, sample_weight) or x, of arrays, lists or dicts of them; batches of such
            in a tf.data.Dataset, a generator or a `Sequence` or `PyDataset` of Keras; or a function
            that returns one of these.
        validation: validation examples, of any kind; or the fraction of arrays that is left out for
            them, or None.
        epochs: passes over the data.
        batch_size: examples in a step, over all devices; None: as the data are batched, else 128.
        strategy: the devices: one_device, mirrored, multi_worker, ...
        steps_per_epoch: steps that count as an epoch; None: one pass over the data.
        keys: any key of the configuration, in which `__` is a dot:
            `checkpoint__every_steps=50`, `optimizer="adam"`; a dict has the keys of a section.

    Returns:
        The run, with its metrics, history, directory and model.

    Raises:
        ConfigError: an argument is wrong; nothing was trained.
        RunError: the training failed.
    """
    shapes: list[Any] = [getattr(value, "shape", ()) for value in (data, validation)]
    if all(shapes) and shapes[0][0] == shapes[1][0] and shapes[0][1:] != shapes[1][1:]:
        raise ConfigError(
            f"validation (an array of shape {tuple(shapes[1])}) looks like the labels of data "
            f"{tuple(shapes[0])}; give both as one: fit(model, (x, y), ...)"
        )
    folder = _folder(str(keys.get("runs_dir", "runs")))
    steps = steps_per_epoch or keys.get("train__steps_per_epoch")
    first, made_size, options = _data(data, validation, folder, steps, epochs)
    unit = keys.get("dataset__unit", options.get("dataset.unit", 1))
    if isinstance(validation, float) and unit != 1:
        raise ConfigError(
            f"validation ({validation}) is a fraction, and the data are batches that stay as they "
            "are; give the validation data, or shuffle single examples by dataset__unit=1"
        )
    node, build, name = _model(model, first, options, folder)
    batch_size = batch_size or made_size or 128
    defaults = {"task": "keras", "strategy": strategy, "name": name, "train.epochs": epochs}
    defaults |= {"train.steps_per_epoch": steps, "batch.global_size": batch_size}
    defaults |= {"summary.every_epochs": 1, **options, **node}
    if "early_stopping" in str(keys.get("callbacks")):  # Keras watches val_loss
        defaults["callbacks.early_stopping.metric"] = "loss"
    trained = run(*overrides_of(keys, defaults), import_from=import_folders())
    return FitRun(trained.directory, trained.exit_code, build)


def _folder(runs_dir: str) -> Path:
    if addresses.is_remote(runs_dir):
        raise ConfigError(
            f"runs_dir ({runs_dir}) is an object store, where fit keeps no models and data; leave "
            "it out, or use the command with functions of a module"
        )
    return Path(runs_dir).expanduser() / _KEPT


def _model(
    model: Any, first: Mapping[str, Any], options: dict[str, Any], folder: Path
) -> tuple[dict[str, Any], Callable[[], Any], str]:
    """Return the keys of a model, what builds it from the first example, and its name.

    The keys of the data, `options`, change for a function that requests their classes.
    """
    if isinstance(model, types.FunctionType):
        node = function_node(model, "model", folder, "model")
        name = model.__name__ if model.__name__.isidentifier() else "model"
        if "num_classes" in signature(model).parameters:
            options.pop("dataset.label_kind", None)  # they must be counted
        return _keys("model", node), lambda: _build(_called(model), first), name
    library = library_of(model)
    if library is None or not isinstance(model, library.Model):
        raise ConfigError(
            f"model ({type(model).__name__}) must be a compiled Keras model, or a function that "
            "returns one"
        )
    is_plain = type(model).compile is library.Model.compile
    if getattr(model, "optimizer", None) is None and is_plain:
        raise ConfigError(f"model ({model.name}) must be compiled; call model.compile first")
    _build(model, first)
    _forget_calls(model, first)
    initial_draws.repeat_draws(model)
    path = carried(model, "model", folder)
    node = {"_target_": f"{carried.__module__}.model", "path": str(path)}
    keys = {"model": "saved", **_keys("model", node)}
    name = re.sub(r"_\d+$", "", model.name)
    return keys, lambda: _build(load(path), first), name


def _called(function: Callable[..., Any]) -> Any:
    try:
        return function()
    except TypeError as error:
        raise ConfigError(
            f"model ({function.__name__}) is made of arguments that the run gives it: {error}; "
            "give fit the model, or use mode=export"
        ) from error


def _build(model: Any, first: Mapping[str, Any]) -> Any:
    """Build a model as `model.fit` would: by a call, or by its own steps, which call its layers.

    If that fails the training reports why.
    """
    if not getattr(model, "built", True):
        with suppress(Exception):
            model(first["features"])
    library: Any = library_of(model)
    tensorflow = import_module("tensorflow")
    parts = tuple(first.values())
    for name in ("train_step", "test_step"):
        step = getattr(model, name)

        def traced(step: Callable[[Any], Any] = step) -> None:
            batch = tensorflow.nest.map_structure(tensorflow.convert_to_tensor, parts)
            step(batch if len(batch) > 1 else batch[0])

        is_own = getattr(type(model), name) is not getattr(library.Model, name)
        if is_own and not all(layer.built for layer in model._flatten_layers(include_self=False)):
            with suppress(Exception):  # traced, but not run: weights keep their initial values
                is_converted = library.__name__ != "keras"
                tensorflow.function(traced, autograph=is_converted).get_concrete_function()
    return model


def _forget_calls(model: Any, first: Mapping[str, Any]) -> None:
    """Remove tensors that a call leaves in layers, as attention scores are: they name no run."""
    tensorflow = import_module("tensorflow")
    layers = list(model._flatten_layers())

    def left() -> dict[tuple[int, str], Any]:
        attributes = ((i, item) for i, layer in enumerate(layers) for item in vars(layer).items())
        return {(i, name): x for i, (name, x) in attributes if isinstance(x, tensorflow.Tensor)}

    if before := left():
        is_converted = library_of(model).__name__ != "keras"
        call = tensorflow.function(lambda: model(first["features"]), autograph=is_converted)
        with suppress(Exception):
            call.get_concrete_function()
        for (number, name), value in left().items():
            if value is not before.get((number, name)):
                del vars(layers[number])[name]


def _data(
    data: Any, validation: Any, folder: Path, steps: int | None, epochs: int
) -> tuple[dict[str, Any], int | None, dict[str, Any]]:
    """Return the facts of the data for a run; an epoch of `steps`, or of one pass.

    Returns:
        The first example or batch, nests of arrays by name; the size of the batches, if the data
        are batched; and the keys of the dataset.
    """
    keys: dict[str, Any] = {"dataset": "arrays", "dataset._target_": f"{_DATA}.data_of_fit"}
    first: dict[str, Any] = {}
    batch_size = None
    parts = [("data", "data", data), ("validation", "held_out", validation)]
    for name, option, value in parts:
        is_training = name == "data"
        if isinstance(value, float):
            keys["dataset.validation"] = value
        elif (node := _made_anew(value, name, folder)) is not None:
            keys |= _keys(f"dataset.{option}", {**node, "_partial_": True})
            if is_training:
                batches = value() if isinstance(value, types.FunctionType) else value
                first, batch_size, count = describe(batches, name, steps)
                if count is not None:
                    keys["dataset.num_examples"] = count
                    keys["dataset.batched"] = batch_size is not None
                    # No epoch is read for a number that no loss needs.
                    keys["dataset.label_kind"] = None
        elif value is not None:
            kept = KeptData(value, name, folder, steps and is_training and steps * epochs)
            print(f"{name}: {kept}")
            node = {"_target_": f"{_DATA}.kept_arrays", "path": str(kept.path)}
            keys |= _keys(f"dataset.{option}", {**node, "_partial_": True})
            if is_training:
                first, batch_size = kept.first, kept.batch_size
                keys["dataset.unit"] = kept.unit
    return first, batch_size, keys


def _made_anew(value: Any, name: str, folder: Path) -> dict[str, Any] | None:
    """Return what makes data in the processes that train; None: they are to be kept."""
    if isinstance(value, types.FunctionType):
        return function_node(value, name, folder, "call")
    if batches_of.is_sequence(value):
        with suppress(ConfigError):  # it holds what cannot be pickled, such as a file
            path = carried(value, name, folder)
            return {"_target_": f"{carried.__module__}.item", "path": str(path)}
    return None


def _keys(section: str, node: Mapping[str, Any]) -> dict[str, Any]:
    return {f"{section}.{name}": value for name, value in node.items()}


_VALUE = "/.ATTRIBUTES/VARIABLE_VALUE"
_NUMBER = re.compile(r"^models/[^/]+/saved/(\d+)_")
"""Of a weight of Keras 3."""


def restored(model: Any, run_dir: Path, checkpoint: str | int) -> Any:
    """Return a model with the weights of a checkpoint, averaged ones where it has them.

    Raises:
        ConfigError: there is no such checkpoint, or the model does not fit.
    """
    step = select_step(run_dir, Checkpoint(use=checkpoint))
    prefix = str(run_dir / "checkpoints" / f"ckpt-{step}")
    reader = import_module("tensorflow").train.load_checkpoint(prefix)
    keys = list(reader.get_variable_to_shape_map())
    places = [key for key in keys if key.startswith("models/")]
    names = {key.split("/")[1] for key in places}
    name = "model" if "model" in names else min(names)  # others: parts that have an optimizer
    if library_of(model).__name__ == "keras":
        numbered = {int(match[1]): key for key in places if (match := _NUMBER.search(key))}
        keys_of = [numbered.get(number) for number in range(len(model.weights))]
        for weight, key in zip(model.weights, keys_of, strict=True):
            if key is not None:
                weight.assign(reader.get_tensor(key))
    else:
        read = import_module("tensorflow").train.Checkpoint(models={name: model}).read(prefix)
        read.expect_partial()  # the checkpoint has no variables of the model's optimizer
    # Vocabularies are weights of tf_keras too, and the checkpoint also has the compiled metrics.
    weights = [weight for weight in model.weights if not hasattr(weight, "num_tensors")]
    if not weights or _values(weights) - _values(map(reader.get_tensor, places)):
        raise ConfigError(
            f"{run_dir}: the checkpoint of step {step} has other weights than the model has now; "
            "if it has none yet, call it once on examples before fit"
        )
    for number, weight in enumerate(model.trainable_variables):
        if (key := f"averages/{name}/{number}{_VALUE}") in keys:
            weight.assign(reader.get_tensor(key))
    return model


def _values(arrays: Iterable[Any]) -> Counter[bytes]:
    return Counter(np.asarray(array).tobytes() for array in arrays)


_INSTEAD = {
    "callbacks": "write callbacks=['early_stopping', 'reduce_on_plateau'], "
    "checkpoint__best__metric='accuracy' or schedule='cosine'; a Keras callback that only reads "
    "is callbacks='keras'",
    "class_weight": "write task__class_weights={0: 1.0, 1: 5.0}, the weight by class",
    "initial_epoch": "leave it out: a run continues where it stopped; epochs is the length of all",
    "sample_weight": "make it the third of the data: (x, y, sample_weight)",
    "shuffle": "leave it out: as the program does; dataset__unit=0 keeps the order of arrays",
    "validation_batch_size": "leave it out: an evaluation takes batches of batch_size",
    "validation_data": "write validation=(x, y)",
    "validation_freq": "write evaluate__every_epochs=<int>",
    "validation_split": "write validation=<share>; which examples it takes does not depend on "
    "their order",
    "validation_steps": "leave it out: the validation examples are evaluated whole",
    "verbose": "leave it out; progress is printed, and run.history has the numbers",
    "x": "write fit(model, (x, y))",
    "y": "write fit(model, (x, y))",
}
"""Arguments of `model.fit`, and what does the same here."""

_PLAIN = re.compile(r"(?!(null|true|false|nan|inf)$)[A-Za-z_./][\w./-]*", re.IGNORECASE)


def overrides_of(keys: Mapping[str, Any], defaults: Mapping[str, Any]) -> list[str]:
    """Return the overrides of the keys of `fit`, which win over defaults by dotted key.

    Raises:
        ConfigError: one is an argument of `model.fit`.
    """
    for name, value in keys.items():
        first = value[0] if isinstance(value, list) and value else value
        is_choice = name == "callbacks" and isinstance(first, str | Mapping)
        if name in _INSTEAD and not is_choice:
            raise ConfigError(f"{name} is an argument of model.fit; here {_INSTEAD[name]}")
    chosen = dict(_flat(keys))
    others = {**dict(PAIRS), **{second: first for first, second in PAIRS}}
    left = {
        key: value
        for key, value in defaults.items()
        if key not in chosen and others.get(key) not in chosen
    }
    # Nodes with a _target_ have options that no file mentions.
    return [
        f"{'++' if '.' in key else ''}{key}={_text(value)}"
        for key, value in {**left, **chosen}.items()
    ]


def _flat(keys: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for name, value in keys.items():
        key = name.replace("__", ".")
        is_section = isinstance(value, Mapping) and all(str(x).isidentifier() for x in value)
        if is_section and "." not in key:
            yield from ((f"{key}.{inner}", item) for inner, item in value.items())
        else:
            yield key, value


def _text(value: Any) -> str:
    """Return a value in the grammar of overrides; raise a ConfigError if that cannot express it."""
    if hasattr(value, "dtype") and not value.shape:  # a number of NumPy
        value = value.item()
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, str):
        quoted = value.replace("\\", "\\\\").replace("'", "\\'")
        return value if _PLAIN.fullmatch(value) else f"'{quoted}'"
    if isinstance(value, list | tuple):
        return f"[{','.join(map(_text, value))}]"
    if isinstance(value, Mapping):
        # Keys cannot be quoted.
        names = (re.sub(r"([\\()\[\]{}:=,\s])", r"\\\1", str(key)) for key in value)
        pairs = zip(names, map(_text, value.values()), strict=True)
        return f"{{{','.join(f'{name}:{text}' for name, text in pairs)}}}"
    raise ConfigError(
        f"{type(value).__name__} is nothing that a configuration holds; write numbers, texts, "
        "lists and dicts of these, or the name of a choice"
    )
