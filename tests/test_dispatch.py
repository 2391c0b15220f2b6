"""What the exit code of a command says: 2 is for wrong input alone."""

import errno
import os
import subprocess
import sys

import pytest

from tests.support.command_line import run_here
from trainer.cli import overrides
from trainer.cli.commands import runs
from trainer.errors import StorageError
from trainer.sweep import driver

STORAGE = [
    (StorageError("runs could not be written: No space left on device"), "runs could not be"),
    (OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "a/b"), "a/b: No space left on device"),
    (PermissionError(errno.EACCES, os.strerror(errno.EACCES), "a"), "a: Permission denied"),
]
READING = (overrides, "_saved_command", ["resume=runs/a"])
COMMANDS = {
    "a subcommand": (runs, "run", ["runs", "."]),
    "a sweep": (driver, "run_sweep", ["-m", "seed=1,2"]),
}


def failing(monkeypatch, command, error):
    module, function, words = COMMANDS.get(command, READING)

    def fail(*arguments):
        raise error

    monkeypatch.setattr(module, function, fail)
    return run_here(*words)


@pytest.mark.parametrize("command", [*COMMANDS, "a run that is read"])
@pytest.mark.parametrize(("error", "line"), STORAGE)
def test_error_of_storage_is_1_in_one_line(monkeypatch, command, error, line):
    outcome = failing(monkeypatch, command, error)
    assert (outcome.code, outcome.err.count("\n")) == (1, 1), outcome.err
    assert outcome.err.startswith(f"error: {line}")


@pytest.mark.parametrize("error", [ValueError("no"), FileNotFoundError(2, "gone", "a")])
def test_fault_of_the_program_is_1_with_its_traceback(monkeypatch, error):
    outcome = failing(monkeypatch, "a subcommand", error)
    assert outcome.code == 1
    assert outcome.err.startswith("Traceback")
    assert type(error).__name__ in outcome.err


LATE_INTERRUPT = """
import signal
from types import SimpleNamespace
from trainer import dispatch, main

# A shell has its background processes ignore it.
signal.signal(signal.SIGINT, signal.default_int_handler)
main.ForkServer = SimpleNamespace(acquire=lambda: SimpleNamespace(release=interrupt))
dispatch.main = lambda server: {action}

def interrupt():
    signal.raise_signal(signal.SIGINT)

main.main()
"""


@pytest.mark.parametrize(
    ("action", "code"), [("exit(130)", 130), ("interrupt()", 130), ("exit(0)", 0)]
)
def test_interrupt_while_the_command_ends_prints_no_traceback(action, code):
    program = LATE_INTERRUPT.replace("{action}", action)
    ended = subprocess.run(
        [sys.executable, "-c", program], stderr=subprocess.PIPE, timeout=60, check=False
    )
    assert (ended.returncode, ended.stderr) == (code, b"")
