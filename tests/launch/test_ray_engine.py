"""launch=ray: places and processes on a cluster that is a fake, and what is refused."""

import os
import queue
import signal
import socket
import sys
import threading
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.support.fake_ray import Actor, FakeRay, Pending, RayError
from trainer.cli.compose import compose
from trainer.cluster.messages import Exit, Line
from trainer.cluster.signals import StopRequests
from trainer.cluster.spec import RAY, Cluster, ProcessId
from trainer.config.schema import Ray
from trainer.errors import WRONG_INPUT, ConfigError
from trainer.files import LockedError
from trainer.launch import ray_engine
from trainer.launch.ray_engine import (
    Place,
    PlacementError,
    RayEngine,
    RayHost,
    RayProcess,
    connected,
)
from trainer.launch.run_context import Command, RunContext
from trainer.strategies.select import select_strategy


class StartingRay:
    """The module `ray`, whose starts fail at first; it ends with the thread that starts it."""

    def __init__(self, *errors):
        self._errors = list(errors)
        self._thread = None
        self.num_starts = 0

    def init(self, **options):
        self.num_starts += 1
        if (error := self._errors.pop(0)) is not None:
            raise error
        self._thread = threading.current_thread()

    def shutdown(self):
        self._thread = None

    def is_alive(self):
        return self._thread is not None and self._thread.is_alive()


SLOW = Exception("The current node timed out during startup.")


@pytest.mark.parametrize(("mode", "warns"), [("token", False), ("disabled", True)])
def test_ray_that_is_started_lives_while_connected(monkeypatch, mode, warns):
    ray = StartingRay(SLOW, None)
    lines = []
    monkeypatch.setenv("RAY_AUTH_MODE", mode)
    monkeypatch.setitem(sys.modules, "ray", ray)
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    with connected(Ray(), lines.append):
        assert (ray.is_alive(), ray.num_starts) == (True, 2)
        assert [line.partition(" ")[0] for line in lines] == ["warning:"] * warns
    assert not ray.is_alive()


@pytest.mark.parametrize(
    ("errors", "num_starts"), [([SLOW, SLOW, SLOW], 3), ([OSError("refused"), None], 1)]
)
def test_ray_that_does_not_start_is_named(monkeypatch, errors, num_starts):
    ray = StartingRay(*errors)
    monkeypatch.setitem(sys.modules, "ray", ray)
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    with (
        pytest.raises(ConfigError, match=f"cannot connect to Ray: {errors[-2]}"),
        connected(Ray(), print),
    ):
        pass
    assert ray.num_starts == num_starts


OPTIONS = ["launch=ray", "strategy=multi_worker", "launch.ray.timeout_secs=0.2"]
LOST = RayError("The actor died.\n\tclass_name: RayHost\nits node has died\n")


class Cloud:
    """A Ray cluster.

    Attributes:
        nodes: what actors answer when they start; as many start as there are.
        groups: the actors of each placement group; None if it was removed.
        lines: what the user is told.
    """

    def __init__(self, directory, monkeypatch):
        self.nodes = []
        self.groups = []
        self.lines = []
        self.stop_requests = StopRequests()
        self._directory = directory
        (directory / ".lock").write_text("1")
        monkeypatch.setitem(sys.modules, "ray", FakeRay())
        monkeypatch.setattr(ray_engine, "_POLL_SECS", 0.01)
        monkeypatch.setattr(ray_engine, "_RETRY_SECS", 0.01)
        monkeypatch.setattr(ray_engine, "_SMALLER_SECS", 0.1)
        monkeypatch.setattr(ray_engine, "create_actors", self._create)
        monkeypatch.setattr(ray_engine, "remove_actors", self._remove)
        monkeypatch.setattr(ray_engine, "has_places", lambda group: False)
        monkeypatch.setattr(
            ray_engine, "describe_cluster", lambda: "1 node with 1 CPU, free are 0 CPUs"
        )

    def context(self, *options):
        experiment = compose([*OPTIONS, *options])
        console = SimpleNamespace(line=self.lines.append)
        directory = SimpleNamespace(path=self._directory, check_lock=lambda: None)
        strategy = select_strategy(experiment)
        return RunContext(Command(experiment), strategy, directory, console, self.stop_requests)

    def engine(self, *options):
        return RayEngine(self.context(*options), [])

    def _create(self, settings, count):
        fits = count <= len(self.nodes)
        answers = self.nodes[:count] if fits else [Pending() for _ in range(count)]
        actors = [Actor(find_place=[answer]) for answer in answers]
        self.groups.append(actors)
        return len(self.groups) - 1, actors

    def _remove(self, group, actors):
        assert self.groups[group] is actors
        self.groups[group] = None


