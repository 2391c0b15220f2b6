import pytest
import tensorflow as tf

from trainer.cluster import Cluster
from trainer.errors import ConfigError
from trainer.strategies.one_device import OneDevice


@pytest.mark.parametrize(("device", "used"), [(None, "CPU:0"), ("/cpu:2", "CPU:2")])
def test_the_step_runs_on_the_device(device, used):
    with OneDevice(device=device).start(Cluster()).scope():
        assert tf.Variable(1.0).device.endswith(used)


def test_the_first_gpu_is_the_default(two_gpus, monkeypatch):
    monkeypatch.setattr(tf.distribute, "OneDeviceStrategy", lambda device: device)
    assert OneDevice().start(Cluster()) == "/device:GPU:0"


def test_a_device_that_does_not_exist_is_one_line():
    with pytest.raises(ConfigError, match=r"^strategy.device \(GPU:7\) does not exist here; choose among CPU:0, "):
        OneDevice(device="GPU:7").start(Cluster())


def test_the_parent_refuses_what_is_no_device():
    OneDevice().check(Cluster())
    with pytest.raises(ConfigError, match=r"^strategy.device \(first\) must be a device, such as CPU:0 or GPU:1$"):
        OneDevice(device="first").check(Cluster())
