"""Weights from checkpoints of other programs, written as TensorFlow's tutorials do."""

import os
import subprocess
import sys

import keras
import numpy as np
import pytest
import tensorflow as tf

from trainer.engine.graph.keras3.keras3_model import Keras3Model
from trainer.engine.initial_weights.initial_weights import restore_weights
from trainer.errors import CheckpointError

_TUTORIAL = """
import sys, tensorflow as tf
layers = tf.keras.layers
model = tf.keras.Sequential([
    tf.keras.Input((4, 4)), layers.Reshape((4, 4, 1)), layers.Conv2D(3, 2, activation="relu"),
    layers.BatchNormalization(), layers.Flatten(), layers.Dense(5),
])
assert tf.keras.__version__.startswith("3.")
model.layers[2].set_weights([tf.range(3.0) + start for start in (1.0, 2.0, 3.0, 4.0)])
checkpoint = tf.train.Checkpoint(
    model=model, epoch=tf.Variable(0, dtype=tf.int64), step_in_epoch=tf.Variable(0, dtype=tf.int64)
)
print(tf.train.CheckpointManager(checkpoint, directory=sys.argv[1], max_to_keep=1).save())
"""


def model(units=5, bias=True):
    return tf.keras.Sequential(
        [
            tf.keras.Input((4, 4)),
            tf.keras.layers.Reshape((4, 4, 1)),
            tf.keras.layers.Conv2D(3, 2, activation="relu"),
            tf.keras.layers.BatchNormalization(),
            tf.keras.layers.Flatten(),
            tf.keras.layers.Dense(units, use_bias=bias),
        ]
    )


def save(folder, **parts):
    manager = tf.train.CheckpointManager(tf.train.Checkpoint(**parts), str(folder), max_to_keep=1)
    return manager.save()


def warning(prefix):
    return [f"{prefix} has no marker of a run, so its content could not be verified"]


def assert_same(one, other):
    for a, b in zip(one.get_weights(), other.get_weights(), strict=True):
        np.testing.assert_array_equal(a, b)


def test_tutorials_checkpoint_is_read_with_a_warning(tmp_path):
    saved, fresh = model(), model()
    prefix = save(tmp_path, model=saved, epoch=tf.Variable(2, dtype=tf.int64))
    assert restore_weights(tmp_path, {"model": fresh}) == (prefix, warning(prefix))
    assert_same(fresh, saved)


@pytest.mark.slow
def test_checkpoint_of_keras_3_is_matched_by_order_and_name(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", _TUTORIAL, str(tmp_path)],
        env={**os.environ, "TF_USE_LEGACY_KERAS": "0", "TF_CPP_MIN_LOG_LEVEL": "3"},
        capture_output=True,
        text=True,
        timeout=300,
        check=True,
    )
    prefix = done.stdout.split()[-1]
    fresh = model()
    assert restore_weights(tmp_path, {"model": fresh}) == (prefix, warning(prefix))
    for number, name in enumerate(("gamma", "beta", "moving_mean", "moving_variance")):
        np.testing.assert_array_equal(
            getattr(fresh.layers[2], name), np.arange(3.0) + number + 1.0, err_msg=name
        )
    for layer, path in ((1, "2/_kernel"), (4, "5/_kernel")):
        key = f"model/_functional/_operations/{path}/.ATTRIBUTES/VARIABLE_VALUE"
        saved = tf.train.load_variable(prefix, key)
        np.testing.assert_array_equal(fresh.layers[layer].kernel, saved)


def keras_3_model(units=5):
    return keras.Sequential(
        [
            keras.Input((4, 4)),
            keras.layers.Reshape((4, 4, 1)),
            keras.layers.Conv2D(3, 2, activation="relu"),
            keras.layers.BatchNormalization(),
            keras.layers.Flatten(),
            keras.layers.Dense(units),
        ]
    )


def test_model_of_keras_3_reads_weights_that_keras_3_has_saved(tmp_path):
    saved = keras_3_model()
    random = np.random.default_rng(0)
    saved.set_weights([random.normal(size=w.shape) for w in saved.get_weights()])
    prefix = save(tmp_path, model=saved)
    fresh = Keras3Model(keras_3_model())
    assert restore_weights(tmp_path, {"model": fresh}) == (prefix, warning(prefix))
    assert_same(fresh, saved)


def test_model_of_keras_3_names_what_does_not_fit(tmp_path):
    prefix = save(tmp_path, model=keras_3_model())
    other = Keras3Model(keras_3_model(units=6))
    before = other.get_weights()
    with pytest.raises(CheckpointError, match=r"has the shape .*, this one") as caught:
        restore_weights(tmp_path, {"model": other})
    assert prefix in str(caught.value)
    for old, value in zip(before, other.get_weights(), strict=True):
        np.testing.assert_array_equal(old, value)


@pytest.mark.parametrize(
    ("keys", "problem"),
    [
        (["1/_kernel"], "it has 1 layers with weights, this one 3"),
        (["1/_kernel", "2/gamma", "4/_kernel"], "it lacks conv"),
    ],
)
def test_other_layers_of_keras_3_are_named(tmp_path, keys, problem):
    operations = {}
    for key in keys:
        number, name = key.split("/")
        operations[number] = tf.train.Checkpoint(**{name: tf.Variable(tf.zeros([2, 2, 1, 3]))})
    functional = tf.train.Checkpoint(_operations=tf.train.Checkpoint(**operations))
    prefix = save(tmp_path, model=tf.train.Checkpoint(_functional=functional))
    with pytest.raises(CheckpointError, match=problem) as caught:
        restore_weights(tmp_path, {"model": model()})
    assert str(caught.value).startswith(
        f"init_from ({prefix}): the checkpoint, which has no marker of a run, does not fit"
    )
