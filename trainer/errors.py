"""Errors and exit codes.

Each message is one line: what, the value, the rule, the fix.
"""

import functools
import importlib
import os
from pathlib import Path

_LIBRARIES = (
    *(str(Path(x).resolve().parent) + os.sep for x in (__file__, importlib.__file__)),
    str(Path(functools.__file__).resolve()),  # it calls cached properties
)
_LIBRARY_FOLDERS = {"site-packages", "dist-packages"}


class ConfigError(ValueError):
    """A wrong configuration or input, raised before anything is written; exit code 2."""

    def __init__(self, *problems: str) -> None:
        super().__init__("\n".join(problems))
        self.problems = problems


class DamagedError(ConfigError):
    """A file of a run does not hold what was written there, and nothing can replace it."""

    def __init__(
        self, path: object, reason: str, fix: str = "move it away, or restore it from a copy"
    ) -> None:
        super().__init__(f"{path} cannot be read: {reason}; {fix}")
        self.reason = reason


class CheckpointError(OSError):
    """A checkpoint cannot be written, or none is valid; exit code 1."""


class StorageError(OSError):
    """A file of the run cannot be written; exit code 1."""


class DivergedError(RuntimeError):
    """Processes that must have the same state differ; exit code 1."""


class NonFiniteError(ArithmeticError):
    """A loss or gradient is not finite; exit code 1."""


# Exit codes.
DONE = 0
CRASHED = 1
WRONG_INPUT = 2
RESTARTABLE = 75  # EX_TEMPFAIL of sysexits.h: the supervisor tries again; users never see it


def is_user_code(filename: str) -> bool:
    """Return whether a frame of a traceback is of the user's code, in any folder."""
    path = Path(filename)
    return not (
        filename.startswith("<")
        or path.name.startswith("__autograph_generated_file")
        or str(path.resolve()).startswith(_LIBRARIES)
        or _LIBRARY_FOLDERS.intersection(path.parts)
    )
