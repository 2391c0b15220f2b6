"""Steadfast's engine: composes an experiment, runs it, and never loses a step.

In an installed distribution `trainer.models`, `trainer.datasets` and `trainer.conf` are real
sub-packages. In a checkout they are the folders `models/`, `datasets/` and `conf/` next to this
one; extending `__path__` makes both layouts import
under the same names, so that no class ever exists twice (docs/adr/0003-packaging.md).
"""

from importlib import import_module
from pathlib import Path
from typing import Any

__version__ = "0.1.0"

_root = Path(__file__).resolve().parent.parent
if (_root / "train.py").is_file() and (_root / "conf").is_dir():
    __path__.append(str(_root))


def __getattr__(name: str) -> Any:
    """Return `fit`, which is imported only when it is requested."""
    if name == "fit":
        return import_module("trainer.fitting.fit").fit
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
