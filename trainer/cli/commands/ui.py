"""The command `ui [folder]`: shows runs in the browser while they train. No TensorFlow."""

from __future__ import annotations

import errno
import socket
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from trainer.cli.arguments import Parser
from trainer.cli.commands.command_arguments import DEFAULT_FOLDER, listed_runs
from trainer.cli.page.page_server import PageServer
from trainer.cli.page.run_data import Summaries
from trainer.errors import DONE, ConfigError
from trainer.sweep.search_data import searches_of

_PORTS = range(7070, 7120)


def run(arguments: Sequence[str]) -> int:
    """Serve the page of a folder's runs until Ctrl-C, and print its address."""
    parser = Parser("ui", "exit code: 130, when Ctrl-C ends it; the runs do not notice it")
    parser.add_argument(
        "folder",
        nargs="?",
        default=str(DEFAULT_FOLDER),
        help=f"a folder of runs, a run directory, or that of a sweep, runs/sweeps/<name>; "
        f"{DEFAULT_FOLDER}, unless another is named",
    )
    parser.add_argument(
        "--port",
        type=int,
        metavar="N",
        help=f"the port; the first free one from {_PORTS.start} on, unless one is named",
    )
    args = parser.parse_args(arguments)
    folder = Path(args.folder).expanduser()
    if folder != DEFAULT_FOLDER and not folder.is_dir():
        listed_runs("ui", args.folder)  # which suggests similar names
    summaries = Summaries(args.folder, lambda: _listing(args.folder), lambda: searches_of([folder]))
    with _bound(args.port, lambda port: PageServer(port, summaries)) as server:
        print(server.url)
        port = server.server_port
        print(
            f"From another machine: ssh -L {port}:127.0.0.1:{port} {socket.gethostname()}, and "
            "then the same address. Ctrl-C ends it."
        )
        if not summaries.listing():
            print(f"{args.folder} has no run yet: the page shows the first one when it starts.")
        sys.stdout.flush()
        # Many runs take a second; who opens the page need not wait for it.
        threading.Thread(target=summaries.payload, daemon=True).start()
        server.serve_forever()
    return DONE


def _listing(argument: str) -> dict[str, Path]:
    """Return the runs that are there now by name; a link may lead out of the folder, and is no run.

    A link that the user names is followed.
    """
    named = Path(argument).expanduser()
    with suppress(ConfigError, OSError):
        paths = listed_runs("ui", argument)
        return {path.name: path for path in paths if path == named or not path.is_symlink()}
    return {}


def _bound(port: int | None, bind: Callable[[int], PageServer]) -> PageServer:
    """Return a server at a port, or at the first free one; raise a ConfigError if there is none."""
    for number in _PORTS if port is None else [port]:
        try:
            return bind(number)
        except (OSError, OverflowError) as error:
            is_used = getattr(error, "errno", None) == errno.EADDRINUSE
            if port is None and is_used:
                continue
            reason = "it is in use" if is_used else getattr(error, "strerror", None)
            raise ConfigError(
                f"--port ({number}) cannot be used: {reason or 'it must be from 0 to 65535'}; "
                "name another one, or leave it out"
            ) from error
    raise ConfigError(
        f"no port from {_PORTS.start} to {_PORTS.stop - 1} is free; name another one with --port"
    )
