"""What is refused with launch=ray before anything is started."""

import sys

import pytest

from trainer.cli.compose import compose
from trainer.cluster.spec import Cluster, ProcessId
from trainer.config.schema import Ray
from trainer.errors import ConfigError
from trainer.launch import ray_check, ray_connection
from trainer.launch.resolved_run import resolve, select_run
from trainer.strategies.select import select_strategy

RUNS = ["launch=ray", "strategy=multi_worker"]


def problems(*overrides, declared=None):
    experiment = compose([*RUNS, *overrides])
    with pytest.raises(ConfigError) as error:
        ray_check.check(experiment, select_strategy(experiment), declared)
    return list(error.value.problems)


@pytest.mark.parametrize("strategy", ["one_device", "mirrored", "multi_worker", "auto"])
def test_strategies_that_run_on_ray(strategy):
    resolve(compose(["launch=ray", f"strategy={strategy}"]))


def test_declared_cluster_is_refused():
    declared = Cluster(ProcessId("worker", 0), {"worker": ["a:1"]}, "TF_CONFIG")
    assert problems(declared=declared) == [
        "launch.engine (ray) starts the processes of the cluster itself, and TF_CONFIG declares "
        "one; unset it, or add launch=process"
    ]


def test_what_works_on_one_machine_alone_is_refused():
    assert problems("launch.inline=true", "mode=benchmark", "strategy.isolate=true") == [
        "launch.engine (ray) and launch.inline (true) exclude each other; use one of them",
        "launch.engine (ray) has no mode=benchmark, which measures here; add launch=process",
        "strategy.isolate (true) is for processes of one machine; leave it out with "
        "launch.engine (ray)",
    ]


def test_parameter_servers_are_refused():
    assert problems("strategy=parameter_server") == [
        "launch.engine (ray) cannot start again alone, at the same address, a lost process of a "
        "strategy with the job ps and worker; add launch=process, or use strategy=multi_worker"
    ]


@pytest.mark.parametrize("mode", ["verify", "check_layouts", "benchmark"])
def test_modes_that_measure_here_are_refused(mode):
    with pytest.raises(ConfigError, match=f"has no mode={mode}, which measures here"):
        select_run(compose([*RUNS, f"mode={mode}"]))


def test_missing_package_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    expected = "needs the package ray, which is missing; pip install 'steadfast\\[ray\\]'$"
    with pytest.raises(ConfigError, match=expected), ray_connection.connected(Ray()):
        pass
