"""A real Ray cluster of two hosts, n1 (the head) and n2: network namespaces. Needs root."""

from __future__ import annotations

import importlib.util
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_SECS = 60
_START_SECS = 150
_STARTS = 4  # Ray gives a node 30 s to start, which a busy machine may need longer for
_HOSTS = {"n1": "10.78.0.11", "n2": "10.78.0.12"}
_ADDRESS = f"{_HOSTS['n1']}:6379"
_PROGRAMS = ("ip", "nsenter", "unshare", "setpriv", "mount")


def why_not() -> str | None:
    """Return why there can be no Ray cluster here; None: there can."""
    if os.geteuid():
        return "needs root, for network namespaces"
    missing = [name for name in _PROGRAMS if shutil.which(name) is None]
    if importlib.util.find_spec("ray") is None:
        missing.append("ray")
    return f"{', '.join(missing)} not installed" if missing else None


class NoRayError(Exception):
    """There can be no Ray cluster on this machine."""


class RayCluster:
    """Two hosts with one CPU and one GPU each, as Ray counts them; they share all files."""

    def __init__(self) -> None:
        # Ray's sockets are in it, and the name of a socket must be short.
        self._root = Path(tempfile.mkdtemp(prefix="ray-", dir="/tmp"))
        self._prefix = f"ry{os.getpid()}-"
        self._nodes: dict[str, subprocess.Popen[bytes]] = {}

    def begin(self, *command: str, cwd: Path, joins: bool = True) -> subprocess.Popen[str]:
        """Start a command on the head, in a session of its own, with its output in `output`.

        Args:
            command: the words of the command.
            cwd: where it runs.
            joins: whether it finds the cluster; if not, there is no Ray for it.
        """
        environment = self._environment()
        if not joins:
            del environment["RAY_ADDRESS"]
            environment["RAY_TMPDIR"] = f"{self._root}/tmp"
        with (cwd / "output").open("a") as output:
            return subprocess.Popen(
                self._on("n1", *command),
                cwd=cwd,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                text=True,
                start_new_session=True,
            )

    def start(self) -> None:
        """Create the hosts, and start Ray on both.

        Raises:
            NoRayError: the system refuses.
        """
        try:
            self._create_hosts()
        except subprocess.CalledProcessError as error:
            raise NoRayError(error.stderr.strip()) from error
        for host in _HOSTS:
            self.start_node(host)

    def start_node(self, host: str) -> None:
        """Start Ray on a host, again if it takes longer than Ray allows."""
        role = (
            ["--head", "--port=6379", "--include-dashboard=false"]
            if host == "n1"
            else [f"--address={_ADDRESS}"]
        )
        ray = [sys.executable, "-m", "ray.scripts.scripts", "start", *role]
        ray += [f"--node-ip-address={_HOSTS[host]}", "--num-cpus=1", "--num-gpus=1"]
        ray += ["--disable-usage-stats", "--object-store-memory=80000000", "--block"]
        ray += [f"--temp-dir={self._root}/tmp"] if host == "n1" else []
        for number in range(_STARTS):
            log = self._root / f"{host}.{number}.log"
            with log.open("wb") as output:
                self._nodes[host] = subprocess.Popen(
                    self._on(host, "setpriv", "--pdeathsig", "KILL", *ray),
                    env=self._environment(),
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    start_new_session=True,
                )
            if self._has_started(host, log):
                return
            self.kill_node(host)
        raise NoRayError(f"{host} does not start: {log.read_text()[-500:]}")

    def pids(self, host: str) -> list[int]:
        """Return the processes on a host."""
        with suppress(subprocess.CalledProcessError):
            return [int(pid) for pid in _ip("netns", "pids", self._prefix + host).split()]
        return []

    def kill_node(self, host: str) -> None:
        """Kill every process on a host at once, as a power cut does."""
        end = time.monotonic() + _SECS
        while pids := self.pids(host):
            for pid in pids:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            if host in self._nodes:
                self._nodes[host].wait(_SECS)
            assert time.monotonic() < end, f"{host} does not die: {pids}"
            time.sleep(0.05)

    def stop(self) -> None:
        """End every process on the hosts, and remove them."""
        for host in reversed(_HOSTS):
            self.kill_node(host)
            with suppress(subprocess.CalledProcessError):
                _ip("netns", "del", self._prefix + host)
        shutil.rmtree(self._root, ignore_errors=True)

    def _create_hosts(self) -> None:
        names = [self._prefix + host for host in _HOSTS]
        for name, host in zip(names, _HOSTS, strict=True):
            _ip("netns", "add", name)
            _ip("-n", name, "link", "set", "lo", "up")
            (self._root / host).mkdir()
        (self._root / "tmp").mkdir()
        (self._root / "token").write_text("0123456789abcdef" * 4)
        peer = ("peer", "name", "eth0", "netns", names[1])
        _ip("-n", names[0], "link", "add", "eth0", "type", "veth", *peer)
        for name, address in zip(names, _HOSTS.values(), strict=True):
            _ip("-n", name, "addr", "add", f"{address}/24", "dev", "eth0")
            _ip("-n", name, "link", "set", "eth0", "up")
            # Ray takes the address from which it would reach the Internet.
            _ip("-n", name, "route", "add", "default", "dev", "eth0")

    def _has_started(self, host: str, log: Path) -> bool:
        end = time.monotonic() + _START_SECS
        while time.monotonic() < end and self._nodes[host].poll() is None:
            if "Ray runtime started." in log.read_text():
                return True
            time.sleep(0.2)
        return False

    def _on(self, host: str, *command: str) -> list[str]:
        # Each host has its own temporary files of Ray, at the same place.
        prepare = f'mount --bind {self._root}/{host} {self._root}/tmp; exec "$@"'
        network = f"--net=/run/netns/{self._prefix}{host}"
        isolated = ["nsenter", network, "unshare", "--uts", "--mount"]
        return [*isolated, "sh", "-c", f"hostname {host}; {prepare}", "sh", *command]

    def _environment(self) -> dict[str, str]:
        return {
            **os.environ,
            "RAY_ADDRESS": _ADDRESS,
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN_PATH": str(self._root / "token"),
            "RAY_agent_register_timeout_ms": "120000",
        }


@contextmanager
def ray_cluster() -> Iterator[RayCluster]:
    """Run a Ray cluster while the block lasts."""
    cluster = RayCluster()
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop()


def _ip(*arguments: str) -> str:
    return subprocess.run(
        ["ip", *arguments], capture_output=True, text=True, timeout=_SECS, check=True
    ).stdout
