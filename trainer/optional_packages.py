"""Packages that are optional: imported when they are used, or named with how to install them."""

from __future__ import annotations

import importlib
import importlib.machinery
import sys
from contextlib import suppress
from importlib.util import find_spec, module_from_spec
from pathlib import Path
from types import ModuleType

from trainer.errors import ConfigError

_DISTRIBUTION = "steadfast-trainer"
_ROOT = Path(__file__).resolve().parents[1]


def pip_install(requirement: str) -> str:
    """Return the command that installs a requirement; `steadfast-trainer` is in a checkout `.`."""
    if (_ROOT / "pyproject.toml").is_file():
        requirement = requirement.replace(_DISTRIBUTION, ".")
    return f'pip install "{requirement}"'


def missing(package: str, requirement: str) -> str | None:
    """Return "needs ..., which is not installed; ..." or None if the package is installed."""
    with suppress(ModuleNotFoundError):  # a package above it is missing
        # One without a file is a folder that happens to have the name, as W&B's own has.
        if (spec := find_spec(package)) is not None and spec.origin is not None:
            return None
    return f"needs {package}, which is not installed; {pip_install(requirement)}"


def import_extra(name: str, extra: str, needed_by: str) -> ModuleType:
    """Import a module of an optional package.

    Raises:
        ConfigError: it is not installed; the message shows how to install it.
    """
    try:
        package = name.partition(".")[0]
        if package == "datasets":
            _import_from_elsewhere(package)
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        absent = (error.name or name).partition(".")[0]
        raise ConfigError(
            f"{needed_by} needs {absent}, which is not installed; "
            f"{pip_install(f'{_DISTRIBUTION}[{extra}]')}"
        ) from error


def _import_from_elsewhere(name: str) -> None:
    """Import a package whose name is also that of a folder of a checkout of this project.

    There the folder comes first on the path, as the directory of the program. The package's own
    modules are then found through it.
    """
    if name in sys.modules:
        return
    elsewhere = [entry for entry in sys.path if Path(entry or ".").resolve() != _ROOT]
    spec = importlib.machinery.PathFinder.find_spec(name, elsewhere)
    if spec is None or spec.loader is None:
        raise ModuleNotFoundError(f"No module named {name!r}", name=name)
    module = module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
