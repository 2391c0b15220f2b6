"""One fork server for all commands that this process's tests run."""

import os
import tempfile
from collections.abc import Callable

from trainer.launch.fork_server import ForkServer


def start() -> Callable[[], None]:
    """Start it, and have commands use it; return the function that ends it."""
    # Not one that the user's own commands have left, and no place where they would find this one.
    runtime = tempfile.TemporaryDirectory(prefix="steadfast-tests-")
    os.environ["XDG_RUNTIME_DIR"] = runtime.name
    server = ForkServer.acquire()
    os.environ["STEADFAST_FORK_SERVER"] = str(server.directory)

    def end() -> None:
        server.release()
        runtime.cleanup()

    return end
