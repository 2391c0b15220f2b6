"""Where two checkpoints differ most."""

import numpy as np
import pytest
import tensorflow as tf

from trainer.worker.modes.checkpoint_difference import largest_difference


def save(directory, weight, count):
    module = tf.Module()
    module.weight = tf.Variable(np.float32(weight))
    checkpoint = tf.train.Checkpoint(models=module, count=tf.Variable(np.int64(count)))
    return checkpoint.write(str(directory / "ckpt"))


@pytest.mark.parametrize(
    ("weight", "count", "expected"),
    [
        ([1.0, 2.5], 9, ("models/weight", 0.5)),
        ([1.0, np.nan], 3, ("models/weight", np.inf)),
        ([1.0, 2.0], 9, ("count", 6.0)),
    ],
)
def test_weight_that_differs_most_is_named(tmp_path, weight, count, expected):
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    first = save(tmp_path / "a", [1.0, 2.0], 3)
    assert largest_difference(first, save(tmp_path / "b", weight, count)) == expected
