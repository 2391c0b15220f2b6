"""Python files of the user's that are in no package: imported by their path.

`fit` writes what a script or notebook defines into such files, from which every process imports it.
"""

from __future__ import annotations

import importlib.util
import inspect
import sys
from functools import reduce
from pathlib import Path
from typing import Any


def load(path: str) -> Any:
    """Return the module of a file, imported once in a process.

    Raises:
        ValueError: there is no such file.
    """
    file = Path(path)
    name = file.stem.replace("-", "_")
    if name in sys.modules:
        return sys.modules[name]
    if not file.is_file():
        raise ValueError(
            f"code ({path}): no such file; start the command where the run was started"
        )
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def call(*, code: str, function: str) -> Any:
    """Call a function of a file.

    Args:
        code: the file.
        function: the function's name in it.
    """
    return _function(code, function)()


def model(input_shape: Any, num_classes: Any, *, code: str, function: str) -> Any:
    """Call a model function of a file with those of the engine's arguments that it names.

    Args:
        input_shape: shape of one example's features.
        num_classes: how many outputs.
        code: the file.
        function: the function's name in it.
    """
    build = _function(code, function)
    arguments = {"input_shape": input_shape, "num_classes": num_classes}
    names = inspect.signature(build).parameters
    return build(**{name: value for name, value in arguments.items() if name in names})


def _function(code: str, function: str) -> Any:
    return reduce(getattr, function.split("."), load(code))
