"""Keeps a compiled Keras model in a file from which the processes of a run build it.

The file is named by what the model is. Weights that are still as they were made are no part of
that: a run draws them from its own seed, so a script that makes them anew names the same run.
"""

from __future__ import annotations

import hashlib
import inspect
import json
import re
import tempfile
import types
import warnings
import zipfile
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from trainer.errors import ConfigError
from trainer.files import write_atomically
from trainer.fitting.references import MAIN, check_keras, importable, kept_definitions
from trainer.keras_files import WEIGHTS
from trainer.keras_objects import constructible, first_value
from trainer.text import first_line

LIBRARIES = ("keras", "tf_keras")
_FUNCTION_FIX = "or give fit the function that makes it, defined at the top level"
_BASE_OPTIONS = {"self", "name", "dtype", "trainable", "args", "kwargs"}


class KeptModel:
    """A model in a file.

    Attributes:
        path: the file.
        name: that of the model, without a number that Keras has added.
        options: those of `trainer.models.saved.saved`.
    """

    def __init__(self, model: Any, folder: Path) -> None:
        """Keep a model below a folder.

        Raises:
            ConfigError: it cannot be kept so.
        """
        library = library_of(model)
        _check(model, library)
        content, config, others = _archive(model)
        self._own = _own_objects(model, config)
        for item in self._own.values():
            check_keras(item)
        value = first_value(model)
        fresh = [
            number
            for number, weight in enumerate(model.weights)
            if (first := value(weight)) is not None and np.array_equal(first, weight)
        ]
        names = sorted(name for name, item in self._own.items() if item.__module__ == MAIN)
        allow = sorted(
            importable(item, name) for name, item in self._own.items() if name not in names
        )
        code = kept_definitions(names, folder) if names else None
        digest = _digest(model, config, [*others, library.__name__, *allow, str(code)], fresh)
        self.path = folder / f"model-{digest}.keras"
        self._library = library
        if not self.path.exists():
            folder.mkdir(parents=True, exist_ok=True)
            write_atomically(self.path, content)
            self._check_loads(model)
        self.name = re.sub(r"_\d+$", "", model.name)
        self.options: dict[str, Any] = {
            "path": str(self.path),
            "compiled": True,
            "fresh": fresh,
            "sha256": hashlib.sha256(self.path.read_bytes()).hexdigest(),
            **({"allow": allow} if allow else {}),
            **({"code": str(code)} if code else {}),
        }

    def _check_loads(self, model: Any) -> None:
        try:
            num_weights = len(self.load().weights)
        except Exception as error:  # of code of the user's
            self.path.unlink()
            raise _unwritable(model, error) from error
        if num_weights != len(model.weights):
            self.path.unlink()
            raise _unwritable(model, f"{num_weights} of its {len(model.weights)} weights come back")

    def load(self) -> Any:
        """Return the model as it was kept, another object."""
        models = import_module(f"{self._library.__name__}.models")
        with warnings.catch_warnings(action="ignore"):  # that the optimizer has no variables yet
            return models.load_model(
                self.path, custom_objects=constructible(self._own), safe_mode=False
            )


def library_of(model: Any) -> Any:
    """Return the module of the Keras that a model is of.

    Raises:
        ConfigError: it is no model.
    """
    for base in type(model).__mro__:
        if base.__name__ == "Model" and (name := base.__module__.partition(".")[0]) in LIBRARIES:
            return import_module(name)
    raise ConfigError(
        f"model ({type(model).__name__}) must be a compiled Keras model, or a function that "
        "returns one"
    )


def _check(model: Any, library: Any) -> None:
    """Refuse what Keras would write without a word, and read as something else."""
    kind = type(model)
    if getattr(model, "optimizer", None) is None:
        raise ConfigError(f"model ({model.name}) must be compiled; call model.compile first")
    if kind.compile is not library.Model.compile and (
        kind.get_compile_config is library.Model.get_compile_config
    ):
        raise ConfigError(
            f"model ({kind.__name__}) has a compile of its own, whose arguments Keras does not "
            f"keep; add get_compile_config and compile_from_config, {_FUNCTION_FIX}"
        )
    for inner in (layer for layer in model._flatten_layers() if isinstance(layer, library.Model)):
        kind = type(inner)
        options = set(inspect.signature(kind.__init__).parameters) - _BASE_OPTIONS
        is_own = kind.__module__.partition(".")[0] not in LIBRARIES
        if is_own and options and kind.get_config is library.Model.get_config:
            raise ConfigError(
                f"model ({kind.__name__}) has no get_config, and without it Keras does not keep "
                f"{', '.join(sorted(options))}; add get_config, {_FUNCTION_FIX}"
            )


