"""A real Slurm of two hosts, n1 and n2."""

import functools
import os
import time
from contextlib import suppress
from pathlib import Path

from tests.support import root_hosts
from tests.support.processes import run_program, wait_until
from tests.support.root_hosts import SECS, NotHereError, RootHosts

_PROGRAMS = ("slurmctld", "slurmd", "munged", "sbatch", "srun")
_DAEMONS = ("slurmctld ", "slurmd ", "munged ", ": slurmscriptd")
_UP = frozenset({"idle", "mixed", "allocated"})
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

until = functools.partial(wait_until, secs=600, pause_secs=0.5)
"""Wait for a condition that queries Slurm."""


def why_not():
    """Return why no Slurm can run here, or None."""
    return root_hosts.why_not(*_PROGRAMS)


class SlurmCluster(RootHosts):
    """Two hosts with a Slurm."""

    def __init__(self, root):
        super().__init__("sf", ("10.77.0.11", "10.77.0.12"))
        self._root = root
        self._daemons = []
        self._slurmds = {}

    def run(self, host, *command, cwd=None):
        """Run a command on a host; return what it prints."""
        return run_program(*self._on(host, *command), cwd=cwd, env=self._environment())

    def state(self, job):
        """Return the state of a job: `RUNNING`."""
        return self.field(job, "JobState")

    def field(self, job, name):
        """Return one of the values that Slurm shows of a job."""
        text = self.run("n1", "scontrol", "show", "job", job)
        return text.partition(f" {name}=")[2].split()[0]

    def update(self, job, setting):
        """Change a job: `timelimit=60`."""
        self.run("n1", "scontrol", "update", f"jobid={job}", setting)

    def wait(self, job, condition, secs):
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

    def connect(self, host):
        """Connect a host that was lost; return when it can have jobs."""
        self.configure(host, "link", "set", "eth0", "up")
        # Slurm queries a node that is declared down only after a quarter of an hour. A new daemon
        # registers at once, and leaves alone what runs on the node.
        self._slurmds[host].kill()
        self._slurmds[host].wait()
        self._slurmds[host] = self._daemon(host, "slurmd", "-D", "-N", host)
        words = ("sinfo", "-h", "-p", "main", "-n", host, "-o", "%T")
        until(lambda: self.run("n1", *words).strip() in _UP, problem=f"{host} does not come back")

    def lose(self, host):
        """Cut a host off the network, and kill all that runs on it, as when its power fails."""
        self.configure(host, "link", "set", "eth0", "down")
        self.kill(host)

    def declare(self, host, state):
        """Tell Slurm the state of a host: `down`, and its jobs are requeued."""
        self.run("n1", "scontrol", "update", f"nodename={host}", f"state={state}", "reason=test")

    def orphans(self, hosts=("n1", "n2")):
        """Return the command lines of processes on hosts that are no daemons of Slurm."""
        lines = []
        for pid in (pid for host in hosts for pid in self.pids(host)):
            with suppress(FileNotFoundError, ProcessLookupError):
                line = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
                lines.append(line.strip())
        return [line for line in lines if line and not line.startswith(_DAEMONS)]

    def start(self):
        """Create the hosts, and start the daemons."""
        super().start()
        root = self._root
        hosts = "".join(f"{address} {host}\n" for host, address in self.addresses.items())
        (root / "hosts").write_text(f"127.0.0.1 localhost\n{hosts}")
        (root / "slurm.conf").write_text(_CONF.format(root=root))
        for folder in ("ctld", *self.addresses):
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
        for host in self.addresses:
            self._slurmds[host] = self._daemon(host, "slurmd", "-D", "-N", host)
        self._until(
            lambda: self.run("n1", "sinfo", "-h", "-p", "main", "-o", "%t %D") == "idle 2\n"
        )

    def stop(self):
        """End every process on the hosts, and remove them."""
        super().stop()
        for daemon in self._daemons:
            daemon.kill()
            daemon.wait()

    def _on(self, host, *command):
        return self.on(host, f"mount --bind {self._root}/hosts /etc/hosts", *command)

    def _environment(self):
        return {**os.environ, "SLURM_CONF": str(self._root / "slurm.conf")}

    def _daemon(self, host, *command):
        output = self._root / f"{command[0]}.{host}.out"
        daemon = self.spawn(host, output, "setpriv", "--pdeathsig", "KILL", *command)
        self._daemons.append(daemon)
        return daemon

    def _until(self, condition):
        end = time.monotonic() + SECS
        while True:
            with suppress(AssertionError):
                if condition():
                    return
            logs = [path.read_text()[-500:] for path in self._root.glob("*.out")]
            if time.monotonic() > end:
                raise NotHereError(f"no Slurm: it does not start: {logs}")
            time.sleep(0.2)
