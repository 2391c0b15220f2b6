"""Pickles what a script or notebook defines by value, so that other processes can load it.

What is in a module is imported by its name. The script itself cannot be: it would train again.
"""

from __future__ import annotations

import functools
import io
import linecache
import os
import pickle
import types
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import cloudpickle

from trainer.fitting import keras_pickling
from trainer.text import first_line

MAIN = "__main__"


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
        """Return how an object is pickled; NotImplemented: as it says itself."""
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
    """Return the object in a file, made anew.

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
