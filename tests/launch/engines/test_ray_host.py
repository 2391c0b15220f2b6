"""What an actor does with its process; without Ray, and with a process that only sends messages."""

import os
import socket
from dataclasses import asdict

import pytest

from trainer.cli.compose import compose
from trainer.cluster.messages import Exit, Line
from trainer.cluster.spec import RAY, Cluster, ProcessId
from trainer.files import LockedError
from trainer.launch.engines import ray_process
from trainer.launch.engines.ray_process import RayHost

MEMBER = Cluster(ProcessId("worker", 0), {"worker": ["a:1", "b:2"]}, RAY)


class Process:
    """Sends two messages when it is assigned."""

    def assign(self, directory, experiment, member, messages):
        self.lock = os.dup(directory.lock.fileno())  # as the worker that inherits it
        messages.put((member.process_id, Line(f"{member.process_id} of {member.source}")))
        messages.put((member.process_id, Exit(0)))

    def kill(self):
        os.close(self.lock)


@pytest.fixture(autouse=True)
def node(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(ray_process, "_own_ip", lambda: "10.0.0.1")
    monkeypatch.setattr(socket, "gethostname", lambda: "n1")
    monkeypatch.setattr(ray_process, "WorkerProcess", Process)
    monkeypatch.setattr(ray_process, "_LOCK_SECS", 0.0)
    monkeypatch.setattr(ray_process, "_POLL_SECS", 0.01)


@pytest.fixture
def run_dir(tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / ".lock").write_text("17")
    return str(tmp_path / "run")


@pytest.mark.parametrize(
    ("folder", "run", "holder"), [(".", "run", "18"), (".", "other", "17"), ("none", "run", "17")]
)
def test_node_that_does_not_see_the_run_says_so(run_dir, tmp_path, folder, run, holder):
    place = RayHost().find_place(str(tmp_path / folder), str(tmp_path / run), holder)
    assert not place.sees_run


def test_process_waits_for_that_of_an_earlier_command(run_dir):
    first = RayHost()
    second = RayHost()
    assignment = (run_dir, asdict(compose([])), MEMBER.to_dict())
    first.start(*assignment)
    with pytest.raises(LockedError):
        second.start(*assignment)
    first.call("kill")
    second.start(*assignment)
    second.call("kill")
