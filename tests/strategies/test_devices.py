import pytest
import tensorflow as tf

from trainer.errors import ConfigError
from trainer.strategies import devices


@pytest.mark.parametrize(
    "written", ["gpu:1", "/gpu:1", "/job:localhost/replica:0/task:0/device:GPU:1"]
)
def test_canonical_accepts_every_spelling_of_a_device(written):
    assert devices.canonical("strategy.devices", [written]) == ["GPU:1"]


def test_default_devices_without_a_gpu_are_all_cpus():
    assert devices.present() == devices.default() == ["CPU:0", "CPU:1", "CPU:2", "CPU:3"]
    assert devices.count_gpus() == 0


def test_default_devices_are_the_gpus(two_gpus):
    assert devices.present() == ["GPU:0", "GPU:1", "CPU:0"]
    assert devices.default() == ["GPU:0", "GPU:1"]


def test_existing_refuses_a_missing_device_and_names_the_others():
    assert devices.existing("strategy.devices", ["cpu:3", "/CPU:0"]) == ["CPU:3", "CPU:0"]
    with pytest.raises(ConfigError) as raised:
        devices.existing("strategy.devices", ["CPU:0", "GPU:7", "CPU:4"])
    assert raised.value.problems == (
        "strategy.devices (GPU:7, CPU:4) does not exist here; choose among CPU:0, CPU:1, CPU:2, "
        "CPU:3",
    )


def test_split_cpu_fails_once_tensorflow_is_in_use():
    assert devices.split_cpu(3) == [
        "CPU:0",
        "CPU:1",
        "CPU:2",
    ]  # tests/conftest.py has split it into four
    with pytest.raises(ConfigError) as raised:
        devices.split_cpu(5)
    assert raised.value.problems == (
        "strategy.virtual_devices (5) must be set before TensorFlow is used",
    )


@pytest.mark.parametrize(("count", "visible"), [(None, 2), (1, 1), (0, 0)])
def test_limit_gpus_leaves_the_first_gpus_visible(two_gpus, count, visible):
    devices.limit_gpus(count)
    assert two_gpus.visible == two_gpus.physical[:visible]
    assert devices.count_gpus() == visible
    assert devices.default() == ([f"GPU:{index}" for index in range(visible)] or ["CPU:0"])


def test_limit_gpus_refuses_more_than_there_are(one_gpu):
    with pytest.raises(ConfigError) as raised:
        devices.limit_gpus(2)
    assert raised.value.problems == ("devices.gpus (2) must be at most the number of GPUs (1)",)


def test_limit_gpus_fails_once_tensorflow_is_in_use(one_gpu, monkeypatch):
    def set_visible_devices(gpus, kind):
        raise RuntimeError("Visible devices cannot be modified after being initialized")

    monkeypatch.setattr(tf.config, "set_visible_devices", set_visible_devices)
    with pytest.raises(ConfigError) as raised:
        devices.limit_gpus(0)
    assert raised.value.problems == ("devices.gpus (0) must be set before TensorFlow is used",)
