import pytest
import tensorflow as tf

from trainer.cluster.spec import Cluster
from trainer.errors import ConfigError
from trainer.strategies.one_device import OneDevice


@pytest.mark.parametrize(("device", "used"), [(None, "CPU:0"), ("/cpu:2", "CPU:2")])
def test_variables_are_on_the_device(device, used):
    with OneDevice(device=device).create(Cluster()).scope():
        assert tf.Variable(1.0).device.endswith(used)


def test_default_device_is_the_first_gpu(two_gpus, monkeypatch):
    monkeypatch.setattr(tf.distribute, "OneDeviceStrategy", lambda device: device)
    assert OneDevice().create(Cluster()) == "/device:GPU:0"


def test_create_refuses_a_missing_device_in_one_line():
    with pytest.raises(
        ConfigError, match=r"^strategy.device \(GPU:7\) does not exist here; choose among CPU:0, "
    ):
        OneDevice(device="GPU:7").create(Cluster())
