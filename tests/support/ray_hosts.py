"""A real Ray cluster of two hosts, n1 (the head) and n2."""

import importlib.util
import os
import shutil
import sys
import tempfile
import time
from pathlib import Path

from tests.support import root_hosts
from tests.support.root_hosts import NotHereError, RootHosts

_START_SECS = 150
_STARTS = 4  # Ray gives a node 30 s to start, which a busy machine may need longer for


def why_not():
    """Return why no Ray cluster can run here, or None."""
    if importlib.util.find_spec("ray") is None:
        return "ray not installed"
    return root_hosts.why_not()


class RayCluster(RootHosts):
    """Two hosts with one CPU and one GPU each, as Ray counts them."""

    def __init__(self):
        super().__init__("ry", ("10.78.0.11", "10.78.0.12"))
        # Ray's sockets are in it, and the name of a socket must be short.
        self._root = Path(tempfile.mkdtemp(prefix="ray-", dir="/tmp"))
        self._address = f"{self.addresses['n1']}:6379"
        self._nodes = {}

    def begin(self, *command, cwd):
        """Start a command on the head, in a new session, with its output in `output`."""
        return self.spawn("n1", cwd / "output", *command, cwd=cwd)

    def start(self):
        """Create the hosts, and start Ray on both."""
        super().start()
        for folder in ("tmp", *self.addresses):
            (self._root / folder).mkdir()
        (self._root / "token").write_text("0123456789abcdef" * 4)
        for host in self.addresses:
            self.start_node(host)

    def start_node(self, host):
        """Start Ray on a host, again if it takes longer than Ray allows."""
        is_head = host == "n1"
        ray = [sys.executable, "-m", "ray.scripts.scripts", "start"]
        ray += ["--head", "--port=6379"] if is_head else [f"--address={self._address}"]
        ray += ["--include-dashboard=false", f"--temp-dir={self._root}/tmp"] if is_head else []
        ray += [f"--node-ip-address={self.addresses[host]}", "--num-cpus=1", "--num-gpus=1"]
        ray += ["--disable-usage-stats", "--object-store-memory=80000000", "--block"]
        for number in range(_STARTS):
            log = self._root / f"{host}.{number}.log"
            command = ["setpriv", "--pdeathsig", "KILL", *ray]
            self._nodes[host] = self.spawn(host, log, *command)
            end = time.monotonic() + _START_SECS
            while time.monotonic() < end and self._nodes[host].poll() is None:
                if "Ray runtime started." in log.read_text():
                    return
                time.sleep(0.2)
            self.kill(host)
        raise NotHereError(f"no Ray: {host} does not start: {log.read_text()[-500:]}")

    def kill(self, host):
        """Kill every process on a host at once."""
        super().kill(host)
        if host in self._nodes:
            self._nodes[host].wait(root_hosts.SECS)

    def stop(self):
        """End every process on the hosts, and remove them."""
        super().stop()
        shutil.rmtree(self._root, ignore_errors=True)

    def _on(self, host, *command):
        # Each host has its own temporary files of Ray, at the same place.
        return self.on(host, f"mount --bind {self._root}/{host} {self._root}/tmp", *command)

    def _environment(self):
        return {
            **os.environ,
            "RAY_ADDRESS": self._address,
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN_PATH": str(self._root / "token"),
            "RAY_agent_register_timeout_ms": "120000",
        }
