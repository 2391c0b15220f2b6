"""The cluster of a run; and a run that an earlier start of the job still uses."""

import json
import signal

import pytest

from tests.support.command_line import run_here
from trainer.cli.compose import compose
from trainer.cluster.signals import StopRequests
from trainer.cluster.spec import Cluster
from trainer.errors import ConfigError
from trainer.launch import run_context
from trainer.launch.run_context import Command, open_directory
from trainer.runs import directory
from trainer.runs.directory import RunInUseError


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
