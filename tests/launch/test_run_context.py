"""The cluster of a run; and a run that an earlier start of the job still uses, also in a store."""

import json
import signal

import pytest

from tests.support.command_line import run_here
from tests.support.object_stores import MemoryStore
from trainer.cli.compose import compose
from trainer.cluster.signals import StopRequests
from trainer.cluster.spec import Cluster
from trainer.errors import DONE, ConfigError
from trainer.files import Lock
from trainer.launch import remote_run, run_context
from trainer.launch.remote_run import RemoteRun
from trainer.launch.run_context import Command, open_directory
from trainer.runs import directory
from trainer.runs.directory import RunInUseError
from trainer.runs.identity import run_address, run_path
from trainer.store.lease import Lease, read_manifest


@pytest.fixture
def command(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(directory, "_LOCK_WAIT_SECS", 0.0)
    monkeypatch.setattr(run_context, "_POLL_SECS", 0.0)
    return Command(compose([]), [])


def test_folder_in_which_none_can_be_made_is_refused():
    command = Command(compose(["runs_dir=/proc/x"]), [])
    with pytest.raises(ConfigError, match=r"^/proc/x/.* could not be .*; choose another folder by"):
        open_directory(command, Cluster(), Listener(lambda: None), StopRequests())


class Listener:
    """A console that does something when a line is shown."""

    def __init__(self, act):
        self.lines = []
        self._act = act

    def line(self, text):
        self.lines.append(text)
        self._act()


@pytest.mark.parametrize("variable", ["SLURM_JOB_ID", "JOB_COMPLETION_INDEX"])
def test_job_of_a_scheduler_waits_until_the_run_is_free(command, monkeypatch, variable):
    monkeypatch.setenv(variable, "1")
    earlier = directory.open_run(command.experiment, [], None)
    console = Listener(earlier.release)
    run = open_directory(command, Cluster(), console, StopRequests())
    assert run.path == earlier.path
    (line,) = console.lines
    assert line.startswith(f"warning: {run.path} is in use by another process (pid ")
    run.release()


def test_stop_request_ends_the_wait(command, monkeypatch):
    monkeypatch.setenv("SLURM_JOB_ID", "1")
    earlier = directory.open_run(command.experiment, [], None)
    requests = StopRequests()
    console = Listener(lambda: requests.request(signal.SIGTERM))
    assert open_directory(command, Cluster(), console, requests) is None
    assert requests.number == signal.SIGTERM
    earlier.release()


def test_command_of_a_person_does_not_wait(command, monkeypatch):
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    monkeypatch.delenv("JOB_COMPLETION_INDEX", raising=False)
    earlier = directory.open_run(command.experiment, [], None)
    with pytest.raises(RunInUseError):
        open_directory(command, Cluster(), Listener(earlier.release), StopRequests())
    earlier.release()


class EarlierStart(StopRequests):
    """The holder of a lease: it renews it while another command waits, and then gives it up.

    Args:
        store: the objects of the run.
        num_waits: how often the other waits before; 0: for ever.
        stop_at: the wait in which a stop of the other is requested; 0: never.
    """

    def __init__(self, store, num_waits=0, stop_at=0):
        super().__init__()
        self._lease = Lease.acquire(store, "node-1:7:a", (), 60.0)
        self._num_waits = num_waits
        self._stop_at = stop_at
        self._waits = 0

    def wait(self, secs):
        self._waits += 1
        if self._waits == self._num_waits:
            self._lease.release()
        elif not self._num_waits or self._waits < self._num_waits:
            self._lease.renew()
        if self._waits == self._stop_at:
            self.request(signal.SIGTERM)
        return super().wait(0.0)


ADDRESS = "s3://bucket/runs"


@pytest.fixture
def store(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    store = MemoryStore()
    monkeypatch.setattr(remote_run, "open_store", lambda address: store)
    return store


def run_mirrored(console, requests):
    experiment = compose([f"runs_dir={ADDRESS}", "store.work_dir=work"])
    remote = RemoteRun(experiment, run_address(experiment), Cluster(), console, requests)
    return remote.run(lambda: DONE)


def test_job_of_a_scheduler_waits_until_the_lease_of_a_run_in_a_store_is_free(store, monkeypatch):
    monkeypatch.setenv("JOB_COMPLETION_INDEX", "0")
    console = Listener(lambda: None)
    assert run_mirrored(console, EarlierStart(store, num_waits=8)) == DONE
    (told,) = [line for line in console.lines if "is in use by" in line]
    assert told.startswith(f"warning: {ADDRESS}/")
    assert "is in use by node-1:7:a (host, process), perhaps of this job's last start" in told
    assert len([line for line in console.lines if "taking over" in line]) == 1
    manifest, _ = read_manifest(store)
    assert (manifest.number, manifest.is_free) == (2, True)


def test_stop_request_ends_the_wait_for_a_lease(store, monkeypatch):
    monkeypatch.setenv("SLURM_JOB_ID", "1")
    for stop_at in (1, 2, 3):  # within the watch of the holder, and between two of them
        store.objects.clear()
        requests = EarlierStart(store, stop_at=stop_at)
        assert run_mirrored(Listener(lambda: None), requests) == 128 + signal.SIGTERM
        assert read_manifest(store)[0].holder == "node-1:7:a"


def test_job_of_a_scheduler_waits_for_a_process_of_the_same_machine(store, monkeypatch):
    monkeypatch.setenv("SLURM_JOB_ID", "1")
    monkeypatch.setattr(remote_run, "_LOCK_WAIT_SECS", 0.0)
    monkeypatch.setattr(run_context, "_POLL_SECS", 0.0)
    path = run_path(compose([f"runs_dir={ADDRESS}", "store.work_dir=work"]))
    earlier = Lock.acquire(path.with_name(f"{path.name}.work.lock"))
    console = Listener(earlier.close)
    assert run_mirrored(console, StopRequests()) == DONE
    assert "is in use by another process of this machine (pid " in console.lines[0]


def test_mode_that_starts_its_own_processes_refuses_a_declared_cluster(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    cluster = {"cluster": {"worker": ["a:1", "b:2"]}, "task": {"type": "worker", "index": 0}}
    monkeypatch.setenv("TF_CONFIG", json.dumps(cluster))
    outcome = run_here("mode=verify", "strategy=multi_worker")
    assert (outcome.code, outcome.err) == (
        2,
        "error: mode (verify) starts its own processes, and TF_CONFIG declares a cluster; "
        "verify without it\n",
    )
    assert not list(tmp_path.iterdir())
