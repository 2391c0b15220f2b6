"""What the supervisor learns of a process that an actor of Ray runs; Ray is a fake."""

import queue
import signal
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.support.fake_ray import Actor, FakeRay, RayError, RayTaskError
from trainer.cli.compose import compose
from trainer.cluster.messages import Exit, Line
from trainer.cluster.spec import RAY, Cluster, ProcessId
from trainer.launch.engines.ray_process import RayProcess

MEMBER = Cluster(ProcessId("worker", 1), {"worker": ["a:1", "b:2"]}, RAY)


@pytest.fixture(autouse=True)
def ray(monkeypatch):
    fake = FakeRay()
    monkeypatch.setitem(sys.modules, "ray", fake)
    return fake


def follow(actor, directory):
    """Assign the process of an actor; return its messages until the last."""
    messages = queue.SimpleQueue()
    process = RayProcess(actor, "n2")
    process.assign(SimpleNamespace(path=Path(directory)), compose([]), MEMBER, messages)
    received = []
    while not received or not isinstance(received[-1], Exit):
        process_id, message = messages.get(timeout=30)
        assert process_id == MEMBER.process_id
        received.append(message)
    process.kill()
    return received


def test_lost_actor_is_a_process_killed_by_sigkill(tmp_path):
    actor = Actor(
        receive=[[Line("a")], RayError("The actor died: node 1\nmore")],
        call=[RayError("The actor died")],
    )
    warning = Line("warning: Ray has lost the actor or its node: The actor died: node 1")
    assert follow(actor, tmp_path) == [Line("a"), warning, Exit(-signal.SIGKILL)]


def test_actor_that_cannot_start_its_process_is_named(tmp_path):
    actor = Actor(start=[RayTaskError(OSError("locked by process 7"))])
    warning = Line("warning: its Ray actor failed: locked by process 7")
    assert follow(actor, tmp_path) == [warning, Exit(-signal.SIGKILL)]
