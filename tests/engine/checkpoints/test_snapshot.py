"""Snapshots: the files of `tf.train.Checkpoint.write`, with the values of one moment."""

import numpy as np
import pytest
import tensorflow as tf

from tests.support.layouts import mirrored
from trainer.engine.checkpoints.snapshot import SnapshotReader
from trainer.errors import CheckpointError


def content(prefix):
    reader = tf.train.load_checkpoint(str(prefix))
    return {name: reader.get_tensor(name) for name in reader.get_variable_to_shape_map()}


def test_files_equal_those_of_tensorflow(tmp_path):
    layers = [tf.keras.layers.Dense(4, input_shape=(3,)), tf.keras.layers.BatchNormalization()]
    model = tf.keras.Sequential(layers)

    def checkpoint_of(step, number):
        step, nested = tf.Variable(step, dtype=tf.int64), {"a": [tf.Variable(number)]}
        return tf.train.Checkpoint(model=model, step=step, nested=nested)

    checkpoint = checkpoint_of(7, 1.5)
    checkpoint.write(str(tmp_path / "theirs"))
    SnapshotReader(checkpoint).capture().write(str(tmp_path / "ours"))
    theirs, ours = content(tmp_path / "theirs"), content(tmp_path / "ours")
    assert theirs.keys() == ours.keys()
    for name, value in theirs.items():
        np.testing.assert_array_equal(value, ours[name], err_msg=name)
    assert sorted(file.name for file in tmp_path.glob("ours*")) == [
        "ours.data-00000-of-00001",
        "ours.index",
    ]
    checkpoint_of(0, 0.0).read(str(tmp_path / "ours")).assert_consumed()


def test_mirrored_variable_is_written_once_and_on_read_variable_as_mean(tmp_path):
    strategy = mirrored(2)
    with strategy.scope():
        on_write = tf.Variable([1.0, 2.0])
        on_read = tf.Variable(
            0.0,
            trainable=False,
            synchronization=tf.VariableSynchronization.ON_READ,
            aggregation=tf.VariableAggregation.MEAN,
        )
    for number, part in enumerate(strategy.experimental_local_results(on_read)):
        part.assign(float(number))
    snapshot = SnapshotReader(tf.train.Checkpoint(mirrored=on_write, on_read=on_read)).capture()
    snapshot.write(str(tmp_path / "x"))
    values = content(tmp_path / "x")
    np.testing.assert_array_equal(values["mirrored/.ATTRIBUTES/VARIABLE_VALUE"], [1.0, 2.0])
    assert values["on_read/.ATTRIBUTES/VARIABLE_VALUE"] == 0.5
    assert snapshot.variables()["mirrored"]["shape"] == [2]


@pytest.mark.parametrize(
    ("names", "problem"),
    [("x", "only the state in memory has y"), ("xyz", "only this experiment has z")],
)
def test_snapshot_of_other_objects_is_refused(names, problem):
    snapshot = SnapshotReader(tf.train.Checkpoint(x=tf.Variable(1.0), y=tf.Variable(2.0))).capture()
    others = {name: tf.Variable(0.0) for name in names}
    with pytest.raises(CheckpointError, match=f"does not fit this experiment: {problem};"):
        SnapshotReader(tf.train.Checkpoint(**others)).restore(snapshot.by_entry())
    assert others["x"].numpy() == 0.0
