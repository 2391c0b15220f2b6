"""What a user sees of an error: the frames of their own code, and the cause in one line.

No TensorFlow: the parent process may import this.
"""

from __future__ import annotations

import importlib
import os
import re
import traceback
from pathlib import Path

import trainer
from trainer.errors import CheckpointError, DivergedError, NonFiniteError, StorageError
from trainer.text import first_line

SELF_EXPLANATORY = (CheckpointError, DivergedError, NonFiniteError, StorageError)
"""Errors whose message says all: they are shown without a traceback."""

_NAMED_ERROR = re.compile(r"[\w.]*(?:Error|Exception): (?P<message>.+)")
_WRAPPER_LINES = (
    "in user code:",
    "Exception encountered when calling",
    "Could not automatically infer",
    "Graph execution error",
    "Detected at node",
    "File ",
    "<stack traces",
)
"""Beginnings of the lines that TensorFlow and Keras put around the original message."""

_LIBRARY_FOLDERS = {"site-packages", "dist-packages"}
_IMPORTLIB = str(Path(importlib.__file__).parent) + os.sep


def user_traceback(error: BaseException) -> str:
    """Return the traceback without the frames of this package, TensorFlow and Keras.

    If there are no other frames, the innermost one stays.
    """
    package = str(Path(trainer.__file__).resolve().parent) + os.sep
    frames = traceback.extract_tb(error.__traceback__)
    user_frames = [
        frame
        for frame in frames
        if not frame.filename.startswith((package, _IMPORTLIB, "<"))
        and not Path(frame.filename).name.startswith("__autograph_generated_file")
        and _LIBRARY_FOLDERS.isdisjoint(Path(frame.filename).parts)
    ]
    lines = traceback.format_list(user_frames or frames[-1:])
    message = traceback.format_exception_only(error)
    return "".join(["Traceback (most recent call last):\n", *lines, *message]).rstrip()


def error_cause(error: BaseException) -> str:
    """Return an error in one line: the original one where TensorFlow or Keras has wrapped it."""
    if isinstance(error, SELF_EXPLANATORY):
        return first_line(error)
    plain = re.sub(r"\x1b\[\d*m", "", str(error))  # Keras 3 writes in bold
    lines = [re.sub(r"^\{\{.*?\}\} ", "", line.strip()) for line in plain.splitlines()]
    named = [
        line
        for line in lines
        if (match := _NAMED_ERROR.match(line)) and not match["message"].startswith(_WRAPPER_LINES)
    ]
    if named:
        return named[-1]
    message = [line for line in lines if line and not line.startswith(_WRAPPER_LINES)]
    return ": ".join([type(error).__name__, *message[:1]])
