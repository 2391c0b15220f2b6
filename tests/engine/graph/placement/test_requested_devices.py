"""Devices that a model requests for itself are refused, and nothing else is."""

import numpy as np
import pytest
import tensorflow as tf

from tests.support.training import engine, train
from trainer.errors import ConfigError

STRATEGIES = {
    "one_device": ["strategy=one_device"],
    "one_device CPU:1": ["strategy=one_device", "strategy.device=CPU:1"],
    "mirrored": ["strategy=mirrored", "strategy.virtual_devices=2"],
    "central_storage": ["strategy=central_storage", "strategy.virtual_devices=2"],
    "divided": [
        "strategy=mirrored",
        "strategy.virtual_devices=2",
        "strategy.devices_per_replica=2",
        "strategy.placement={.*:1}",
    ],
}


class Placed(tf.keras.layers.Layer):
    """Squares its input on a device, in one of several ways."""

    def __init__(self, device, wrap):
        super().__init__(name="placed")
        self._device, self._wrap = device, wrap

    def call(self, x):
        def square(x):
            with tf.device(self._device):
                return tf.square(x, name="squared")

        return WRAPS[self._wrap](square, x)


WRAPS = {
    "plain": lambda fn, x: fn(x),
    "function": lambda fn, x: tf.function(fn, autograph=False)(x),
    "function in a function": lambda fn, x: tf.function(
        lambda x: tf.function(fn, autograph=False)(x), autograph=False
    )(x),
    "compiled function": lambda fn, x: tf.function(fn, jit_compile=True, autograph=False)(x),
    "cond": lambda fn, x: tf.cond(tf.reduce_sum(x) > 0.0, lambda: fn(x), lambda: x),
    "while_loop": lambda fn, x: tf.while_loop(
        lambda i, _: i < 2, lambda i, x: (i + 1, fn(x)), (tf.constant(0), x)
    )[1],
}


def placed(input_shape, num_classes, *, device="CPU:2", wrap="plain", batch_norm=False):
    """Build a model with an operation on a device."""
    inputs = tf.keras.Input(input_shape)
    x = tf.keras.layers.Flatten()(inputs)
    if batch_norm:
        x = tf.keras.layers.BatchNormalization()(x)
    x = Placed(device, wrap)(x)
    return tf.keras.Model(inputs, tf.keras.layers.Dense(num_classes)(x))


def placed_layer(input_shape, num_classes, *, device="CPU:2"):
    """Build a model with a layer that is made under a device scope."""
    inputs = tf.keras.Input(input_shape)
    x = tf.keras.layers.Flatten()(inputs)
    with tf.device(device):
        x = tf.keras.layers.Dense(num_classes)(x)
    return tf.keras.Model(inputs, x)


def model(function, **options):
    """Return the overrides that select a model of this module."""
    keys = ["model.width", "model.dropout"]
    return [
        f"model._target_={__name__}.{function}",
        *(f"~{key}" for key in [*keys, "model.batch_norm", "model.synchronized", "model.l2"]),
        *(f"+model.{key}={value}" for key, value in options.items()),
        "optimizer=sgd",
        "train.steps=1",
    ]


REFUSAL = (
    r"^model: {} requests the device {}, but every replica computes the whole model on its own "
    r"device; remove tf.device from the model, or divide the model with "
    r"strategy.devices_per_replica and logical_device$"
)


@pytest.mark.parametrize(
    ("strategy", "wrap"),
    [
        *(("mirrored", wrap) for wrap in WRAPS),
        *((strategy, "cond") for strategy in ("one_device", "central_storage", "divided")),
    ],
)
def test_operation_on_another_device_is_refused(tmp_path, strategy, wrap):
    options = model("placed", wrap=f"'{wrap}'")
    with pytest.raises(ConfigError, match=REFUSAL.format(r"operation \S*squared", "CPU:2")):
        train(tmp_path, *STRATEGIES[strategy], *options)


@pytest.mark.parametrize("device", ["CPU:1", "GPU:0", "/job:worker/task:1/device:CPU:1"])
def test_device_of_another_replica_and_missing_device_are_refused(tmp_path, device):
    name = device.rpartition("device:")[2]
    options = model("placed", device=f"'{device}'")
    with pytest.raises(ConfigError, match=REFUSAL.format(r"operation \S*squared", name)):
        train(tmp_path, *STRATEGIES["mirrored"], *options)


@pytest.mark.parametrize("strategy", ["one_device", "divided"])
def test_layer_made_under_a_device_is_refused(tmp_path, strategy):
    with pytest.raises(ConfigError, match=REFUSAL.format(r"variable kernel", "CPU:2")):
        engine(tmp_path, *STRATEGIES[strategy], *model("placed_layer"))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("strategy", "device", "wrap"),
    [
        ("one_device CPU:1", "CPU:1", "plain"),
        ("mirrored", "CPU:0", "cond"),
        ("central_storage", "CPU:0", "function"),
    ],
)
def test_host_and_own_device_are_allowed(tmp_path, strategy, device, wrap):
    options = model("placed", device=device, wrap=wrap, batch_norm="true")
    state = train(tmp_path, *STRATEGIES[strategy], *options)
    assert all(np.isfinite(value).all() for value in state.values())


@pytest.mark.slow
def test_variables_kept_on_a_device_without_replica_are_allowed(tmp_path):
    kept = [*STRATEGIES["central_storage"], "strategy.parameter_device=CPU:3"]
    state = train(tmp_path, *kept, "train.steps=1", "model.batch_norm=true")
    assert state["/step"] == 1


def test_private_name_of_tensorflow_is_where_it_was():
    with tf.Graph().as_default(), tf.device("CPU:0"), tf.device("CPU:1"):
        operation = tf.constant(0.0).op
    scopes = [scope.obj for scope in operation._device_assignments]
    assert scopes == ["CPU:1", "CPU:0"], (
        "trainer.engine.graph.placement.requested_devices relies on this order"
    )
