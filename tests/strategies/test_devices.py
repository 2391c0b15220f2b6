import pytest

from trainer.errors import ConfigError
from trainer.strategies import devices


@pytest.mark.parametrize("written", ["GPU:1", "gpu:1", "/gpu:1", "/device:GPU:1", "/job:localhost/replica:0/task:0/device:GPU:1"])
def test_every_way_of_writing_a_device_is_understood(written):
    assert devices.canonical("strategy.devices", [written]) == ["GPU:1"]


@pytest.mark.parametrize(
    ("names", "problem"),
    [
        ([], "strategy.devices ([]) must name at least one device, such as CPU:0 or GPU:0"),
        (["GPU:0", "GPU"], "strategy.devices (GPU) must be a device, such as CPU:0 or GPU:1"),
        (["1"], "strategy.devices (1) must be a device, such as CPU:0 or GPU:1"),
        (["GPU:0", "/gpu:0"], "strategy.devices (/gpu:0) must name each device once"),
    ],
)
def test_wrong_names_are_one_line(names, problem):
    with pytest.raises(ConfigError) as raised:
        devices.canonical("strategy.devices", names)
    assert raised.value.problems == (problem,)


def test_all_cpus_are_the_default_where_there_is_no_gpu():
    assert devices.present() == devices.default() == ["CPU:0", "CPU:1", "CPU:2", "CPU:3"]
    assert devices.count_gpus() == 0


def test_gpus_come_first(two_gpus):
    assert devices.present() == ["GPU:0", "GPU:1", "CPU:0"]
    assert devices.default() == ["GPU:0", "GPU:1"]


def test_a_device_that_does_not_exist_is_an_error_that_names_those_that_do():
    assert devices.existing("strategy.devices", ["cpu:3", "/CPU:0"]) == ["CPU:3", "CPU:0"]
    with pytest.raises(ConfigError) as raised:
        devices.existing("strategy.devices", ["CPU:0", "GPU:7", "CPU:4"])
    assert raised.value.problems == ("strategy.devices (GPU:7, CPU:4) does not exist here; choose among CPU:0, CPU:1, CPU:2, CPU:3",)


def test_the_cpu_cannot_be_split_once_it_is_in_use():
    assert devices.split_cpu(3) == ["CPU:0", "CPU:1", "CPU:2"]  # tests/conftest.py has split it into four
    with pytest.raises(ConfigError) as raised:
        devices.split_cpu(5)
    assert raised.value.problems == ("strategy.virtual_devices (5) must be set before TensorFlow is used",)
