"""What a user sees of an error: the frames of their own code, and the cause in one line.

No TensorFlow: the parent process may import this.
"""

from __future__ import annotations

import re
import traceback

from trainer.errors import (
    CheckpointError,
    DivergedError,
    NonFiniteError,
    StorageError,
    is_user_code,
)
from trainer.text import first_line

SELF_EXPLANATORY = (CheckpointError, DivergedError, NonFiniteError, StorageError)
"""Errors that are shown without a traceback: the message suffices."""

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


def user_traceback(error: BaseException) -> str:
    """Return the traceback without the frames of this package, TensorFlow and Keras.

    If there are no other frames, the innermost one stays.
    """
    frames = traceback.extract_tb(error.__traceback__)
    user_frames = [frame for frame in frames if is_user_code(frame.filename)]
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
