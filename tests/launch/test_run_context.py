"""The cluster of a run; and a run that an earlier start of the job still uses."""

import signal

import pytest

from trainer.cli.compose import compose
from trainer.cluster.signals import StopRequests
from trainer.cluster.spec import Cluster
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
