"""Pods for tests: what a process sees in a pod of a Job, without Kubernetes.

Each has a network of its own behind a bridge, a host name, and its own process ids: its command is
process 1. /etc/hosts stands in for the DNS of the headless Service. All is in namespaces that end
with this process: nothing of it is seen outside, and nothing remains.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import pytest

from tests.support.processes import ROOT

TIMEOUT_SECS = 240
_DOMAIN = "default.svc.cluster.local"

_NETWORK = """set -e
mount -t tmpfs none /run
mkdir /run/netns
ip link add pods type bridge
ip link set pods up
for index in $(seq 0 $(($1 - 1))); do
  ip netns add pod-$index
  ip link add to-$index type veth peer name eth0 netns pod-$index
  ip link set to-$index master pods
  ip link set to-$index up
  ip -n pod-$index addr add 10.77.0.$((10 + index))/24 dev eth0
  ip -n pod-$index link set eth0 up
  ip -n pod-$index link set lo up
done
# What a pod needs besides, so that a system that forbids it is known before one starts.
nsenter --net=/run/netns/pod-0 unshare --uts --mount --pid --fork --kill-child --mount-proc \
  sh -c 'hostname pod && mount --bind /etc/hosts /etc/hosts'
echo ready
exec cat
"""

_POD = """set -e
hostname "$1"
mount --bind "$2" /etc/hosts
cd "$3"
shift 3
exec "$@"
"""


class Pod:
    """A pod that was started.

    Attributes:
        process: the process outside, which ends with the pod, by the same exit code.
    """

    def __init__(self, process: subprocess.Popen[str], output: IO[str]) -> None:
        self.process = process
        self._output = output

    def wait(self) -> int:
        """Return the exit code of process 1; negative for the signal that killed it."""
        try:
            return self.process.wait(TIMEOUT_SECS)
        except subprocess.TimeoutExpired:
            self.kill()
            raise AssertionError(f"still running after {TIMEOUT_SECS} s\n{self.output()}") from None

    def kill(self) -> None:
        """Kill the pod, as when its node is lost: its process 1 takes all others along."""
        if self.process.poll() is None:
            # Not the process outside: it would be gone before those within.
            self._signal_first(signal.SIGKILL)
        self.process.wait(TIMEOUT_SECS)

    def terminate(self) -> None:
        """Send SIGTERM to process 1, as Kubernetes does first."""
        self._signal_first(signal.SIGTERM)

    def _signal_first(self, number: int) -> None:
        outside = self.process.pid
        inside = Path(f"/proc/{outside}/task/{outside}/children").read_text().split()
        for pid in inside or [outside]:
            os.kill(int(pid), number)

    def output(self) -> str:
        """Return what it has printed."""
        self._output.flush()
        return Path(self._output.name).read_text()


class Pods:
    """The pods of one Job.

    Args:
        folder: for what belongs to the pods; each one that is started gets an empty folder.
        job: the Job, as `kubernetes` prints it.
        service: its Service.
    """

    def __init__(self, folder: Path, job: Mapping[str, Any], service: Mapping[str, Any]) -> None:
        self._folder = folder
        self._pod = job["spec"]["template"]["spec"]
        self._name = job["metadata"]["name"]
        self._domain = f"{self._pod['subdomain']}.{_DOMAIN}"
        assert service["metadata"]["name"] == self._pod["subdomain"]
        self._count = job["spec"]["completions"]
        self._started: list[Pod] = []
        for index in range(self._count):
            text = f"127.0.0.1\tlocalhost\n{self._line(index)}"
            self._hosts(index).write_text(text)
        self._holder = subprocess.Popen(
            [
                *("unshare", "--user", "--map-root-user", "--net", "--mount"),
                *("sh", "-c", _NETWORK, "sh", str(self._count)),
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

    def resolve(self) -> None:
        """Let the DNS know all pods from now on; before, a pod knows itself alone."""
        for index in range(self._count):
            others = [self._line(other) for other in range(self._count) if other != index]
            # Appended, because the pods have mounted this very file, and may be reading it.
            with self._hosts(index).open("a") as file:
                file.write("".join(others))

    def start(self, index: int, files: Mapping[str, str] | None = None) -> Pod:
        """Start a pod with an empty folder, in which there are these files of its image."""
        number = len(self._started)
        disk = self._folder / f"disk-{number}"
        disk.mkdir(parents=True)
        for name, text in (files or {}).items():
            (disk / name).write_text(text)
        (container,) = self._pod["containers"]
        assert container["command"] == ["steadfast"]
        given = {variable["name"]: variable["value"] for variable in container["env"]}
        own = {"JOB_COMPLETION_INDEX": str(index), "HOME": str(disk)}
        environment = {**os.environ, **given, **own}
        for name in ("TF_CONFIG", "STEADFAST_FORK_SERVER", "XDG_RUNTIME_DIR"):
            environment.pop(name, None)
        command = [
            "nsenter", f"--target={self._holder.pid}", "--user", "--mount", "--net",
            "--preserve-credentials",
            "nsenter", f"--net=/run/netns/pod-{index}",
            "unshare", "--uts", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc",
            "sh", "-c", _POD, "sh", f"{self._name}-{index}", str(self._hosts(index)), str(disk),
            sys.executable, str(ROOT / "train.py"), *container["args"],
        ]  # fmt: skip
        output = (self._folder / f"output-{number}").open("w")
        process = subprocess.Popen(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self._started.append(Pod(process, output))
        return self._started[-1]

    def close(self) -> None:
        """End what is left."""
        for pod in self._started:
            pod.kill()
        self._holder.kill()
        self._holder.communicate()

    def _hosts(self, index: int) -> Path:
        return self._folder / f"hosts-{index}"

    def _line(self, index: int) -> str:
        name = f"{self._name}-{index}"
        return f"10.77.0.{10 + index}\t{name}.{self._domain}\t{name}\n"


@contextmanager
def pods_of(folder: Path, objects: Sequence[Mapping[str, Any]]) -> Iterator[Pods]:
    """Yield the pods of a Job; skip the test where the system forbids namespaces."""
    for program in ("unshare", "nsenter", "mount", "ip"):
        if shutil.which(program) is None:
            pytest.skip(f"no {program} here")
    folder.mkdir()
    pods = Pods(folder, objects[-1], objects[0])
    try:
        yield pods
    finally:
        pods.close()
