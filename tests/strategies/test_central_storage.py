import pytest
import tensorflow as tf

from trainer.cluster.spec import Cluster
from trainer.errors import ConfigError
from trainer.strategies.central_storage import CentralStorage


@pytest.mark.parametrize(
    ("options", "replicas", "parameter_device"),
    [
        ({}, 1, "CPU:0"),
        ({"virtual_devices": 3}, 3, "CPU:0"),
        ({"compute_devices": ["CPU:1", "/cpu:2"]}, 2, "CPU:0"),
        ({"compute_devices": ["CPU:1", "CPU:2"], "parameter_device": "cpu:3"}, 2, "CPU:3"),
        ({"compute_devices": ["CPU:2"]}, 1, "CPU:2"),
    ],
)
def test_variables_are_on_one_device(options, replicas, parameter_device):
    central_storage = CentralStorage(**options)
    strategy = central_storage.create(Cluster())
    assert strategy.num_replicas_in_sync == replicas
    assert central_storage.num_replicas() == (replicas if options else None)
    with strategy.scope():
        variable = tf.Variable(1.0)
    assert variable.device.endswith(parameter_device)
    computing = []
    tf.function(lambda: strategy.run(lambda: computing.append((variable + 1.0).device)))()
    expected = options.get("compute_devices") or [f"CPU:{number}" for number in range(replicas)]
    assert [device.rpartition(":CPU:")[2] for device in computing] == [
        name.rpartition(":")[2] for name in expected
    ]


@pytest.mark.parametrize("key", ["compute_devices", "parameter_device"])
def test_create_refuses_a_missing_device_in_one_line(key):
    with pytest.raises(
        ConfigError, match=rf"^strategy.{key} \(GPU:7\) does not exist here; choose among CPU:0, "
    ):
        CentralStorage(**{key: ["GPU:7"] if key == "compute_devices" else "GPU:7"}).create(
            Cluster()
        )
