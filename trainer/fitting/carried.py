"""Functions and objects of a script in files, from which the processes of a run load them."""

from __future__ import annotations

import inspect
import re
import sys
import types
from functools import reduce
from pathlib import Path
from typing import Annotated, Any, Literal

from trainer.annotations import Exists
from trainer.errors import ConfigError
from trainer.files import write_atomically
from trainer.fitting.content_digest import digest_of, not_passed
from trainer.fitting.keras_pickling import is_keras3
from trainer.fitting.pickling import MAIN, Pickler, load
from trainer.keras_objects import check_precision

_TF_KERAS = re.compile(r"\b(tf|tensorflow)\.keras\b|from tensorflow import .*\bkeras\b")
_ROOTS = {sys.prefix, sys.base_prefix, sys.exec_prefix}
"""The folders of libraries, which are the same in every process."""


def carried(item: Any, what: str, folder: Path) -> Path:
    """Keep an object in a file that is named by what the object is; return the file.

    Args:
        item: any object that can be pickled, or is a function or class of the script.
        what: its name in messages, and the begin of that of the file.
        folder: where the file is kept.

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

    Args:
        function: one of a module, which is imported, or of the script, which is carried.
        what: its name in messages.
        folder: where functions of the script are kept.
        kind: what calls it: `model` or `call` of this module.

    Raises:
        ConfigError: it uses something that cannot be pickled.
    """
    place = f"{function.__module__}.{function.__qualname__}"
    if function.__module__ != MAIN and _found(function) is function:
        _check_keras(function.__module__)
        return {"_target_": place}
    path = carried(function, what, folder)
    return {"_target_": f"{__name__}.{kind}", "path": str(path)}


def _found(function: types.FunctionType) -> Any:
    """Return what is found under the name of a function."""
    try:
        return reduce(getattr, function.__qualname__.split("."), sys.modules[function.__module__])
    except (KeyError, AttributeError):
        return None


def _check_keras(module: str) -> None:
    """Refuse a user's module of `tf.keras` where that is Keras 3: those that train have tf_keras.

    Raises:
        ConfigError: it is such a module.
    """
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
    """Call a function of the script.

    Args:
        path: the file that it is kept in.
    """
    return load(Path(path))()


def item(*, path: Annotated[str, Exists("file")]) -> Any:
    """Return an object of the script.

    Args:
        path: the file that it is kept in.
    """
    return load(Path(path))


def model(input_shape: Any, num_classes: Any, *, path: Annotated[str, Exists("file")]) -> Any:
    """Return a model of the script; a function is called with the arguments that it names.

    Args:
        input_shape: shape of one example's features.
        num_classes: how many outputs.
        path: the file that it is kept in.
    """
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
