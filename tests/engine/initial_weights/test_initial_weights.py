"""Initial weights from a run or from one of its checkpoints."""

import numpy as np
import pytest
import tensorflow as tf

from tests.engine.checkpoints.test_checkpointer import flip_a_bit
from trainer.engine.checkpoints.checkpointer import Checkpointer
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


def test_checkpoint_that_was_not_finished_is_not_proposed(tmp_path):
    (tmp_path / "config.yaml").touch()
    save_model(tmp_path / "checkpoints", 1)
    (tmp_path / "checkpoints" / "ckpt-1.json").unlink()
    with pytest.raises(CheckpointError, match=r"there is no checkpoint that verifies$"):
        restore_weights(tmp_path, {"model": model()})


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