def _archive(model: Any) -> tuple[bytes, dict[str, Any], list[str]]:
    """Return a model's archive, its configuration, and hashes of what else it holds."""
    with tempfile.TemporaryDirectory() as scratch:
        file = Path(scratch) / "model.keras"
        try:
            model.save(file)
        except (NotImplementedError, TypeError, ValueError, AttributeError) as error:
            raise _unwritable(model, error) from error
        with zipfile.ZipFile(file) as archive:
            config = json.loads(archive.read("config.json"))
            described = ("config.json", "metadata.json", WEIGHTS)
            others = [
                f"{name} {hashlib.sha256(archive.read(name)).hexdigest()}"
                for name in sorted(archive.namelist())
                if name not in described
            ]
        return file.read_bytes(), config, others


def _unwritable(model: Any, reason: object) -> ConfigError:
    text = first_line(reason) if isinstance(reason, Exception) else reason
    return ConfigError(
        f"model ({type(model).__name__}) is of classes that Keras does not write and read "
        f"({str(text)[:100]}); add get_config to them, {_FUNCTION_FIX}"
    )


def nodes(config: Any) -> Iterator[Mapping[str, Any]]:
    """Yield every object of a configuration of Keras that asks for a class or function."""
    if isinstance(config, list):
        for value in config:
            yield from nodes(value)
    elif isinstance(config, dict):
        if "class_name" in config:
            yield config
        yield from nodes(list(config.values()))


def _own_objects(model: Any, config: Any) -> dict[str, Any]:
    """Return the user's classes and functions that a configuration asks for, by name."""
    live = {item.__name__: item for item in _live(model)}
    own = {}
    for node in nodes(config):
        name, module = node["class_name"], node.get("module")
        if name == "function":
            name, module = node["config"], None
        elif str(module).partition(".")[0] in (*LIBRARIES, "builtins") or name[:2] == "__":
            continue
        item = live.get(name) or getattr(import_module(module or MAIN), name, None)
        if item is not None:
            own[name] = item
        elif node["class_name"] != "function":
            raise ConfigError(
                f"model ({model.name}) has a {name}, which is not found; define it at the top "
                f"level of a module, {_FUNCTION_FIX}"
            )
    return {name: item for name, item in own.items() if not _is_of_keras(item)}


def _is_of_keras(item: Any) -> bool:
    return item.__module__.partition(".")[0] in LIBRARIES


def _live(model: Any) -> Iterator[Any]:
    """Yield the classes and functions of a model's layers, and those that it is compiled with."""
    compiled = getattr(getattr(model, "_compile_config", None), "config", {})
    for layer in model._flatten_layers():
        yield type(layer)
        yield from _kinds(value for value in vars(layer).values() if callable(value))
    yield from _kinds(_leaves(compiled))


def _kinds(values: Iterable[Any]) -> Iterator[Any]:
    for value in values:
        yield value if isinstance(value, types.FunctionType | type) else type(value)


def _leaves(value: Any) -> Iterator[Any]:
    if isinstance(value, Mapping | list | tuple):
        for inner in value.values() if isinstance(value, Mapping) else value:
            yield from _leaves(inner)
    else:
        yield value


def _digest(model: Any, config: Any, others: list[str], fresh: list[int]) -> str:
    """Return a hash of what a model is: its configuration, and the weights that are not fresh."""
    digest = hashlib.sha256()
    for text in (json.dumps(_named_alike(config), sort_keys=True), *others, str(fresh)):
        digest.update(f"{text}\n".encode())
    for weight in (w for number, w in enumerate(model.weights) if number not in fresh):
        values = np.ascontiguousarray(weight)
        digest.update(f"{values.dtype} {values.shape}\n".encode())
        digest.update(values.tobytes())
    return digest.hexdigest()[:12]


def _named_alike(config: Any) -> Any:
    """Return a configuration in which names that Keras has counted begin at the first again.

    The second model of a process has `dense_1` where the first has `dense`.
    """
    counts: Counter[str] = Counter()
    names: dict[str, str] = {}
    for node in nodes(config):
        options = node.get("config")
        name = options.get("name") if isinstance(options, dict) else None
        if isinstance(name, str) and name not in names:
            kind = re.sub(r"_\d+$", "", name)
            if kind.replace("_", "") in (str(node["class_name"]).lower(), "input", "model"):
                names[name] = f"{kind}#{counts[kind]}"
                counts[kind] += 1

    def renamed(value: Any) -> Any:
        if isinstance(value, dict):
            return {
                names.get(key, key): renamed(inner)
                for key, inner in value.items()
                if key != "shared_object_id"  # an address in memory
            }
        if isinstance(value, list):
            return [renamed(inner) for inner in value]
        return names.get(value, value) if isinstance(value, str) else value

    return renamed(config)
