"""The program: starts importing TensorFlow in a worker at once, and reads the command line meanwhile. No TensorFlow here."""

from __future__ import annotations

import sys
from typing import NoReturn

from trainer.commands import COMMANDS
from trainer.process import WorkerProcess


def main() -> NoReturn:
    """Runs the command line in `sys.argv`, and leaves with its exit code."""
    spare = WorkerProcess() if _will_train(sys.argv[1:]) else None
    try:
        # Only now: importing Hydra and composing take a good half second, in which the worker is already on its way.
        from trainer import cli

        cli.main(spare)
    finally:
        if spare is not None:
            spare.discard()


def _will_train(arguments: list[str]) -> bool:
    """Guesses whether a worker will be needed: not to list or show something, to sweep, to verify, or to train in this process."""
    if arguments and arguments[0] in COMMANDS:
        return False
    none = ("-", "launch", "mode=verify")
    return not any(argument.startswith(none) and not argument.startswith(("--config-dir", "-cd")) for argument in arguments)
