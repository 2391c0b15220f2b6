"""Functions and objects of a script in files, from which the processes of a run load them.

What a script or notebook defines is pickled by value. What is in a module is imported by its name:
the script itself cannot be, as it would train again.
"""

from __future__ import annotations

import functools
import inspect
import io
import linecache
import os
import pickle
import re
import sys
import types
from collections.abc import Mapping
from functools import reduce
from pathlib import Path
from typing import Annotated, Any, Literal

import cloudpickle

from trainer.annotations import Exists
from trainer.errors import ConfigError
from trainer.files import write_atomically
from trainer.fitting import keras_pickling
from trainer.fitting.content_digest import digest_of, not_passed
from trainer.fitting.keras_pickling import is_keras3
from trainer.keras_objects import check_precision
from trainer.text import first_line

MAIN = "__main__"
_TF_KERAS = re.compile(r"\b(tf|tensorflow)\.keras\b|from tensorflow import .*\bkeras\b")
_ROOTS = {sys.prefix, sys.base_prefix, sys.exec_prefix}
"""The folders of libraries, which are the same in every process."""


def carried(item: Any, what: str, folder: Path) -> Path:
    """Keep an object in a file that is named by `what` and by what the object is; return the file.

    Raises:
        ConfigError: it holds something that cannot be pickled.
    """
    pickler = Pickler()
    path = folder / f"{what}-{digest_of(item, what, pickler.reducer_override)}.pickle"
    for module in sorted(pickler.modules):
        _check_keras(module)
    if not path.exists():
        try:
            content = pickler.content(item)
        except Exception as error:  # of any class
            raise not_passed(what, item, error) from error
        folder.mkdir(parents=True, exist_ok=True)
        write_atomically(path, content, mode=0o600)
    return path


def function_node(
    function: types.FunctionType, what: str, folder: Path, kind: Literal["model", "call"]
) -> dict[str, Any]:
    """Return the `_target_` that calls a function in the processes that train.

    One of a module is imported, one of the script carried.
    """
    place = f"{function.__module__}.{function.__qualname__}"
    if function.__module__ != MAIN and _found(function) is function:
        _check_keras(function.__module__)
        return {"_target_": place}
    path = carried(function, what, folder)
    return {"_target_": f"{__name__}.{kind}", "path": str(path)}


def _found(function: types.FunctionType) -> Any:
    try:
        return reduce(getattr, function.__qualname__.split("."), sys.modules[function.__module__])
    except (KeyError, AttributeError):
        return None


def _check_keras(module: str) -> None:
    """Refuse a user's module of `tf.keras` if that is Keras 3: those that train have tf_keras."""
    file = getattr(sys.modules.get(module), "__file__", None)
    roots = (*_ROOTS, str(Path(__file__).parents[1]))
    if file is None or not is_keras3() or any(Path(file).is_relative_to(root) for root in roots):
        return
    if match := _TF_KERAS.search(Path(file).read_text(encoding="utf-8")):
        raise ConfigError(
            f"{module} uses {match[0]}, which is Keras 3 here, and tf_keras in the processes that "
            "train; write import keras there, or set TF_USE_LEGACY_KERAS=1 before TensorFlow is "
            "imported"
        )


def call(*, path: Annotated[str, Exists("file")]) -> Any:
    """Call a function of the script."""
    return load(Path(path))()


def item(*, path: Annotated[str, Exists("file")]) -> Any:
    """Return an object of the script."""
    return load(Path(path))


def model(input_shape: Any, num_classes: Any, *, path: Annotated[str, Exists("file")]) -> Any:
    """Return a model of the script; a function is called with the arguments that it names."""
    loaded = load(Path(path))
    if not isinstance(loaded, types.FunctionType):
        check_precision(loaded, path)
        return loaded
    arguments = {"input_shape": input_shape, "num_classes": num_classes}
    names = inspect.signature(loaded).parameters
    return loaded(**{name: value for name, value in arguments.items() if name in names})


def import_folders() -> list[str]:
    """Return the folders from which this process imports the user's modules."""
    return [
        str(Path(place).absolute())
        for place in sys.path
        if Path(place).is_dir() and not any(Path(place).is_relative_to(root) for root in _ROOTS)
    ]


class Pickler(cloudpickle.Pickler):
    """Pickles the script's functions and classes by value.

    Attributes:
        sources: the source files of the functions pickled by value, by the name in their code.
        modules: those from which functions and classes are imported.
    """

    def __init__(self) -> None:
        self._file = io.BytesIO()
        super().__init__(self._file, protocol=5)
        self.sources: dict[str, list[str]] = {}
        self.modules: set[str] = set()

    def reducer_override(self, item: Any) -> Any:
        """Return how an object is pickled; NotImplemented: by its own method."""
        if isinstance(item, functools.cached_property):  # has a lock
            return functools.cached_property, (item.func,)
        if (reduced := keras_pickling.reduce(item)) is NotImplemented:
            reduced = super().reducer_override(item)
        if isinstance(item, types.FunctionType) and item.__module__ == MAIN:
            name = item.__code__.co_filename
            self.sources.setdefault(name, linecache.getlines(name, item.__globals__))
        elif isinstance(item, types.FunctionType | type) and reduced is NotImplemented:
            self.modules.add(item.__module__)
        return reduced

    def content(self, item: Any) -> bytes:
        """Return a file's content from which `load` makes an object."""
        self.dump(item)
        return pickle.dumps(self.sources) + self._file.getvalue()


def load(path: Path) -> Any:
    """Return the object in a file, rebuilt.

    Raises:
        ValueError: the file is a link or another user's, whose code it may run; or it cannot be
            loaded.
    """
    with open(path, "rb", opener=_own_file) as file:
        try:
            _show_sources(pickle.load(file))
            return pickle.load(file)
        except Exception as error:  # of any class
            raise ValueError(
                f"path ({path}) cannot be loaded ({type(error).__name__}: "
                f"{first_line(error)[:200]}); if Python, TensorFlow or Keras was another when it "
                "was written, remove it and call fit again"
            ) from error


def _own_file(name: str, flags: int) -> int:
    try:
        number = os.open(name, flags | os.O_NOFOLLOW)
    except OSError as error:
        raise ValueError(
            f"path ({name}) cannot be opened ({error.strerror}); start the command where the run "
            "was started, or call fit again"
        ) from error
    if (owner := os.fstat(number).st_uid) != os.geteuid():
        os.close(number)
        raise ValueError(
            f"path ({name}) is of user {owner}, and would run their code; call fit yourself, or "
            "change the owner of the file if you trust it"
        )
    return number


def _show_sources(sources: Mapping[str, list[str]]) -> None:
    """Have Python find the source of functions as it was: AutoGraph and tracebacks read it."""
    for name, lines in sources.items():
        if lines:  # entries without a time are never read again
            linecache.cache[name] = (sum(map(len, lines)), None, lines, name)
