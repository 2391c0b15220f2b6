"""Pods for tests: what a process sees in a pod of a Job, without Kubernetes.

Each has a network of its own behind a bridge, a host name, and its own process ids: its command is
process 1. One that takes the place of another has a new address. /etc/hosts stands in for the DNS
of the headless Service.
"""

import os
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import yaml

from tests.support.namespaces import namespaces
from tests.support.processes import ROOT

TIMEOUT_SECS = 600
_DOMAIN = "default.svc.cluster.local"

_NETWORK = """
mount -t tmpfs none /run
mkdir /run/netns
ip link add pods type bridge
ip link set lo up
ip addr add 10.77.0.1/24 dev pods
ip link set pods up
for index in $(seq 0 $(($1 - 1))); do
  ip netns add pod-$index
  ip link add to-$index type veth peer name eth0 netns pod-$index
  ip link set to-$index master pods
  ip link set to-$index up
  ip -n pod-$index link set eth0 up
  ip -n pod-$index link set lo up
done
# What a pod needs besides, so that a system that forbids it is known before one starts.
nsenter --net=/run/netns/pod-0 unshare --uts --mount --pid --fork --kill-child --mount-proc \
  sh -c 'hostname pod && mount --bind /etc/hosts /etc/hosts'
"""

_POD = """set -e
hostname "$1"
ip addr flush dev eth0
ip addr add "$2/24" dev eth0
mount --bind "$3" /etc/hosts
cd "$4"
shift 4
exec "$@"
"""


class Pod:
    """A pod that was started.

    Attributes:
        process: the process outside, which ends with the pod, by the same exit code unless the
            pod was killed.
        was_killed: whether it was.
    """

    def __init__(self, process, output):
        self.process = process
        self.was_killed = False
        self._output = output

    def kill(self):
        """Kill the pod, as when its node is lost: its process 1 takes all others along."""
        if self.process.poll() is None:
            self.was_killed = True
            # Not the process outside: it would be gone before those within.
            self._signal_first(signal.SIGKILL)
        self.process.wait(TIMEOUT_SECS)

    def terminate(self):
        """Send SIGTERM to process 1, as Kubernetes does first."""
        self._signal_first(signal.SIGTERM)

    def _signal_first(self, number):
        os.kill(self.first_pid, number)

    @property
    def first_pid(self):
        """The process id that process 1 has outside."""
        outside = self.process.pid
        inside = Path(f"/proc/{outside}/task/{outside}/children").read_text().split()
        return int(inside[0]) if inside else outside

    def output(self):
        """Return what it has printed."""
        self._output.flush()
        return Path(self._output.name).read_text()


