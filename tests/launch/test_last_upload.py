"""The last upload of a run in a store: what ends the wait for it."""

from __future__ import annotations

import signal
import threading

import pytest

from tests.support.object_stores import MemoryStore, write_checkpoint
from trainer.cli.compose import compose
from trainer.cluster.spec import Cluster
from trainer.cluster.stop_requests import StopRequests
from trainer.errors import CRASHED, DONE
from trainer.launch import last_upload, remote_run
from trainer.runs.lease import read_manifest
from trainer.runs.location import run_path

ADDRESS = "s3://bucket/runs"
TIMEOUT_SECS = 60


class Console:
    """A console that does something when a line is shown.

    Args:
        acts: what, a line each.
    """

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
    monkeypatch.setattr(last_upload, "_QUIET_SECS", 0.0)
    store = MemoryStore()
    monkeypatch.setattr(remote_run, "open_store", lambda address: store)
    return store


def experiment_with(*overrides):
    return compose([f"runs_dir={ADDRESS}", "store.work_dir=work", *overrides])


class SlowStore:
    """Makes a store answer no upload of the last checkpoint until it is told to."""

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

    return remote_run.mirrored(experiment, Cluster(), console, requests, run)


def test_second_ctrl_c_leaves_during_the_last_upload(store):
    slow = SlowStore(store)
    requests = StopRequests(is_attended=True)
    assert requests.decide(signal.SIGINT)
    console = Console(lambda: requests.request(signal.SIGINT))
    assert run_chief(console, requests, 128 + signal.SIGINT) == CRASHED
    (line,) = console.lines
    assert line.startswith(f"SIGINT: uploading to {ADDRESS}/")
    assert line.endswith(", then leaving; once more leaves at once.")
    (error,) = console.errors
    assert ": left before everything was uploaded; it has no checkpoint; what it lacks is" in error
    assert read_manifest(store)[0].is_free is False
    slow.answers.set()


def test_first_ctrl_c_during_the_last_upload_says_how_to_leave(store):
    slow = SlowStore(store)
    requests = StopRequests(is_attended=True)
    console = Console(lambda: requests.request(signal.SIGINT), slow.answers.set)
    assert run_chief(console, requests, DONE) == DONE
    assert [line.partition(":")[0] for line in console.lines] == ["Uploading to s3", "SIGINT"]
    assert console.lines[1].endswith(", then leaving; once more leaves at once.")
    assert read_manifest(store)[0].is_free


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_repeated_signals_of_a_scheduler_do_not_cut_the_last_upload(store, number):
    slow = SlowStore(store)
    requests = StopRequests()
    requests.decide(number)

    def repeat():
        for _ in range(3):
            requests.request(number)
        threading.Timer(0.5, slow.answers.set).start()

    console = Console(repeat)
    assert run_chief(console, requests, 128 + number) == 128 + number
    (line,) = console.lines
    assert line.endswith(", then leaving.")
    assert console.errors == []
    assert read_manifest(store)[0].checkpoints.keys() == {2}
