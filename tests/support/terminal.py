"""Terminals for tests: a stream that claims to be one, an emulator, and programs in a real one."""

from __future__ import annotations

import fcntl
import io
import os
import pty
import re
import select
import signal
import struct
import subprocess
import termios
import time
from collections.abc import Callable, Mapping
from pathlib import Path

_TOKEN = re.compile(r"\x1b\[(\d*)([A-Za-z])|([\r\n])|([^\x1b\r\n]+)|(.)", re.DOTALL)


class Terminal(io.StringIO):
    """Keeps what was written to a terminal."""

    def isatty(self) -> bool:
        return True


class Clock:
    """Is moved by hand."""

    now = 1000.0

    def __call__(self) -> float:
        return self.now


class Emulator:
    """Emulates a terminal of so many columns; colors appear as <32> if `colors`.

    It knows only the sequences that this project writes; any other fails the test.
    """

    def __init__(self, columns: int = 1000, *, colors: bool = False) -> None:
        self._columns, self._colors = columns, colors
        self._lines, self._row, self._column = [""], 0, 0

    def feed(self, text: str) -> Emulator:
        for number, letter, control, plain, unknown in _TOKEN.findall(text):
            assert not unknown, f"{unknown!r} of {text!r}"
            if letter == "A":
                self._row -= int(number)
                assert self._row >= 0, "above the top"
            elif letter == "J":
                self._lines[self._row :] = [self._lines[self._row][: self._column]]
            elif letter == "m":
                self._put(f"<{number}>" if self._colors else "")
            elif letter:
                raise AssertionError(f"unknown sequence {letter!r}")
            elif control == "\r":
                self._column = 0
            elif control == "\n":
                self._feed_line()
            for start in range(0, len(plain), self._columns):
                if start:
                    self._feed_line()
                self._put(plain[start : start + self._columns])
        return self

    def _feed_line(self) -> None:
        self._row, self._column = self._row + 1, 0
        if self._row == len(self._lines):
            self._lines.append("")

    def _put(self, text: str) -> None:
        line = self._lines[self._row].ljust(self._column)
        self._lines[self._row] = line[: self._column] + text + line[self._column + len(text) :]
        self._column += len(text)

    @property
    def lines(self) -> list[str]:
        """What stands above the cursor, which must be at the start of an empty line."""
        assert (self._row, self._column, self._lines[-1]) == (len(self._lines) - 1, 0, ""), (
            "the cursor is somewhere else"
        )
        return [line.rstrip() for line in self._lines[:-1]]


def screen_of(text: str, columns: int = 1000, *, colors: bool = False) -> list[str]:
    """Return the lines that a terminal shows."""
    return Emulator(columns, colors=colors).feed(text).lines


def in_terminal(
    command: list[str],
    directory: Path,
    timeout: float,
    *,
    columns: int = 120,
    interrupt: Callable[[str], int] = lambda text: 0,
    seen: Callable[[str], object] = lambda text: None,
    **environment: str,
) -> tuple[int, str]:
    """Run a program in a pseudo-terminal; return its exit code and all that it wrote there.

    Args:
        command: the program and its arguments.
        directory: where.
        timeout: seconds after which it is killed, and the test fails.
        columns: width of the terminal.
        interrupt: called with the output so far; returns how often Ctrl-C is typed by now.
        seen: called with the output so far, whenever there is more.
        environment: added to this process's.
    """
    process, ours = _start_in_terminal(command, directory, columns, environment)
    output = b""
    num_interrupts = 0
    deadline = time.monotonic() + timeout
    try:
        while select.select([ours], [], [], max(0.0, deadline - time.monotonic()))[0]:
            try:
                output += os.read(ours, 65536)
            except OSError:  # the last one has closed it
                return process.wait(timeout=10), output.decode()
            text = output.decode(errors="replace")
            seen(text)
            if num_interrupts < interrupt(text):
                num_interrupts += 1
                os.write(ours, b"\x03")
        raise AssertionError(f"still running after {timeout} s\n{output.decode(errors='replace')}")
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
        os.close(ours)


def _start_in_terminal(
    command: list[str], directory: Path, columns: int, environment: Mapping[str, str]
) -> tuple[subprocess.Popen[bytes], int]:
    """Start a program as the leader of a pseudo-terminal; return it and our end of the terminal."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
    inherited = {
        name: value
        for name, value in os.environ.items()
        if name not in ("COLUMNS", "LINES", "NO_COLOR")
    }

    def lead() -> None:
        os.setsid()
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)
        signal.pthread_sigmask(signal.SIG_SETMASK, [])

    process = subprocess.Popen(
        command,
        cwd=directory,
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        preexec_fn=lead,
        env={**inherited, "TERM": "xterm", **environment},
    )
    os.close(theirs)
    return process, ours
