"""Where an operation was made: TensorFlow keeps the stack of Python that it was made in."""

from __future__ import annotations

import functools
import os
import re
import sys
import sysconfig
from pathlib import Path
from typing import Any

import tensorflow as tf

import trainer

ENGINE = tuple(
    f"{Path(trainer.__file__).parent / name}{os.sep}" for name in ("engine", "own_loop", "worker")
)


def place_of(operation: tf.Operation) -> str:
    """Return file and line of the innermost code that is neither a library's nor the engine's."""
    for frame in frames_of(operation):
        if not is_library(frame.filename) and not frame.filename.startswith(ENGINE):
            return relative(f"{frame.filename}:{frame.lineno}")
    return ""


def relative(path: str) -> str:
    """Return a path as it is seen from the working directory, if it is below that."""
    relative = os.path.relpath(path)
    return path if relative.startswith(os.pardir) else relative


def scope_of(operation: tf.Operation) -> str:
    """Return an operation's name scopes, without those of the engine's loops."""
    return re.sub(r"^(while(_\d+)?/)+", "", operation.name).rpartition("/")[0]


def frames_of(operation: tf.Operation) -> list[Any]:
    """Return the stack that an operation was made in, the innermost frame first."""
    return list(reversed(list(operation.traceback or ())))


@functools.cache
def is_library(filename: str) -> bool:
    """Return whether a file is one of TensorFlow's, Keras' or Python's own."""
    libraries = (sys.modules.get(name) for name in ("tensorflow", "tf_keras", "keras"))
    paths = (Path(str(module.__file__)) for module in libraries if module)
    folders = tuple(f"{path.parent}{os.sep}" for path in paths)
    standard = sysconfig.get_paths()["stdlib"]
    return filename.startswith(folders) or (
        filename.startswith(standard) and "site-packages" not in filename
    )
