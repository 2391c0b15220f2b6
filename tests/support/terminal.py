"""Terminals for tests: a stream that claims to be one, what it shows, programs in a real one."""

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

from trainer.cli.terminal import Terminal


class FakeTerminal(io.StringIO):
    """Keeps what was written to a terminal."""

    def isatty(self):
        return True


class Clock:
    """Is moved by hand."""

    now = 1000.0

    def __call__(self):
        return self.now


def rendered(renderable, columns=80):
    """Return the lines of something that rich renders, without colors."""
    file = io.StringIO()
    Terminal(file, columns).print(renderable)
    return [line.rstrip() for line in file.getvalue().splitlines()]


def screen_of(text, *, colors=False):
    """Return the lines that a terminal shows; colors appear as <32> if `colors`.

    It knows only the sequences of lines above a block that is erased from its end.
    """
    lines = [""]
    for token in re.findall(r"\x1b\[[\d;]*[A-Za-z]|[\r\n]|[^\x1b\r\n]+", text):
        if token == "\x1b[1A":
            lines.pop()
        elif token == "\x1b[2K":
            lines[-1] = ""
        elif token == "\n":
            lines.append("")
        elif token.endswith("m") and token.startswith("\x1b"):
            lines[-1] += f"<{token[2:-1]}>" if colors else ""
        elif token != "\r":
            lines[-1] += token
    return [line.rstrip() for line in lines[:-1]]


def in_terminal(
    command,
    directory,
    timeout,
    *,
    interrupt=lambda text: 0,
    **environment,
):
    """Run a program in a pseudo-terminal; return its exit code and all that it wrote there.

    Args:
        command: the program and its arguments.
        directory: where.
        timeout: seconds after which it is killed, and the test fails.
        interrupt: called with the output so far; returns how often Ctrl-C is typed by now.
        environment: added to this process's.
    """
    process, ours = _start_in_terminal(command, directory, environment)
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
            if num_interrupts < interrupt(text):
                num_interrupts += 1
                os.write(ours, b"\x03")
        raise AssertionError(f"still running after {timeout} s\n{output.decode(errors='replace')}")
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
        os.close(ours)


def _start_in_terminal(command, directory, environment):
    """Start a program as the leader of a pseudo-terminal; return it and our end of the terminal."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 120, 0, 0))
    inherited = {
        name: value
        for name, value in os.environ.items()
        if name not in ("COLUMNS", "LINES", "NO_COLOR")
    }

    def lead():
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
