"""Initial weights from a run, one of its checkpoints, or a checkpoint of another program."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.engine.checkpoints.test_checkpointer import flip_a_bit
from trainer.engine.checkpoints.checkpointer import Checkpointer
from trainer.engine.graph.keras3.keras3_model import Keras3Model
from trainer.engine.initial_weights.initial_weights import restore_weights
from trainer.errors import CheckpointError


def model(units=2, layers=1):
    inputs = tf.keras.Input((3,))
    outputs = inputs
    for number in range(layers):
        outputs = tf.keras.layers.Dense(units, name=f"dense_{number}")(outputs)
    return tf.keras.Model(inputs, outputs)


def save_model(directory, step, *, averages=None):
    saved = model()
    tracked = {
        "models": {"model": saved},
        "step": tf.Variable(step),
        "averages": {} if averages is None else {"model": averages},
    }
    Checkpointer(directory, tracked).save(step, None)
    return [weight.copy() for weight in saved.get_weights()]


def assert_weights(model, expected):
    for weight, value in zip(model.get_weights(), expected, strict=True):
        np.testing.assert_array_equal(weight, value)


def test_weights_come_from_run_or_from_one_checkpoint(tmp_path):
    first = save_model(tmp_path / "checkpoints", 1)
    second = save_model(tmp_path / "checkpoints", 2)
    fresh = model()
    assert restore_weights(tmp_path, {"model": fresh}) == (f"step 2 of {tmp_path}", [])
    assert_weights(fresh, second)
    prefix = tmp_path / "checkpoints" / "ckpt-1"
    assert restore_weights(prefix, {"model": fresh}) == (f"step 1 of {prefix}", [])
    assert_weights(fresh, first)


def test_damaged_checkpoint_is_skipped(tmp_path):
    first = save_model(tmp_path / "checkpoints", 1)
    save_model(tmp_path / "checkpoints", 2)
    flip_a_bit(tmp_path / "checkpoints", 2)
    fresh = model()
    reason = (
        "skipped the checkpoint of step 2: the content of ckpt-2.data-00000-of-00001 has changed"
    )
    assert restore_weights(tmp_path, {"model": fresh}) == (f"step 1 of {tmp_path}", [reason])
    assert_weights(fresh, first)
    prefix = tmp_path / "checkpoints" / "ckpt-2"
    with pytest.raises(CheckpointError) as caught:
        restore_weights(prefix, {"model": fresh})
    assert str(caught.value) == f"init_from ({prefix}): there is no checkpoint that verifies"


def test_averaged_weights_are_preferred(tmp_path):
    averages = [tf.Variable(tf.fill((3, 2), 7.0)), tf.Variable(tf.fill((2,), 8.0))]
    save_model(tmp_path / "checkpoints", 1, averages=averages)
    fresh = model()
    restore_weights(tmp_path, {"model": fresh})
    assert_weights(fresh, [variable.numpy() for variable in averages])


@pytest.mark.parametrize(
    ("other", "named"),
    [
        ({"layers": 2}, "it lacks dense_1/bias, dense_1/kernel"),
        (
            {"units": 4},
            "shape (2,) when attempting to restore variable with shape (4,) "
            "and name dense_0/bias:0.",
        ),
    ],
)
def test_variables_of_another_model_are_named(tmp_path, other, named):
    save_model(tmp_path / "checkpoints", 1)
    with pytest.raises(CheckpointError) as caught:
        restore_weights(tmp_path, {"model": model(**other)})
    assert str(caught.value).startswith(
        f"init_from ({tmp_path}): the checkpoint of step 1 does not fit this model: "
    )
    assert named in str(caught.value)


def test_checkpoint_in_a_folder_below_is_named(tmp_path):
    (tmp_path / "runs" / "one").mkdir(parents=True)
    save_model(tmp_path / "runs" / "one" / "checkpoints", 1)
    hint = r"did you mean init_from=.*/one/checkpoints/ckpt-1$"
    for source in (tmp_path / "runs", tmp_path / "runs" / "one" / "checkpoints"):
        with pytest.raises(CheckpointError, match=hint):
            restore_weights(source, {"model": model()})


def test_names_that_patterns_match_are_told(tmp_path):
    save_model(tmp_path / "checkpoints", 1)
    models = {"model": model(), "teacher": model(4)}
    with pytest.raises(CheckpointError) as caught:
        restore_weights(tmp_path, models)
    text = str(caught.value)
    assert "called model/dense_0/kernel, model/dense_0/bias and 2 more here" in text
    assert "init_rename gives these names to the saved ones, model/dense_0/" in text
    rename = {"^model/": "teacher/"}
    with pytest.raises(CheckpointError, match="teacher/dense_0/kernel as"):
        restore_weights(tmp_path, models, ["^model/"], rename)


def convolutional(units=5, library=tf.keras):
    layers = library.layers
    return library.Sequential(
        [
            library.Input((4, 4)),
            layers.Reshape((4, 4, 1)),
            layers.Conv2D(3, 2, activation="relu"),
            layers.BatchNormalization(),
            layers.Flatten(),
            layers.Dense(units),
        ]
    )


def save(folder, **parts):
    manager = tf.train.CheckpointManager(tf.train.Checkpoint(**parts), str(folder), max_to_keep=1)
    return manager.save()


def warning(prefix):
    return [f"{prefix} has no marker of a run, so its content could not be verified"]


def test_tutorials_checkpoint_is_read_with_a_warning(tmp_path):
    saved, fresh = convolutional(), convolutional()
    prefix = save(tmp_path, model=saved, epoch=tf.Variable(2, dtype=tf.int64))
    assert restore_weights(tmp_path, {"model": fresh}) == (prefix, warning(prefix))
    assert_weights(fresh, saved.get_weights())
    saved.save_weights(str(tmp_path / "weights"))
    other = convolutional()
    restore_weights(tmp_path / "weights", {"model": other})
    assert_weights(other, saved.get_weights())


@pytest.mark.parametrize("make", [convolutional, lambda: Keras3Model(convolutional(library=keras))])
def test_checkpoint_of_keras_3_is_matched_by_order_and_name(tmp_path, make):
    saved = convolutional(library=keras)
    random = np.random.default_rng(0)
    saved.set_weights([random.normal(size=w.shape) for w in saved.get_weights()])
    prefix = save(tmp_path, model=saved)
    fresh = make()
    assert restore_weights(tmp_path, {"model": fresh}) == (prefix, warning(prefix))
    assert_weights(fresh, saved.get_weights())


def test_model_of_keras_3_names_what_does_not_fit(tmp_path):
    prefix = save(tmp_path, model=convolutional(library=keras))
    other = Keras3Model(convolutional(6, keras))
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
        restore_weights(tmp_path, {"model": convolutional()})
    assert str(caught.value).startswith(
        f"init_from ({prefix}): the checkpoint, which has no marker of a run, does not fit"
    )
