"""Devices: their names, the GPUs of a process, those of a replica, and where variables are."""

import json

import pytest
import tensorflow as tf

from trainer.cluster.spec import Cluster
from trainer.errors import ConfigError
from trainer.strategies import devices
from trainer.strategies.central_storage import CentralStorage
from trainer.strategies.mirrored import Mirrored
from trainer.strategies.multi_worker import MultiWorker
from trainer.strategies.one_device import OneDevice


@pytest.mark.parametrize(
    "written", ["gpu:1", "/gpu:1", "/job:localhost/replica:0/task:0/device:GPU:1"]
)
def test_canonical_accepts_every_spelling_of_a_device(written):
    assert devices.canonical("strategy.devices", [written]) == ["GPU:1"]


def test_default_devices_without_a_gpu_are_all_cpus():
    assert devices.present() == devices.default() == ["CPU:0", "CPU:1", "CPU:2", "CPU:3"]
    assert devices.count_gpus() == 0


@pytest.mark.parametrize(
    ("key", "strategy"),
    [
        ("device", OneDevice(device="GPU:7")),
        ("devices", Mirrored(devices=["CPU:0", "GPU:7"])),
        ("compute_devices", CentralStorage(compute_devices=["GPU:7"])),
        ("parameter_device", CentralStorage(parameter_device="GPU:7")),
    ],
)
def test_missing_device_is_refused_and_the_others_named(key, strategy):
    strategy.check(Cluster())
    problem = rf"^strategy.{key} \(GPU:7\) does not exist here; choose among CPU:0, CPU:1, CPU:2, "
    with pytest.raises(ConfigError, match=problem):
        strategy.create(Cluster())


def test_split_cpu_fails_once_tensorflow_is_in_use():
    # tests/conftest.py has split it into four.
    assert devices.split_cpu(3) == ["CPU:0", "CPU:1", "CPU:2"]
    with pytest.raises(ConfigError, match=r"virtual_devices \(5\) must be set before TensorFlow"):
        devices.split_cpu(5)


@pytest.mark.parametrize(("count", "visible"), [(None, 2), (1, 1), (0, 0)])
def test_limit_gpus_leaves_the_first_gpus_visible(two_gpus, count, visible):
    assert devices.present() == ["GPU:0", "GPU:1", "CPU:0"]
    devices.limit_gpus(count)
    assert two_gpus.visible == two_gpus.physical[:visible]
    assert devices.count_gpus() == visible
    assert devices.default() == ([f"GPU:{index}" for index in range(visible)] or ["CPU:0"])


def test_gpus_that_are_not_there_or_in_use_are_refused(one_gpu, monkeypatch):
    with pytest.raises(ConfigError, match=r"gpus \(2\) must be at most the number of GPUs \(1\)"):
        devices.limit_gpus(2)

    def set_visible_devices(gpus, kind):
        raise RuntimeError("Visible devices cannot be modified after being initialized")

    monkeypatch.setattr(tf.config, "set_visible_devices", set_visible_devices)
    with pytest.raises(ConfigError, match=r"gpus \(0\) must be set before TensorFlow is used"):
        devices.limit_gpus(0)


def test_neighboring_devices_are_one_replica():
    groups = devices.device_groups(["GPU:0", "GPU:2", "GPU:1", "GPU:3"], 2, "balanced")
    assert groups.groups == (("/device:GPU:0", "/device:GPU:2"), ("/device:GPU:1", "/device:GPU:3"))
    assert groups.count == 2


def test_process_shows_tensorflow_one_gpu_of_its_replica(two_gpus, monkeypatch):
    cluster = {"cluster": {"worker": ["a:1", "b:1"]}, "task": {"type": "worker", "index": 0}}
    monkeypatch.setenv("TF_CONFIG", json.dumps(cluster))
    strategy = MultiWorker(devices_per_replica=2)
    names = strategy._replica_names(2)
    assert names == ["GPU:0", "GPU:1"]
    resolver = strategy._resolver(names)["cluster_resolver"]
    assert resolver.num_accelerators() == {"GPU": 1}
    assert strategy._resolver(["CPU:0", "CPU:1"]) == {}
    with pytest.raises(ConfigError, match=r"devices_per_replica \(3\) must be the number of GPUs"):
        MultiWorker(devices_per_replica=3).create(Cluster())


@pytest.mark.parametrize(
    ("strategy", "replicas", "device"),
    [
        (OneDevice(), 1, "CPU:0"),
        (OneDevice(device="/cpu:2"), 1, "CPU:2"),
        (CentralStorage(), None, "CPU:0"),
        (CentralStorage(virtual_devices=3), 3, "CPU:0"),
        (CentralStorage(compute_devices=["CPU:1", "/cpu:2"]), 2, "CPU:0"),
        (CentralStorage(compute_devices=["CPU:1"], parameter_device="cpu:3"), 1, "CPU:3"),
        (CentralStorage(compute_devices=["CPU:2"]), 1, "CPU:2"),
    ],
)
def test_variables_are_on_one_device(strategy, replicas, device):
    created = strategy.create(Cluster())
    assert strategy.num_replicas() == replicas
    assert created.num_replicas_in_sync == (replicas or 1)
    with created.scope():
        assert tf.Variable(1.0).device.endswith(device)