@pytest.fixture
def cloud(tmp_path, monkeypatch):
    return Cloud(tmp_path, monkeypatch)


def test_node_that_does_not_see_the_run_is_wrong_input(cloud, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    cloud.nodes = [Place("a:5", "n5"), Place("b:6", "n6", sees_run=False)]
    with pytest.raises(PlacementError) as error:
        cloud.engine().members()
    assert error.value.code == WRONG_INPUT
    assert list(error.value.problems) == [
        f"the Ray node b does not see the run directory {tmp_path} or the working directory "
        f"{tmp_path}; put them on a file system that every node mounts there"
    ]


def test_actor_that_is_lost_at_its_start_is_started_again(cloud, monkeypatch):
    cloud.nodes = [Place("a:5", "n5"), LOST]
    tries = iter([LOST, LOST, Place("b:6", "n6")])
    create = ray_engine.create_actors

    def create_next(settings, count):
        cloud.nodes[1] = next(tries)
        return create(settings, count)

    monkeypatch.setattr(ray_engine, "create_actors", create_next)
    assert len(cloud.engine("launch.ray.timeout_secs=60").members()) == 2
    assert cloud.groups[:2] == [None, None]
    assert cloud.lines == [
        "warning: Ray has lost an actor while it started: its node has died; trying again"
    ]


def test_stop_request_ends_the_wait_for_places(cloud):
    cloud.stop_requests.request(15)
    assert cloud.engine("launch.ray.timeout_secs=1000").members() == []
    assert cloud.groups == [None]


MEMBER = Cluster(ProcessId("worker", 1), {"worker": ["a:1", "b:2"]}, RAY)


@pytest.fixture
def ray(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", FakeRay())


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


@pytest.mark.usefixtures("ray")
def test_lost_actor_is_a_process_killed_by_sigkill(tmp_path):
    actor = Actor(
        receive=[[Line("a")], RayError("The actor died: node 1\nmore")],
        call=[RayError("The actor died")],
    )
    warning = Line("warning: Ray has lost the actor or its node: The actor died: node 1")
    assert follow(actor, tmp_path) == [Line("a"), warning, Exit(-signal.SIGKILL)]


class FakeProcess:
    """Sends two messages when it is assigned."""

    def assign(self, directory, experiment, member, messages):
        self.lock = os.dup(directory.lock.fileno())  # as the worker that inherits it
        messages.put((member.process_id, Line(f"{member.process_id} of {member.source}")))
        messages.put((member.process_id, Exit(0)))

    def kill(self):
        os.close(self.lock)


@pytest.fixture
def node(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(ray_engine, "_own_ip", lambda: "10.0.0.1")
    monkeypatch.setattr(socket, "gethostname", lambda: "n1")
    monkeypatch.setattr(ray_engine, "WorkerProcess", FakeProcess)
    monkeypatch.setattr(ray_engine, "_LOCK_SECS", 0.0)
    monkeypatch.setattr(ray_engine, "_RECEIVE_SECS", 0.01)


@pytest.fixture
def run_dir(tmp_path, node):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / ".lock").write_text("17")
    return str(tmp_path / "run")


@pytest.mark.parametrize(
    ("folder", "run", "holder"), [(".", "run", "18"), (".", "other", "17"), ("none", "run", "17")]
)
def test_node_reports_whether_it_sees_the_run(run_dir, tmp_path, folder, run, holder):
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
