"""Packages that only some datasets need: imported when they are used, or named in one line."""

from __future__ import annotations

import importlib
import importlib.machinery
import importlib.util
import sys
from pathlib import Path
from types import ModuleType

_CHECKOUT = Path(__file__).resolve().parents[2]


def import_extra(name: str, extra: str, needed_by: str) -> ModuleType:
    """Import a module of an optional package.

    Args:
        needed_by: what needs it, for the message: a choice, an option with its value, a file.

    Raises:
        ValueError: it is not installed; the message says how to.
    """
    try:
        package = name.partition(".")[0]
        if package == "datasets":
            _import_beside_checkout(package)
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        missing = (error.name or name).partition(".")[0]
        raise ValueError(
            f"{needed_by} needs the package {missing}, which is missing; "
            f"pip install 'steadfast[{extra}]'"
        ) from error


def _import_beside_checkout(name: str) -> None:
    """Import a package whose name is also that of a folder of a checkout of this project.

    There the folder comes first on the path, as the directory of the program. The package's own
    modules are then found through it.
    """
    if name in sys.modules:
        return
    elsewhere = [entry for entry in sys.path if Path(entry or ".").resolve() != _CHECKOUT]
    spec = importlib.machinery.PathFinder.find_spec(name, elsewhere)
    if spec is None or spec.loader is None:
        raise ModuleNotFoundError(f"No module named {name!r}", name=name)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
