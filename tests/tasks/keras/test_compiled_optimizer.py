"""The fused optimizer makes the updates of the one that a model was compiled with."""

from __future__ import annotations

from types import SimpleNamespace

import hydra
import keras
import numpy as np
import pytest
import tensorflow as tf

from trainer.errors import ConfigError
from trainer.tasks.keras import compiled_optimizer

START = np.array([[0.5, -1.0], [2.0, 0.1]], np.float32)
GRADIENTS = [np.array([[0.3, -0.2], [0.05, 1.5]], np.float32) * (1 + i) for i in range(4)]


def fused(optimizer):
    """Return the fused optimizer of a node, with the rate of its schedule."""

    def build(node, *, schedule, updates_per_step):
        options = dict(node.options)
        rate = schedule or options.pop("learning_rate")
        options.pop("learning_rate", None)
        return hydra.utils.instantiate(options, rate)

    parts = SimpleNamespace(has_optimizer=False, optimizer=build)
    return compiled_optimizer.build(parts, optimizer)


def tf_keras_result(optimizer):
    variable = tf.Variable(START)
    for gradient in GRADIENTS:
        optimizer.apply_gradients([(tf.constant(gradient), variable)])
    return variable.numpy()


def keras3_result(optimizer):
    variable = keras.Variable(START)
    for gradient in GRADIENTS:
        optimizer.apply_gradients([(tf.constant(gradient), variable)])
    return np.asarray(variable)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("Adam", {"learning_rate": 0.1, "beta_1": 0.8}),
        ("SGD", {"learning_rate": 0.1}),
        ("SGD", {"learning_rate": 0.1, "momentum": 0.9, "nesterov": True}),
        ("RMSprop", {"learning_rate": 0.01, "rho": 0.8}),
        ("Adagrad", {"learning_rate": 0.1}),
        ("Adadelta", {"learning_rate": 0.5}),
        ("Adamax", {"learning_rate": 0.1}),
        ("Lion", {"learning_rate": 0.01}),
    ],
)
def test_fused_optimizer_makes_the_updates_of_either_keras(name, options):
    for library, result in ((tf.keras, tf_keras_result), (keras, keras3_result)):
        optimizer = getattr(library.optimizers, name)(**options)
        # Another formula of the same update: the square root of a sum, or the sum of square roots.
        np.testing.assert_allclose(
            tf_keras_result(fused(optimizer)), result(optimizer), rtol=2e-3, atol=2e-4
        )


@pytest.mark.parametrize("library", [tf.keras, keras], ids=["tf_keras", "keras"])
def test_schedule_of_a_compiled_optimizer_is_followed(library):
    schedule = library.optimizers.schedules.ExponentialDecay(0.1, decay_steps=1, decay_rate=0.5)
    result = tf_keras_result(fused(library.optimizers.SGD(schedule)))
    expected = START - sum(0.1 * 0.5**i * gradient for i, gradient in enumerate(GRADIENTS))
    np.testing.assert_allclose(result, expected, rtol=1e-5)


@pytest.mark.parametrize(
    ("optimizer", "message"),
    [
        (keras.optimizers.Adam(global_clipnorm=1.0), r"global_clipnorm=1.0.*train.clip_norm=1.0"),
        (tf.keras.optimizers.Adam(use_ema=True), r"use_ema=True.*train.ema_decay"),
        (keras.optimizers.Nadam(), r"Nadam.*add optimizer="),
        (keras.optimizers.Adam(amsgrad=True), r"amsgrad=True, which the fused"),
    ],
)
def test_what_no_fused_optimizer_does_is_refused(optimizer, message):
    with pytest.raises(ConfigError, match=message):
        fused(optimizer)
