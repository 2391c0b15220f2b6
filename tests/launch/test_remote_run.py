"""A run in a store: what ends the waits for its lease, and for its last upload."""

import signal
import threading

import pytest

from tests.support.object_stores import MemoryStore, upload_run, write_checkpoint
from trainer.cli.compose import compose
from trainer.cluster.messages import SignalReceived
from trainer.cluster.signals import StopRequests
from trainer.cluster.spec import Cluster, ProcessId
from trainer.errors import CRASHED, DONE
from trainer.files import Lock
from trainer.launch import remote_run, run_context
from trainer.launch.remote_run import RemoteRun
from trainer.runs.identity import run_address, run_path
from trainer.store.lease import Lease, read_manifest
from trainer.store.object_store import StoreError

ADDRESS = "s3://bucket/runs"
TIMEOUT_SECS = 60


class Console:
    """A console that does something when a line is shown."""

    def __init__(self, *acts):
        self.lines = []
        self.errors = []
        self._acts = list(acts)

    def line(self, text):
        self.lines.append(text)
        if self._acts:
            self._acts.pop(0)()

    def error(self, text):
        self.errors.append(text)


@pytest.fixture
def store(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(remote_run, "_QUIET_SECS", 0.0)
    store = MemoryStore()
    monkeypatch.setattr(remote_run, "open_store", lambda address: store)
    return store


def experiment_with(*overrides):
    return compose([f"runs_dir={ADDRESS}", "store.work_dir=work", *overrides])


class SlowStore:
    """Makes a store answer no upload of the last checkpoint until it is released."""

    def __init__(self, store):
        self.answers = threading.Event()
        store.before = self._before

    def _before(self, method):
        assert method != "upload" or self.answers.wait(TIMEOUT_SECS)
        return False


def run_chief(console, requests, code):
    """Run a command that saves a checkpoint and ends."""
    experiment = experiment_with()

    def run():
        path = run_path(experiment)
        path.mkdir(parents=True)
        (path / "config.yaml").write_text("a: 1\n")
        write_checkpoint(path, 2)
        return code

    address = run_address(experiment)
    return RemoteRun(experiment, address, Cluster(), console, requests).run(run)


def test_second_ctrl_c_leaves_during_the_last_upload(store):
    slow = SlowStore(store)
    requests = StopRequests(is_attended=True)
    assert requests.decide(SignalReceived(signal.SIGINT))
    console = Console(lambda: requests.request(signal.SIGINT))
    assert run_chief(console, requests, 128 + signal.SIGINT) == CRASHED
    (line,) = console.lines
    assert line.startswith(f"SIGINT: uploading to {ADDRESS}/")
    assert line.endswith(", then exiting; again exits immediately.")
    (error,) = console.errors
    assert ": left before everything was uploaded; it has no checkpoint; what it lacks is" in error
    assert read_manifest(store)[0].is_free is False
    slow.answers.set()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_repeated_signals_of_a_scheduler_do_not_cut_the_last_upload(store, number):
    slow = SlowStore(store)
    requests = StopRequests()
    requests.decide(SignalReceived(number))

    def repeat():
        for _ in range(3):
            requests.request(number)
        threading.Timer(0.5, slow.answers.set).start()

    console = Console(repeat)
    assert run_chief(console, requests, 128 + number) == 128 + number
    (line,) = console.lines
    assert line.endswith(", then exiting.")
    assert console.errors == []
    assert read_manifest(store)[0].checkpoints.keys() == {2}


class Other:
    """The command of another process than the chief's, whose run ends while the chief uploads."""

    def __init__(self, store, run_dir, monkeypatch):
        (run_dir / "checkpoints").mkdir(parents=True)
        (run_dir / "config.yaml").write_text("a: 1\n")
        self.store = store
        self.chief = upload_run(store, run_dir, "chief")
        self.requests = StopRequests(is_attended=True)
        self.console = Console()
        self.waits = 0
        self._monkeypatch = monkeypatch

    def run(self, act, code=128 + signal.SIGTERM):
        """Run it; return the exit code. `act` is called with the number of each wait."""

        def sleep(secs):
            self.waits += 1
            act(self.waits)

        def run():
            self._monkeypatch.setattr("time.sleep", sleep)
            return code

        experiment = experiment_with("store.lease_secs=1", "store.retry_secs=1")
        cluster = Cluster(ProcessId("worker", 1), {"worker": ["a:1", "b:1"]}, "Slurm")
        address = run_address(experiment)
        return RemoteRun(experiment, address, cluster, self.console, self.requests).run(run)


@pytest.fixture
def other(store, tmp_path, monkeypatch):
    return Other(store, tmp_path / "chief", monkeypatch)


def test_other_command_leaves_when_the_chief_has_uploaded(other):
    def act(number):
        (other.chief.renew if number < 50 else other.chief.release)()

    assert other.run(act) == 143
    assert other.waits == 50
    (line,) = other.console.lines
    assert line.startswith(f"Waiting until the chief has uploaded to {ADDRESS}/")


def test_other_command_leaves_when_the_chief_is_silent(other):
    def act(number):
        if number < 5:
            other.chief.renew()

    assert other.run(act) == 143
    assert other.waits > 5


def test_other_command_leaves_when_a_person_types_ctrl_c_again(other):
    other.requests.decide(SignalReceived(signal.SIGINT))

    def act(number):
        other.chief.renew()
        if number == 5:
            other.requests.request(signal.SIGTERM)
            other.requests.request(signal.SIGINT)

    assert other.run(act, 128 + signal.SIGINT) == 130
    assert other.waits == 5
    assert other.console.lines[0].endswith("; again exits immediately.")


def test_other_command_waits_for_a_store_that_is_away_for_a_short_time(other, monkeypatch):
    read = other.store.read

    def fail(name):
        raise StoreError("no connection")

    def act(number):
        monkeypatch.setattr(other.store, "read", fail if number in (3, 6) else read)
        (other.chief.renew if number < 9 else other.chief.release)()

    assert other.run(act) == 143
    assert other.waits == 9


@pytest.mark.parametrize("code", [DONE, CRASHED])
def test_other_command_that_was_not_stopped_waits_for_nobody(other, code):
    assert other.run(lambda number: None, code) == code
    assert other.waits == 0


class EarlierStart(StopRequests):
    """The holder of a lease: it renews it while another command waits, and then gives it up."""

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


def run_remote(console, requests):
    experiment = experiment_with()
    address = run_address(experiment)
    return RemoteRun(experiment, address, Cluster(), console, requests).run(lambda: DONE)


def test_job_of_a_scheduler_waits_until_the_lease_of_a_run_in_a_store_is_free(store, monkeypatch):
    monkeypatch.setenv("JOB_COMPLETION_INDEX", "0")
    console = Console()
    assert run_remote(console, EarlierStart(store, num_waits=8)) == DONE
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
        assert run_remote(Console(), requests) == 128 + signal.SIGTERM
        assert read_manifest(store)[0].holder == "node-1:7:a"


def test_job_of_a_scheduler_waits_for_a_process_of_the_same_machine(store, monkeypatch):
    monkeypatch.setenv("SLURM_JOB_ID", "1")
    monkeypatch.setattr(remote_run, "_LOCK_WAIT_SECS", 0.0)
    monkeypatch.setattr(run_context, "_POLL_SECS", 0.0)
    path = run_path(experiment_with())
    earlier = Lock.acquire(path.with_name(f"{path.name}.work.lock"))
    console = Console(earlier.close)
    assert run_remote(console, StopRequests()) == DONE
    assert "is in use by another process of this machine (pid " in console.lines[0]
