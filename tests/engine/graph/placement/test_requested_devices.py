"""A layer that is made under a device of its own is refused."""

import pytest
import tensorflow as tf

from tests.support.training import engine, train
from trainer.errors import ConfigError

DIVIDED = [
    "strategy=mirrored", "strategy.virtual_devices=2", "strategy.devices_per_replica=2",
    "strategy.placement={.*:1}",
]  # fmt: skip
MODEL = [
    f"model._target_={__name__}.placed_layer",
    *(f"~model.{key}" for key in ("width", "dropout", "batch_norm", "synchronized", "l2")),
]


def placed_layer(input_shape, num_classes):
    """Build a model with a layer that is made under a device scope."""
    inputs = tf.keras.Input(input_shape)
    x = tf.keras.layers.Flatten()(inputs)
    with tf.device("CPU:2"):
        x = tf.keras.layers.Dense(num_classes)(x)
    return tf.keras.Model(inputs, x)


@pytest.mark.parametrize("strategy", [["strategy=one_device"], DIVIDED])
def test_layer_made_under_a_device_is_refused(tmp_path, strategy):
    with pytest.raises(
        ConfigError,
        match=(
            r"^model: variable kernel requests the device CPU:2, but every replica computes the "
            r"whole model on its own device; remove tf.device from the model, or divide the model "
            r"with strategy.devices_per_replica and logical_device$"
        ),
    ):
        engine(tmp_path, *strategy, *MODEL)


@pytest.mark.slow
def test_variables_kept_on_a_device_without_replica_are_allowed(tmp_path):
    kept = ["strategy=central_storage", "strategy.virtual_devices=2"]
    kept += ["strategy.parameter_device=CPU:3", "train.steps=1", "model.batch_norm=true"]
    assert train(tmp_path, *kept)["/step"] == 1
