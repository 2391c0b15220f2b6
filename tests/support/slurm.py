"""A real Slurm of two hosts, n1 and n2: network namespaces of this machine. Needs root."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

PROGRAMS = (
    "slurmctld",
    "slurmd",
    "munged",
    "sbatch",
    "srun",
    "nsenter",
    "unshare",
    "setpriv",
    "ip",
)
_DAEMONS = ("slurmctld ", "slurmd ", "munged ", ": slurmscriptd")
_SECS = 120
_UP = frozenset({"idle", "mixed", "allocated"})
_HOSTS = {"n1": "10.77.0.11", "n2": "10.77.0.12"}
_CONF = """\
ClusterName=steadfast
SlurmctldHost=n1(10.77.0.11)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={root}/munge.socket
CredType=cred/munge
MpiDefault=none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
JobCompType=jobcomp/none
SchedulerParameters=sched_interval=2,bf_interval=2
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
ReturnToService=2
KillWait=40
SlurmdTimeout=300
MinJobAge=600
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
SlurmctldPidFile={root}/slurmctld.pid
SlurmdPidFile={root}/slurmd.%n.pid
StateSaveLocation={root}/ctld
SlurmdSpoolDir={root}/%n
SlurmctldLogFile={root}/slurmctld.log
SlurmdLogFile={root}/slurmd.%n.log
SlurmdParameters=config_overrides
NodeName=n[1-2] CPUs=4 RealMemory=4000 State=UNKNOWN
PartitionName=main Nodes=n1,n2 Default=YES MaxTime=60 PriorityTier=1
PartitionName=urgent Nodes=n1,n2 MaxTime=60 PriorityTier=10 PreemptMode=OFF
"""


def until(condition: Callable[[], bool], problem: str, secs: float = 600) -> None:
    """Wait for a condition."""
    end = time.monotonic() + secs
    while not condition():
        assert time.monotonic() < end, problem
        time.sleep(0.5)


def why_not() -> str | None:
    """Return why there can be no Slurm here; None: there can."""
    if os.geteuid():
        return "needs root, for network namespaces"
    missing = [name for name in PROGRAMS if shutil.which(name) is None]
    return f"{', '.join(missing)} not installed" if missing else None


class NoSlurmError(Exception):
    """There can be no Slurm on this machine."""


class SlurmCluster:
    """Two hosts with a Slurm.

    Args:
        root: a folder for its state.
    """

    def __init__(self, root: Path) -> None:
        self._root = root
        self._prefix = f"sf{os.getpid()}-"
        self._daemons: list[subprocess.Popen[bytes]] = []
        self._slurmds: dict[str, subprocess.Popen[bytes]] = {}

    def run(self, host: str, *command: str, cwd: Path | None = None) -> str:
        """Run a command on a host; return what it prints."""
        done = subprocess.run(
            self._on(host, *command),
            cwd=cwd,
            env=self._environment(),
            capture_output=True,
            text=True,
            timeout=_SECS,
            check=False,
        )
        assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
        return done.stdout

    def begin(self, host: str, *command: str, cwd: Path) -> subprocess.Popen[str]:
        """Start a command on a host."""
        return subprocess.Popen(
            self._on(host, *command),
            cwd=cwd,
            env=self._environment(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def state(self, job: str) -> str:
        """Return the state of a job: `RUNNING`."""
        return self.field(job, "JobState")

    def field(self, job: str, name: str) -> str:
        """Return one of the values that Slurm shows of a job."""
        text = self.run("n1", "scontrol", "show", "job", job)
        return text.partition(f" {name}=")[2].split()[0]

    def update(self, job: str, setting: str) -> None:
        """Change a job: `timelimit=60`."""
        self.run("n1", "scontrol", "update", f"jobid={job}", setting)

    def wait(self, job: str, condition: Callable[[str], bool], secs: float) -> str:
        """Wait until the state of a job fulfils a condition; a requeued job need not wait."""
        end = time.monotonic() + secs
        before = ""
        while not condition(state := self.state(job)):
            assert time.monotonic() < end, f"{state}\n{self.run('n1', 'scontrol', 'show', 'jobs')}"
            if state == "PENDING" and before != state:
                with suppress(AssertionError):  # it has begun meanwhile
                    # In the second of its requeue, nodes refuse it: "Job credential revoked".
                    self.update(job, "starttime=now+2seconds")
            before = state
            time.sleep(0.5)
        return state

    def connect(self, host: str) -> None:
        """Connect a host that was cut off or lost; return when it can have jobs."""
        _ip("-n", self._prefix + host, "link", "set", "eth0", "up")
        # Slurm asks a node that it was told is down only after a quarter of an hour. A new daemon
        # registers at once, and leaves alone what runs on the node.
        self._slurmds[host].kill()
        self._slurmds[host].wait()
        self._slurmds[host] = self._daemon(host, "slurmd", "-D", "-N", host)
        words = ("sinfo", "-h", "-p", "main", "-n", host, "-o", "%T")
        until(lambda: self.run("n1", *words).strip() in _UP, f"{host} does not come back", _SECS)

    def cut(self, host: str) -> None:
        """Cut a host off the network; what runs on it goes on."""
        _ip("-n", self._prefix + host, "link", "set", "eth0", "down")

    def lose(self, host: str) -> None:
        """Cut a host off the network, and kill all that runs on it, as when its power fails."""
        self.cut(host)
        for pid in self.pids(host):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        until(lambda: not self.pids(host), f"{host} does not die")

    def declare(self, host: str, state: str) -> None:
        """Tell Slurm the state of a host: `down`, and its jobs are requeued."""
        self.run("n1", "scontrol", "update", f"nodename={host}", f"state={state}", "reason=test")

    def pids(self, host: str) -> list[int]:
        """Return the processes on a host."""
        return [int(pid) for pid in _ip("netns", "pids", self._prefix + host).split()]

    def orphans(self, hosts: Iterable[str] = _HOSTS) -> list[str]:
        """Return the command lines of processes on hosts that are no daemons of Slurm."""
        lines = []
        for pid in (pid for host in hosts for pid in self.pids(host)):
            with suppress(FileNotFoundError, ProcessLookupError):
                line = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
                lines.append(line.strip())
        return [line for line in lines if line and not line.startswith(_DAEMONS)]

    def start(self) -> None:
        """Create the hosts, and start the daemons.

        Raises:
            NoSlurmError: the system refuses.
        """
        try:
            self._create_hosts()
            self._start_daemons()
        except subprocess.CalledProcessError as error:
            raise NoSlurmError(error.stderr.strip()) from error

    def _create_hosts(self) -> None:
        names = [self._prefix + host for host in _HOSTS]
        for name in names:
            _ip("netns", "add", name)
            _ip("-n", name, "link", "set", "lo", "up")
        peer = ("peer", "name", "eth0", "netns", names[1])
        _ip("-n", names[0], "link", "add", "eth0", "type", "veth", *peer)
        for name, address in zip(names, _HOSTS.values(), strict=True):
            _ip("-n", name, "addr", "add", f"{address}/24", "dev", "eth0")
            _ip("-n", name, "link", "set", "eth0", "up")

    def _start_daemons(self) -> None:
        root = self._root
        hosts = "".join(f"{address} {host}\n" for host, address in _HOSTS.items())
        (root / "hosts").write_text(f"127.0.0.1 localhost\n{hosts}")
        (root / "slurm.conf").write_text(_CONF.format(root=root))
        for folder in ("ctld", *_HOSTS):
            (root / folder).mkdir()
        key = root / "munge.key"
        key.write_bytes(os.urandom(1024))
        key.chmod(0o400)
        munge = [f"--key-file={key}", f"--socket={root}/munge.socket"]
        munge += [f"--pid-file={root}/munged.pid", f"--log-file={root}/munged.log"]
        munge += [f"--seed-file={root}/munge.seed"]
        self._daemon("n1", "munged", "--foreground", "--force", *munge)
        self._until(lambda: (root / "munge.socket").exists())
        self._daemon("n1", "slurmctld", "-D")
        for host in _HOSTS:
            self._slurmds[host] = self._daemon(host, "slurmd", "-D", "-N", host)
        self._until(
            lambda: self.run("n1", "sinfo", "-h", "-p", "main", "-o", "%t %D") == "idle 2\n"
        )

    def stop(self) -> None:
        """End every process on the hosts, and remove them."""
        for host in _HOSTS:
            with suppress(subprocess.CalledProcessError):
                for pid in self.pids(host):
                    with suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
        for daemon in self._daemons:
            daemon.kill()
            daemon.wait()
        for host in _HOSTS:
            with suppress(subprocess.CalledProcessError):
                _ip("netns", "del", self._prefix + host)

    def _on(self, host: str, *command: str) -> list[str]:
        # Not `ip netns exec`: it mounts another /sys, in which slurmd finds no cgroups.
        prepare = f'hostname {host}; mount --bind {self._root}/hosts /etc/hosts; exec "$@"'
        network = f"--net=/run/netns/{self._prefix}{host}"
        isolated = ["nsenter", network, "unshare", "--uts", "--mount"]
        return [*isolated, "sh", "-c", prepare, "sh", *command]

    def _environment(self) -> dict[str, str]:
        return {**os.environ, "SLURM_CONF": str(self._root / "slurm.conf")}

    def _daemon(self, host: str, *command: str) -> subprocess.Popen[bytes]:
        with (self._root / f"{command[0]}.{host}.out").open("wb") as output:
            daemon = subprocess.Popen(
                self._on(host, "setpriv", "--pdeathsig", "KILL", *command),
                env=self._environment(),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        self._daemons.append(daemon)
        return daemon

    def _until(self, condition: Callable[[], bool]) -> None:
        end = time.monotonic() + _SECS
        while True:
            with suppress(AssertionError):
                if condition():
                    return
            logs = [path.read_text()[-500:] for path in self._root.glob("*.out")]
            if time.monotonic() > end:
                raise NoSlurmError(f"it does not start: {logs}")
            time.sleep(0.2)


@contextmanager
def slurm_cluster(root: Path) -> Iterator[SlurmCluster]:
    """Run a Slurm while the block lasts."""
    cluster = SlurmCluster(root)
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop()


def _ip(*arguments: str) -> str:
    return subprocess.run(
        ["ip", *arguments], capture_output=True, text=True, timeout=_SECS, check=True
    ).stdout
