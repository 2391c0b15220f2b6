"""`fit(model, data, ...)` of a script or notebook, for `model.fit`: trains as the command does.

The model and the data are kept in files beside the runs, named by what they are; so the same call
finds the same run. The training is that of the command, in processes of its own.
"""

from __future__ import annotations

import functools
import re
import types
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from trainer.cluster import environment
from trainer.config import addresses
from trainer.errors import ConfigError
from trainer.fitting import initial_draws
from trainer.fitting.carried import carried, function_node, import_folders
from trainer.fitting.fit_arguments import overrides_of
from trainer.fitting.kept_data import KeptData
from trainer.fitting.keras_pickling import library_of
from trainer.fitting.pickling import load
from trainer.fitting.trained_model import restored
from trainer.notebook import Run, run

# Models made here must leave the memory of the GPUs to the processes that train.
environment.share_gpus()
initial_draws.watch()

_DATA = "trainer.datasets.fit_data"
_KEPT = "inputs"
"""The folder beside the runs that holds models and data."""


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
    **keys: Any,
) -> FitRun:
    """Train a compiled Keras model, in processes that survive failures; print what they print.

    The same call continues a run that was stopped, and finds one that is done. An interrupt saves
    and stops.

    Args:
        model: compiled, of either Keras, which begins with its weights; or a function that returns
            one.
        data: (x, y), (x, y, sample_weight) or x, of arrays, lists or dicts of them; a
            tf.data.Dataset of such; or a function that returns either.
        validation: the same of validation examples; or the share of the data that is left out for
            them; None: there are none.
        epochs: passes over the data.
        batch_size: examples in a step, over all devices; None: as a tf.data.Dataset has batched
            them, else 128.
        strategy: the devices: one_device, mirrored, multi_worker, ...
        keys: any key of the configuration, in which `__` stands for a dot:
            `checkpoint__every_steps=50`, `optimizer="adam"`; a dict has the keys of a section.

    Returns:
        The run, with its metrics, history, directory and model.

    Raises:
        ConfigError: an argument is wrong; nothing was trained.
        RunError: the training failed.
    """
    folder = _folder(str(keys.get("runs_dir", "runs")))
    kept, options = _data(data, validation, folder)
    features = functools.partial(_first_features, data) if kept is None else lambda: kept.first
    node, build, name = _model(model, features, folder)
    batch_size = batch_size or (kept and kept.batch_size) or 128
    defaults = {"task": "keras", "strategy": strategy, "name": name, "train.epochs": epochs}
    defaults |= {"batch.global_size": batch_size, "summary.every_epochs": 1, **options, **node}
    if "early_stopping" in str(keys.get("callbacks")):
        defaults["callbacks.early_stopping.metric"] = "loss"  # which Keras watches
    trained = run(*overrides_of(keys, defaults), import_from=import_folders())
    return FitRun(trained.directory, trained.exit_code, build, shown_in=trained.shown_in)


def _folder(runs_dir: str) -> Path:
    """Return the folder of the models and data of the runs in a folder."""
    if addresses.is_remote(runs_dir):
        raise ConfigError(
            f"runs_dir ({runs_dir}) is an object store, where fit keeps no models and data; leave "
            "it out, or use the command with functions of a module"
        )
    return Path(runs_dir).expanduser() / _KEPT


def _model(
    model: Any, features: Callable[[], Any], folder: Path
) -> tuple[dict[str, Any], Callable[[], Any], str]:
    """Return the keys of a model, what builds it in this process, and its name.

    Raises:
        ConfigError: it is no compiled model, or cannot be carried.
    """
    if isinstance(model, types.FunctionType):
        node = function_node(model, "model", folder, "model")
        name = model.__name__ if model.__name__.isidentifier() else "model"
        return _keys("model", node), lambda: _built(_called(model), features), name
    library = library_of(model)
    if library is None or not isinstance(model, library.Model):
        raise ConfigError(
            f"model ({type(model).__name__}) must be a compiled Keras model, or a function that "
            "returns one"
        )
    is_plain = type(model).compile is library.Model.compile
    if getattr(model, "optimizer", None) is None and is_plain:
        raise ConfigError(f"model ({model.name}) must be compiled; call model.compile first")
    initial_draws.repeat_draws(_built(model, features))
    path = carried(model, "model", folder)
    node = {"_target_": f"{carried.__module__}.model", "path": str(path)}
    keys = {"model": "saved", **_keys("model", node)}
    return keys, lambda: _built(load(path), features), re.sub(r"_\d+$", "", model.name)


def _called(function: Callable[..., Any]) -> Any:
    try:
        return function()
    except TypeError as error:
        raise ConfigError(
            f"model ({function.__name__}) is made of arguments that the run gives it: {error}; "
            "give fit the model, or use mode=export"
        ) from error


def _built(model: Any, features: Callable[[], Any]) -> Any:
    """Return a model, built by a call as in `model.fit`; if that fails the training says why."""
    if not getattr(model, "built", True):
        with suppress(Exception):
            model(features())
    return model


def _first_features(data: Any) -> Any:
    """Return the features of the first example, or batch, of what a function of data returns."""
    tree = import_module("tensorflow").nest
    examples = data()
    if isinstance(examples, tuple):
        return tree.map_structure(lambda array: array[:1], examples[0])
    element = next(iter(examples))
    return element[0] if isinstance(element, tuple) else element


def _data(data: Any, validation: Any, folder: Path) -> tuple[KeptData | None, dict[str, Any]]:
    """Return the training examples, unless a function makes them, and the keys of the dataset."""
    keys: dict[str, Any] = {"dataset": "arrays", "dataset._target_": f"{_DATA}.data_of_fit"}
    kept = None
    parts = [("data", "data", data), ("validation", "held_out", validation)]
    for name, option, value in parts:
        if isinstance(value, float):
            keys["dataset.validation"] = value
        elif isinstance(value, types.FunctionType):
            node = function_node(value, name, folder, "call")
            keys |= _keys(f"dataset.{option}", {**node, "_partial_": True})
        elif value is not None:
            examples = KeptData(value, name, folder)
            print(f"{name}: {examples}")
            node = {"_target_": f"{_DATA}.kept_arrays", "path": str(examples.path)}
            keys |= _keys(f"dataset.{option}", {**node, "_partial_": True})
            kept = kept or examples if name == "data" else kept
    return kept, keys


def _keys(section: str, node: Mapping[str, Any]) -> dict[str, Any]:
    return {f"{section}.{name}": value for name, value in node.items()}
