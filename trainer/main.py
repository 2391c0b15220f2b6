"""The program: starts a fork server, which imports TensorFlow, and reads the command line."""

from __future__ import annotations

import os
import signal
import sys
from typing import NoReturn

from trainer.cli import standard_streams
from trainer.cli.command_table import COMMANDS
from trainer.cluster.environment import take_caller
from trainer.cluster.fork_server import ForkServer
from trainer.cluster.signals import stop_with, survive_saves
from trainer.errors import CRASHED, WRONG_INPUT


def main() -> NoReturn:
    """Run the command line in `sys.argv`, and exit with its code."""
    standard_streams.prepare()
    survive_saves()
    if (caller := take_caller()) is not None:
        stop_with(caller)
    try:
        os.getcwd()
    except OSError as error:
        print(
            f"error: the working directory cannot be used: {error.strerror}; it may have been "
            "removed: change into one that exists",
            file=sys.stderr,
        )
        sys.exit(WRONG_INPUT)
    server = ForkServer.acquire() if _will_train(sys.argv[1:]) else None
    try:
        # Only now: importing Hydra and composing take half a second, in which the server starts.
        from trainer import dispatch

        dispatch.main(server)
    except KeyboardInterrupt:
        sys.exit(128 + signal.SIGINT)
    finally:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # what follows takes a moment
        if server is not None:
            server.release()
        if problem := standard_streams.lost_output():
            print(f"error: standard output could not be written: {problem}", file=sys.stderr)
            sys.exit(CRASHED)


def _will_train(arguments: list[str]) -> bool:
    """Guess whether the command line needs workers.

    It does not for a command, help, a sweep of finished points, or training in this process.
    """
    if arguments and arguments[0] in COMMANDS:
        return False
    return not any(
        argument.startswith(("-", "launch=", "launch.inline=", "mode=verify"))
        and not argument.startswith(("--config-dir", "-cd"))
        for argument in arguments
    )
