import numpy as np
import pytest
import tensorflow as tf

from tests.strategies.toy_ops import CountingOps
from tests.training import train, weights
from trainer.cluster import Cluster
from trainer.errors import ConfigError
from trainer.strategies.mirrored import Mirrored

TWENTY_STEPS = ["optimizer=sgd", "optimizer.learning_rate=0.05", "train.steps=20", "batch.global_size=12"]


@pytest.fixture(scope="module")
def on_one_device(tmp_path_factory):
    return weights(train(tmp_path_factory.mktemp("one"), *TWENTY_STEPS))


@pytest.mark.parametrize(
    "options",
    [
        ["virtual_devices=2"],
        ["virtual_devices=3"],
        ["virtual_devices=4"],
        ["devices=[CPU:1,/cpu:3]"],
        ["devices=[CPU:2,CPU:0,CPU:1]"],
        ["virtual_devices=4", "cross_device_ops=hierarchical_copy"],
        ["virtual_devices=4", "cross_device_ops=hierarchical_copy", "num_packs=0"],
        ["virtual_devices=2", "cross_device_ops=hierarchical_copy", "num_packs=3"],
        ["virtual_devices=2", "cross_device_ops=reduction_to_one_device"],
        ["virtual_devices=3", "cross_device_ops=reduction_to_one_device"],
        ["virtual_devices=2", "cross_device_ops={_target_:tensorflow.distribute.ReductionToOneDevice,reduce_to_device:CPU:1}"],
    ],
    ids=" ".join,
)
def test_the_weights_are_those_of_one_device(on_one_device, tmp_path, options):
    other = weights(train(tmp_path, "strategy=mirrored", *(f"++strategy.{option}" for option in options), *TWENTY_STEPS))
    assert np.abs(on_one_device - other).max() <= 1e-6


def test_operations_of_a_users_own_do_the_sums(on_one_device, tmp_path, monkeypatch):
    monkeypatch.setattr(CountingOps, "count", 0)
    own = "strategy.cross_device_ops={_target_:tests.strategies.toy_ops.CountingOps,step:3}"
    other = train(tmp_path, "strategy=mirrored", "strategy.virtual_devices=2", own, *TWENTY_STEPS)
    assert np.abs(on_one_device - weights(other)).max() <= 1e-6
    assert CountingOps.count >= 3
    assert CountingOps.count % 3 == 0


def test_a_users_own_must_be_cross_device_ops():
    with pytest.raises(ConfigError, match=r"^strategy.cross_device_ops \(dict\) must make a tf.distribute.CrossDeviceOps$"):
        Mirrored(virtual_devices=2, cross_device_ops=dict).start(Cluster())


@pytest.fixture
def made(two_gpus, monkeypatch):
    """What MirroredStrategy is made of, on a machine with two GPUs."""
    seen = []
    monkeypatch.setattr(tf.distribute, "MirroredStrategy", lambda devices, cross_device_ops: seen.append((devices, cross_device_ops)))
    return seen


def test_gpus_are_left_to_tensorflow(made):
    Mirrored().start(Cluster())
    Mirrored(devices=["gpu:1"]).start(Cluster())
    assert made == [(["GPU:0", "GPU:1"], None), (["GPU:1"], None)]


@pytest.mark.parametrize(("name", "kind"), [("nccl", "NcclAllReduce"), ("hierarchical_copy", "HierarchicalCopyAllReduce")])
@pytest.mark.parametrize(("given", "expected"), [({}, {}), ({"num_packs": 0}, {"num_packs": 0}), ({"num_packs": 5}, {"num_packs": 5})])
def test_the_number_of_packs_is_handed_on(made, monkeypatch, name, kind, given, expected):
    monkeypatch.setattr(tf.distribute, kind, lambda **options: (kind, options))
    Mirrored(cross_device_ops=name, **given).start(Cluster())
    assert made == [(["GPU:0", "GPU:1"], (kind, expected))]


CONTRADICTIONS = {
    "strategy.devices (CPU:0) and strategy.virtual_devices (2) exclude each other; set one to null": {
        "devices": ["CPU:0"],
        "virtual_devices": 2,
    },
    "strategy.devices (cpu:0) must name each device once": {"devices": ["CPU:0", "cpu:0"]},
    "strategy.num_packs (2) needs strategy.cross_device_ops=nccl or hierarchical_copy; set it to null": {"num_packs": 2},
    "strategy.cross_device_ops (nccl) needs GPUs, and the devices are CPU:0, CPU:1; use auto": {
        "virtual_devices": 2,
        "cross_device_ops": "nccl",
    },
    "strategy.cross_device_ops (nccl) needs GPUs, and the devices are GPU:0, CPU:0; use auto": {
        "devices": ["GPU:0", "/cpu:0"],
        "cross_device_ops": "nccl",
    },
    "strategy.cross_device_ops (hierarchical_copy) needs an even number of devices, and there are 3; use auto or reduction_to_one_device": {
        "virtual_devices": 3,
        "cross_device_ops": "hierarchical_copy",
    },
}


@pytest.mark.parametrize("problem", CONTRADICTIONS)
def test_the_parent_refuses_options_that_contradict_one_another(problem):
    with pytest.raises(ConfigError) as raised:
        Mirrored(**CONTRADICTIONS[problem]).check(Cluster())
    assert raised.value.problems == (problem,)


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"devices": ["CPU:0", "GPU:7"]}, r"^strategy.devices \(GPU:7\) does not exist here; choose among CPU:0, "),
        ({"cross_device_ops": "nccl"}, r"^strategy.cross_device_ops \(nccl\) needs GPUs, and the devices are CPU:0, "),
    ],
)
def test_the_worker_refuses_what_only_tensorflow_can_tell(options, problem):
    Mirrored(**options).check(Cluster())
    with pytest.raises(ConfigError, match=problem):
        Mirrored(**options).start(Cluster())


def test_replicas_are_counted_without_tensorflow():
    assert Mirrored(virtual_devices=3).num_replicas() == 3
    assert Mirrored(devices=["GPU:0", "GPU:1"]).num_replicas() == 2
    assert Mirrored().num_replicas() is None
