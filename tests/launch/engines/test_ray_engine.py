"""Places of the processes of an attempt on Ray, which is a fake."""

import sys
from types import SimpleNamespace

import pytest

from tests.support.fake_ray import Actor, FakeRay, Pending, RayError
from trainer.cli.compose import compose
from trainer.cluster.signals import StopRequests
from trainer.errors import ConfigError
from trainer.launch.engines import ray_connection, ray_engine
from trainer.launch.engines.ray_engine import PlacementError, RayEngine
from trainer.launch.engines.ray_process import Place
from trainer.launch.run_context import Command, RunContext
from trainer.strategies.select import select_strategy

OPTIONS = ["launch=ray", "strategy=multi_worker", "launch.ray.timeout_secs=0.2"]
LOST = RayError("The actor died.\n\tclass_name: RayHost\nits node has died\n")


class Cloud:
    """A Ray cluster.

    Attributes:
        nodes: what actors answer when they start; as many start as there are.
        groups: the actors of each placement group; None: it was removed.
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
        monkeypatch.setattr(ray_connection, "create_actors", self._create)
        monkeypatch.setattr(ray_connection, "remove_actors", self._remove)
        monkeypatch.setattr(ray_connection, "has_places", lambda group: False)
        monkeypatch.setattr(
            ray_connection, "describe_cluster", lambda: "1 node with 1 CPU, free are 0 CPUs"
        )

    def context(self, *options):
        experiment = compose([*OPTIONS, *options])
        console = SimpleNamespace(line=self.lines.append)
        directory = SimpleNamespace(path=self._directory, check_lock=lambda: None)
        strategy = select_strategy(experiment)
        return RunContext(Command(experiment), strategy, directory, console, self.stop_requests)

    def engine(self, *options, sizes=(2,), beside=()):
        return RayEngine(self.context(*options), sizes, beside)

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
    with pytest.raises(ConfigError) as error:
        cloud.engine().members()
    assert list(error.value.problems) == [
        f"the Ray node b does not see the run directory {tmp_path} or the working directory "
        f"{tmp_path}; put them on a file system that every node mounts there"
    ]


def test_actor_that_is_lost_at_its_start_is_started_again(cloud, monkeypatch):
    cloud.nodes = [Place("a:5", "n5"), LOST]
    tries = iter([LOST, LOST, Place("b:6", "n6")])
    create = ray_connection.create_actors

    def create_next(settings, count):
        cloud.nodes[1] = next(tries)
        return create(settings, count)

    monkeypatch.setattr(ray_connection, "create_actors", create_next)
    assert len(cloud.engine("launch.ray.timeout_secs=60").members()) == 2
    assert cloud.groups[:2] == [None, None]
    assert cloud.lines == [
        "warning: Ray has lost an actor while it started: its node has died; trying again"
    ]


def test_actor_that_never_starts_is_named_with_its_error(cloud):
    cloud.nodes = [Pending(), LOST]
    with pytest.raises(PlacementError) as error:
        cloud.engine().members()
    assert str(error.value) == (
        "Ray has not started 2 processes with 1 CPU each (spread) in 0.2 s "
        "(launch.ray.timeout_secs); its last error: its node has died; the cluster has 1 node with "
        "1 CPU, free are 0 CPUs; repair the node that it comes from, add nodes, or ask for less "
        "with launch.ray.cpus and launch.ray.gpus"
    )
    assert len(cloud.groups) > 1
    assert set(cloud.groups) == {None}


def test_user_is_told_of_a_long_wait(cloud, monkeypatch):
    monkeypatch.setattr(ray_engine, "_NOTICE_SECS", 0.0)
    with pytest.raises(PlacementError):
        cloud.engine().members()
    assert cloud.lines == [
        "waiting for Ray to place 2 processes with 1 CPU each (spread); the cluster has 1 node "
        "with 1 CPU, free are 0 CPUs"
    ]


def test_stop_request_ends_the_wait_for_places(cloud):
    cloud.stop_requests.request(15)
    assert cloud.engine("launch.ray.timeout_secs=1000").members() == []
    assert cloud.groups == [None]


@pytest.mark.parametrize(("mode", "warns"), [("token", False), ("disabled", True), (None, True)])
def test_user_is_warned_of_a_cluster_without_a_token(cloud, monkeypatch, mode, warns):
    monkeypatch.delenv("RAY_AUTH_MODE", raising=False)
    if mode:
        monkeypatch.setenv("RAY_AUTH_MODE", mode)
    cloud.stop_requests.request(15)
    assert ray_engine.supervise(cloud.context(), [], None) == (143, None)
    warning = "warning: this Ray cluster takes commands from everybody who reaches its ports"
    assert [line.partition(";")[0] for line in cloud.lines] == [warning] * warns
