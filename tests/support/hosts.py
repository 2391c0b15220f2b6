"""Two hosts for tests: network namespaces of this machine that a cable connects.

Each has a host name. They share its files and its process ids. All ends with this process: nothing
of it is seen outside, and nothing remains.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.processes import ROOT

_SECS = 60

_NETWORK = """set -e
mount -t tmpfs none /run
mkdir /run/netns
ip netns add host-0
ip netns add host-1
ip link add eth0 netns host-0 type veth peer name eth0 netns host-1
for index in 0 1; do
  ip -n host-$index addr add 10.78.0.$((10 + index))/24 dev eth0
  ip -n host-$index link set eth0 up
  ip -n host-$index link set lo up
done
echo ready
exec cat
"""

_COMMAND = 'hostname "$1" && cd "$2" && shift 2 && exec "$@"'


class Hosts:
    """The hosts host-0 and host-1, whose addresses are 10.78.0.10 and 10.78.0.11."""

    def __init__(self) -> None:
        self._started: list[subprocess.Popen[str]] = []
        self._holder = subprocess.Popen(
            [
                *("unshare", "--user", "--map-root-user", "--net", "--mount"),
                *("sh", "-c", _NETWORK),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self._holder.stdout is not None
        assert self._holder.stderr is not None
        if self._holder.stdout.readline() != "ready\n":
            reason = self._holder.stderr.read().strip()
            self.close()
            pytest.skip(f"no networks of one's own here: {reason}")

    def start(
        self, host: int, directory: Path, *overrides: str, **environment: str
    ) -> subprocess.Popen[str]:
        """Start `train.py` on a host; the process is the command itself."""
        command = [sys.executable, str(ROOT / "train.py"), *overrides]
        return self.start_program(host, directory, *command, **environment)

    def start_program(
        self, host: int, directory: Path, *command: str, **environment: str
    ) -> subprocess.Popen[str]:
        """Start a program on a host; the process is the program itself."""
        inherited = dict(os.environ)
        # A fork server is on the network on which it was started.
        inherited.pop("STEADFAST_FORK_SERVER", None)
        on_host = [
            *("nsenter", f"--target={self._holder.pid}", "--user", "--mount", "--net"),
            *("--preserve-credentials", "nsenter", f"--net=/run/netns/host-{host}"),
            # nsenter leaves the directory
            *("unshare", "--uts", "sh", "-c", _COMMAND, "sh", f"host-{host}", str(directory)),
            *command,
        ]
        process = subprocess.Popen(
            on_host,
            env=inherited | environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self._started.append(process)
        return process

    def close(self) -> None:
        """End what is left."""
        for process in self._started:
            if process.poll() is None:
                process.kill()
                process.communicate(timeout=_SECS)
        self._holder.kill()
        self._holder.communicate(timeout=_SECS)


@contextmanager
def two_hosts() -> Iterator[Hosts]:
    """Yield two hosts; skip the test where the system forbids namespaces."""
    for program in ("unshare", "nsenter", "mount", "ip"):
        if shutil.which(program) is None:
            pytest.skip(f"no {program} here")
    hosts = Hosts()
    try:
        yield hosts
    finally:
        hosts.close()
