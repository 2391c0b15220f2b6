import numpy as np
import pytest
import tensorflow as tf

from tests.training import assert_same_bits, train, weights
from trainer.cluster import Cluster
from trainer.errors import ConfigError
from trainer.strategies.central_storage import CentralStorage

TWENTY_STEPS = ["optimizer=sgd", "optimizer.learning_rate=0.05", "train.steps=20"]
CASES = {
    "plain": [],
    "clipping": ["train.clip_norm=0.05"],
    "accumulation": ["batch.accumulate=2"],
    "batch norm": ["model.batch_norm=true"],
    "augmentation, l2 and averages": ["model.l2=0.01", "dataset.crop=1", "train.ema_decay=0.9"],
}


@pytest.mark.parametrize("case", CASES)
def test_the_weights_are_those_of_one_device(tmp_path, case):
    one = train(tmp_path / "one", *TWENTY_STEPS, *CASES[case])
    other = train(tmp_path / "other", "strategy=central_storage", "strategy.virtual_devices=2", *TWENTY_STEPS, *CASES[case])
    assert np.abs(weights(one) - weights(other)).max() <= (5e-6 if case == "batch norm" else 1e-6)


@pytest.mark.parametrize(
    "optimizer", [pytest.param("rmsprop", marks=pytest.mark.slow), "adam", pytest.param("adamw", marks=pytest.mark.slow)]
)
def test_each_optimizer_agrees_with_mirrored(tmp_path, optimizer):
    options = ["strategy.virtual_devices=2", f"optimizer={optimizer}", "model.dropout=0.3"]
    mirrored = train(tmp_path / "mirrored", "strategy=mirrored", *options)
    assert np.abs(weights(mirrored) - weights(train(tmp_path / "central", "strategy=central_storage", *options))).max() <= 1e-6


@pytest.mark.slow
def test_a_stopped_run_continues_to_the_bit(tmp_path):
    options = ["strategy=central_storage", "strategy.virtual_devices=2", "model.dropout=0.3", "model.batch_norm=true"]
    straight = train(tmp_path / "straight", *options)
    train(tmp_path / "stopped", *options, "train.steps_per_loop=1", stop=lambda made: made.step >= 3)
    assert_same_bits(straight, train(tmp_path / "stopped", *options))


@pytest.mark.parametrize(
    ("options", "replicas", "kept"),
    [
        ({}, 1, "CPU:0"),
        ({"virtual_devices": 3}, 3, "CPU:0"),
        ({"compute_devices": ["CPU:1", "/cpu:2"]}, 2, "CPU:0"),
        ({"compute_devices": ["CPU:1", "CPU:2"], "parameter_device": "cpu:3"}, 2, "CPU:3"),
        ({"compute_devices": ["CPU:2"]}, 1, "CPU:2"),
    ],
)
def test_variables_are_in_one_place(options, replicas, kept):
    how = CentralStorage(**options)
    strategy = how.start(Cluster())
    assert strategy.num_replicas_in_sync == replicas
    assert how.num_replicas() == (replicas if options else None)
    with strategy.scope():
        variable = tf.Variable(1.0)
    assert variable.device.endswith(kept)
    computing = []
    tf.function(lambda: strategy.run(lambda: computing.append((variable + 1.0).device)))()
    wanted = options.get("compute_devices") or [f"CPU:{number}" for number in range(replicas)]
    assert [device.rpartition(":CPU:")[2] for device in computing] == [name.rpartition(":")[2] for name in wanted]


def test_options_that_contradict_one_another_are_one_line():
    CentralStorage(compute_devices=["GPU:0"], parameter_device="CPU:0").check(Cluster())
    for options, problem in (
        (
            {"compute_devices": ["GPU:0", "GPU:1"], "virtual_devices": 2},
            r"^strategy.compute_devices \(GPU:0, GPU:1\) and strategy.virtual_devices \(2\) exclude each other; set one to null$",
        ),
        ({"compute_devices": ["GPU:0", "gpu:0"]}, r"^strategy.compute_devices \(gpu:0\) must name each device once$"),
        ({"parameter_device": "host"}, r"^strategy.parameter_device \(host\) must be a device, such as CPU:0 or GPU:1$"),
    ):
        with pytest.raises(ConfigError, match=problem):
            CentralStorage(**options).check(Cluster())


@pytest.mark.parametrize("key", ["compute_devices", "parameter_device"])
def test_a_device_that_does_not_exist_is_one_line(key):
    with pytest.raises(ConfigError, match=rf"^strategy.{key} \(GPU:7\) does not exist here; choose among CPU:0, "):
        CentralStorage(**{key: ["GPU:7"] if key == "compute_devices" else "GPU:7"}).start(Cluster())
