"""Weights from checkpoints of other programs, written as TensorFlow's tutorials do."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from trainer.engine.graph.keras3.keras3_model import Keras3Model
from trainer.engine.initial_weights.initial_weights import restore_weights
from trainer.errors import CheckpointError


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


@pytest.mark.parametrize("make", [model, lambda: Keras3Model(keras_3_model())])
def test_checkpoint_of_keras_3_is_matched_by_order_and_name(tmp_path, make):
    saved = keras_3_model()
    random = np.random.default_rng(0)
    saved.set_weights([random.normal(size=w.shape) for w in saved.get_weights()])
    prefix = save(tmp_path, model=saved)
    fresh = make()
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