class Pods:
    """The pods of one Job."""

    def __init__(self, folder, job, service, image, network):
        self._folder = folder
        self._network = network
        self._image = image
        self._started = []
        self._has_dns = False
        self.count = job["spec"]["completions"]
        self._pod = job["spec"]["template"]["spec"]
        self._name = job["metadata"]["name"]
        self._domain = f"{self._pod['subdomain']}.{_DOMAIN}"
        assert service["metadata"]["name"] == self._pod["subdomain"]
        # index -> address; 0: none yet
        self._addresses = dict.fromkeys(range(self.count), 0)
        self._write_hosts()

    def resolve(self, has_dns=True):
        """Let the DNS know all pods from now on; before, a pod knows itself alone."""
        self._has_dns = has_dns
        self._write_hosts()

    def start(self, index):
        """Start a pod with an address of its own, and nothing in its folder but its image."""
        number = len(self._started)
        disk = self._folder / f"disk-{number}"
        disk.mkdir(parents=True)
        for name, text in self._image.items():
            (disk / name).write_text(text)
        self._addresses[index] = 100 + number
        self._write_hosts()
        (container,) = self._pod["containers"]
        assert container["command"] == ["steadfast"]
        given = {variable["name"]: variable["value"] for variable in container["env"]}
        own = {"JOB_COMPLETION_INDEX": str(index), "HOME": str(disk)}
        environment = {**os.environ, **given, **own}
        for name in ("TF_CONFIG", "STEADFAST_FORK_SERVER"):
            environment.pop(name, None)
        command = [
            *self._network.enter, "nsenter", f"--net=/run/netns/pod-{index}",
            "unshare", "--uts", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc",
            "sh", "-c", _POD, "sh", f"{self._name}-{index}", self._address(index),
            str(self._hosts(index)), str(disk),
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

    def output(self):
        """Return what all pods have printed."""
        return "\n".join(pod.output() for pod in self._started)

    def close(self):
        """End the pods that are left."""
        for pod in self._started:
            pod.kill()

    def _hosts(self, index):
        return self._folder / f"hosts-{index}"

    def _address(self, index):
        return f"10.77.0.{self._addresses[index]:03}"

    def _write_hosts(self):
        for own in self._addresses:
            text = "127.0.0.1\tlocalhost\n"
            for index, number in self._addresses.items():
                name = f"{self._name}-{index}"
                line = f"{self._address(index)}\t{name}.{self._domain}\t{name}\n"
                is_known = number and (self._has_dns or index == own)
                text += line if is_known else f"#{line[1:]}"
            # In place, by one write of the same length: pods have mounted this very file, and may
            # be reading it.
            file = os.open(self._hosts(own), os.O_WRONLY | os.O_CREAT)
            os.pwrite(file, text.encode(), 0)
            os.close(file)


class Controller:
    """What Kubernetes does for a Job: a pod that ends before its work gets a successor.

    Attributes:
        source: where the pods come from.
        pods: the newest pod of each index.
        failures: the exit codes of pods that have failed; of those that were killed None.
    """

    def __init__(self, pods, job):
        self.source = pods
        self._max_failures = job["spec"]["backoffLimit"]
        rules = job["spec"]["podFailurePolicy"]["rules"]
        self._ignored = [
            code for rule in rules for code in rule.get("onExitCodes", {}).get("values", ())
        ]
        self.failures = []
        self.pods = [pods.start(index) for index in range(pods.count)]

    def is_done(self):
        """Replace the pods that have ended; return whether all have completed."""
        for index, pod in enumerate(self.pods):
            if code := pod.process.poll():
                if code not in self._ignored:
                    self.failures.append(None if pod.was_killed else code)
                assert len(self.failures) <= self._max_failures, self.output()
                self.pods[index] = self.source.start(index)
        return all(pod.process.poll() == 0 for pod in self.pods)

    def wait_for(self, condition, what):
        """Replace pods until a condition holds, or the Job has completed."""
        until = time.monotonic() + TIMEOUT_SECS
        while not self.is_done() and not condition():
            assert time.monotonic() < until, f"{what}: not after {TIMEOUT_SECS} s\n{self.output()}"
            time.sleep(0.1)

    def output(self):
        """Return what all pods have printed, also the earlier ones."""
        return self.source.output()


def job_of(arguments, count):
    """Return the objects of the Job in the docs, with other arguments and number of pods."""
    text = (ROOT / "docs" / "examples" / "kubernetes" / "job.yaml").read_text()
    objects = list(yaml.safe_load_all(text))
    spec = objects[-1]["spec"]
    spec["completions"] = spec["parallelism"] = count
    (container,) = spec["template"]["spec"]["containers"]
    container["args"] = [*arguments]
    container["env"][0]["value"] = str(count)
    return objects


@contextmanager
def pods_of(folder, objects, image):
    """Yield the pods of a Job; skip the test where the system forbids namespaces."""
    folder.mkdir()
    job, service = objects[-1], objects[0]
    with namespaces(_NETWORK, str(job["spec"]["completions"])) as network:
        pods = Pods(folder, job, service, image, network)
        try:
            yield pods
        finally:
            pods.close()
