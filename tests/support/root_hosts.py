"""Two hosts, n1 and n2, of a real scheduler: network namespaces of this machine. Needs root."""

import os
import shutil
import signal
import subprocess
from contextlib import contextmanager, suppress
from typing import TypeVar

import pytest

from tests.support.processes import wait_until

SECS = 120
PROGRAMS = ("ip", "nsenter", "unshare", "setpriv", "mount")


def why_not(*programs):
    """Return why such hosts with some programs cannot run here, or None."""
    if os.geteuid():
        return "needs root, for network namespaces"
    missing = [name for name in (*PROGRAMS, *programs) if shutil.which(name) is None]
    return f"{', '.join(missing)} not installed" if missing else None


class NotHereError(Exception):
    """The scheduler does not start on this machine."""


class RootHosts:
    """Two hosts that a cable connects; they share all files."""

    def __init__(self, name, addresses):
        self.addresses = dict(zip(("n1", "n2"), addresses, strict=True))
        self._name = f"{name}{os.getpid()}"

    def start(self):
        """Create the hosts, and start the scheduler.

        Raises:
            NotHereError: it does not start.
            subprocess.CalledProcessError: the system refuses.
        """
        for host in self.addresses:
            self._ip("netns", "add", self.namespace(host))
            self.configure(host, "link", "set", "lo", "up")
        peer = ("peer", "name", "eth0", "netns", self.namespace("n2"))
        self.configure("n1", "link", "add", "eth0", "type", "veth", *peer)
        for host, address in self.addresses.items():
            self.configure(host, "addr", "add", f"{address}/24", "dev", "eth0")
            self.configure(host, "link", "set", "eth0", "up")
            # A scheduler may take the address from which it would reach the Internet.
            self.configure(host, "route", "add", "default", "dev", "eth0")

    def stop(self):
        """End every process on the hosts, and remove them."""
        for host in reversed(self.addresses):
            with suppress(subprocess.CalledProcessError):
                self.kill(host)
                self._ip("netns", "del", self.namespace(host))

    def namespace(self, host):
        """Return the name of a host's network namespace."""
        return f"{self._name}-{host}"

    def configure(self, host, *words):
        """Change the network of a host."""
        self._ip("-n", self.namespace(host), *words)

    def pids(self, host):
        """Return the processes on a host."""
        return [int(pid) for pid in self._ip("netns", "pids", self.namespace(host)).split()]

    def kill(self, host):
        """Kill every process on a host, as a power cut does."""

        def is_dead():
            pids = self.pids(host)
            for pid in pids:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            return not pids

        wait_until(is_dead, problem=f"{host} does not die")

    def spawn(self, host, log, *command, cwd=None):
        """Start a command on a host, in a new session, with its output in a file."""
        with log.open("ab") as output:
            return subprocess.Popen(
                self._on(host, *command),
                cwd=cwd,
                env=self._environment(),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )

    def on(self, host, prepare, *command):
        """Return a command that runs another one on a host, after some words of the shell."""
        # Not `ip netns exec`: it mounts another /sys, in which slurmd finds no cgroups.
        isolated = ["nsenter", f"--net=/run/netns/{self.namespace(host)}", "unshare", "--uts"]
        script = f'hostname {host}; {prepare}; exec "$@"'
        return [*isolated, "--mount", "sh", "-c", script, "sh", *command]

    @staticmethod
    def _ip(*arguments):
        return subprocess.run(
            ["ip", *arguments], capture_output=True, text=True, timeout=SECS, check=True
        ).stdout


_Hosts = TypeVar("_Hosts", bound=RootHosts)


@contextmanager
def running(hosts):
    """Run a scheduler while the block lasts; skip the tests where it does not start."""
    try:
        try:
            hosts.start()
        except subprocess.CalledProcessError as error:
            pytest.skip(f"no network namespaces here: {error.stderr.strip()}")
        except NotHereError as error:
            pytest.skip(str(error))
        yield hosts
    finally:
        hosts.stop()
