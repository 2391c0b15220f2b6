"""Options of replicas with several devices: what is refused, and which devices belong together."""

import json

import pytest

from tests.support.command_line import run_here
from trainer.cluster.spec import Cluster
from trainer.errors import ConfigError
from trainer.strategies import replica_devices
from trainer.strategies.mirrored import Mirrored
from trainer.strategies.multi_worker import MultiWorker

DIVIDED = ["strategy=mirrored", "strategy.virtual_devices=4", "strategy.devices_per_replica=2"]
REFUSED = {
    "index": (
        [*DIVIDED, "strategy.placement={hidden:2}"],
        "strategy.placement (hidden: 2) must be a logical device, from 0 to 1, as "
        "strategy.devices_per_replica is 2",
    ),
    "negative index": (
        [*DIVIDED, "strategy.placement={hidden:-1}"],
        "strategy.placement (hidden: -1) must be a logical device, from 0 to 1, as "
        "strategy.devices_per_replica is 2",
    ),
    "index of another type": (
        [*DIVIDED, "strategy.placement={hidden:GPU}"],
        "strategy.placement (hidden: 'GPU') must be a logical device, from 0 to 1, as "
        "strategy.devices_per_replica is 2",
    ),
    "pattern": (
        [*DIVIDED, "strategy.placement={*hidden:1}"],
        "strategy.placement (*hidden) must be a regular expression: nothing to repeat at "
        "position 0",
    ),
    "word": (
        [*DIVIDED, "strategy.placement=balanced_"],
        "strategy.placement ('balanced_') must be one of balanced or a mapping; "
        "did you mean 'balanced'?",
    ),
    "devices left over": (
        ["strategy=mirrored", "strategy.virtual_devices=3", "strategy.devices_per_replica=2"],
        "strategy.virtual_devices (3) must be a multiple of strategy.devices_per_replica (2)",
    ),
    "named devices left over": (
        ["strategy=mirrored", "strategy.devices=[CPU:0]", "strategy.devices_per_replica=2"],
        "strategy.devices (1) must be a multiple of strategy.devices_per_replica (2)",
    ),
    "odd number of replicas": (
        [
            "strategy=mirrored",
            "strategy.virtual_devices=6",
            "strategy.devices_per_replica=2",
            "strategy.cross_device_ops=hierarchical_copy",
        ],
        "strategy.cross_device_ops (hierarchical_copy) needs an even number of replicas, and "
        "there are 3; use auto or reduction_to_one_device",
    ),
    "nccl": (
        [
            "strategy=mirrored",
            "strategy.devices=[GPU:0,GPU:1]",
            "strategy.devices_per_replica=2",
            "strategy.cross_device_ops=nccl",
        ],
        "strategy.cross_device_ops (nccl) adds up on the first device of each replica, and "
        "strategy.devices_per_replica is 2; use auto",
    ),
    "jit": (
        [*DIVIDED, "jit=true"],
        "jit (true) and strategy.devices_per_replica (2) cannot be used with each other: XLA "
        "compiles for one device, and a replica has several; add jit=false",
    ),
    "eager": (
        [*DIVIDED, "eager=true"],
        "eager (true) and strategy.devices_per_replica (2) cannot be used with each other: "
        "gradients are placed in a graph, eager has none; add eager=false",
    ),
    **{
        strategy: (
            [f"strategy={strategy}", "strategy.devices_per_replica=2"],
            "unknown key 'strategy.devices_per_replica'; only strategy=mirrored and "
            "strategy=multi_worker divide a model: with central_storage and parameter_server "
            "variables are not where layers compute, a TPU's compiler places operations itself, "
            "and one_device has one device",
        )
        for strategy in ("one_device", "central_storage", "parameter_server", "tpu", "auto")
    },
}


@pytest.mark.parametrize("case", REFUSED)
def test_options_that_cannot_work_are_one_line(tmp_path, monkeypatch, case):
    overrides, message = REFUSED[case]
    monkeypatch.chdir(tmp_path)
    outcome = run_here(*overrides)
    assert (outcome.code, outcome.err) == (2, f"error: {message}\n")
    assert not (tmp_path / "runs").exists()


def test_neighboring_devices_are_one_replica():
    groups = replica_devices.device_groups(["GPU:0", "GPU:2", "GPU:1", "GPU:3"], 2, "balanced")
    assert groups.groups == (
        ("/device:GPU:0", "/device:GPU:2"),
        ("/device:GPU:1", "/device:GPU:3"),
    )
    assert groups.count == 2


def test_number_of_replicas_counts_groups_of_devices():
    assert Mirrored(virtual_devices=6, devices_per_replica=3).num_replicas() == 2
    assert Mirrored(devices=["CPU:0", "CPU:1"], devices_per_replica=2).num_replicas() == 1


def test_process_with_another_number_of_gpus_is_refused(two_gpus, monkeypatch):
    cluster = {"cluster": {"worker": ["a:1", "b:1"]}, "task": {"type": "worker", "index": 0}}
    monkeypatch.setenv("TF_CONFIG", json.dumps(cluster))
    strategy = MultiWorker(devices_per_replica=3)
    with pytest.raises(ConfigError, match=r"devices_per_replica \(3\) must be the number of GPUs"):
        strategy.create(Cluster())


def test_process_shows_tensorflow_one_gpu_of_its_replica(two_gpus, monkeypatch):
    cluster = {"cluster": {"worker": ["a:1", "b:1"]}, "task": {"type": "worker", "index": 0}}
    monkeypatch.setenv("TF_CONFIG", json.dumps(cluster))
    strategy = MultiWorker(devices_per_replica=2)
    names = strategy._replica_names(2)
    assert names == ["GPU:0", "GPU:1"]
    resolver = strategy._resolver(names)["cluster_resolver"]
    assert resolver.num_accelerators() == {"GPU": 1}
    assert strategy._resolver(["CPU:0", "CPU:1"]) == {}
