"""Options of replicas with several devices: what is refused, and which devices belong together."""

import json

import pytest

from trainer.cluster.spec import Cluster
from trainer.errors import ConfigError
from trainer.strategies import devices
from trainer.strategies.mirrored import Mirrored
from trainer.strategies.multi_worker import MultiWorker


def test_neighboring_devices_are_one_replica():
    groups = devices.device_groups(["GPU:0", "GPU:2", "GPU:1", "GPU:3"], 2, "balanced")
    assert groups.groups == (("/device:GPU:0", "/device:GPU:2"), ("/device:GPU:1", "/device:GPU:3"))
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
