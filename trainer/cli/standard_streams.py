"""The standard streams of a command: any text can be printed, also to a closed pipe."""

from __future__ import annotations

import io
import os
import sys
from contextlib import suppress


class StandardStream(io.TextIOWrapper):
    """A stream that drops what it cannot write, so that training continues.

    Attributes:
        problem: why text was lost; empty: none was, or only its reader has gone (`| head`).
    """

    problem = ""

    def write(self, text: str) -> int:
        """Write text; characters that the encoding lacks are escaped."""
        try:
            return super().write(text)
        except OSError as error:
            self._discard(error)
            return len(text)

    def flush(self) -> None:
        try:
            super().flush()
        except OSError as error:
            self._discard(error)

    def _discard(self, error: OSError) -> None:
        """Drop what is written from now on, and what is still buffered."""
        if not isinstance(error, BrokenPipeError):
            self.problem = error.strerror or str(error)
        with suppress(OSError, ValueError):
            null = os.open(os.devnull, os.O_WRONLY)
            os.dup2(null, self.fileno())
            os.close(null)


def prepare() -> None:
    """Replace the standard streams; a closed one becomes /dev/null.

    Otherwise the next file that is opened would take its descriptor, and receive the output.
    """
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            null = os.open(os.devnull, os.O_RDWR)  # the lowest free descriptor
            if null != descriptor:
                os.dup2(null, descriptor)
                os.close(null)
    for descriptor, name in enumerate(("stdout", "stderr"), 1):
        stream = getattr(sys, name)
        encoding = stream.encoding if stream else "utf-8"
        is_unbuffered = bool(stream and stream.write_through)  # PYTHONUNBUFFERED
        buffer = stream.detach() if stream else open(descriptor, "wb", closefd=False)  # noqa: SIM115
        replacement = StandardStream(
            buffer,
            encoding,
            errors="backslashreplace",
            line_buffering=name == "stderr" or os.isatty(descriptor),
            write_through=is_unbuffered,
        )
        setattr(sys, name, replacement)
        setattr(sys, f"__{name}__", replacement)  # `shutil` reads the terminal's size from this one


def lost_output() -> str:
    """Flush standard output; return why some of it was lost, or nothing."""
    sys.stdout.flush()
    return getattr(sys.stdout, "problem", "")
