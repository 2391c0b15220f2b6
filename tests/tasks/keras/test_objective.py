"""Objectives of Keras programs: what is reported of which outputs."""

import pytest
import tensorflow as tf

from trainer.tasks.keras.objective import Objective
from trainer.tasks.keras.output_losses import losses_of


@pytest.mark.parametrize(
    ("losses", "names"),
    [(["mse", None], ("loss",)), (["mse", "mae"], ("loss", "a_loss", "b_loss"))],
)
def test_losses_are_reported_by_output_if_there_are_several(losses, names):
    outputs = ["a", "b"]
    own = losses_of("task.loss", losses, None, outputs, tf.keras)
    objective = Objective(outputs, own, [], [], {})
    assert objective.metric_names == names
    batch = {"label": (tf.zeros([2]), tf.zeros([2])) if all(losses) else tf.zeros([2])}
    _, values = objective.per_example(batch, [tf.ones([2, 1])] * 2, training=True)
    assert tuple(values) == names[1:]
