"""Fork servers for the commands that tests run: TensorFlow is imported once for many of them."""

import os
import subprocess
import sys
from contextlib import contextmanager

from trainer.cluster.fork_server import ForkServer

_SERVE = """
import sys

sys.path.insert(0, sys.argv[1])
from trainer.cluster.fork_server import ForkServer

server = ForkServer.acquire()
print(server.directory, flush=True)
sys.stdin.read()
server.release()
"""


def start():
    """Start it for all commands of this process's tests; return the function that ends it."""
    server = ForkServer.acquire()
    os.environ["STEADFAST_FORK_SERVER"] = str(server.directory)
    return server.release


@contextmanager
def fork_server_of(checkout, within=()):
    """Serve commands that `start` cannot: of another copy of the code, or in other namespaces.

    Yields:
        The environment variables that a command needs to use it.
    """
    process = subprocess.Popen(
        [*within, sys.executable, "-c", _SERVE, str(checkout)],
        env={**os.environ, "STEADFAST_FORK_SERVER": ""},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    try:
        yield {"STEADFAST_FORK_SERVER": process.stdout.readline().rstrip("\n")}
    finally:
        process.communicate(timeout=60)
